"""What a campaign compares: the rule and an encoder against the reference, on texts drawn from a seed.

Every comparison is exact equality of IDs (of pieces, for the rule's splits), counted in a `Phase`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..core.boundaries import BoundaryRule
from ..core.classes import Settled
from ..core.pipeline import Position
from ..core.proof import Proof
from ..core.repair import Repairer, WitnessMismatch
from ..core.session import SessionState
from ..core.values import Patch
from ..encoders.assemble import core_documents
from ..encoders.reference import Reference, ReferenceProbe, pieces_of
from ..ports import Ids, TextEncoder
from .coverage import core_groups
from .exam import Asked, ask, check_asked
from .probe import ProbeResult
from .report import Phase
from .texts import Texts

Progress = Callable[[str, float], None]
ProbeCache = MutableMapping[str, dict[str, ProbeResult]]
"""Probes by digest of the core tokenizer: files that differ in added tokens or template only share theirs."""

SHORT_STRINGS_PER_S = 1_500
CONTEXTS_PER_S = 60
IDS_PER_S = 12
"""Drawn texts come on top of those that the file's own elements ask for (`coverage`)."""
SESSIONS_PER_S = 0.4
HISTORIES_PER_S = 0.2
CUT_CONTEXT_CHARS = 32
LONG_TEXT_CHARS = 40_000
LONG_PIECE_CHARS = 12_000


@dataclass
class Campaign:
    """One snapshot under examination."""

    reference: Reference
    rule: BoundaryRule
    texts: Texts
    budget_s: float
    progress: Progress
    overlap_chars: int
    probes: ProbeCache = field(default_factory=dict)
    settled: Settled | None = None
    proof: Proof | None = None
    pieces: Callable[[str, Position], list[Any]] | None = None
    phases: list[Phase] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    """What the core's reference made of the texts in which a code point stands in its frame."""
    known: list[tuple[str, bytes]] = field(default_factory=list)
    """Texts with the reference's IDs, drawn by the first phase that needs them and compared with every encoder."""

    def count(self, per_second: float, share: float = 1.0) -> int:
        return max(int(per_second * share * self.budget_s), 4)

    def repairer(self, encoder: TextEncoder, *, trusting: bool = False) -> Repairer:
        """`trusting`: for texts with untrusted spans, too."""
        return Repairer(
            fingerprint=self.reference.snapshot.fingerprint,
            rule=self.rule,
            encode=encoder.encode,
            encode_chunks=encoder.encode_chunks,
            overlap_chars=self.overlap_chars,
            encode_untrusted=encoder.encode_untrusted if trusting else None,
            encode_untrusted_chunks=encoder.encode_untrusted_chunks if trusting else None,
        )


def check_splits(campaign: Campaign, count: int, rule: BoundaryRule | None = None) -> Phase:
    """Every claimed boundary of short strings: pieces (or IDs, where one piece is all) left and right apart."""
    rule = rule or campaign.rule
    phase = Phase("rule: splits")
    pieces = campaign.pieces or pieces_of(campaign.reference)
    campaign.pieces = pieces
    texts = _short_strings(campaign, count)
    for index, text in enumerate(texts):
        if index % 512 == 0:
            campaign.progress(phase.name, index / max(len(texts), 1))
        positions = [p for p in range(1, len(text)) if rule.holds(text[p - 1], text[p])]
        if not positions:
            continue
        whole = pieces(text, Position.TEXT_START)
        for position in positions:
            apart = pieces(text[:position], Position.TEXT_START) + pieces(text[position:], Position.CONTINUATION)
            phase.compare(apart == whole, text, position)
    return phase


def _short_strings(campaign: Campaign, count: int) -> list[str]:
    """All pairs of representatives in a few frames, then random strings of 3 to 8; at most `count`."""
    texts = campaign.texts
    representatives = texts.representatives
    frames = ("{}{}", "a{}{}", "{}{}a", " {}{} ")
    pairs = len(representatives) ** 2
    strings: list[str] = []
    if 2 * pairs <= count:
        strings = [frame.format(a, b) for a in representatives for b in representatives for frame in frames[:2]]
    while len(strings) < count:
        strings.append(texts.short(texts.between(2, 8)))
    return strings


def check_contexts(campaign: Campaign, encoder: TextEncoder, count: int, rule: BoundaryRule | None = None) -> Phase:
    """IDs of long hostile texts, cut at one claimed boundary each, the right side as a continuation."""
    rule = rule or campaign.rule
    phase = Phase("rule: contexts")
    whole = campaign.reference.encode_text
    for index in range(count):
        if index % 64 == 0:
            campaign.progress(phase.name, index / count)
        text = campaign.texts.adversarial(campaign.texts.between(8, 160))
        positions = [p for p in range(1, len(text)) if rule.holds(text[p - 1], text[p])]
        if not positions:
            continue
        expected = whole(text).tobytes()
        for position in {campaign.texts.pick(positions) for _ in range(4)}:
            left = whole(text[:position])
            right = encoder.encode(text[position:], Position.CONTINUATION)
            phase.compare(np.concatenate([left, right]).tobytes() == expected, text, position)
    return phase


def check_encoder(campaign: Campaign, encoder: TextEncoder, title: str) -> list[Phase]:
    """What every form of every candidate has to come through, in this order."""
    return [
        check_ids(campaign, encoder, f"{title}: ids", campaign.count(IDS_PER_S)),
        check_sessions(campaign, encoder, f"{title}: sessions", campaign.count(SESSIONS_PER_S)),
        check_history(campaign, encoder, f"{title}: history", campaign.count(HISTORIES_PER_S)),
    ]


def elements(campaign: Campaign) -> list[Asked]:
    """The groups of `coverage` for core encoders with the reference's answers, asked for once."""
    if not campaign.asked:
        campaign.progress("candidates: every element of the file", 0.0)
        reference, texts = campaign.reference, campaign.texts
        document = core_documents(reference)[Position.CONTINUATION]
        groups = core_groups(reference.snapshot, ReferenceProbe(reference), texts.seed)
        campaign.asked = ask(groups, reference.core(document["pre_tokenizer"]).encode)
    return campaign.asked


def check_elements(
    campaign: Campaign,
    encode: Callable[[str], Ids],
    reference: Callable[[str], Ids],
    title: str,
    other: Callable[[str], bool] | None = None,
) -> list[Phase]:
    """Every element of the file, by what was asked about the core; `other`: see `exam.check_asked`."""
    phases: list[Phase] = []
    for index, asked in enumerate(elements(campaign)):
        campaign.progress(f"{title}: {asked.group.name}", index / len(campaign.asked))
        phases.append(check_asked(asked, encode, reference, f"{title}: {asked.group.name}", other=other))
    return phases


def check_ids(campaign: Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """IDs of whole texts, long and short, with added tokens and without, in long pieces, and in chunks.

    The texts are the same for every encoder, so that the reference encodes each of them once.
    """
    phase = Phase(name)
    for index in range(count):
        if index % 16 == 0:
            campaign.progress(name, index / count)
        if index == len(campaign.known):
            text = _text(campaign.texts, index)
            campaign.known.append((text, campaign.reference.encode_text(text).tobytes()))
        text, expected = campaign.known[index]
        phase.compare(_encoded(encoder, text, index // 3 % 3).tobytes() == expected, text)
    return phase


def _text(texts: Texts, index: int) -> str:
    if index % 29 == 0:
        return texts.mixed(LONG_TEXT_CHARS)
    if index % 14 == 1:
        return texts.run(LONG_PIECE_CHARS)
    make = (texts.adversarial, texts.natural, texts.mixed)[index % 3]
    return make(texts.between(1, 3_000))


def _encoded(encoder: TextEncoder, text: str, way: int) -> Ids:
    if way == 0:
        return encoder.encode(text)
    if way == 1:
        return encoder.encode_full(text)
    return np.concatenate([ids for _, ids in encoder.encode_chunks(text)])


def check_sessions(campaign: Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """Replayed sessions: appends and edits of all sizes; at checkpoints the state against a full encode."""
    phase = Phase(name)
    repairer = campaign.repairer(encoder)
    for index in range(count):
        campaign.progress(name, index / count)
        state = repairer.open(campaign.texts.mixed(campaign.texts.between(0, 3_000)))
        client = state.ids()
        for step in range(24):
            try:
                client = _random_change(campaign.texts, repairer, state).apply(client)
            except WitnessMismatch:
                phase.compare(False, state.text())
                break
            if step % 8 == 7:
                expected = campaign.reference.encode_text(state.text()).tobytes()
                phase.compare(state.ids().tobytes() == expected == client.tobytes(), state.text())
    return phase


def _random_change(texts: Texts, repairer: Repairer, state: SessionState) -> Patch:
    text = texts.mixed(texts.pick((1, 1, 2, 5, 40, 300, 1_500)))
    if texts.pick((0, 0, 1)) == 0:
        return repairer.append(state, text)
    stop = texts.pick((state.chars, texts.between(0, state.chars)))
    start = max(stop - texts.pick((0, 1, 10, 200, 2_000)), 0)
    return repairer.replace(state, start, stop, text)


def check_history(campaign: Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """One long-lived encoder and many conversations: a prefix of 4,096 characters or more, then longer texts.

    Most without added tokens, which would hand the encoder many short pieces instead of a long one.
    """
    phase = Phase(name)
    texts = campaign.texts
    makes = (texts.words, partial(texts.adversarial, literals=False), texts.natural, texts.mixed)
    for index in range(count):
        campaign.progress(name, index / count)
        text = makes[index % 4](texts.between(9_000, 14_000))
        for stop in (*_inner_positions(campaign, text, 3), len(text)):
            ids = encoder.encode(text[:stop])
            phase.compare(ids.tobytes() == campaign.reference.encode_text(text[:stop]).tobytes(), text[:stop])
    return phase


def _inner_positions(campaign: Campaign, text: str, count: int) -> list[int]:
    """Positions past 4,096 characters where history would show: a cut there changes the IDs around it.

    Positions in no such place are taken only where no other was drawn.
    """
    inner = [p for p in range(4_096, len(text)) if not campaign.rule.holds(text[p - 1], text[p])]
    words = [p for p in inner if text[p - 1 : p + 1].isascii() and text[p - 1 : p + 1].isalpha()]
    drawn = [campaign.texts.pick(words or inner) for _ in range(8 * count)] if inner else []
    telling = [position for position in drawn if _shows(campaign, text, position)]
    return sorted((telling or drawn)[:count])


def _shows(campaign: Campaign, text: str, position: int) -> bool:
    encode = campaign.reference.encode_text
    left, right = text[position - CUT_CONTEXT_CHARS : position], text[position : position + CUT_CONTEXT_CHARS]
    return np.concatenate([encode(left), encode(right)]).tobytes() != encode(left + right).tobytes()
