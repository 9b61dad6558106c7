"""The campaign of a candidate's whole-file form (see `encoders.whole`): may one call replace the stages?

What the stages do exactly by construction (added tokens) is the library's here, so it gets phases of its own: every
assigned code point and every added token whole, cut, overlapping and side by side, beside the IDs, sessions and
history that the core form gets. Faults of each sort are planted. Normalization stays the reference's: characters that
its normalizer could change, move or join, alone or next to others, are left to the stages, all of them and untried.

Refused by name: snapshots where the position of a stretch matters (`whole.position_matters`), added tokens with flags
(`whole.token_flags`), normalizers that aren't one Unicode form (`whole.normalizer`), added tokens that normalization
changes (`whole.token_form`) and those of which one search may miss what the reference's two find
(`whole.token_order`). Code points that the reference doesn't know as assigned are left to the stages untried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from unicodedata import normalize

import numpy as np

from ..core.added_tokens import found_by_one_search
from ..core.classes import is_scalar, points_of, ranges_of
from ..core.errors import EncoderUnavailable
from ..core.pipeline import Position
from ..encoders.reference import class_members, encode_of, load_tokenizer
from ..encoders.snapshot_encoder import SnapshotEncoder
from ..encoders.whole import WholeEncoder, build_whole, left_to_the_stages, whole_document
from ..ports import Ids, TextEncoder
from .comparisons import Campaign, check_elements, check_encoder, check_history, check_ids, elements
from .compiled import EncoderVerdict, Verdict, whole_name
from .coverage import token_groups
from .exam import ask, check_asked
from .faults import ENCODER_FAULTS, FAULT_HISTORIES, FAULT_TEXTS, Encode, Liar
from .probe import probe_encoders
from .report import Phase

MAX_LITERALS = 1_000


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
    unsafe = left_to_the_stages(is_scalar() & ~assigned, campaign.settled)
    differs = _differs(campaign, staged)
    probed = probe_encoders(
        {name: candidate.encode},
        lambda text: _known(campaign, differs, text),
        assigned,
        partial(campaign.progress, f"{title}: every code point"),
        only=is_scalar() & ~unsafe,
    )[name]
    if probed.too_many:
        return EncoderVerdict(
            title, candidate.version, Verdict.REJECTED, "encoder.too_many_unsafe", probed.checks, probed.points
        )
    if probed.unsafe:
        unsafe |= points_of(probed.unsafe)
    if _planted(campaign, staged):
        return refuse("campaign.void")
    phases = _phases(campaign, WholeEncoder(staged, candidate, unsafe), differs, title)
    if phases is None:
        return refuse("campaign.void")
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


def _differs(campaign: Campaign, staged: SnapshotEncoder) -> Callable[[str], bool]:
    """Whether added tokens or the normalizer may make other IDs of a text than the core by itself does."""
    normalize = campaign.reference.normalizer(Position.TEXT_START)
    if normalize is None:
        return lambda text: bool(staged.recognized(text))
    return lambda text: bool(staged.recognized(text)) or normalize(text) != text


def _known(campaign: Campaign, differs: Callable[[str], bool], text: str) -> Ids:
    """The reference's IDs of `text`, from what was asked about the core where that is the same question."""
    known = campaign.answers.get(text)
    if known is None or differs(text):
        return campaign.reference.encode_text(text)
    return np.frombuffer(known, dtype=np.uint32)


def _refusal(campaign: Campaign) -> str:
    pipeline = campaign.reference.snapshot.pipeline
    assert pipeline is not None
    if not pipeline.uniform:
        return "whole.position_matters"
    if pipeline.normalizer and campaign.settled is None:
        return "whole.normalizer"
    tokens = campaign.reference.added_tokens()
    if any(token.lstrip or token.rstrip or token.single_word for token in tokens):
        return "whole.token_flags"
    normalize = campaign.reference.normalizer(Position.TEXT_START) or str
    if any(token.normalized and normalize(token.content) != token.content for token in tokens):
        return "whole.token_form"
    if not found_by_one_search(tokens):
        return "whole.token_order"
    return ""


def _phases(
    campaign: Campaign, encoder: WholeEncoder, differs: Callable[[str], bool], title: str
) -> list[Phase] | None:
    """None if the texts at hand don't exercise every element of the file."""
    reference = campaign.reference.encode_text
    groups = token_groups(campaign.texts.literals, campaign.texts.seed)
    if not all(group.complete for group in [*groups, *(asked.group for asked in elements(campaign))]):
        return None
    phases = check_elements(campaign, encoder.encode, reference, title, differs)
    for asked in ask(groups, reference):
        phases.append(check_asked(asked, encoder.encode, reference, f"{title}: {asked.group.name}"))
    phases.append(check_literals(campaign, encoder, f"{title}: added tokens"))
    if any(phase.divergences for phase in phases):
        return phases
    return phases + check_encoder(campaign, encoder, title)


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
    for name, lie in faulty.items():
        encoder = WholeEncoder(staged, Liar(name, lie), None)
        checks: list[Callable[[], Phase]] = [
            partial(check_ids, campaign, encoder, f"planted: {name}", FAULT_TEXTS),
            partial(check_history, campaign, encoder, f"planted: {name}", FAULT_HISTORIES),
            partial(check_literals, campaign, encoder, f"planted: {name}"),
        ]
        phase.compare(any(check().divergences for check in checks), name)
    campaign.phases.append(phase)
    return phase.divergences > 0
