"""Twin of `toktier_kernels.split`: one stage of the split automaton over all segments."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from ..status import APART, CONTINUATION, DEAD, MATCH, PIECE, SPAN, START, STATE
from ..tables import Stage

U8 = npt.NDArray[np.uint8]


class _Overlong(Exception):
    """The walk of a segment took more steps than it may."""


def walk(
    text: U8,
    cls: U8,
    flags: U8,
    segments: npt.NDArray[np.int32],
    stage: Stage,
    piece: U8 | None = None,
    *,
    walk_limit: int,
    walk_budget: int,
) -> tuple[U8, list[int]]:
    """`piece` after this stage, and the indices of segments that became overlong in it, ascending.

    `piece`: as the stage before left it; None for the first stage. A segment of more than `walk_limit` bytes, or that
    takes more than `walk_budget` steps (reads of `step`) a byte, is overlong: `APART` at its start, 0 elsewhere in it.
    """
    first = piece is None
    result = np.zeros(len(text), np.uint8) if piece is None else piece.copy()
    overlong: list[int] = []
    for index, (start, end) in enumerate(zip(segments[:-1].tolist(), segments[1:].tolist(), strict=True)):
        if flags[start] & SPAN:
            result[start] = APART
        elif first or result[start] != APART:
            try:
                if end - start > walk_limit:
                    raise _Overlong
                old = [*(start + np.flatnonzero(result[start:end])).tolist(), end]
                edges = old if not first else [start, end]
                budget = [walk_budget * (end - start)]
                for left, right in itertools.pairwise(edges):
                    for at in _pieces(text if stage.of_bytes else cls, stage, left, right, budget):
                        result[at] = PIECE
            except _Overlong:
                result[start:end] = 0
                result[start] = APART
                overlong.append(index)
    return result, overlong


def _pieces(symbols: U8, stage: Stage, left: int, right: int, budget: list[int]) -> list[int]:
    """Where the pieces of [left, right) start: matches, and the gaps between them."""
    starts: list[int] = []
    in_gap = False
    at = left
    while at < right:
        end = _match(symbols, stage, at, right, budget)
        if end is None:
            if not in_gap:
                starts.append(at)
            in_gap = True
            at = _next(symbols, stage, at, right)
        else:
            starts.append(at)
            in_gap = False
            at = end
    return starts


def _match(symbols: U8, stage: Stage, start: int, right: int, budget: list[int]) -> int | None:
    """Where the match from `start` ends; None without one."""
    state, at, end = START, start, None
    while state != DEAD:
        if budget[0] == 0:
            raise _Overlong
        budget[0] -= 1
        column = stage.columns if at >= right else int(stage.column[symbols[at]])
        step = int(stage.step[state, column])
        if step & MATCH:
            end = at
        if at >= right:
            break
        state = step & STATE
        at = _next(symbols, stage, at, right)
    return end


def _next(symbols: U8, stage: Stage, at: int, right: int) -> int:
    """Where the character (of bytes: the byte) behind the one at `at` starts."""
    at += 1
    while not stage.of_bytes and at < right and symbols[at] == CONTINUATION:
        at += 1
    return at
