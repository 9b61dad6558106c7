"""The campaign for texts with untrusted spans: do the fast paths give the IDs that `encoders.trust` defines?

Texts hold added tokens whole, cut, doubled and run into one another; spans are drawn at random and put where they
matter: around a token, over one of its characters, up to its middle, and side by side. Each is encoded whole, as a
continuation, in chunks, and through sessions whose appends and edits bring spans of their own, cut tokens in two and
change nothing but trust. Planted faults are those that a wrong reading of the definition would make.

Nothing here decides on texts without untrusted spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ..core.errors import UnsupportedTokenizer
from ..core.pipeline import Position
from ..core.repair import Repairer, WitnessMismatch
from ..core.session import SessionState
from ..core.trust import NO_SPANS, Spans, clipped, joined
from ..core.values import Patch
from ..encoders.assemble import Cores, build_text_encoder
from ..encoders.snapshot_encoder import SnapshotEncoder, encode_cut
from ..encoders.trust import TrustReference
from ..encoders.whole import WholeEncoder, build_whole
from ..ports import Ids, TextEncoder
from .comparisons import Campaign
from .compiled import EncoderVerdict, TrustVerdict, Verdict, whole_name
from .report import Phase
from .texts import Texts

TEXTS_PER_S = 12
SESSIONS_PER_S = 0.2
FAULT_TEXTS = 24
FAULT_SESSIONS = 1
FAULT_ROUNDS = 8
"""A fault that so many rounds don't show isn't caught."""
STEPS = 20
LITERAL_SHARE = 3
"""One part in so many of a text is an added token, whole or cut."""

EncodeUntrusted = Callable[[str, Spans, Position], Ids]


class TrustVariant:
    """A text encoder whose texts with untrusted spans go through `encode`: what faults are planted with."""

    def __init__(self, honest: TextEncoder, encode: EncodeUntrusted, cut: Callable[[str], list[str]]) -> None:
        self.encode, self.encode_full, self.encode_chunks = honest.encode, honest.encode_full, honest.encode_chunks
        self._encode_untrusted, self._cut = encode, cut

    def encode_untrusted(self, text: str, untrusted: Spans, position: Position = Position.TEXT_START) -> Ids:
        return self._encode_untrusted(text, untrusted, position)

    def encode_untrusted_chunks(
        self, text: str, untrusted: Spans, position: Position = Position.TEXT_START
    ) -> list[tuple[str, Ids]]:
        return encode_cut(self._encode_untrusted, self._cut(text), untrusted, position)


def try_trust(campaign: Campaign, encoders: Mapping[str, EncoderVerdict], serving: str) -> TrustVerdict:
    """The verdict on the encoders that will serve: `serving`, in its whole-file form if that was admitted."""
    try:
        oracle = TrustReference(campaign.reference)
    except UnsupportedTokenizer as error:
        return TrustVerdict(Verdict.REFERENCE_ONLY, error.code)
    encoder, staged = serving_encoders(campaign, encoders, serving)
    phases = [
        check_texts(campaign, oracle, encoder, campaign.count(TEXTS_PER_S)),
        check_trust_sessions(campaign, oracle, encoder, campaign.count(SESSIONS_PER_S)),
    ]
    planted = _planted(campaign, oracle, encoder, staged.cut)
    campaign.phases += [*phases, planted]
    checks, divergences = (sum(getattr(phase, what) for phase in phases) for what in ("checks", "divergences"))
    if planted.divergences:
        return TrustVerdict(Verdict.REFERENCE_ONLY, "campaign.void", checks, divergences)
    if divergences:
        return TrustVerdict(Verdict.REJECTED, "trust.divergence", checks, divergences)
    return TrustVerdict(Verdict.ADMITTED, "", checks, 0)


def serving_encoders(
    campaign: Campaign, encoders: Mapping[str, EncoderVerdict], serving: str
) -> tuple[TextEncoder, SnapshotEncoder]:
    """(what will serve, in its whole-file form if that was admitted; the stages below it)."""
    found = encoders.get(serving)
    cores = Cores(campaign.reference, serving, found.unsafe_points() if found is not None else None)
    staged = build_text_encoder(campaign.reference, campaign.rule, cores, settled=campaign.settled)
    whole = encoders.get(whole_name(serving))
    if whole is not None and whole.verdict is Verdict.ADMITTED:
        return WholeEncoder(staged, build_whole(campaign.reference, serving), whole.unsafe_points()), staged
    return staged, staged


def not_tried(campaign: Campaign, reason: str) -> TrustVerdict:
    """The verdict where no fast path serves anything."""
    try:
        TrustReference(campaign.reference)
    except UnsupportedTokenizer as error:
        reason = error.code
    return TrustVerdict(Verdict.REFERENCE_ONLY, reason)


def check_texts(
    campaign: Campaign, oracle: TrustReference, encoder: TextEncoder, count: int, name: str = "trust: texts"
) -> Phase:
    """IDs of whole texts with untrusted spans, of their continuations behind a boundary, and in chunks."""
    phase = Phase(name)
    texts = campaign.texts
    for index in range(count):
        if index % 64 == 0:
            campaign.progress(name, index / count)
        text, spans = drawn(texts, texts.between(1, 200 if index % 4 else 2_000))
        if index % 11 == 0:
            spans = NO_SPANS
        expected = oracle.encode(text, spans).tobytes()
        if index % 2:
            ids = _around_boundary(campaign, oracle, encoder, text, spans)
        elif index % 4 == 2:
            ids = np.concatenate([ids for _, ids in encoder.encode_untrusted_chunks(text, spans)])
        else:
            ids = encoder.encode_untrusted(text, spans)
        phase.compare(ids.tobytes() == expected, text)
    return phase


def _around_boundary(campaign: Campaign, oracle: TrustReference, encoder: TextEncoder, text: str, spans: Spans) -> Ids:
    """What the reference makes of the text up to a boundary, and `encoder` of what follows."""
    at = campaign.rule.last(text, campaign.texts.between(0, len(text)))
    if at < 0:
        return encoder.encode_untrusted(text, spans)
    left = oracle.encode(text[:at], clipped(spans, 0, at))
    right = encoder.encode_untrusted(text[at:], clipped(spans, at, len(text)), Position.CONTINUATION)
    return np.concatenate([left, right])


def check_trust_sessions(
    campaign: Campaign, oracle: TrustReference, encoder: TextEncoder, count: int, name: str = "trust: sessions"
) -> Phase:
    """Replayed sessions whose appends and edits bring untrusted spans; at checkpoints the state and the client."""
    phase = Phase(name)
    texts = campaign.texts
    repairer = campaign.repairer(encoder, trusting=True)
    for index in range(count):
        campaign.progress(name, index / count)
        text, spans = drawn(texts, texts.between(0, 2_000))
        state = repairer.open(text, untrusted=spans)
        client = state.ids()
        for step in range(STEPS):
            try:
                client = _random_change(texts, repairer, state).apply(client)
            except WitnessMismatch:
                phase.compare(False, state.text())
                break
            if step % 4 == 3:
                expected = oracle.encode(state.text(), state.untrusted).tobytes()
                phase.compare(state.ids().tobytes() == expected == client.tobytes(), state.text())
    return phase


def _random_change(texts: Texts, repairer: Repairer, state: SessionState) -> Patch:
    kind = texts.between(0, 5)
    if kind == 0 and state.chars:  # nothing but trust
        start = texts.between(0, state.chars - 1)
        stop = min(start + texts.pick((1, 5, 60, 600)), state.chars)
        return repairer.replace(state, start, stop, state.text()[start:stop], drawn_spans(texts, stop - start))
    text, spans = drawn(texts, texts.pick((1, 2, 5, 40, 300)))
    if kind <= 3:
        return repairer.append(state, text, spans)
    stop = texts.pick((state.chars, texts.between(0, state.chars)))
    start = max(stop - texts.pick((0, 1, 3, 10, 200)), 0)
    if kind == 4:
        return repairer.replace(state, start, stop, text, spans)
    return repairer.replace(state, start, stop, "")


# --- texts and spans ------------------------------------------------------------------------------------------


def drawn(texts: Texts, chars: int) -> tuple[str, Spans]:
    """About `chars` characters with added tokens whole and cut, and untrusted spans in them."""
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    size = 0
    while size < chars:
        if texts.literals and texts.between(1, LITERAL_SHARE) == 1:
            literal = texts.literals[texts.between(0, len(texts.literals) - 1)]
            cut = texts.between(0, len(literal))
            forms = (literal, literal, literal[:cut], literal[cut:], literal[:cut] + literal, f" {literal} ")
            part = forms[texts.between(0, len(forms) - 1)]
            places.append((size, size + len(part)))
        elif texts.between(0, 1):
            part = texts.natural(texts.between(1, 40))
        else:
            part = texts.adversarial(texts.between(1, 12), literals=False)
        parts.append(part)
        size += len(part)
    return "".join(parts), drawn_spans(texts, size, places)


def drawn_spans(texts: Texts, chars: int, places: Sequence[tuple[int, int]] = ()) -> Spans:
    """Spans at random, and around some of `places`, over their first or last character, and up to or from within."""
    borders: list[int] = []
    for _ in range(texts.pick((0, 1, 1, 2, 4))):
        start = texts.between(0, chars)
        borders += [start, min(start + texts.pick((1, 2, 8, 40, chars)), chars)]
    for start, stop in places:
        if start < stop and texts.between(0, 2):
            middle = texts.between(start, stop)
            behind = min(stop + 4, chars)
            around = ((start, stop), (start, start + 1), (stop - 1, stop), (middle, stop), (start, middle))
            borders += (*around, (stop, behind))[texts.between(0, len(around))]
    borders.sort()
    return joined(zip(borders[::2], borders[1::2], strict=True))


# --- planted faults -------------------------------------------------------------------------------------------


def _planted(
    campaign: Campaign, oracle: TrustReference, encoder: TextEncoder, cut: Callable[[str], list[str]]
) -> Phase:
    """Each fault has to be caught by one of the comparisons."""
    phase = Phase("trust: planted faults")
    for name, lie in _faults(campaign, encoder).items():
        liar = TrustVariant(encoder, lie, cut)
        checks = [
            partial(check_texts, campaign, oracle, liar, FAULT_TEXTS, f"planted: {name}"),
            partial(check_trust_sessions, campaign, oracle, liar, FAULT_SESSIONS, f"planted: {name}"),
        ]
        phase.compare(any(check().divergences for _ in range(FAULT_ROUNDS) for check in checks), name)
    return phase


def _faults(campaign: Campaign, encoder: TextEncoder) -> dict[str, EncodeUntrusted]:
    """Readings of the definition that are wrong; without added tokens only the last differs from the right one."""
    honest = encoder.encode_untrusted
    faults: dict[str, EncodeUntrusted] = {"cut_at_spans": partial(_cuts_at_spans, honest)}
    if campaign.texts.literals:
        faults["spans_ignored"] = lambda text, spans, position: encoder.encode(text, position)
        faults["nothing_recognized"] = lambda text, spans, position: honest(text, ((0, len(text)),), position)
        faults["first_span_only"] = lambda text, spans, position: honest(text, spans[:1], position)
        faults["span_ends_early"] = lambda text, spans, position: honest(
            text, joined((start, stop - 1) for start, stop in spans), position
        )
        faults["span_starts_late"] = lambda text, spans, position: honest(
            text, joined((start + 1, stop) for start, stop in spans), position
        )
    return faults


def _cuts_at_spans(honest: EncodeUntrusted, text: str, spans: Spans, position: Position) -> Ids:
    """Encodes every untrusted span and trusted stretch by itself."""
    parts: list[Ids] = []
    at = 0
    for border in [*(border for span in spans for border in span), len(text)]:
        if at < border:
            parts.append(honest(text[at:border], clipped(spans, at, border), position))
            at, position = border, Position.CONTINUATION
    return np.concatenate(parts) if parts else honest(text, spans, position)
