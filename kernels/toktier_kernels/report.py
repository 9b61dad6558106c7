"""What the device tells the host besides counts: where overlong segments stand, and each document's first token.

    bounds:        report[k], report[most + k] = segments[overlong[k]], segments[overlong[k] + 1]   for k < count
    first_tokens:  firsts[d] = how many tokens start before documents[d]

Twins: `toktier_kernels.twins.report`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from . import status as s
from .specs import AheadSpec

BLOCK = 256
WARPS = 4
HALVINGS = 32  # of up to 2**31 tokens

_SEGMENTS = tl.constexpr(s.SEGMENTS)
_OVERLONG = tl.constexpr(s.OVERLONG)
_TOKENS = tl.constexpr(s.TOKENS)
_SIZE_DOCUMENTS = tl.constexpr(s.SIZE_DOCUMENTS)


@triton.jit
def _bounds(segments, overlong, report, most, status, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (k < tl.load(status + _OVERLONG)) & (k < most)
    index = tl.load(overlong + k, mask=inside, other=0)
    inside = inside & (index >= 0) & (index < tl.load(status + _SEGMENTS))
    tl.store(report + k, tl.load(segments + index, mask=inside, other=0), mask=inside)
    tl.store(report + most + k, tl.load(segments + index + 1, mask=inside, other=0), mask=inside)


@triton.jit
def _first_tokens(starts, documents, firsts, sizes, status, BLOCK: tl.constexpr, HALVINGS: tl.constexpr):
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = d < tl.load(sizes + _SIZE_DOCUMENTS)
    wanted = tl.load(documents + d, mask=inside, other=0).to(tl.uint32)
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + tl.load(status + _TOKENS)
    for _ in range(HALVINGS):
        middle = low + (high - low) // 2
        searching = inside & (low < high)
        before = searching & (tl.load(starts + middle, mask=searching, other=0) < wanted)
        low = tl.where(before, middle + 1, low)
        high = tl.where(searching & ~before, middle, high)
    tl.store(firsts + d, low, mask=inside)


def bounds(segments: Any, overlong: Any, report: Any, status: Any) -> None:
    """segments: i32[capacity + 1]; overlong: i32[], at least half as long as report: i32[2 * most]; status: i32[8]."""
    most = report.numel() // 2
    _bounds[(triton.cdiv(most, BLOCK),)](segments, overlong, report, most, status, BLOCK=BLOCK, num_warps=WARPS)


def first_tokens(starts: Any, documents: Any, firsts: Any, sizes: Any, status: Any) -> None:
    """starts: u32[capacity + 1]; documents, firsts: i32[], of one length; sizes: i32[3]; status: i32[8]."""
    grid = (triton.cdiv(documents.numel(), BLOCK),)
    _first_tokens[grid](starts, documents, firsts, sizes, status, BLOCK=BLOCK, HALVINGS=HALVINGS, num_warps=WARPS)


AHEAD: tuple[AheadSpec, ...] = (
    AheadSpec(
        _bounds,
        {"segments": "*i32", "overlong": "*i32", "report": "*i32", "most": "i32", "status": "*i32"},
        {"BLOCK": BLOCK},
        WARPS,
        hot=False,
    ),
    AheadSpec(
        _first_tokens,
        {"starts": "*u32", "documents": "*i32", "firsts": "*i32", "sizes": "*i32", "status": "*i32"},
        {"BLOCK": BLOCK, "HALVINGS": HALVINGS},
        WARPS,
        hot=False,
    ),
)
