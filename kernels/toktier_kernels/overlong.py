"""Stretches that the CPU encoded are put among the tokens.

    clear:  token[p] = NONE            for starts[k] <= p < ends[k]
    put:    token[at[t]] = ids[t]

The launcher is given ranges of at most `TILE` bytes (`stretches.tiles`), one program each. Twin:
`toktier_kernels.twins.overlong`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .specs import AheadSpec
from .status import NONE
from .stretches import TILE

BLOCK = 256
WARPS = 4


@triton.jit
def _clear_tiles(token, starts, ends, TILE: tl.constexpr, NONE: tl.constexpr):
    k = tl.program_id(0)
    start = tl.load(starts + k).to(tl.int64)
    end = tl.load(ends + k).to(tl.int64)
    at = start + tl.arange(0, TILE)
    tl.store(token + at, tl.full((TILE,), NONE, tl.uint32), mask=at < end)


@triton.jit
def _put_tokens(token, at, ids, count, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = t < count
    where = tl.load(at + t, mask=inside, other=0).to(tl.int64)
    tl.store(token + where, tl.load(ids + t, mask=inside, other=0), mask=inside)


def place(token: Any, starts: Any, ends: Any, at: Any, ids: Any) -> None:
    """token: u32[n]; starts, ends: i32[T], tiles; at: i32[K], ids: u32[K]; all on one device. Two launches."""
    if len(starts):
        _clear_tiles[(len(starts),)](token, starts, ends, TILE=TILE, NONE=NONE, num_warps=WARPS)
    if len(at):
        _put_tokens[(triton.cdiv(len(at), BLOCK),)](token, at, ids, len(at), BLOCK=BLOCK, num_warps=WARPS)


AHEAD = (
    AheadSpec(
        _clear_tiles,
        {"token": "*u32", "starts": "*i32", "ends": "*i32"},
        {"TILE": TILE, "NONE": NONE},
        num_warps=WARPS,
        hot=False,
    ),
    AheadSpec(
        _put_tokens,
        {"token": "*u32", "at": "*i32", "ids": "*u32", "count": "i32"},
        {"BLOCK": BLOCK},
        num_warps=WARPS,
        hot=False,
    ),
)
