"""Admission: the campaign that decides what may serve for one snapshot.

Guarantees: the verdict is `Admitted` only if the rule and at least one encoder (the reference counts) came through
every phase without one divergence, and every planted fault was caught by the very comparisons used. The same seed,
budget and libraries give the same report: work is counted, not timed (`budget_s` is nominal).

Phases: rule (split level and ID level), pipeline (added tokens and normalizer against the whole reference), then
per candidate a probe of every code point, IDs, replayed sessions, and history; planted faults last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..core.added_tokens import exclusions
from ..core.boundaries import BoundaryRule, derive_class_rule, no_rule
from ..core.classes import Settled, ranges_of
from ..core.errors import EncoderUnavailable, UnsupportedTokenizer
from ..core.pipeline import Position
from ..core.repair import Repairer, WitnessMismatch
from ..core.session import SessionState
from ..core.values import Patch
from ..core.vocabulary import derive_adjacency_rule, longest_entry_chars
from ..encoders.assemble import Cores, build_text_encoder, core_documents, settled_points
from ..encoders.candidates import CANDIDATES, build_candidate
from ..encoders.reference import REFERENCE_VERSION, CoreReference, Reference, ReferenceProbe, class_members, pieces_of
from ..ports import Encoder, Ids, TextEncoder
from .compiled import CompiledSnapshot, EncoderVerdict, Verdict
from .faults import ENCODER_FAULTS, plant_rule_fault
from .probe import MAX_UNSAFE_POINTS, ProbeResult, probe_encoders
from .report import Phase, Report
from .texts import Texts

Progress = Callable[[str, float], None]
ProbeCache = MutableMapping[str, dict[str, ProbeResult]]
"""Probes by digest of the core tokenizer: files that differ in added tokens or template only share theirs."""

SHORT_STRINGS_PER_S = 1_500
CONTEXTS_PER_S = 60
SESSIONS_PER_S = 0.4
HISTORIES_PER_S = 0.2
FAULT_TEXTS = 24
FAULT_STRINGS = 3_000
FAULT_CONTEXTS = 400
FAULT_HISTORIES = 4


@dataclass(frozen=True)
class Admission:
    report: Report
    compiled: CompiledSnapshot


@dataclass
class _Campaign:
    reference: Reference
    rule: BoundaryRule
    texts: Texts
    budget_s: float
    progress: Progress
    overlap_chars: int
    probes: ProbeCache = field(default_factory=dict)
    settled: Settled | None = None
    pieces: Callable[[str, Position], list[Any]] | None = None
    phases: list[Phase] = field(default_factory=list)

    def count(self, per_second: float, share: float = 1.0) -> int:
        return max(int(per_second * share * self.budget_s), 4)


def derive_rule(reference: Reference) -> BoundaryRule:
    """The first rule if the pre-tokenizer gives one, else the second; of kind `none` with the reason otherwise."""
    snapshot = reference.snapshot
    pipeline = snapshot.pipeline
    if pipeline is None:
        error = snapshot.unsupported
        return no_rule(error.code if error else "pipeline.unknown", error.message if error else "")
    probe = ReferenceProbe(reference)
    whole = reference.normalizer(Position.TEXT_START)
    try:
        excluded = exclusions(
            reference.added_tokens(), whole if whole else str, position_matters=pipeline.position_matters
        )
    except UnsupportedTokenizer as error:
        return no_rule(error.code, error.message)
    rule = derive_class_rule(pipeline, excluded, probe)
    if rule.kind == "none" and rule.reason == "rule.no_cuts":
        return derive_adjacency_rule(pipeline, snapshot.model, excluded, probe)
    return rule


def admit(
    reference: Reference,
    *,
    budget_s: float = 60.0,
    seed: int = 1,
    candidates: Sequence[str] = tuple(CANDIDATES),
    corpus: Sequence[str] = (),
    progress: Progress | None = None,
    rule: BoundaryRule | None = None,
    probes: ProbeCache | None = None,
) -> Admission:
    """Run the campaign; `rule` overrides the derived one (tests plant wrong ones).

    Never raises for a tokenizer that merely fails: the verdict says so.
    """
    tell = progress or (lambda phase, done: None)
    tell("rule: derive", 0.0)
    rule = derive_rule(reference) if rule is None else rule
    overlap = longest_entry_chars(reference.snapshot.model) + 1
    campaign = _Campaign(reference, rule, Texts(reference.snapshot, rule, seed, corpus), budget_s, tell, overlap)
    campaign.probes = {} if probes is None else probes
    if rule.kind == "none":
        return _conclude(campaign, Verdict.REFERENCE_ONLY, rule.reason, {}, seed)
    campaign.settled = settled_points(reference)
    reference_cores = Cores(reference)
    encoder = build_text_encoder(reference, rule, reference_cores, settled=campaign.settled)
    campaign.phases.append(check_splits(campaign, campaign.count(SHORT_STRINGS_PER_S)))
    campaign.phases.append(check_contexts(campaign, encoder, campaign.count(CONTEXTS_PER_S)))
    campaign.phases.append(check_ids(campaign, encoder, "pipeline", campaign.count(CONTEXTS_PER_S, 0.5)))
    campaign.phases.append(check_sessions(campaign, encoder, "sessions: reference", campaign.count(SESSIONS_PER_S)))
    if not any(phase.checks for phase in campaign.phases[:2]):
        return _conclude(campaign, Verdict.REFERENCE_ONLY, "rule.no_boundary_pair", {}, seed)
    if any(phase.divergences for phase in campaign.phases):
        return _conclude(campaign, Verdict.REJECTED, "campaign.divergence", {}, seed)
    if _planted(campaign, encoder, reference_cores):
        return _conclude(campaign, Verdict.REFERENCE_ONLY, "campaign.void", {}, seed)
    return _conclude(campaign, Verdict.ADMITTED, "", _try_candidates(campaign, candidates), seed)


def _conclude(
    campaign: _Campaign, verdict: Verdict, reason: str, encoders: dict[str, EncoderVerdict], seed: int
) -> Admission:
    snapshot = campaign.reference.snapshot
    settled = campaign.settled
    exact = [name for name, found in encoders.items() if found.verdict is Verdict.ADMITTED]
    compiled = CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=verdict,
        reason=reason,
        rule=campaign.rule if verdict is Verdict.ADMITTED else no_rule(reason, campaign.rule.detail),
        encoder=exact[0] if exact else "reference",
        encoders=encoders,
        longest_entry_chars=campaign.overlap_chars - 1,
        settled=(ranges_of(settled.always), ranges_of(settled.alone)) if settled is not None else None,
    )
    report = Report(
        snapshot=snapshot,
        rule=campaign.rule,
        seed=seed,
        budget_s=campaign.budget_s,
        phases=tuple(campaign.phases),
        encoders=encoders,
        verdict=verdict,
        reason=reason,
        encoder=compiled.encoder,
        compiled_digest=compiled.digest,
    )
    campaign.progress("done", 1.0)
    return Admission(report, compiled)


# --- the comparisons ------------------------------------------------------------------------------------------


def check_splits(campaign: _Campaign, count: int, rule: BoundaryRule | None = None) -> Phase:
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


def _short_strings(campaign: _Campaign, count: int) -> list[str]:
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


def check_contexts(campaign: _Campaign, encoder: TextEncoder, count: int, rule: BoundaryRule | None = None) -> Phase:
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


def check_ids(campaign: _Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """IDs of whole texts, long and short, with added tokens and without; chunked ones too."""
    phase = Phase(name)
    for index in range(count):
        if index % 16 == 0:
            campaign.progress(name, index / count)
        make = (campaign.texts.adversarial, campaign.texts.natural, campaign.texts.mixed)[index % 3]
        text = make(campaign.texts.between(1, 3_000))
        if index % 29 == 0:
            text = campaign.texts.mixed(40_000)
        chunks = [(text, encoder.encode(text))] if index % 2 else encoder.encode_chunks(text)
        ids = np.concatenate([ids for _, ids in chunks])
        phase.compare(ids.tobytes() == campaign.reference.encode_text(text).tobytes(), text)
    return phase


def check_sessions(campaign: _Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """Replayed sessions: appends and edits of all sizes; at checkpoints the state against a full encode."""
    phase = Phase(name)
    repairer = Repairer(
        fingerprint=campaign.reference.snapshot.fingerprint,
        rule=campaign.rule,
        encode=encoder.encode,
        encode_chunks=encoder.encode_chunks,
        overlap_chars=campaign.overlap_chars,
    )
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


def check_history(campaign: _Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
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


def _inner_positions(campaign: _Campaign, text: str, count: int) -> list[int]:
    """Positions past 4,096 characters that are no boundary, where history would show; inside a word if possible."""
    inner = [p for p in range(4_096, len(text)) if not campaign.rule.holds(text[p - 1], text[p])]
    words = [p for p in inner if text[p - 1 : p + 1].isascii() and text[p - 1 : p + 1].isalpha()]
    return sorted({campaign.texts.pick(words or inner) for _ in range(count)}) if inner else []


# --- candidates -----------------------------------------------------------------------------------------------


def _try_candidates(campaign: _Campaign, names: Sequence[str]) -> dict[str, EncoderVerdict]:
    document = core_documents(campaign.reference)[Position.CONTINUATION]
    verdicts: dict[str, EncoderVerdict] = {}
    built: dict[str, Encoder] = {}
    for name in names:
        try:
            built[name] = build_candidate(name, document)
        except EncoderUnavailable as error:
            verdicts[name] = EncoderVerdict(name, "", Verdict.REFERENCE_ONLY, f"{error.code}: {error.message}")
    if built:
        probed = _probe(campaign, document, built)
        for name, candidate in built.items():
            verdicts[name] = _judge(campaign, name, candidate.version, probed[name])
    return {name: verdicts[name] for name in names}


def _probe(campaign: _Campaign, document: dict[str, Any], built: dict[str, Encoder]) -> dict[str, ProbeResult]:
    versions = [REFERENCE_VERSION, *(candidate.version for candidate in built.values())]
    key = hashlib.sha256(json.dumps([document, versions], sort_keys=True).encode()).hexdigest()
    if key not in campaign.probes:
        campaign.probes[key] = probe_encoders(
            {name: candidate.encode for name, candidate in built.items()},
            CoreReference(document).encode,
            ~class_members(r"\p{Cn}"),
            partial(campaign.progress, "candidates: every code point"),
        )
    return campaign.probes[key]


def _judge(campaign: _Campaign, name: str, version: str, probed: ProbeResult) -> EncoderVerdict:
    if probed.points > MAX_UNSAFE_POINTS or any(first < 0x80 for first, _ in probed.unsafe):
        return EncoderVerdict(
            name, version, Verdict.REJECTED, "encoder.too_many_unsafe", probed.checks, probed.points, probed.unsafe
        )
    verdict = EncoderVerdict(name, version, Verdict.ADMITTED, "", probed.checks, 0, probed.unsafe)
    cores = Cores(campaign.reference, name, verdict.unsafe_points())
    encoder = build_text_encoder(campaign.reference, campaign.rule, cores, settled=campaign.settled)
    phases = [
        check_ids(campaign, encoder, f"{name}: ids", campaign.count(CONTEXTS_PER_S, 0.5)),
        check_sessions(campaign, encoder, f"{name}: sessions", campaign.count(SESSIONS_PER_S)),
        check_history(campaign, encoder, f"{name}: history", campaign.count(HISTORIES_PER_S)),
    ]
    campaign.phases += phases
    divergences = sum(phase.divergences for phase in phases)
    checks = probed.checks + sum(phase.checks for phase in phases)
    return EncoderVerdict(
        name,
        version,
        Verdict.REJECTED if divergences else Verdict.ADMITTED,
        "encoder.divergence" if divergences else "",
        checks,
        divergences,
        probed.unsafe,
    )


# --- planted faults -------------------------------------------------------------------------------------------


class _Liar:
    """An encoder with a planted fault, behind the encoder protocol."""

    def __init__(self, honest: Encoder, lie: Callable[[Callable[[str], Ids]], Callable[[str], Ids]]) -> None:
        self.name, self.version = honest.name, honest.version
        self.encode = lie(honest.encode)


def _planted(campaign: _Campaign, encoder: TextEncoder, cores: Cores) -> bool:
    """Plant every fault, the encoder's into `cores` (which stay spoilt); whether one went uncaught."""
    phase = Phase("planted faults")
    campaign.progress("planted: rule", 0.0)
    wrong = plant_rule_fault(campaign.rule)
    phase.compare(check_splits(campaign, FAULT_STRINGS, wrong).divergences > 0, "split level")
    phase.compare(check_contexts(campaign, encoder, FAULT_CONTEXTS, wrong).divergences > 0, "ID level")
    for name, lie in ENCODER_FAULTS.items():
        for core in set(cores.by_position.values()):
            core.replace(_Liar(core.reference, lie))
        caught = check_ids(campaign, encoder, f"planted: {name}", FAULT_TEXTS).divergences
        caught += check_history(campaign, encoder, f"planted: {name}", FAULT_HISTORIES).divergences
        phase.compare(caught > 0, name)
    campaign.phases.append(phase)
    return phase.divergences > 0
