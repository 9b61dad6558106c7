"""Split level: where the reference's pre-tokenizer cuts, beside the rule's claims and the split automata.

One comparison is one position of one text. `automaton`: whether the exact automata cut there, at every position
between two characters. `rule`: a position that the rule claims, which no piece of the reference may cross. `apart`:
a claimed position at which the pieces of the text must be those of its left and of its right side by themselves.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toktier_tier.admission.campaign import derive_rule
from toktier_tier.core.boundaries import BoundaryRule
from toktier_tier.core.errors import TierError
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.core.splitting import SplitAutomaton, compile_split
from toktier_tier.encoders.reference import ReferenceProbe, open_reference

from .plan import file_text, own_reference, pre_tokenizer_alone
from .state import Tally, load, minimized, run_for, save
from .texts import Texts

TEXTS, PARTS = 300, 90
FULL_EVERY, APART_EVERY = 16, 8


def run(family: str, out: Path, seconds: float) -> Tally:
    tally = load(out, "splits", family)
    checker = Splits(family, tally)
    if checker.idle:
        tally.notes["skipped"] = checker.idle
        save(out, tally)
        return tally
    run_for(out, tally, seconds, checker.batch)
    return tally


class Splits:
    """The checks of one tokenizer. `idle`: why there is nothing to compare."""

    def __init__(self, family: str, tally: Tally) -> None:
        self._tally = tally
        text = file_text(family)
        self._document = json.loads(text)
        self._texts = Texts(self._document, f"{family}/splits")
        self._normalizer = own_reference(text).normalizer
        reference = open_reference(text.encode(), SpecialTokenPolicy.NONE)
        self.idle = ""
        rule = derive_rule(reference)
        self._claims = Claims(rule) if rule.kind == "classes" else None
        pipeline = reference.snapshot.pipeline
        self._automaton: SplitAutomaton | None = None
        try:
            if pipeline is not None:
                found = compile_split(pipeline, ReferenceProbe(reference))
                self._automaton = found if found.stages else None
        except TierError as error:
            tally.notes["automaton"] = error.code
        if self._claims is None:
            tally.notes["rule"] = rule.reason or rule.kind
        if not self._document.get("pre_tokenizer") or (self._claims is None and self._automaton is None):
            self.idle = "the pre-tokenizer cuts nowhere, or nothing is claimed of where"
            return
        self._uniform = pipeline is not None and not pipeline.position_matters
        full, cuts = pre_tokenizer_alone(text)
        self._full, self._cut = full.pre_tokenize_str, cuts.pre_tokenize_str
        of_bytes = self._automaton is not None and any(stage.of_bytes for stage in self._automaton.stages)
        if of_bytes:
            self._cut = self._full
        self._of_bytes = of_bytes
        self._shortened = full is not cuts and not of_bytes

    def batch(self, number: int) -> None:
        texts = self._texts.batch(number, TEXTS, PARTS)
        for index, text in enumerate(texts):
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
                if self._normalizer.normalize_str(text) != text:
                    continue
            if text:
                self._text(text, index)

    def _text(self, text: str, index: int) -> None:
        pieces = self._cut(text)
        starts = [start for _, (start, _) in pieces]
        if self._automaton is not None:
            self._tally.add("automaton", len(text) - 1)
            if self._automaton.pieces(text) != self._byte_starts(text, pieces, starts):
                self._report("automaton", text, self._automaton_differs)
        if self._claims is not None:
            claimed = self._claims.positions(text)
            self._tally.add("rule", len(claimed))
            crossing = np.zeros(len(text) + 2, dtype=np.int8)
            crossing[np.array(starts, dtype=np.intp) + 1] = 1
            crossing[[stop for _, (_, stop) in pieces]] -= 1
            if np.cumsum(crossing, dtype=np.int32)[claimed].any():
                self._report("rule", text, self._rule_differs)
            if index % APART_EVERY == 0 and len(claimed) and self._uniform:
                self._tally.add("apart", 1)
                position = int(claimed[(index * 7919) % len(claimed)])
                if self._apart_differs(position, text):
                    self._report("apart", text, partial(self._apart_differs, position))
        if self._shortened and index % FULL_EVERY == 0 and [s for _, (s, _) in self._full(text)] != starts:
            self._report("byte_level", text, lambda text: [s for _, (s, _) in self._full(text)] != self._starts(text))

    def _starts(self, text: str) -> list[int]:
        return [start for _, (start, _) in self._cut(text)]

    def _byte_starts(self, text: str, pieces: list[Any], starts: list[int]) -> list[int]:
        if self._of_bytes:  # behind ByteLevel a character is a byte
            return [0, *accumulate(len(piece) for piece, _ in pieces)][: len(pieces)]
        if text.isascii():
            return starts
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        found: list[int] = (np.cumsum(widths) - widths)[starts].tolist()
        return found

    def _automaton_differs(self, text: str) -> bool:
        assert self._automaton is not None
        pieces = self._cut(text)
        return self._automaton.pieces(text) != self._byte_starts(text, pieces, [start for _, (start, _) in pieces])

    def _rule_differs(self, text: str) -> bool:
        assert self._claims is not None
        crossed = {position for _, (start, stop) in self._cut(text) for position in range(start + 1, stop)}
        return any(int(position) in crossed for position in self._claims.positions(text))

    def _apart_differs(self, position: int, text: str) -> bool:
        left, right = self._cut(text[:position]), self._cut(text[position:])
        return [piece for piece, _ in left] + [piece for piece, _ in right] != [piece for piece, _ in self._cut(text)]

    def _report(self, sort: str, text: str, differs: Any) -> None:
        if sort != "apart":
            text = minimized(text, differs)
        got: Any = self._automaton.pieces(text) if sort == "automaton" and self._automaton is not None else None
        if sort == "rule" and self._claims is not None:
            got = [int(position) for position in self._claims.positions(text)]
        self._tally.diverged(sort, text, [[piece, list(span)] for piece, span in self._cut(text)], got)


class Claims:
    """The positions that a rule of kind `classes` claims, for a whole text at once."""

    def __init__(self, rule: BoundaryRule) -> None:
        self._left = np.frombuffer(rule.left, dtype=np.uint8)
        self._right = np.frombuffer(rule.right, dtype=np.uint8)
        self._table = np.array([list(row) for row in rule.table], dtype=bool)
        self._excluded = np.array(sorted(ord(pair[0]) << 21 | ord(pair[1]) for pair in rule.excluded), dtype=np.int64)

    def positions(self, text: str) -> NDArray[np.intp]:
        """Ascending, in characters; the ends of the text are none."""
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        found = np.flatnonzero(self._table[self._left[points[:-1]], self._right[points[1:]]])
        if len(self._excluded) and len(found):
            pairs = points[found].astype(np.int64) << 21 | points[found + 1]
            at = np.searchsorted(self._excluded, pairs)
            found = found[self._excluded[np.minimum(at, len(self._excluded) - 1)] != pairs]
        return found + 1
