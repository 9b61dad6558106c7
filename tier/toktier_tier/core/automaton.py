"""The priority automaton of a split pattern: one table that finds what a backtracking engine would match.

Guarantees: `compile_pattern` gives a deterministic automaton whose matches are those of leftmost-first backtracking
(Oniguruma's), look-ahead of one character included, or refuses the pattern by name (`UnsupportedTokenizer`, codes
`automaton.*`). What characters an atom accepts is given, never decided here.

How: the pattern becomes instructions; a thread is a position in them. A state of the automaton is the list of threads
that are alive between two characters, in order of priority, before they are followed through forks and assertions.
That happens only once the next character (or the end of the piece) is known, so an assertion is decided by then. A
thread that reaches the end of the pattern is a match, and those behind it are dropped: backtracking would have tried
them later. Those before it go on, and what they find later wins.

Sources: Thompson 1968 and Pike's `sam` (threads in order of priority); docs/decisions/0009-kernels.md (the tables).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .classes import Bools
from .errors import UnsupportedTokenizer
from .instructions import Fork, Instruction, Match, Program, Question, nullable
from .pattern import Pattern

MATCH = 0x8000
DEAD, START = 0, 1
MAX_STATES = 1_000


@dataclass(frozen=True)
class Automaton:
    """The table of one pattern over an alphabet (all code points, or the 256 bytes).

    column_of  column of each character of the alphabet; characters of one column are alike to the pattern
    columns    their number; column `columns` is the end of the piece
    step       u16[states, columns + 1]: the next state, and bit 15 where a match ends before this character;
               state 0 is dead, 1 is where a walk starts
    """

    column_of: NDArray[np.uint8] | NDArray[np.uint16]
    columns: int
    step: NDArray[np.uint16]

    @property
    def states(self) -> int:
        return len(self.step)

    @cached_property
    def _rows(self) -> list[list[int]]:
        return [[int(entry) for entry in row] for row in self.step]

    def cut(self, columns: Items[int], start: int, stop: int, starts: list[int]) -> None:
        """Append where the pieces of columns[start:stop] start. Neighbours that no match covers are one piece."""
        rows = self._rows
        first, end_column = rows[START], self.columns
        position, in_gap = start, False
        while position < stop:
            row, end = first, -1
            for at in range(position, stop):
                entry = row[columns[at]]
                if entry >= MATCH:
                    end = at
                    entry -= MATCH
                if not entry:
                    break
                row = rows[entry]
            else:
                if row[end_column] >= MATCH:
                    end = stop
            if end >= 0:
                starts.append(position)
                position, in_gap = end, False
            else:
                if not in_gap:
                    starts.append(position)
                position, in_gap = position + 1, True

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there is a text in which some character is covered by no match."""
        reached: set[int] = set()
        waiting = [START]
        while waiting:
            for entry in self._rows[waiting.pop()][:-1]:
                if entry >= MATCH or entry in reached:
                    continue
                if entry == DEAD or self._rows[entry][-1] < MATCH:
                    return True
                reached.add(entry)
                waiting.append(entry)
        return False


def compile_pattern(pattern: Pattern, accepts: Items[Bools], tests: Items[Question]) -> Automaton:
    """The automaton of `pattern`, whose atom i accepts `accepts[i]` and whose assertion i asks `tests[i]`.

    All arrays are over one alphabet. Raises `UnsupportedTokenizer`: `automaton.atomic` (a possessive repeat or atomic
    group of more than one character), `automaton.empty_loop` (a repeat of what may match nothing),
    `automaton.matches_empty`, `automaton.too_large` (instructions) and `automaton.too_many_states`.
    """
    if nullable(pattern.root):
        raise UnsupportedTokenizer("automaton.matches_empty", "the pattern can match the empty string")
    program = Program(accepts, tests)
    entry = program.add(pattern.root, program.emit(Match()))
    stretches, answers = _columns(program.tests)
    return _reduced(_determinize(program.code, entry, answers), stretches)


class _Stretches(NamedTuple):
    """The alphabet as stretches of neighbours of one column."""

    columns: NDArray[np.intp]
    lengths: NDArray[np.intp]


def _columns(tests: Items[Question]) -> tuple[_Stretches, Bools]:
    """Columns of the alphabet, and each test's answers [tests, columns + 1], the end of the piece last.

    Neighbouring code points mostly answer alike, so only the stretches between changes are compared.
    """
    size = len(tests[0].members)
    changes = np.zeros(size, dtype=bool)
    changes[0] = True
    for test in tests:
        changes[1:] |= test.members[1:] != test.members[:-1]
    firsts = np.flatnonzero(changes)
    answers = np.stack([test.members[firsts] for test in tests])
    distinct, column_of = np.unique(answers, axis=1, return_inverse=True)
    at_end = np.array([[test.at_end] for test in tests])
    stretches = _Stretches(column_of.ravel(), np.diff(firsts, append=size))
    return stretches, np.concatenate([distinct, at_end], axis=1)


_Threads = tuple[int, ...]


def _determinize(code: list[Instruction], entry: int, answers: Bools) -> NDArray[np.uint16]:
    """The table of all lists of threads that can be met."""
    numbers: dict[_Threads, int] = {(): DEAD, (entry,): START}
    rows: list[list[int]] = []
    waiting: list[_Threads] = [(), (entry,)]
    asked = answers.T.tolist()
    for threads in waiting:
        row = []
        for passed in asked:
            following, matched = _advance(code, threads, passed)
            number = numbers.setdefault(following, len(numbers))
            if number == len(waiting):
                waiting.append(following)
            row.append(number | MATCH if matched else number)
        rows.append(row)
        if len(waiting) > MAX_STATES:
            raise UnsupportedTokenizer("automaton.too_many_states", f"an automaton of more than {MAX_STATES} states")
    return np.array(rows, dtype=np.uint16)


def _advance(code: list[Instruction], threads: _Threads, passed: list[bool]) -> tuple[_Threads, bool]:
    """The threads past one character that answers the tests with `passed`, and whether a match ends before it."""
    seen: set[int] = set()
    following: dict[int, None] = {}
    waiting = list(reversed(threads))
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue  # a thread of higher priority was here: whatever follows, it does better
        seen.add(at)
        instruction = code[at]
        if isinstance(instruction, Match):
            return tuple(following), True
        if isinstance(instruction, Fork):
            waiting.extend(reversed(instruction.targets))
        elif passed[instruction.test]:
            if instruction.taken:
                following[instruction.target] = None
            else:
                waiting.append(instruction.target)
    return tuple(following), False


def _reduced(step: NDArray[np.uint16], stretches: _Stretches) -> Automaton:
    """The smallest table that does the same (Moore's refinement), and its equal columns joined."""
    matched, next_state = step & MATCH, step & (MATCH - 1)
    group = np.zeros(len(step), dtype=np.intp)
    group[START] = 1  # kept apart: state 1 is where a walk starts, and nothing else may be joined to it
    count = 0
    while count != (count := int(group.max()) + 1):
        keys = np.concatenate([group[:, None], matched, group[next_state]], axis=1)
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        # In order of first occurrence, so that dead and start stay 0 and 1.
        group = np.argsort(np.argsort(first))[group.ravel()]
    firsts = np.unique(group, return_index=True)[1]
    small = group[next_state[firsts]].astype(np.uint16) | matched[firsts]
    columns, kept = np.unique(small[:, :-1], axis=1, return_inverse=True)
    joined, width = kept.ravel()[stretches.columns], columns.shape[1]
    narrow, wide = joined.astype(np.uint8), joined.astype(np.uint16)
    return Automaton(
        np.repeat(narrow, stretches.lengths) if width <= 256 else np.repeat(wide, stretches.lengths),
        width,
        np.concatenate([columns, small[:, -1:]], axis=1),
    )
