"""One cutting step of a pre-tokenizer, decided on its automaton: which pairs of characters it separates, and why not.

Guarantees: `decide` answers from the automaton's table alone, over all texts left and right of the pair. For columns a
and b, let w be any text that ends in a character of a, and v any text. Then

* `straddles[a, b]`: some attempt on w b v finds a match that ends behind b's left edge;
* `sees[a, b]`: some attempt on w b v ends a match before b that the attempt on w alone doesn't end there, or the
  other way round;
* `joins[a, b]`: a and b can both stand in a gap (a stretch that no match covers), which is one piece.

A step without any of the three cuts between a and b in every context; without the first two it gives the same pieces
as it gives for the two sides apart, except that the two at the pair may be one (*transparent*). The theorem is
docs/decisions/0010-proof-of-the-rule.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..automaton import DEAD, MATCH, START, Automaton
from ..classes import CODE_POINTS, Bools, Points, Probe, byte_characters
from ..errors import UnsupportedTokenizer
from ..pipeline import Pipeline
from ..splitting import step_automaton

CONDITIONS = ("straddles", "sees", "joins")
Columns = NDArray[np.intp]


@dataclass(frozen=True)
class Decided:
    """The three conditions of one automaton; arrays are [columns, columns], left column first."""

    straddles: Bools
    sees: Bools
    joins: Bools

    @property
    def transparent(self) -> Bools:
        return ~self.straddles & ~self.sees

    @property
    def cuts(self) -> Bools:
        return self.transparent & ~self.joins


@dataclass(frozen=True)
class Stage:
    """One cutting step, and the columns in which it sees each normalized character.

    left, right   column of the last (first) thing that the step reads of a code point: itself, or a byte of it
    counts        whether a cut here separates the sides for all later steps (not so behind a step that prefixes pieces)
    """

    name: str
    source: str
    of_bytes: bool
    counts: bool
    automaton: Automaton
    left: Columns
    right: Columns
    decided: Decided = field(repr=False)


def decide(automaton: Automaton) -> Decided:
    """The conditions for every pair of columns. Time: states × columns², in a few matrix products."""
    columns = automaton.columns
    following = (automaton.step & (MATCH - 1)).astype(np.intp)[:, :columns]
    matched = automaton.step >= MATCH
    at_end = matched[:, columns]
    matched = matched[:, :columns]
    reached = reached_by(following)
    live = _live(following, matched | at_end[:, None])
    straddles = _any(reached, live[following])
    sees = _any(reached, matched != at_end[:, None])
    alone = following[START]
    left_gap = ~matched[alone]
    fails = _fails(following, matched, at_end)[alone]
    return Decided(straddles, sees, left_gap & fails[None, :])


def reached_by(following: Columns) -> Bools:
    """[columns, states]: the states, other than dead, in which an attempt can be right after a character."""
    reached: Bools = np.zeros((following.shape[1], len(following)), dtype=bool)
    for row in following[START:]:
        reached[np.arange(len(row)), row] = True
    reached[:, DEAD] = False
    return reached


def _any(reached: Bools, bad: Bools) -> Bools:
    """[a, b]: whether some state reached by a is bad at b."""
    found: Bools = (reached.astype(np.float32) @ bad.astype(np.float32)) > 0
    return found


def _live(following: Columns, matched: Bools) -> Bools:
    """States from which a match can still be recorded, at this or any later character or at the end."""
    live: Bools = np.logical_or.reduce(matched, axis=1)
    live[DEAD] = False
    while True:
        before = live.copy()
        live |= live[following].any(axis=1)
        if (live == before).all():
            return live


def _fails(following: Columns, matched: Bools, at_end: Bools) -> Bools:
    """States from which an attempt that recorded nothing so far can end without a match."""
    fails: Bools = ~at_end
    fails[DEAD] = True
    while True:
        before = fails.copy()
        fails |= (~matched & fails[following]).any(axis=1)
        if (fails == before).all():
            return fails


# --- the steps of a pre-tokenizer -----------------------------------------------------------------------------------


def build_stages(pipeline: Pipeline, probe: Probe) -> list[Stage]:
    """All cutting steps in order. Raises the coded errors of `splitting.step_automaton`, and `proof.bytes_twice`."""
    stages: list[Stage] = []
    first = last = np.arange(CODE_POINTS, dtype=np.uint32)
    of_bytes, counts = False, True
    for position, step in enumerate(pipeline.pre_tokenizer):
        if step.prefixes and position > 0:
            counts = False  # it sees pieces: only what earlier steps cut stays apart
        if step.kind == "bytes":
            if of_bytes:
                raise UnsupportedTokenizer("proof.bytes_twice", f"{step.name} writes bytes that {step.name} wrote")
            of_bytes = True
            first, last = _lead_byte(first), _trail_byte(last)
            continue
        if step.kind == "metaspace":
            if not of_bytes:  # ByteLevel leaves no space behind
                swap = np.arange(CODE_POINTS, dtype=np.uint32)
                swap[ord(" ")] = ord(step.source)
                first, last = swap[first], swap[last]
            if not step.cuts:
                continue
        automaton = step_automaton(step, probe, byte_characters() if of_bytes else None)
        column_of = automaton.column_of.astype(np.intp)
        decided = decide(automaton)
        stages.append(
            Stage(step.name, step.source, of_bytes, counts, automaton, column_of[last], column_of[first], decided)
        )
    return stages


def _lead_byte(points: Points) -> Points:
    """First byte of each code point's UTF-8."""
    three, four = 0xE0 | (points >> 12), 0xF0 | (points >> 18)
    lead = np.where(points < 0x80, points, np.where(points < 0x800, 0xC0 | (points >> 6), three))
    return np.where(points < 0x10000, lead, four).astype(np.uint32)


def _trail_byte(points: Points) -> Points:
    return np.where(points < 0x80, points, 0x80 | (points & 0x3F)).astype(np.uint32)
