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
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from ..core.classes import Settled, is_scalar
from ..core.pipeline import Position
from ..encoders.reference import ReferenceProbe
from ..encoders.snapshot_encoder import normalize_runs, point_marks
from ..ports import TextEncoder
from .comparisons import Campaign
from .report import Phase

SEQUENCES_PER_TEXT = 32
SEPARATOR = " x."
"""Between sequences in one text: nothing in it combines with a mark before or after it that the text doesn't show."""
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
    """Normalize every pair of characters that move, join with their left or are unsettled, run by run and whole."""
    phase = Phase(name)
    settled = campaign.settled
    if settled is None:
        return phase
    pipeline = campaign.reference.snapshot.pipeline
    assert pipeline is not None
    form = " ".join(step.name for step in pipeline.normalizer)
    normalize = campaign.reference.normalizer(Position.TEXT_START)
    assert normalize is not None
    probe = ReferenceProbe(campaign.reference)
    points = np.flatnonzero(is_scalar() & ~settled.always & [image is None for image in probe.images()])
    wrong = _wrong_pairs(form, settled.always.tobytes(), settled.alone.tobytes(), tuple(points.tolist()), normalize)
    phase.passed(len(PAIR_FRAMES) * len(points) ** 2 - len(wrong), 0)
    for text in wrong:
        phase.compare(False, text)
    return phase


@lru_cache(maxsize=8)
def _wrong_pairs(
    form: str, always: bytes, alone: bytes, points: tuple[int, ...], normalize: Callable[[str], str]
) -> tuple[str, ...]:
    """Texts of one frame and one first mark that come out otherwise; the same for all snapshots with one form."""
    settled = Settled(np.frombuffer(always, dtype=bool), np.frombuffer(alone, dtype=bool))
    marks = point_marks(settled, None)
    around = partial(_around_marks, marks, normalize)
    found: list[str] = []
    for frame in PAIR_FRAMES:
        for first in points:
            text = "".join(frame.format(chr(first), chr(second)) for second in points)
            if around(text) != normalize(text):
                found.append(text)
    return tuple(found)


def _around_marks(marks: NDArray[np.uint8], normalize: Callable[[str], str], text: str) -> str:
    own = marks[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
    return normalize_runs(text, own, np.flatnonzero(own), normalize)
