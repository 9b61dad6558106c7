"""A split pattern as instructions for threads that walk a text character by character.

Guarantees: following the instructions in order of priority finds what a leftmost-first backtracking engine (Oniguruma)
finds, or the pattern is refused by name (`UnsupportedTokenizer`, codes `automaton.*`). What characters an atom accepts
is given, never decided here.

Sources: Thompson 1968; Pike's `sam`.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from .classes import Bools
from .errors import UnsupportedTokenizer
from .pattern import Alternation, Assertion, Atom, Atomic, Node, Repeat, Sequence

MAX_INSTRUCTIONS = 1_000


class Question(NamedTuple):
    """What is asked of the next character: who says yes, and whether the end of the piece does."""

    members: Bools
    at_end: bool = False


class Match(NamedTuple):
    pass


class Fork(NamedTuple):
    """Try the first one, then the next ones."""

    targets: tuple[int, ...]


class Check(NamedTuple):
    """Go on if the next character passes the test, and past the character if it is `taken`."""

    test: int
    target: int
    taken: bool


Instruction = Match | Fork | Check


class Program:
    """Instructions are written from the end of the pattern to its start: each part knows where to go on."""

    def __init__(self, accepts: Items[Bools], tests: Items[Question]) -> None:
        self.code: list[Instruction] = []
        self.tests = [*(Question(members) for members in accepts), *tests]
        self._atoms = len(accepts)

    def emit(self, instruction: Instruction) -> int:
        if len(self.code) >= MAX_INSTRUCTIONS:
            raise UnsupportedTokenizer("automaton.too_large", f"a pattern of more than {MAX_INSTRUCTIONS} instructions")
        self.code.append(instruction)
        return len(self.code) - 1

    def add(self, node: Node, then: int) -> int:
        """Write `node`, which goes on at `then`; where it starts."""
        if isinstance(node, Atom):
            return self.emit(Check(node.index, then, taken=True))
        if isinstance(node, Assertion):
            return self.emit(Check(self._atoms + node.index, then, taken=False))
        if isinstance(node, Sequence):
            for item in reversed(node.items):
                then = self.add(item, then)
            return then
        if isinstance(node, Alternation):
            return self.emit(Fork(tuple(self.add(item, then) for item in node.items)))
        if isinstance(node, Atomic):
            return self._atomic(node.item, then)
        if node.mode == "possessive":
            return self._atomic(Repeat(node.item, node.least, node.most, "greedy"), then)
        return self._repeat(node, then, then)

    def _atomic(self, node: Node, then: int) -> int:
        """`node` without going back into it: what it matches first is all that it matches.

        A repeat of one character gives nothing back if it only ends where that character doesn't follow.
        """
        if _length(node) is not None:
            return self.add(node, then)  # wherever it goes back to, it ends at the same place
        if isinstance(node, Repeat) and node.mode == "greedy" and (one := self._one_of(node.item)) is not None:
            self.tests.append(Question(~one, at_end=True))
            return self._repeat(node, then, self.emit(Check(len(self.tests) - 1, then, taken=False)))
        raise UnsupportedTokenizer(
            "automaton.atomic", "a possessive repeat or an atomic group of more than one character"
        )

    def _one_of(self, node: Node) -> Bools | None:
        """The characters of a node that always matches one."""
        if isinstance(node, Atom):
            return self.tests[node.index].members
        if isinstance(node, Alternation):
            found = [self._one_of(item) for item in node.items]
            sets = [members for members in found if members is not None]
            if len(sets) == len(found):
                union: Bools = np.logical_or.reduce(sets)
                return union
        return None

    def _repeat(self, node: Repeat, then: int, early: int) -> int:
        """`then` is where to go on after the most repeats, `early` after fewer."""
        if node.most != 1 and nullable(node.item):
            raise UnsupportedTokenizer("automaton.empty_loop", "a repeat of what can match the empty string")
        if node.most is None:
            loop = self.emit(Match())  # a place, filled in below
            entry = body = self.add(node.item, loop)
            self.code[loop] = self._either(body, early, node)
            if node.least == 0:
                return loop
        else:
            entry = then
            for _ in range(node.most - node.least):
                entry = self.emit(self._either(self.add(node.item, entry), early, node))
        for _ in range(node.least - (node.most is None)):
            entry = self.add(node.item, entry)
        return entry

    def _either(self, body: int, leave: int, node: Repeat) -> Fork:
        return Fork((leave, body) if node.mode == "lazy" else (body, leave))


def nullable(node: Node) -> bool:
    """Whether `node` can match the empty string somewhere."""
    if isinstance(node, Atom):
        return False
    if isinstance(node, Assertion):
        return True
    if isinstance(node, Atomic):
        return nullable(node.item)
    if isinstance(node, Repeat):
        return node.least == 0 or nullable(node.item)
    every = all if isinstance(node, Sequence) else any
    return every(nullable(item) for item in node.items)


def _length(node: Node) -> int | None:
    """How many characters `node` matches, if always the same number."""
    if isinstance(node, Atom | Assertion):
        return int(isinstance(node, Atom))
    if isinstance(node, Atomic):
        return _length(node.item)
    if isinstance(node, Repeat):
        one = _length(node.item)
        return one * node.least if one is not None and node.least == node.most else None
    found = [_length(item) for item in node.items]
    known = [length for length in found if length is not None]
    if len(known) < len(found):
        return None
    if isinstance(node, Sequence):
        return sum(known)
    return known[0] if len(set(known)) == 1 else None
