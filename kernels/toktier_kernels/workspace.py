"""The arrays that an engine works in: one arena on the device, one page-locked mirror of what is sent.

Guarantees: an arena is allocated once and serves every bucket that fits into it, each as views at fixed addresses, so
that a captured graph stays right for as long as its arena lives. Growing drops the old arena first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from .batch import Batch, Bytes
from .buckets import Bucket, Kind, arena_bytes, offsets, report_layout, upload_layout, work_layout
from .status import SIZE_DOCUMENTS, SIZE_SLOTS, SIZE_SPANS, SIZE_TEXT

DTYPES: Mapping[Kind, torch.dtype] = {"u8": torch.uint8, "i32": torch.int32, "u32": torch.uint32}


@dataclass(frozen=True, slots=True)
class Workspace:
    """The arrays of one bucket as views of an arena, by the names of `buckets`; what is copied at once as bytes too.

    upload_at              byte positions within `upload`, by name
    bounds_at, firsts_at   byte positions within `report`
    """

    bucket: Bucket
    upload: torch.Tensor
    upload_at: Mapping[str, int]
    report: torch.Tensor
    bounds_at: int
    firsts_at: int
    arrays: Mapping[str, torch.Tensor]

    def of(self, size: int, documents: int, spans: int) -> dict[str, torch.Tensor]:
        """The arrays cut to a text of `size` bytes, at the same addresses."""
        found = dict(self.arrays)
        for name in ("text", "flags", "cls", "cut", "piece", "unsettled", "token", "ids"):
            found[name] = found[name][:size]
        for name in ("segments", "pieces", "unsettled_at", "starts"):
            found[name] = found[name][: size + 1]
        for name in ("documents", "firsts"):
            found[name] = found[name][:documents]
        for name in ("spans", "span_ends", "span_ids"):
            found[name] = found[name][:spans]
        return found


def make_workspace(arena: torch.Tensor, bucket: Bucket) -> Workspace:
    layout = upload_layout(bucket)
    upload_at, end = offsets(layout)
    upload = arena[:end]
    arrays = _views(arena, layout, upload_at)
    layout = report_layout(bucket)
    places, stop = offsets(layout, end)
    first = places["status"]
    report, bounds_at, firsts_at = arena[first:stop], places["bounds"] - first, places["firsts"] - first
    arrays |= _views(arena, layout, places)
    layout = work_layout(bucket)
    places, used = offsets(layout, stop)
    if used > arena.numel():
        raise ValueError(f"a bucket of {used} bytes in an arena of {arena.numel()}")
    arrays |= _views(arena, layout, places)
    return Workspace(bucket, upload, upload_at, report, bounds_at, firsts_at, arrays)


def _views(
    arena: torch.Tensor, layout: Mapping[str, tuple[Kind, int]], places: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    found = {}
    for name, (kind, entries) in layout.items():
        dtype = DTYPES[kind]
        found[name] = arena[places[name] : places[name] + entries * dtype.itemsize].view(dtype)
    return found


class Memory:
    """The arena and the mirror of one engine. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arena: torch.Tensor | None = None
        self._mirror: torch.Tensor | None = None
        self._workspaces: dict[Bucket, Workspace] = {}

    @property
    def arena_bytes(self) -> int:
        return 0 if self._arena is None else self._arena.numel()

    def workspace(self, bucket: Bucket) -> tuple[Workspace, bool]:
        """The bucket's arrays, and whether every earlier workspace has become invalid. Raises what torch does."""
        known = self._workspaces.get(bucket)
        if known is not None:
            return known, False
        needed = arena_bytes(bucket)
        grows = self.arena_bytes < needed
        if grows:
            self.drop()
            self._arena = torch.empty(needed, dtype=torch.uint8, device=self._device)
        assert self._arena is not None
        made = self._workspaces[bucket] = make_workspace(self._arena, bucket)
        return made, grows

    def mirror(self, size: int) -> torch.Tensor:
        """Host memory of `size` bytes, page-locked for a GPU; what it held is lost."""
        if self._mirror is None or self._mirror.numel() < size:
            self._mirror = None
            self._mirror = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._mirror[:size]

    def drop(self) -> None:
        """Gives everything back."""
        self._workspaces.clear()
        held = self._arena is not None
        self._arena = self._mirror = None
        if held and self._device.type == "cuda":
            torch.cuda.empty_cache()


def fill(mirror: Bytes, batch: Batch, workspace: Workspace) -> int:
    """Writes what is sent for `batch` into `mirror`; how many bytes of it count."""
    sizes = np.zeros(SIZE_SLOTS, dtype=np.int32)
    sizes[SIZE_TEXT], sizes[SIZE_DOCUMENTS], sizes[SIZE_SPANS] = batch.size, len(batch.documents), len(batch.spans)
    for name, values in (
        ("sizes", sizes),
        ("documents", batch.documents),
        ("spans", batch.spans),
        ("span_ends", batch.span_ends),
        ("span_ids", batch.span_ids),
        ("text", batch.text),
    ):
        at = workspace.upload_at[name]
        mirror[at : at + values.nbytes].view(values.dtype)[:] = values
    return workspace.upload_at["text"] + batch.size
