"""Witnesses of the cuts at which a long text is encoded in chunks.

A chunk's IDs are right if the encoder is and if the text may be cut where it was. A repair encodes known text again and
so tests both; a text that is encoded for the first time has nothing to compare with, and is compared here with the
reference itself, around some of its cuts.

For the cut between chunks L and R: l is the end of L from a boundary on, r the beginning of R up to one, each longer
than the longest vocabulary entry, and c the character before l. Three encodings of c, of c and l, and of c, l and r
must each begin with the one before (the rule, at three places: the reference cuts there), and what they add must be
the last IDs of L and the first of R (the encoder). c takes the place of all the text before: by the rule's claim
nothing else of it matters to what follows, and no model of positions is needed.

Guarantee: what passes `check` is consistent with the reference around the cuts that were drawn; anything else raises
`WitnessMismatch`. The cost is that of a few encodings of a few hundred characters, whatever the text's length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from .boundaries import BoundaryRule
from .errors import InvalidText
from .pipeline import Position
from .repair import EncodeChunks, EncodeUntrustedChunks, WitnessMismatch
from .session import Piece
from .trust import NO_SPANS, Spans, clipped
from .values import Ids

CHARS_PER_CHECK = 1 << 19
MOST_CHECKS = 3
"""Of one text: a cut, and another one for each `CHARS_PER_CHECK` characters."""
WIDEST_CHARS = 2_048
"""Beyond the overlap: a cut that has no boundary nearer isn't drawn, and nor is one in a text without any."""

EncodeByReference = Callable[[str, Spans], Ids]
_EMPTY: Ids = np.empty(0, dtype=np.uint32)


class CutWitness:
    """Of one snapshot. Holds no state; thread-safe if `encode` and `draw` are.

    encode          the reference: the IDs of a text by itself with its untrusted spans, without the template's
    overlap_chars   more than the longest vocabulary entry
    draw            a number below the given one, by chance
    """

    def __init__(
        self, *, rule: BoundaryRule, encode: EncodeByReference, overlap_chars: int, draw: Callable[[int], int]
    ) -> None:
        self._rule, self._encode, self._overlap, self._draw = rule, encode, overlap_chars, draw

    def over(self, encode_chunks: EncodeChunks) -> EncodeChunks:
        """`encode_chunks`, whose answers are checked."""

        def encode(text: str, position: Position) -> list[Piece]:
            pieces = encode_chunks(text, position)
            self.check(pieces, position)
            return pieces

        return encode

    def over_untrusted(self, encode_chunks: EncodeUntrustedChunks) -> EncodeUntrustedChunks:
        """The same with untrusted spans."""

        def encode(text: str, untrusted: Spans, position: Position) -> list[Piece]:
            pieces = encode_chunks(text, untrusted, position)
            self.check(pieces, position, untrusted)
            return pieces

        return encode

    def check(self, pieces: Sequence[Piece], position: Position, untrusted: Spans = NO_SPANS) -> None:
        """Some of the cuts between `pieces`, whose text begins at `position` and has these spans."""
        cuts = len(pieces) - 1
        if cuts < 1:
            return
        chars = sum(len(text) for text, _ in pieces)
        drawn = {self._draw(cuts) for _ in range(min(1 + chars // CHARS_PER_CHECK, MOST_CHECKS))}
        for index in sorted(drawn):
            self._check(pieces, index, position, untrusted, self._encode)

    def check_every(
        self,
        pieces: Sequence[Piece],
        position: Position,
        untrusted: Spans = NO_SPANS,
        encode: EncodeByReference | None = None,
    ) -> None:
        """All of the cuts; `encode` in the place of the own one. None of the pieces is empty."""
        for index in range(len(pieces) - 1):
            self._check(pieces, index, position, untrusted, encode or self._encode)

    def _check(
        self, pieces: Sequence[Piece], index: int, position: Position, untrusted: Spans, encode: EncodeByReference
    ) -> None:
        (left, left_ids), (right, right_ids) = pieces[index], pieces[index + 1]
        start, stop = self._start(left), self._stop(right)
        if start < 0 or stop < 0 or (start == index == 0 and position is not Position.TEXT_START):
            return
        before = left[start - 1] if start else pieces[index - 1][0][-1] if index else ""
        window = before + left[start:] + right[:stop]
        at = sum(len(text) for text, _ in pieces[:index]) + start - len(before) if untrusted else 0
        spans = clipped(untrusted, at, at + len(window))
        ends = (len(before), len(before) + len(left) - start, len(window))
        try:
            first, upto, whole = (encode(window[:end], clipped(spans, 0, end)) if end else _EMPTY for end in ends)
        except InvalidText:
            raise _mismatch(pieces, index) from None
        ending, beginning = upto[len(first) :], whole[len(upto) :]
        if not (
            _begins(upto, first)
            and _begins(whole, upto)
            and _begins(left_ids[::-1], ending[::-1])
            and _begins(right_ids, beginning)
            and (start > 0 or len(ending) == len(left_ids))
            and (stop < len(right) or len(beginning) == len(right_ids))
        ):
            raise _mismatch(pieces, index)

    def _start(self, left: str) -> int:
        """Where the window begins in the chunk left of a cut; -1 if nowhere near."""
        end = len(left) - self._overlap
        floor = max(end - WIDEST_CHARS, 0)
        found = self._rule.last(left, end, floor) if end > 0 else -1
        return found if found > 0 else -1 if floor else 0

    def _stop(self, right: str) -> int:
        """Where the window ends in the chunk right of a cut."""
        limit = self._overlap + WIDEST_CHARS
        found = self._rule.first(right, self._overlap, limit)
        return found if found > 0 else len(right) if len(right) <= limit else -1


def _begins(ids: Ids, with_: Ids) -> bool:
    return ids[: len(with_)].tobytes() == with_.tobytes()


def _mismatch(pieces: Sequence[Piece], index: int) -> WitnessMismatch:
    chars = list(accumulate(len(text) for text, _ in pieces[: index + 1]))[-1]
    tokens = sum(len(ids) for _, ids in pieces[: index + 1])
    return WitnessMismatch(
        "repair.witness_mismatch",
        "around a cut, the reference makes other IDs than the chunks have",
        cut_chars=chars,
        cut_tokens=tokens,
    )
