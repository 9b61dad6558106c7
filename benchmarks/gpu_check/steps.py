"""Every step on the device beside its twin: one run of the whole chain, then each array that it left, by `==`.

Guarantee: the arena is filled with a pattern beforehand, so that what a kernel forgot to write shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels_report.exactness import spans_of
from kernels_report.subjects import Sample, Subject
from toktier_kernels import status as s
from toktier_kernels.batch import Batch, gather
from toktier_kernels.buckets import arena_bytes, bucket_of
from toktier_kernels.device import Device
from toktier_kernels.steps import DeviceTables, Limits, launch
from toktier_kernels.tables import Tables
from toktier_kernels.twins import compact, decode, lookup, merge, pipeline
from toktier_kernels.workspace import fill, make_workspace

POISON = 0xA5
LIMITS = Limits(walk_limit=2048, walk_budget=8, merge_limit=512)
Arrays = dict[str, NDArray[Any]]


class Chain:
    """One tokenizer's tables on a device."""

    def __init__(self, subject: Subject, device: str, limits: Limits = LIMITS) -> None:
        self.tables, self.limits = subject.tables, limits
        self._device = Device(device, lambda sticky: None)
        with self._device.work():
            self._there = DeviceTables(subject.tables, self._device.torch)

    def run(self, batch: Batch) -> Arrays:
        """All arrays after the chain; lists sorted, all cut to what the counts say."""
        bucket = bucket_of(batch.size, max(len(batch.documents), len(batch.spans)))
        with self._device.work():
            arena = torch.full((arena_bytes(bucket),), POISON, dtype=torch.uint8, device=self._device.torch)
            workspace = make_workspace(arena, bucket)
            mirror = torch.empty(workspace.upload.numel(), dtype=torch.uint8)
            sent = fill(mirror.numpy(), batch, workspace)
            workspace.upload[:sent].copy_(mirror[:sent])
            arrays = workspace.of(batch.size, len(batch.documents), len(batch.spans))
            launch(arrays, self._there, self.limits)
            self._device.wait()
            found = {name: array.cpu().numpy() for name, array in arrays.items()}
        return _cut(found)

    def differences(self, batch: Batch) -> list[str]:
        """Names of the arrays in which the device and the twins differ."""
        device, twins = self.run(batch), twin_arrays(self.tables, batch, self.limits)
        return [name for name, wanted in twins.items() if device[name].tobytes() != wanted.tobytes()]

    def error(self, data: bytes) -> int:
        """Where the device says that decoding fails; the text's size: nowhere."""
        return int(self.run(gather([data]))["status"][s.ERROR])


def twin_arrays(tables: Tables, batch: Batch, limits: Limits) -> Arrays:
    """What every array holds after the chain, by the twins. The text has to be UTF-8."""
    text = batch.text
    marks, cls, _ = pipeline.decoded(batch, tables)
    flags, token = marks.flags, marks.token
    cut = decode.cuts(cls, flags, tables)
    segments = compact.positions(cut)
    piece, walked = pipeline.walked(text, cls, flags, segments, tables, limits.walk_limit, limits.walk_budget)
    pieces = compact.positions(piece)
    lists = lookup.lookup(text, pieces, piece, segments, token, tables.vocabulary, merge_limit=limits.merge_limit)
    for entries in (lists.short, lists.long):
        merge.merge(text, pieces, entries, token, tables.vocabulary)
    ids, starts = compact.tokens(token)
    arrays: Arrays = {"flags": flags, "cls": cls}
    if tables.normalizes:
        arrays["unsettled"] = decode.unsettled(cls, flags, tables)
    arrays |= {"cut": cut, "segments": segments, "piece": piece, "pieces": pieces, "short": lists.short}
    overlong = np.sort(np.array([*walked, *lists.overlong], dtype=np.int32))
    return arrays | {"long": lists.long, "overlong": overlong, "token": token, "ids": ids, "starts": starts}


def _cut(arrays: Arrays) -> Arrays:
    status = arrays["status"]
    for name, slot, more in (
        ("segments", s.SEGMENTS, 1),
        ("pieces", s.PIECES, 1),
        ("short", s.SHORT, 0),
        ("long", s.LONG, 0),
        ("overlong", s.OVERLONG, 0),
        ("ids", s.TOKENS, 0),
        ("starts", s.TOKENS, 1),
    ):
        arrays[name] = arrays[name][: max(int(status[slot]), 0) + more]
    for name in ("short", "long", "overlong"):
        arrays[name] = np.sort(arrays[name])
    return arrays


def batches(samples: Sequence[Sample], sizes: Sequence[int]) -> Iterator[Batch]:
    """All texts as one batch, then a text of each of the sizes in bytes."""
    yield gather([sample.data for sample in samples], spans_of(samples))
    whole = b"".join(sample.data for sample in samples).decode()
    for size in sizes:
        data = whole.encode()[:size].decode("utf-8", "ignore").encode()
        yield gather([data + b"." * (size - len(data))])
