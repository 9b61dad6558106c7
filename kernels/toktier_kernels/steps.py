"""The steps of 0009 in order, on one stream: what an engine launches, and what a CUDA graph captures.

Guarantee: nothing here allocates, waits or looks at a value on the device. All arrays are a workspace's, so that a
second run at the same addresses does the same for whatever text stands there then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import compact, decode, lookup, merge, report, split
from .status import PIECES, SEGMENTS, TOKENS, UNSETTLED
from .tables import Tables

Arrays = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane or a program takes on; the CPU encodes the rest.

    walk_limit   bytes of a segment
    walk_budget  steps of a walk per byte of its segment
    merge_limit  bytes of a piece that is merged
    """

    walk_limit: int
    walk_budget: int
    merge_limit: int


class DeviceTables:
    """`Tables` on a device."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        def there(array: Any) -> torch.Tensor:
            return torch.from_numpy(np.array(array)).to(device)

        self.page_of, self.class_of = there(tables.page_of), there(tables.class_of.reshape(-1))
        self.cuts, self.settled = there(tables.cuts.reshape(-1)), there(tables.settled)
        self.stages = tuple((stage.of_bytes, there(stage.dense.reshape(-1))) for stage in tables.stages)
        self.normalizes = tables.normalizes
        words = tables.vocabulary
        self.whole = {name: there(getattr(words, name)) for name in WHOLE_ARRAYS}
        self.whole_numbers = {name: int(getattr(words, name)) for name in WHOLE_NUMBERS}
        self.merges = {name: there(getattr(words, name)) for name in MERGE_ARRAYS}
        self.merge_numbers = {name: int(getattr(words, name)) for name in MERGE_NUMBERS}


WHOLE_ARRAYS = ("blob", "whole_hash", "whole_at", "whole_length", "whole_id")
WHOLE_NUMBERS = ("whole_size", "whole_probes", "whole_longest")
MERGE_ARRAYS = ("byte_id", "merge_key", "merge_value")
MERGE_NUMBERS = ("merge_size", "merge_probes")


def launch(a: Arrays, tables: DeviceTables, limits: Limits) -> None:
    """Everything from the text to the report."""
    status, sizes = a["status"], a["sizes"]
    decode.clear(a["flags"], a["piece"], a["token"], sizes, status)
    decode.mark(
        a["text"], a["documents"], a["spans"], a["span_ends"], a["span_ids"], a["flags"], a["token"], sizes, status
    )
    decode.decode(
        a["text"], a["flags"], tables.page_of, tables.class_of, tables.cuts, a["cls"], a["cut"], sizes, status
    )
    if tables.normalizes:
        decode.unsettle(a["cls"], a["flags"], tables.settled, a["unsettled"], sizes, status)
        compact.compact_mask(a["unsettled"], a["counts"], a["unsettled_at"], sizes, _slot(status, UNSETTLED))
    compact.compact_mask(a["cut"], a["counts"], a["segments"], sizes, _slot(status, SEGMENTS))
    for index, (of_bytes, dense) in enumerate(tables.stages):
        split.walk(
            a["text"],
            a["cls"],
            a["segments"],
            a["flags"],
            a["piece"],
            dense,
            a["overlong"],
            status,
            first=index == 0,
            of_bytes=of_bytes,
            walk_limit=limits.walk_limit,
            walk_budget=limits.walk_budget,
        )
    compact.compact_mask(a["piece"], a["counts"], a["pieces"], sizes, _slot(status, PIECES))
    lookup.lookup(
        a["text"],
        a["pieces"],
        a["piece"],
        a["segments"],
        a["token"],
        a["short"],
        a["long"],
        a["overlong"],
        **tables.whole,
        **tables.whole_numbers,
        merge_limit=limits.merge_limit,
        status=status,
    )
    merge.merge(
        a["text"],
        a["pieces"],
        a["short"],
        a["long"],
        a["token"],
        **tables.merges,
        **tables.merge_numbers,
        status=status,
    )
    report.bounds(a["segments"], a["overlong"], a["bounds"], status)
    finish(a)


def finish(a: Arrays) -> None:
    """The tokens in order, their number, and each document's first one."""
    status, sizes = a["status"], a["sizes"]
    compact.compact_tokens(a["token"], a["counts"], a["ids"], a["starts"], sizes, _slot(status, TOKENS))
    report.first_tokens(a["starts"], a["documents"], a["firsts"], sizes, status)


def _slot(status: torch.Tensor, index: int) -> torch.Tensor:
    return status[index : index + 1]
