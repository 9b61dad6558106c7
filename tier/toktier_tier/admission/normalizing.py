"""Whether our shortcuts around the normalizer show in anything: compared with the reference where normalizing acts.

Guarantees: every canonical decomposition, whole and in part, every mark before and behind marks of other combining
classes, and every replaced literal stands in some text whose IDs are compared; every pair of characters that canonical
ordering may move is normalized both ways (run by run and the normalizer itself) in three frames.

Which characters these are is asked of the reference. A library with other Unicode tables never sees a text on which
any version of them could act otherwise: what candidates get is normalized already, or consists of characters that the
reference's normalizer leaves alone, and they are built without a normalizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from ..core.classes import CODE_POINTS, Ranges, Settled, ranges_of
from ..core.pipeline import Position
from ..encoders.reference import ReferenceProbe
from ..encoders.snapshot_encoder import normalize_runs, point_marks
from ..ports import TextEncoder
from .comparisons import Campaign
from .report import Phase

SEQUENCES_PER_TEXT = 32
SEPARATOR = " x. and so on, and so forth. "
"""Between sequences in one text: nothing in it combines with a mark before or after it that the text doesn't show. So
long that a text isn't normalized as a whole, which would hide a character that is wrongly left alone."""
LATE_MARKS = ("\u0301", "\u0323", "\u0334", "\u0345")
"""Marks of the combining classes 230, 220, 1 and 240: what moves, moves before or behind one of them."""
PAIR_FRAMES = ("a{}{} ", "\u00e9{}{}z", "{}{}\n")


def check_sequences(campaign: Campaign, encoder: TextEncoder, name: str) -> Phase:
    """Compare IDs of sequences on which the normalizer acts; nothing without normalizer."""
    phase = Phase(name)
    pipeline = campaign.reference.snapshot.pipeline
    if pipeline is None or not pipeline.normalizer:
        return phase
    literals = [step.literal for step in pipeline.normalizer if step.kind == "replace"]
    sequences = [*_around(literals), *_sequences(ReferenceProbe(campaign.reference))]
    for start in range(0, len(sequences), SEQUENCES_PER_TEXT):
        if start % 4_096 == 0:
            campaign.progress(name, start / len(sequences))
        text = SEPARATOR.join(sequences[start : start + SEQUENCES_PER_TEXT])
        phase.compare(encoder.encode(text).tobytes() == campaign.reference.encode_text(text).tobytes(), text)
    return phase


def _around(literals: list[str]) -> Iterator[str]:
    for literal in literals:
        for left in ("", "a", literal, "\u0301"):
            for right in ("", "b", literal[:1], "\u0301"):
                yield left + literal + right


def _sequences(probe: ReferenceProbe) -> Iterator[str]:
    reorders = probe.reorders()
    for point, decomposed in enumerate(probe.decompositions()):
        if decomposed is not None:
            yield decomposed
            if len(decomposed) > 1:
                yield probe.compose(decomposed[:-1]) + decomposed[-1]
            if not 0xAC00 <= point < 0xD7A4:
                yield from (chr(point) + mark for mark in LATE_MARKS)
        if reorders[point]:
            yield chr(point)
            for mark in LATE_MARKS:
                yield f"a{chr(point)}{mark}"
                yield f"a{mark}{chr(point)}"


def check_pairs(campaign: Campaign, name: str) -> Phase:
    """Normalize every pair of characters that may move or join with their left, run by run and as a whole."""
    phase = Phase(name)
    settled, pipeline = campaign.settled, campaign.reference.snapshot.pipeline
    if settled is None or pipeline is None:
        return phase
    normalize = campaign.reference.normalizer(Position.TEXT_START)
    assert normalize is not None
    key = (repr(pipeline.normalizer), ranges_of(settled.always), ranges_of(settled.alone))
    if key not in _WRONG_PAIRS:
        _WRONG_PAIRS[key] = _wrong_pairs(settled, _acting(ReferenceProbe(campaign.reference)), normalize)
    checks, wrong = _WRONG_PAIRS[key]
    phase.passed(checks - len(wrong), 0)
    for text in wrong:
        phase.compare(False, text)
    return phase


_WRONG_PAIRS: dict[tuple[str, Ranges, Ranges], tuple[int, list[str]]] = {}
"""What was found for a normalization form, which is the same for all snapshots of a process."""


def _acting(probe: ReferenceProbe) -> list[int]:
    """Characters that canonical ordering moves or that join with what stands left of them, to this Python or to the
    reference: their tables differ, and neither is taken from what is on trial."""
    reorders = probe.reorders()
    joining = {ord(char) for decomposed in probe.decompositions() if decomposed for char in decomposed[1:]}
    return [
        point
        for point in range(CODE_POINTS)
        if reorders[point] or point in joining or (point >= 0x300 and combining(chr(point)))
    ]


def _wrong_pairs(settled: Settled, points: list[int], normalize: Callable[[str], str]) -> tuple[int, list[str]]:
    """The number of pairs in frames, and texts of one frame and one first character that come out otherwise."""
    marks = point_marks(settled, None)
    found: list[str] = []
    for frame in PAIR_FRAMES:
        for first in points:
            text = "".join(frame.format(chr(first), chr(second)) for second in points)
            if _around_marks(marks, normalize, text) != normalize(text):
                found.append(text)
    return len(PAIR_FRAMES) * len(points) ** 2, found


def _around_marks(marks: NDArray[np.uint8], normalize: Callable[[str], str], text: str) -> str:
    own = marks[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
    loose = np.flatnonzero(own)
    return normalize_runs(text, own, loose, normalize) if len(loose) else text
