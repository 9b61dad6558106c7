"""The documents of one call as one text, with the positions that cut it. NumPy only.

Guarantee: a `Batch` made by `gather` is what the kernels may be given: positions in order, inside the text, no span
across a document's edge, sizes that 31 bits hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidArgument, TextTooLarge

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int32]
Ids = NDArray[np.uint32]
Spans = tuple[ArrayLike, ArrayLike, ArrayLike]
"""(starts, ends, ids) of added tokens: byte positions in the concatenated documents, in order, apart."""

LIMIT_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """text: u8[n]; documents: i32[D], their starts; spans, span_ends: i32[S]; span_ids: u32[S]."""

    text: Bytes
    documents: Positions
    spans: Positions
    span_ends: Positions
    span_ids: Ids

    @property
    def size(self) -> int:
        return len(self.text)

    def hard(self) -> Positions:
        """Where a document, a span or the text behind a span starts; in order, each once."""
        return np.unique(np.concatenate([self.documents, self.spans, self.span_ends]))


def gather(documents: Sequence[bytes], spans: Spans | None = None) -> Batch:
    """Copies nothing of a single document. Raises `InvalidArgument` (`kernels.invalid_spans`) and `TextTooLarge`."""
    lengths = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    ends = np.cumsum(lengths)
    size = int(ends[-1]) if len(ends) else 0
    if size > LIMIT_BYTES:
        raise TextTooLarge("kernels.too_large", f"{size} bytes of text", bytes=size, limit_bytes=LIMIT_BYTES)
    text = np.frombuffer(documents[0] if len(documents) == 1 else b"".join(documents), dtype=np.uint8)
    starts, stops, ids = _checked(spans, ends, size)
    return Batch(text, (ends - lengths).astype(np.int32), starts, stops, ids)


def _checked(spans: Spans | None, ends: NDArray[np.int64], size: int) -> tuple[Positions, Positions, Ids]:
    if spans is None:
        return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint32)
    starts, stops, ids = (np.asarray(part).astype(np.int64, copy=False).reshape(-1) for part in spans)
    if not len(starts) == len(stops) == len(ids):
        raise InvalidArgument("kernels.invalid_spans", "starts, ends and ids of the spans differ in number")
    if not len(starts):
        return starts.astype(np.int32), stops.astype(np.int32), ids.astype(np.uint32)
    if (starts >= stops).any() or starts[0] < 0 or stops[-1] > size or (stops[:-1] > starts[1:]).any():
        raise InvalidArgument("kernels.invalid_spans", "the spans overlap, are empty, or leave the text")
    if (np.searchsorted(ends, starts, "right") != np.searchsorted(ends, stops, "left")).any():
        raise InvalidArgument("kernels.invalid_spans", "a span crosses the edge of a document")
    if ids.min() < 0 or ids.max() >= 0xFFFFFFFF:
        raise InvalidArgument("kernels.invalid_spans", "the ID of a span isn't one of 32 bits")
    return starts.astype(np.int32), stops.astype(np.int32), ids.astype(np.uint32)
