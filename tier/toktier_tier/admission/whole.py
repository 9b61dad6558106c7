"""The campaign of a candidate's whole-file form (see `encoders.whole`): may one call replace the stages?

What the stages do exactly by construction (added tokens, Unicode normalization) is the library's here, so it gets
phases of its own: every assigned code point, every canonical decomposition and reordering, every added token whole,
cut and overlapping, beside the IDs, sessions and history that the core form gets. Faults of each sort are planted.

Refused by name: snapshots where the position of a stretch matters, added tokens with flags, normalizers that aren't
one Unicode form. Code points that the reference doesn't know as assigned are left to the stages without asking:
their combining behaviour may differ where no frame shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from unicodedata import normalize

from ..core.classes import is_scalar, points_of, ranges_of
from ..core.errors import EncoderUnavailable
from ..encoders.reference import ReferenceProbe, class_members, encode_of, load_tokenizer
from ..encoders.snapshot_encoder import SnapshotEncoder
from ..encoders.whole import WholeEncoder, build_whole, whole_document
from ..ports import TextEncoder
from .comparisons import Campaign, check_encoder, check_history, check_ids
from .compiled import EncoderVerdict, Verdict, whole_name
from .faults import ENCODER_FAULTS, FAULT_HISTORIES, FAULT_TEXTS, Encode, Liar
from .probe import probe_encoders
from .report import Phase

MAX_LITERALS = 1_000
SEQUENCES_PER_TEXT = 32
SEPARATOR = " x."
"""Between sequences in one text: nothing in it combines with a mark before or after it that the text doesn't show."""
LATE_MARKS = ("\u0301", "\u0323", "\u0334", "\u0345")
"""Marks of the combining classes 230, 220, 1 and 240: what moves, moves before or behind one of them."""


def try_whole(campaign: Campaign, name: str, staged: SnapshotEncoder) -> EncoderVerdict:
    """The verdict on the whole-file form of candidate `name`, whose core form was admitted."""

    title = whole_name(name)

    def refuse(reason: str) -> EncoderVerdict:
        return EncoderVerdict(title, "", Verdict.REFERENCE_ONLY, reason)

    reason = _refusal(campaign)
    if reason:
        return refuse(reason)
    try:
        candidate = build_whole(campaign.reference, name)
    except EncoderUnavailable as error:
        return refuse(f"{error.code}: {error.message}")
    assigned = ~class_members(r"\p{Cn}")
    probed = probe_encoders(
        {name: candidate.encode},
        campaign.reference.encode_text,
        assigned,
        partial(campaign.progress, f"{title}: every code point"),
        unassigned=False,
    )[name]
    if probed.too_many:
        return EncoderVerdict(
            title, candidate.version, Verdict.REJECTED, "encoder.too_many_unsafe", probed.checks, probed.points
        )
    unsafe = is_scalar() & ~assigned
    if probed.unsafe:
        unsafe |= points_of(probed.unsafe)
    if _planted(campaign, staged):
        return refuse("campaign.void")
    phases = _phases(campaign, WholeEncoder(staged, candidate, unsafe), title)
    campaign.phases += phases
    divergences = sum(phase.divergences for phase in phases)
    return EncoderVerdict(
        title,
        candidate.version,
        Verdict.REJECTED if divergences else Verdict.ADMITTED,
        "encoder.divergence" if divergences else "",
        probed.checks + sum(phase.checks for phase in phases),
        divergences,
        ranges_of(unsafe),
    )


def _refusal(campaign: Campaign) -> str:
    pipeline = campaign.reference.snapshot.pipeline
    assert pipeline is not None
    if not pipeline.uniform:
        return "whole.position_matters"
    if pipeline.normalizer and campaign.settled is None:
        return "whole.normalizer"
    if any(token.lstrip or token.rstrip or token.single_word for token in campaign.reference.added_tokens()):
        return "whole.token_flags"
    return ""


def _phases(campaign: Campaign, encoder: TextEncoder, title: str) -> list[Phase]:
    return [
        check_sequences(campaign, encoder, f"{title}: combining sequences"),
        check_literals(campaign, encoder, f"{title}: added tokens"),
        *check_encoder(campaign, encoder, title),
    ]


def check_sequences(campaign: Campaign, encoder: TextEncoder, name: str) -> Phase:
    """Every canonical decomposition, whole and in part, and every reordering of marks; nothing without normalizer."""
    phase = Phase(name)
    pipeline = campaign.reference.snapshot.pipeline
    if pipeline is None or not pipeline.normalizer:
        return phase
    sequences = list(_sequences(ReferenceProbe(campaign.reference)))
    for start in range(0, len(sequences), SEQUENCES_PER_TEXT):
        if start % 4_096 == 0:
            campaign.progress(name, start / len(sequences))
        text = SEPARATOR.join(sequences[start : start + SEQUENCES_PER_TEXT])
        phase.compare(encoder.encode(text).tobytes() == campaign.reference.encode_text(text).tobytes(), text)
    return phase


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


def check_literals(campaign: Campaign, encoder: TextEncoder, name: str) -> Phase:
    """Added tokens alone, doubled, cut, beside letters and white space, and run into one another."""
    phase = Phase(name)
    literals = campaign.texts.literals
    count = min(len(literals), MAX_LITERALS)
    chosen = literals if count == len(literals) else campaign.texts.sample(literals, count)
    for index, literal in enumerate(chosen):
        if index % 64 == 0:
            campaign.progress(name, index / count)
        other = chosen[index - 1]
        for text in _around(literal, other):
            if text:
                phase.compare(encoder.encode(text).tobytes() == campaign.reference.encode_text(text).tobytes(), text)
    rest = "".join(f"a{literal} " for literal in literals)
    phase.compare(encoder.encode(rest).tobytes() == campaign.reference.encode_text(rest).tobytes(), rest)
    return phase


def _around(literal: str, other: str) -> Iterator[str]:
    middle = len(literal) // 2
    yield from (literal, literal * 2, f" {literal} ", f"a{literal}b", f"\n{literal}\n", f"1 {literal}  \u00e9")
    yield from (literal[:-1], literal[1:], f"{literal[:middle]}{literal}{literal[middle:]}", literal[:-1] + " ")
    yield from (literal[:-1] + literal, literal + literal[1:], literal[:1] + literal + literal[-1:])
    yield from (literal + other, literal[:-1] + other, literal + other[1:], f"\u0301{literal}\u0301")
    yield from (literal.swapcase(), literal.replace("", "\u0301")[1:], normalize("NFD", literal))
    sizes = range(min(len(literal), len(other)) - 1, 0, -1)
    shared = next((size for size in sizes if literal.endswith(other[:size])), 0)
    yield literal + other[shared:]


def _planted(campaign: Campaign, staged: SnapshotEncoder) -> bool:
    """Whether a planted fault goes uncaught by the phases of this form."""
    phase = Phase("planted faults: whole file")
    reference = campaign.reference
    document = whole_document(reference)
    honest: Encode = reference.encode_text
    faulty: dict[str, Encode] = {name: lie(honest) for name, lie in ENCODER_FAULTS.items()}
    if campaign.texts.literals:
        faulty["added_tokens_unseen"] = encode_of(load_tokenizer({**document, "added_tokens": []}))
    if reference.snapshot.pipeline and reference.snapshot.pipeline.normalizer:
        faulty["not_normalized"] = encode_of(load_tokenizer({**document, "normalizer": None}))
    for name, lie in faulty.items():
        encoder = WholeEncoder(staged, Liar(name, lie), None)
        checks: list[Callable[[], Phase]] = [
            partial(check_ids, campaign, encoder, f"planted: {name}", FAULT_TEXTS),
            partial(check_history, campaign, encoder, f"planted: {name}", FAULT_HISTORIES),
            partial(check_sequences, campaign, encoder, f"planted: {name}"),
            partial(check_literals, campaign, encoder, f"planted: {name}"),
        ]
        phase.compare(any(check().divergences for check in checks), name)
    campaign.phases.append(phase)
    return phase.divergences > 0
