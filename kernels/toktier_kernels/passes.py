"""One text through all steps on the device, and what comes back with the counts.

Rules:
1. One upload a run; nothing on the host looks at a value before everything has been launched.
2. One wait brings the counts and, with them, as many IDs as texts commonly have.
3. Arrays are the arena's: what a `Run` holds of the device is good until the next run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from . import overlong
from .batch import Batch, Ids, Positions
from .buckets import LARGEST_TEXT_BYTES, arena_bytes, bucket_of
from .device import Device
from .errors import Overlong, TextTooLarge
from .graphs import Graphs
from .status import OVERLONG, TOKENS
from .steps import Arrays, DeviceTables, Limits, finish, launch
from .stretches import tiles
from .workspace import Memory, Workspace, fill

BYTES_PER_ID = 3
"""A text commonly has at most one ID for so many bytes; real text has one for four or five."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is brought to the host with the counts. `tokens`: how many IDs to expect; None: as texts commonly have."""

    ids: bool = False
    ends: bool = False
    unsettled: bool = False
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """What the CPU encoded of the stretches [starts[k], ends[k]): `ids`, each from `at` on."""

    starts: Positions
    ends: Positions
    at: Positions
    ids: Ids

    @property
    def bytes(self) -> int:
        return int((self.ends - self.starts).sum())


@dataclass(slots=True)
class Run:
    """status: by the slots of `status`; firsts: each document's first token; the rest as far as it was brought.

    bounds     starts, then ends, of overlong segments, `bucket.overlong` of each
    unsettled  positions of unsettled characters, `bucket.unsettled` of them
    """

    batch: Batch
    workspace: Workspace
    arrays: Arrays
    status: list[int]
    bounds: Positions
    firsts: Positions
    unsettled: Positions
    ids: torch.Tensor
    ends: torch.Tensor

    @property
    def total(self) -> int:
        return self.status[TOKENS]

    def overlong_bounds(self) -> tuple[Positions, Positions]:
        """(starts, ends) of the overlong segments, in order, each once. Raises `Overlong` if the list was too short."""
        count, most = self.status[OVERLONG], self.workspace.bucket.overlong
        if count > most:
            raise Overlong("kernels.overlong", f"{count} stretches are too long", stretches=count)
        both = self.bounds.reshape(2, most)[:, :count]
        starts, first = np.unique(both[0], return_index=True)
        return starts, both[1][first]


class Passes:
    """Not thread-safe. `padded`: all grids are sized by the bucket, and on a GPU launched as one CUDA graph."""

    def __init__(
        self, device: Device, tables: DeviceTables, limits: Limits, *, memory_bytes: int, padded: bool
    ) -> None:
        self._device, self._tables, self._limits = device, tables, limits
        self._memory_bytes, self._padded = memory_bytes, padded
        self._memory = Memory(device.torch)
        self._graphs = Graphs() if padded and device.on_gpu else None

    @property
    def arena_bytes(self) -> int:
        return self._memory.arena_bytes

    def drop(self) -> None:
        """Gives the arena and the graphs back; the next run makes new ones."""
        if self._graphs is not None:
            self._graphs.clear()
        self._memory.drop()

    def run(self, batch: Batch, wanted: Wanted, placed: Placed | None = None) -> Run:
        """Of a text of one byte or more; what is `placed` takes the place of what the device made of those stretches.

        Raises `TextTooLarge`, `OutOfMemory`, `DeviceFault`.
        """
        bucket = bucket_of(batch.size, max(len(batch.documents), len(batch.spans)))
        needed = arena_bytes(bucket)
        if needed > self._memory_bytes or bucket.text > LARGEST_TEXT_BYTES:
            raise TextTooLarge(
                "kernels.too_large",
                f"{batch.size} bytes of text need {needed} bytes on the device",
                bytes=batch.size,
                needed_bytes=needed,
            )
        with self._device.work():
            workspace, moved = self._memory.workspace(bucket)
            if moved and self._graphs is not None:
                self._graphs.clear()
            mirror = self._memory.mirror(workspace.upload.numel())
            sent = fill(mirror.numpy(), batch, workspace)
            workspace.upload[:sent].copy_(mirror[:sent], non_blocking=True)
            arrays = self._launch(workspace, batch)
            if placed is not None:
                self._put(arrays, placed)
            return self._read(batch, workspace, arrays, wanted)

    def place(self, run: Run, placed: Placed, wanted: Wanted) -> Run:
        """`run` again, with what is `placed`."""
        with self._device.work():
            self._put(run.arrays, placed)
            return self._read(run.batch, run.workspace, run.arrays, wanted)

    def _put(self, arrays: Arrays, placed: Placed) -> None:
        parts = (*tiles(placed.starts, placed.ends), placed.at, placed.ids)
        overlong.place(arrays["token"], *(self._device.to_device(part) for part in parts))
        finish(arrays)

    def _launch(self, workspace: Workspace, batch: Batch) -> Arrays:
        arrays = workspace.arrays
        if not self._padded:
            arrays = workspace.of(batch.size, len(batch.documents), len(batch.spans))
        launch_all = partial(launch, arrays, self._tables, self._limits)
        if self._graphs is not None:
            self._graphs.run(workspace.bucket, launch_all)
        else:
            launch_all()
        return arrays

    def _read(self, batch: Batch, workspace: Workspace, arrays: Arrays, wanted: Wanted) -> Run:
        device, bucket = self._device, workspace.bucket
        expected = batch.size // BYTES_PER_ID if wanted.tokens is None else wanted.tokens
        guess = min(batch.size, expected + 64)
        report = device.to_host(workspace.report[: workspace.firsts_at + 4 * len(batch.documents)])
        ids = device.to_host(arrays["ids"][: guess if wanted.ids else 0])
        ends = device.to_host(arrays["starts"][1 : guess + 1 if wanted.ends else 1])
        unsettled = device.to_host(arrays["unsettled_at"][: bucket.unsettled if wanted.unsettled else 0])
        device.wait()
        words: NDArray[np.int32] = report.numpy().view(np.int32)
        bounds_at, firsts_at = workspace.bounds_at // 4, workspace.firsts_at // 4
        return Run(
            batch=batch,
            workspace=workspace,
            arrays=arrays,
            status=words[:bounds_at].tolist(),
            bounds=words[bounds_at : bounds_at + 2 * bucket.overlong],
            firsts=words[firsts_at:],
            unsettled=unsettled.numpy(),
            ids=ids,
            ends=ends,
        )
