"""A text that ought to show why a step doesn't separate two characters, constructed from its automaton.

It is a witness for that one step: earlier ones may cut its context, so the caller asks the reference.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..automaton import DEAD, MATCH, START, Automaton
from .stages import Stage, reached_by


def context_of(stage: Stage, a: str, b: str, image: str, condition: str) -> tuple[str, int]:
    """(text, position of b in it); ("", 0) for steps that read bytes. `image` is what b shows in the text."""
    if stage.of_bytes or image != b:
        return "", 0
    found = columns_around(stage.automaton, int(stage.left[ord(a)]), int(stage.right[ord(b)]), condition)
    before, after = ("".join(_character(stage, column) for column in columns) for columns in found)
    return before + a + b + after, len(before) + 1


def columns_around(automaton: Automaton, left: int, right: int, condition: str) -> tuple[list[int], list[int]]:
    """Columns before and after a pair of columns for which the condition holds, such that it shows on that text."""
    after: list[int] | None = []
    if condition == "joins":
        alone = int(automaton.step[START, right]) & (MATCH - 1)
        before, after = [], _columns(automaton, alone, "failed")
    else:
        state = _bad_state(automaton, left, right, condition)
        row = automaton.step[:, left] & (MATCH - 1)
        origins = [q for q in range(START, automaton.states) if int(row[q]) == state]
        walks = [walk for walk in (_columns(automaton, START, q) for q in origins) if walk is not None]
        before = min(walks, key=len)
        if condition == "straddles":
            after = _columns(automaton, int(automaton.step[state, right]) & (MATCH - 1), "matched")
    assert after is not None  # the condition holds, so there is such a walk
    return before, after


def _bad_state(automaton: Automaton, left: int, right: int, condition: str) -> int:
    """A state right after the left character from which the condition shows at the right one."""
    for state in np.flatnonzero(reached_by((automaton.step & (MATCH - 1)).astype(np.intp)[:, :-1])[left]).tolist():
        entry, at_end = int(automaton.step[state, right]), int(automaton.step[state, -1])
        if condition == "sees" and (entry >= MATCH) != (at_end >= MATCH):
            return int(state)
        if condition == "straddles" and _columns(automaton, entry & (MATCH - 1), "matched") is not None:
            return int(state)
    raise AssertionError(f"no state shows {condition}")


def _columns(automaton: Automaton, start: int, goal: int | str) -> list[int] | None:
    """Columns of a shortest walk from `start` to a state, to a match, or to a place where no match can come any more.

    Such a walk records no match if it is to fail.
    """
    waiting: deque[tuple[int, list[int]]] = deque([(start, [])])
    met = {start}
    while waiting:
        state, walked = waiting.popleft()
        row = [int(entry) for entry in automaton.step[state]]
        if goal == state or (goal == "failed" and (state == DEAD or row[-1] < MATCH)):
            return walked
        if goal == "matched" and state != DEAD and row[-1] >= MATCH:
            return walked
        for column, entry in enumerate(row[:-1]):
            if goal == "matched" and entry >= MATCH:
                return [*walked, column]
            following = entry & (MATCH - 1)
            if following not in met and not (goal == "failed" and entry >= MATCH):
                met.add(following)
                waiting.append((following, [*walked, column]))
    return None


def _character(stage: Stage, column: int) -> str:
    """The lowest visible character of a column, or the lowest of all."""
    points = np.flatnonzero(stage.right == column)
    points = points[(points < 0xD800) | (points > 0xDFFF)]
    return chr(int(next((point for point in points.tolist() if point >= 0x20), points[0])))
