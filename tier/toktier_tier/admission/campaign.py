"""Admission: the campaign that decides what may serve for one snapshot.

Guarantees: the verdict is `Admitted` only if the rule and at least one encoder (the reference counts) came through
every phase without one divergence, and every planted fault was caught by the very comparisons used. The same seed,
budget and libraries give the same report: work is counted, not timed (`budget_s` is nominal).

Phases: the proof of the rule (see `core.proof`), rule (split level and ID level), pipeline (added tokens and
normalizer against the whole reference), then planted faults, and per candidate what it may not be given at all
(`encoders.features`), every code point (`probe`), every element of the file (`coverage`), IDs, replayed sessions, and
history; then the whole-file form of the candidate that serves (see `whole`), what serves with untrusted spans (see
`trust`), and where there is a device, the GPU path around it (see `gpu`). The verdict on those stands by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..core.added_tokens import exclusions
from ..core.boundaries import BoundaryRule, derive_class_rule, no_rule
from ..core.classes import ranges_of
from ..core.errors import EncoderUnavailable, UnsupportedTokenizer
from ..core.pipeline import Position
from ..core.proof import Proof, prove_rule, unavailable
from ..core.vocabulary import derive_adjacency_rule, longest_entry_chars
from ..encoders.assemble import Cores, build_text_encoder, core_documents, settled_points
from ..encoders.candidates import CANDIDATES, GPU_NAME, WHERE_NO_OTHER, build_candidate
from ..encoders.features import check_features
from ..encoders.gpu_device import Backend
from ..encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe, class_members, pieces_of
from ..encoders.snapshot_encoder import SnapshotEncoder
from ..ports import Encoder, TextEncoder
from .comparisons import (
    CONTEXTS_PER_S,
    IDS_PER_S,
    SESSIONS_PER_S,
    SHORT_STRINGS_PER_S,
    Campaign,
    ProbeCache,
    Progress,
    check_contexts,
    check_elements,
    check_encoder,
    check_history,
    check_ids,
    check_sessions,
    check_splits,
    elements,
)
from .compiled import CompiledSnapshot, EncoderVerdict, Verdict
from .faults import ENCODER_FAULTS, FAULT_HISTORIES, FAULT_TEXTS, Liar, plant_rule_fault
from .gpu import try_gpu
from .normalizing import check_pairs, check_sequences
from .probe import ProbeResult, probe_encoders
from .report import Phase, Report
from .texts import Texts
from .trust import not_tried, serving_encoders, try_trust
from .whole import try_whole

FAULT_STRINGS = 3_000
FAULT_CONTEXTS = 400


@dataclass(frozen=True)
class Admission:
    report: Report
    compiled: CompiledSnapshot


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


def prove(reference: Reference, rule: BoundaryRule) -> Proof:
    """The proof that `rule` is right for this snapshot, or why there is none.

    A contradiction's text is shown to the reference: whether its pieces left and right of the pair are others apart.
    """
    pipeline = reference.snapshot.pipeline
    if pipeline is None:
        return unavailable(rule.kind, "proof.no_pipeline", "the pipeline isn't modelled")
    normalize = reference.normalizer(Position.TEXT_START) or str
    model, tokens = reference.snapshot.model, reference.added_tokens()
    proof = prove_rule(rule, pipeline, model, tokens, normalize, ReferenceProbe(reference))
    found = proof.contradiction
    if found is None or not found.text:
        return proof
    pieces, at = pieces_of(reference), found.position
    apart = pieces(found.text[:at], Position.TEXT_START) + pieces(found.text[at:], Position.CONTINUATION)
    confirmed = apart != pieces(found.text, Position.TEXT_START)
    return replace(proof, contradiction=replace(found, confirmed=confirmed))


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
    gpu: Backend | None = None,
) -> Admission:
    """Run the campaign; `rule` overrides the derived one (tests plant wrong ones); `gpu`: the device, if there is one.

    Never raises for a tokenizer that merely fails: the verdict says so.
    """
    tell = progress or (lambda phase, done: None)
    tell("rule: derive", 0.0)
    rule = derive_rule(reference) if rule is None else rule
    overlap = longest_entry_chars(reference.snapshot.model) + 1
    campaign = Campaign(reference, rule, Texts(reference.snapshot, rule, seed, corpus), budget_s, tell, overlap)
    campaign.probes = {} if probes is None else probes
    if rule.kind == "none":
        return _conclude(campaign, Verdict.REFERENCE_ONLY, rule.reason, {}, seed)
    tell("rule: proof", 0.0)
    campaign.proof = prove(reference, rule)
    if campaign.proof.status == "refuted":
        return _conclude(campaign, Verdict.REJECTED, campaign.proof.reason, {}, seed)
    campaign.settled = settled_points(reference)
    reference_cores = Cores(reference)
    encoder = build_text_encoder(reference, rule, reference_cores, settled=campaign.settled)
    campaign.phases.append(check_splits(campaign, campaign.count(SHORT_STRINGS_PER_S)))
    campaign.phases.append(check_contexts(campaign, encoder, campaign.count(CONTEXTS_PER_S)))
    campaign.phases.append(check_ids(campaign, encoder, "pipeline", campaign.count(IDS_PER_S)))
    if encoder.normalizes:
        campaign.phases.append(check_sequences(campaign, encoder, "normalizer: sequences"))
    if campaign.settled is not None:
        campaign.phases.append(check_pairs(campaign, "normalizer: pairs"))
    campaign.phases.append(check_sessions(campaign, encoder, "sessions: reference", campaign.count(SESSIONS_PER_S)))
    if not any(phase.checks for phase in campaign.phases[:2]):
        return _conclude(campaign, Verdict.REFERENCE_ONLY, "rule.no_boundary_pair", {}, seed)
    if any(phase.divergences for phase in campaign.phases):
        return _conclude(campaign, Verdict.REJECTED, "campaign.divergence", {}, seed)
    if _planted(campaign, encoder, reference_cores):
        return _conclude(campaign, Verdict.REFERENCE_ONLY, "campaign.void", {}, seed)
    return _conclude(campaign, Verdict.ADMITTED, "", _try_candidates(campaign, candidates), seed, gpu)


def admit_gpu(
    reference: Reference,
    compiled: CompiledSnapshot,
    gpu: Backend,
    *,
    budget_s: float = 60.0,
    seed: int = 1,
    progress: Progress | None = None,
) -> CompiledSnapshot:
    """`compiled`, which was admitted, with the verdict on the GPU path around what it admits."""
    tell = progress or (lambda phase, done: None)
    texts = Texts(reference.snapshot, compiled.rule, seed)
    overlap = compiled.longest_entry_chars + 1
    campaign = Campaign(reference, compiled.rule, texts, budget_s, tell, overlap, settled=compiled.settled_points())
    encoders = dict(compiled.encoders)
    _try_gpu(campaign, gpu, encoders, compiled.encoder, compiled.trust_admitted)
    return replace(compiled, encoders=encoders)


def _try_gpu(
    campaign: Campaign, gpu: Backend, encoders: dict[str, EncoderVerdict], serving: str, trusting: bool
) -> None:
    """Adds the verdict to `encoders`."""
    inner, staged = serving_encoders(campaign, encoders, serving)
    encoders[GPU_NAME] = try_gpu(campaign, gpu, inner, staged, trusting=trusting)


def _conclude(
    campaign: Campaign,
    verdict: Verdict,
    reason: str,
    encoders: dict[str, EncoderVerdict],
    seed: int,
    gpu: Backend | None = None,
) -> Admission:
    snapshot = campaign.reference.snapshot
    settled = campaign.settled
    serving = next(iter(_exact(encoders)), "reference")
    trust = try_trust(campaign, encoders, serving) if verdict is Verdict.ADMITTED else not_tried(campaign, reason)
    if gpu is not None:
        _try_gpu(campaign, gpu, encoders, serving, trust.verdict is Verdict.ADMITTED)
    compiled = CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=verdict,
        reason=reason,
        rule=campaign.rule if verdict is Verdict.ADMITTED else no_rule(reason, campaign.rule.detail),
        encoder=serving,
        encoders=encoders,
        longest_entry_chars=campaign.overlap_chars - 1,
        settled=(ranges_of(settled.always), ranges_of(settled.alone)) if settled is not None else None,
        trust=trust,
    )
    report = Report(
        snapshot=snapshot,
        rule=campaign.rule,
        proof=campaign.proof,
        seed=seed,
        budget_s=campaign.budget_s,
        phases=tuple(campaign.phases),
        encoders=encoders,
        verdict=verdict,
        reason=reason,
        encoder=compiled.encoder,
        trust=trust,
        compiled_digest=compiled.digest,
    )
    campaign.progress("done", 1.0)
    return Admission(report, compiled)


# --- candidates -----------------------------------------------------------------------------------------------


def _try_candidates(campaign: Campaign, names: Sequence[str]) -> dict[str, EncoderVerdict]:
    """Verdicts by candidate, and on the whole-file form of the one that will serve."""
    verdicts = _verdicts(campaign, [name for name in names if name not in WHERE_NO_OTHER])
    if not _exact(verdicts):
        verdicts |= _verdicts(campaign, [name for name in names if name in WHERE_NO_OTHER])
    verdicts = {name: verdicts[name] for name in names if name in verdicts}
    serving = next(iter(_exact(verdicts)), None)
    if serving is not None:
        found = try_whole(campaign, serving, _staged(campaign, verdicts[serving]))
        verdicts[found.name] = found
    return verdicts


def _exact(verdicts: Mapping[str, EncoderVerdict]) -> list[str]:
    return [name for name in CANDIDATES if name in verdicts and verdicts[name].verdict is Verdict.ADMITTED]


def _verdicts(campaign: Campaign, names: Sequence[str]) -> dict[str, EncoderVerdict]:
    document = core_documents(campaign.reference)[Position.CONTINUATION]
    verdicts: dict[str, EncoderVerdict] = {}
    built: dict[str, Encoder] = {}
    for name in names:
        try:
            check_features(name, campaign.reference.snapshot)
            built[name] = build_candidate(name, document)
        except EncoderUnavailable as error:
            verdicts[name] = EncoderVerdict(name, "", Verdict.REFERENCE_ONLY, f"{error.code}: {error.message}")
    if built:
        probed = _probe(campaign, document, built)
        for name, candidate in built.items():
            verdicts[name] = _judge(campaign, name, candidate.version, probed[name])
    return verdicts


def _staged(campaign: Campaign, verdict: EncoderVerdict) -> SnapshotEncoder:
    cores = Cores(campaign.reference, verdict.name, verdict.unsafe_points())
    return build_text_encoder(campaign.reference, campaign.rule, cores, settled=campaign.settled)


def _probe(campaign: Campaign, document: dict[str, Any], built: dict[str, Encoder]) -> dict[str, ProbeResult]:
    versions = [REFERENCE_VERSION, *(candidate.version for candidate in built.values())]
    key = hashlib.sha256(json.dumps([document, versions], sort_keys=True).encode()).hexdigest()
    if key not in campaign.probes:
        campaign.probes[key] = probe_encoders(
            {name: candidate.encode for name, candidate in built.items()},
            campaign.reference.core(document["pre_tokenizer"]).encode,
            ~class_members(r"\p{Cn}"),
            partial(campaign.progress, "candidates: every code point"),
            answers=campaign.answers,
        )
    return campaign.probes[key]


def _judge(campaign: Campaign, name: str, version: str, probed: ProbeResult) -> EncoderVerdict:
    if probed.too_many:
        return EncoderVerdict(
            name, version, Verdict.REJECTED, "encoder.too_many_unsafe", probed.checks, probed.points, probed.unsafe
        )
    verdict = EncoderVerdict(name, version, Verdict.ADMITTED, "", probed.checks, 0, probed.unsafe)
    cores = Cores(campaign.reference, name, verdict.unsafe_points())
    encoder = build_text_encoder(campaign.reference, campaign.rule, cores, settled=campaign.settled)
    if not all(asked.group.complete for asked in elements(campaign)):
        return EncoderVerdict(name, version, Verdict.REFERENCE_ONLY, "campaign.void", probed.checks, 0, probed.unsafe)
    core = cores.by_position[Position.CONTINUATION]
    phases = check_elements(campaign, core.encode, core.reference.encode, name)
    if not any(phase.divergences for phase in phases):
        phases += check_encoder(campaign, encoder, name)
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


def _planted(campaign: Campaign, encoder: TextEncoder, cores: Cores) -> bool:
    """Plant every fault, the encoder's into `cores` (which stay spoilt); whether one went uncaught."""
    phase = Phase("planted faults")
    campaign.progress("planted: rule", 0.0)
    wrong = plant_rule_fault(campaign.rule)
    phase.compare(check_splits(campaign, FAULT_STRINGS, wrong).divergences > 0, "split level")
    phase.compare(check_contexts(campaign, encoder, FAULT_CONTEXTS, wrong).divergences > 0, "ID level")
    for name, lie in ENCODER_FAULTS.items():
        for core in set(cores.by_position.values()):
            core.replace(Liar(name, lie(core.reference.encode)))
        caught = check_ids(campaign, encoder, f"planted: {name}", FAULT_TEXTS).divergences
        caught += check_history(campaign, encoder, f"planted: {name}", FAULT_HISTORIES).divergences
        phase.compare(caught > 0, name)
    campaign.phases.append(phase)
    return phase.divergences > 0
