"""What kernels share: whole blocks of an array move in vectors, which a mask of single entries forbids, and lists are
filled by one addition a block."""

from __future__ import annotations

import triton
import triton.language as tl


def grid(capacity: int, block: int) -> tuple[int]:
    """Programs for an array of that many entries: one at least, as something is to be said of an empty text too."""
    return (max(1, triton.cdiv(capacity, block)),)


@triton.jit
def get(array, at, size, whole, other):
    """array[at], `other` at `size` and after; `whole`: no entry of this block is there."""
    if whole:  # noqa: SIM108  # Triton branches on a scalar in statements only
        value = tl.load(array + at)
    else:
        value = tl.load(array + at, mask=at < size, other=other)
    return value


@triton.jit
def put(array, at, value, size, whole):
    """array[at] = value before `size`; `whole`: all of this block is."""
    if whole:
        tl.store(array + at, value)
    else:
        tl.store(array + at, value, mask=at < size)


@triton.jit
def anywhere(mask):
    return tl.max(mask.to(tl.int32), axis=None) > 0


@triton.jit
def append(items, capacity, counter, item, mask):
    """Counts what `mask` selects and writes it behind what is there, as far as there is room; one addition a block."""
    total = tl.sum(mask.to(tl.int32), axis=0)
    if total > 0:
        place = tl.atomic_add(counter, total, sem="relaxed") + tl.cumsum(mask.to(tl.int32), axis=0) - 1
        tl.store(items + place, item, mask=mask & (place < capacity))
