"""What kernels over blocks of an array share: whole blocks move in vectors, which a mask of single entries forbids."""

# Kernels are typed by Triton when they are compiled.

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
