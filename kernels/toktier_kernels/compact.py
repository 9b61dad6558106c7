"""Step `compact` on the device: where something stands, in order, and how often. Twins: `twins.compact`.

Two passes: a count per block; then every block adds up the counts of the blocks before it and writes behind them. A
block's counts are read by all later blocks: for the 2**12 blocks of 16 MB that is less than one pass over the text.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import status as s
from .blocks import get, grid
from .specs import AheadSpec

BLOCK = 4096
COUNTS = 1024  # counts read at a time
WARPS = 8

_NONE = tl.constexpr(s.NONE)
_SIZE_TEXT = tl.constexpr(s.SIZE_TEXT)


@triton.jit
def _count(array, counts, sizes, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """counts[b] = how many of block b's entries count."""
    size = tl.load(sizes + _SIZE_TEXT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    absent = _NONE if TOKENS else 0
    stands = get(array, at, size, (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= size, absent) != absent
    tl.store(counts + tl.program_id(0), tl.sum(stands.to(tl.int32), axis=0))


@triton.jit
def _scatter(
    array, counts, ids, positions, sizes, total, TOKENS: tl.constexpr, BLOCK: tl.constexpr, COUNTS: tl.constexpr
):
    """positions[k] = where the k-th entry that counts stands, positions[total] = n; for tokens, ids[k] = the entry."""
    program = tl.program_id(0)
    size = tl.load(sizes + _SIZE_TEXT)
    absent = _NONE if TOKENS else 0
    last = program == tl.num_programs(0) - 1
    if (program.to(tl.int64) * BLOCK < size) | last:
        before = 0
        for left in range(0, program, COUNTS):
            index = left + tl.arange(0, COUNTS)
            before += tl.sum(tl.load(counts + index, mask=index < program, other=0), axis=0)
        at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        entry = get(array, at, size, (program.to(tl.int64) + 1) * BLOCK <= size, absent)
        stands = entry != absent
        rank = before + tl.cumsum(stands.to(tl.int32), axis=0)
        place = (rank - 1).to(tl.int64)
        tl.store(positions + place, at.to(positions.dtype.element_ty), mask=stands)
        if TOKENS:
            tl.store(ids + place, entry, mask=stands)
        if last:
            count = before + tl.load(counts + program)
            tl.store(total, count)
            tl.store(positions + count.to(tl.int64), size.to(positions.dtype.element_ty))


def counts_needed(capacity: int, block: int = BLOCK) -> int:
    """Entries of the scratch `counts: i32[]` for arrays of `capacity`."""
    return grid(capacity, block)[0]


def compact_mask(
    mask: torch.Tensor,
    counts: torch.Tensor,
    positions: torch.Tensor,
    sizes: torch.Tensor,
    total: torch.Tensor,
    *,
    block: int = BLOCK,
) -> None:
    """`mask: u8[capacity]` → `positions: i32[capacity + 1]` and their number, `total: i32[1]` (a slot of `status`)."""
    programs = grid(mask.numel(), block)
    _count[programs](mask, counts, sizes, TOKENS=False, BLOCK=block, num_warps=WARPS)
    _scatter[programs](
        mask, counts, positions, positions, sizes, total,
        TOKENS=False, BLOCK=block, COUNTS=COUNTS, num_warps=WARPS,
    )  # fmt: skip


def compact_tokens(
    token: torch.Tensor,
    counts: torch.Tensor,
    ids: torch.Tensor,
    starts: torch.Tensor,
    sizes: torch.Tensor,
    total: torch.Tensor,
    *,
    block: int = BLOCK,
) -> None:
    """`token: u32[capacity]` → `ids: u32[capacity]`, `starts: u32[capacity + 1]` and `total: i32[1]`."""
    programs = grid(token.numel(), block)
    _count[programs](token, counts, sizes, TOKENS=True, BLOCK=block, num_warps=WARPS)
    _scatter[programs](
        token, counts, ids, starts, sizes, total, TOKENS=True, BLOCK=block, COUNTS=COUNTS, num_warps=WARPS
    )


def _specs() -> tuple[AheadSpec, ...]:
    result: list[AheadSpec] = []
    for tokens, entry, position in ((False, "*u8", "*i32"), (True, "*u32", "*u32")):
        name = "tokens" if tokens else "mask"
        types = {"array": entry, "counts": "*i32", "sizes": "*i32"}
        constants = {"TOKENS": tokens, "BLOCK": BLOCK}
        result.append(AheadSpec(_count, types, constants, WARPS, name=f"_count_{name}"))
        types = {**types, "ids": "*u32" if tokens else "*i32", "positions": position, "total": "*i32"}
        result.append(AheadSpec(_scatter, types, {**constants, "COUNTS": COUNTS}, WARPS, name=f"_scatter_{name}"))
    return tuple(result)


AHEAD: tuple[AheadSpec, ...] = _specs()
