"""Step `walk` on the device: one stage of the split automaton, a lane a segment. Twin: `toktier_kernels.twins.split`.

How many segments there are is known on the device only: a fixed number of programs of one warp stride over them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import status as s
from .blocks import anywhere, append
from .specs import AheadSpec
from .tables import END, SYMBOLS

LANES = 32
PROGRAMS = 4096
UNROLL = 4  # steps between two looks at whether the warp has ended

_SPAN = tl.constexpr(s.SPAN)
_PIECE = tl.constexpr(s.PIECE)
_APART = tl.constexpr(s.APART)
_MATCH = tl.constexpr(s.MATCH)
_STATE = tl.constexpr(s.STATE)
_START = tl.constexpr(s.START)
_SEGMENTS = tl.constexpr(s.SEGMENTS)
_OVERLONG = tl.constexpr(s.OVERLONG)
_SYMBOLS = tl.constexpr(SYMBOLS)
_END = tl.constexpr(END)


@triton.jit
def _walk(
    text, cls, segments, flags, piece, dense, overlong, capacity, status, walk_limit, walk_budget,
    FIRST: tl.constexpr, OF_BYTES: tl.constexpr, LANES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """piece[p] = PIECE where a match or a gap starts, walking `dense` over each segment [a, b) of segments.

    A lane's state: `start` of the piece that it looks at, `at` the character to read, `state`, `match` (the last place
    where a match ended; not past `start`: none from there), `behind` (the character behind `start`'s), `in_gap` (the
    character before `start` matched nothing). Unless FIRST, `piece` holds the stage before: a lane reads it past
    `start` only, where this stage hasn't written yet. A gap goes on over an old mark, which stays.
    """
    count = tl.load(status + _SEGMENTS)
    lane = tl.arange(0, LANES)
    for block in range(tl.program_id(0), tl.cdiv(count, LANES), tl.num_programs(0)):
        index = block * LANES + lane
        within = index < count
        left = tl.load(segments + index, mask=within, other=0)
        right = tl.load(segments + index + 1, mask=within, other=0)
        apart = (tl.load(flags + left, mask=within, other=0) & _SPAN) != 0
        if FIRST:
            tl.store(piece + left, tl.full([LANES], _APART, tl.uint8), mask=within & apart)
        else:
            apart = apart | (tl.load(piece + left, mask=within, other=0) == _APART)
        over = within & ~apart & (right - left > walk_limit)
        active = within & ~apart & ~over
        left_steps = (right - left) * walk_budget
        over = over | (active & (left_steps <= 0))
        active = active & (left_steps > 0)
        start = left
        at = left
        match = left
        behind = left
        state = tl.full([LANES], _START, tl.int32)
        in_gap = tl.zeros([LANES], tl.int1)
        while anywhere(active):
            for _ in tl.static_range(UNROLL):
                readable = active & (at < right)
                byte = tl.load(text + at, mask=readable, other=0).to(tl.int32)
                if OF_BYTES:
                    symbol = tl.where(readable, byte, _END)
                    following = at + 1
                else:
                    symbol = tl.load(cls + at, mask=readable, other=_END).to(tl.int32)
                    following = at + 1 + (byte >= 0xC0).to(tl.int32) + (byte >= 0xE0).to(tl.int32)
                    following = following + (byte >= 0xF0).to(tl.int32)
                if not FIRST:
                    old = tl.load(piece + at, mask=readable, other=0) != 0
                    symbol = tl.where(old & (at > start), _END, symbol)
                step = tl.load(dense + (state * _SYMBOLS + symbol), mask=active, other=0).to(tl.int32)
                left_steps = left_steps - 1
                match = tl.where((step & _MATCH) != 0, at, match)
                behind = tl.where(at == start, following, behind)
                state = step & _STATE
                ended = active & ((state == 0) | (symbol == _END))
                found = match > start
                tl.store(piece + start, tl.full([LANES], _PIECE, tl.uint8), mask=ended & (found | ~in_gap))
                in_gap = tl.where(ended, ~found, in_gap)
                start = tl.where(ended, tl.where(found, match, behind), start)
                state = tl.where(ended, _START, state)
                at = tl.where(ended, start, following)
                active = active & (start < right)
                spent = active & (left_steps == 0)
                over = over | spent
                active = active & ~spent
        if anywhere(over):
            append(overlong, capacity, status + _OVERLONG, index, over)
            # The first stage has written before `start` only; the stages before a later one have anywhere.
            written = start if FIRST else right
            for distance in range(1, tl.max(tl.where(over, written - left, 0), axis=0)):
                wipe = over & (left + distance < tl.minimum(written, right))
                tl.store(piece + left + distance, tl.zeros([LANES], tl.uint8), mask=wipe)
            tl.store(piece + left, tl.full([LANES], _APART, tl.uint8), mask=over)


def walk(
    text: torch.Tensor,
    cls: torch.Tensor,
    segments: torch.Tensor,
    flags: torch.Tensor,
    piece: torch.Tensor,
    dense: torch.Tensor,
    overlong: torch.Tensor,
    status: torch.Tensor,
    *,
    first: bool,
    of_bytes: bool,
    walk_limit: int,
    walk_budget: int,
    programs: int = PROGRAMS,
    lanes: int = LANES,
    unroll: int = UNROLL,
) -> None:
    """Step 5, one stage. `dense: u16[states, 256]` is `Stage.dense`; `piece` is 0 everywhere before the `first` stage.

    `overlong: i32[]` receives indices of segments, counted in `status[OVERLONG]`. `walk_limit` × `walk_budget` < 2**31.
    """
    grid = (max(1, min(programs, triton.cdiv(text.numel(), lanes))),)
    _walk[grid](
        text, cls, segments, flags, piece, dense, overlong, overlong.numel(), status, walk_limit, walk_budget,
        FIRST=first, OF_BYTES=of_bytes, LANES=lanes, UNROLL=unroll, num_warps=1,
    )  # fmt: skip


def _specs() -> tuple[AheadSpec, ...]:
    types = {
        "text": "*u8", "cls": "*u8", "segments": "*i32", "flags": "*u8", "piece": "*u8", "dense": "*u16",
        "overlong": "*i32", "capacity": "i32", "status": "*i32", "walk_limit": "i32", "walk_budget": "i32",
    }  # fmt: skip
    result = []
    for of_bytes in (False, True):
        for first in (True, False):
            constants = {"FIRST": first, "OF_BYTES": of_bytes, "LANES": LANES, "UNROLL": UNROLL}
            name = f"_walk_{'bytes' if of_bytes else 'characters'}_{'first' if first else 'later'}"
            result.append(AheadSpec(_walk, types, constants, 1, name=name))
    return tuple(result)


AHEAD: tuple[AheadSpec, ...] = _specs()
