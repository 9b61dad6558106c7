"""What a TokTier's status says. Pure: the same situation, the same words.

Rules:
 1. A condition keeps its `lastTransitionTime` while its status stays what it was.
 2. Counts are those that the StatefulSet's controller has told of this very template; of another, none is `updated`.
 3. Progressing is False only when every pod has what is to serve and is Ready, or when nothing can be done but wait.
 4. What isn't known is Unknown, never True.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..api.admission_status import AdmissionStatus, Verdict
from ..api.conditions import FALSE, TRUE, UNKNOWN, Condition, TierCondition, TierReason, with_transitions
from ..api.rollout import Composition, Served, Stage
from ..api.times import rfc3339
from ..api.toktier_spec import TokTierSpec
from ..api.toktier_status import ServedSnapshot, SnapshotState, TokTierStatus
from .rollout import STUCK_S, Decision, SetSeen
from .toktier import Choice, Problem

MAX_MESSAGE_CHARS = 1_024


@dataclass(frozen=True, slots=True)
class Upstream:
    """What is known of the way to SGLang: True, False, or None for not looked."""

    reachable: bool | None
    reason: TierReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """failures: what the API server refused, in words. selector: of the pods, as text."""

    generation: int
    spec: TokTierSpec
    admissions: Mapping[str, AdmissionStatus]
    quarantined: frozenset[str]
    choice: Choice
    decision: Decision | None
    seen: SetSeen | None
    counted: bool
    replicas: int
    upstream: Upstream
    failures: Sequence[str]
    selector: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Word:
    status: str
    reason: TierReason
    message: str = ""


def status_of(situation: Situation, before: TokTierStatus) -> TokTierStatus:
    seen, decision = situation.seen, situation.decision
    words = {
        TierCondition.AVAILABLE: _available(situation),
        TierCondition.PROGRESSING: _progressing(situation),
        TierCondition.DEGRADED: _degraded(situation, before.conditions),
        TierCondition.TOKENIZERS_ADMITTED: _admitted(situation.choice.problems),
        TierCondition.UPSTREAM_REACHABLE: _reachable(situation.upstream),
    }
    return TokTierStatus(
        observed_generation=situation.generation,
        replicas=seen.existing if seen is not None else 0,
        ready_replicas=seen.ready if seen is not None else 0,
        updated_replicas=seen.updated if seen is not None and situation.counted else 0,
        selector=situation.selector,
        conditions=_with_times(words, before.conditions, situation.generation, situation.now),
        snapshots=_snapshots(situation),
        rollout=decision.rollout.to_status() if decision is not None else before.rollout,
        image=decision.serve.image if decision is not None else before.image,
    )


def refused_status(before: TokTierStatus, generation: int, problem: str, now: datetime) -> TokTierStatus:
    """Of a spec that can't be read: what serves is left alone, and the rest of the status with it."""
    word = Word(TRUE, TierReason.SPEC_INVALID, problem)
    changed = _with_times({TierCondition.DEGRADED: word}, before.conditions, generation, now)
    others = tuple(each for each in before.conditions if each.type != TierCondition.DEGRADED)
    return replace(before, observed_generation=generation, conditions=others + changed)


def stuck_in_s(seen: SetSeen | None, replicas: int, now: datetime) -> float | None:
    """When the next pod that isn't Ready will have been so for too long; None if none is on the way there."""
    if seen is None:
        return None
    waits = [STUCK_S - (now - pod.since).total_seconds() for pod in seen.pods if not pod.ready]
    waits += [STUCK_S] if len(seen.pods) < replicas else []
    return min((each for each in waits if each > 0), default=None)


def _available(situation: Situation) -> Word:
    ready = situation.seen.ready if situation.seen is not None else 0
    if ready:
        return Word(TRUE, TierReason.PODS_READY, f"{ready} of {situation.replicas} pods are ready")
    if situation.replicas == 0:
        return Word(FALSE, TierReason.SCALED_TO_ZERO, "spec.replicas is 0")
    return Word(FALSE, TierReason.NO_POD_READY, f"none of {situation.replicas} pods is ready")


def _progressing(situation: Situation) -> Word:
    decision, seen, problems = situation.decision, situation.seen, situation.choice.problems
    if decision is None:
        return Word(FALSE, _waiting_reason(problems), _messages([each for each in problems if each.waiting]))
    stage, replicas = decision.rollout.stage, situation.replicas
    updated = seen.updated if seen is not None and situation.counted else 0
    ready = seen.ready if seen is not None else 0
    counts = f"{updated} of {replicas} pods are updated, {ready} ready"
    new = ", ".join(sorted(decision.rollout.target.ids - decision.rollout.stable.ids))
    if stage is Stage.CANARY:
        return Word(TRUE, TierReason.CANARY, f"one pod is to serve {new or 'the new template'} first; {counts}")
    if stage is Stage.REVERTING:
        return Word(TRUE, TierReason.CANARY_REVERTED, f"what served before is put back; {counts}")
    if not decision.complete:
        if stage is Stage.STEADY and seen is not None and situation.counted and seen.updated == seen.existing:
            return Word(TRUE, TierReason.SCALING, f"{seen.existing} of {replicas} pods are there, {ready} ready")
        return Word(TRUE, TierReason.ROLLING, counts)
    if stage is Stage.ROLLING:
        return Word(TRUE, TierReason.ROLLING, counts)
    image = [each for each in problems if each.reason is TierReason.WAITING_FOR_IMAGE]
    if situation.choice.held or image:
        return Word(FALSE, _waiting_reason(problems), _messages([each for each in problems if each.waiting] or image))
    given_up = [
        each
        for each in problems
        if each.reason is TierReason.QUARANTINED and _current_id(situation, each) not in decision.serve.ids
    ]
    if given_up:
        return Word(FALSE, TierReason.CANARY_REVERTED, _messages(given_up))
    return Word(FALSE, TierReason.ROLLED_OUT, counts)


def _waiting_reason(problems: Sequence[Problem]) -> TierReason:
    waiting = {each.reason for each in problems if each.waiting}
    if not waiting or TierReason.WAITING_FOR_IMAGE in waiting:
        return TierReason.WAITING_FOR_IMAGE
    return TierReason.WAITING_FOR_ADMISSION


def _current_id(situation: Situation, problem: Problem) -> str:
    status = situation.admissions.get(problem.admission)
    return status.current.id if status is not None and status.current is not None else ""


def _degraded(situation: Situation, before: Sequence[Condition]) -> Word:
    if situation.failures:
        return Word(TRUE, TierReason.APPLY_FAILED, "; ".join(situation.failures))
    in_use = situation.decision.rollout.ids if situation.decision is not None else frozenset()
    wrong = sorted(situation.quarantined & in_use)
    if wrong:
        return Word(TRUE, TierReason.QUARANTINED, f"{', '.join(wrong)}: served by the reference alone")
    late = _late(situation, before)
    if late:
        message = f"not ready for {STUCK_S:.0f} s and more: {', '.join(f'pod {each}' for each in late)}"
        return Word(TRUE, TierReason.PODS_FAILING, message)
    rejected = [name for name, status in sorted(situation.admissions.items()) if status.upgrade_rejected]
    if rejected:
        message = f"{', '.join(rejected)}: a newer snapshot was rejected, the one before goes on serving"
        return Word(TRUE, TierReason.UPGRADE_REJECTED, message)
    return Word(FALSE, TierReason.HEALTHY)


def _late(situation: Situation, before: Sequence[Condition]) -> list[int]:
    """Ordinals of pods that don't get Ready, or that can't even be made while everything else waits for them."""
    seen, now = situation.seen, situation.now
    if seen is None:
        return []
    late = {pod.ordinal for pod in seen.pods if not pod.ready and (now - pod.since).total_seconds() >= STUCK_S}
    missing = set(range(situation.replicas)) - {pod.ordinal for pod in seen.pods}
    progressing = next((each for each in before if each.type == TierCondition.PROGRESSING), None)
    if missing and progressing is not None and progressing.status == TRUE:
        since = datetime.fromisoformat(progressing.last_transition_time)
        late |= missing if (now - since).total_seconds() >= STUCK_S else set()
    return sorted(late)


_GRAVEST = (
    TierReason.ADMISSION_MISSING,
    TierReason.ADMISSION_PENDING,
    TierReason.REFUSED,
    TierReason.QUARANTINED,
    TierReason.REFERENCE_ONLY,
)


def _admitted(problems: Sequence[Problem]) -> Word:
    for reason in _GRAVEST:
        if any(each.reason is reason for each in problems):
            about = [each for each in problems if each.reason in _GRAVEST]
            return Word(FALSE, reason, _messages(about))
    return Word(TRUE, TierReason.ALL_ADMITTED)


def _reachable(upstream: Upstream) -> Word:
    status = {True: TRUE, False: FALSE, None: UNKNOWN}[upstream.reachable]
    return Word(status, upstream.reason, upstream.message)


def _messages(problems: Sequence[Problem]) -> str:
    return "; ".join(each.message for each in problems)


def _with_times(
    words: Mapping[TierCondition, Word], before: Sequence[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    said = {kind.value: (word.status, word.reason, word.message[:MAX_MESSAGE_CHARS]) for kind, word in words.items()}
    return with_transitions(before, said, generation, rfc3339(now))


def _snapshots(situation: Situation) -> tuple[ServedSnapshot, ...]:
    """Those of `stable`, those that are on their way, and tokenizers that the spec names and nothing serves."""
    found: list[ServedSnapshot] = []
    named: set[str] = set()
    if situation.decision is not None:
        rollout = situation.decision.rollout
        for each in rollout.stable.tokenizers:
            found.append(_snapshot(each, situation, SnapshotState.SERVING))
        state = SnapshotState.CANARY if rollout.stage is Stage.CANARY else SnapshotState.SERVING
        for each in _added(rollout.target, rollout.stable):
            found.append(_snapshot(each, situation, state))
        named = {each.admission for each in found}
    for tokenizer in situation.spec.tokenizers:
        if tokenizer.admission not in named:
            missing = SnapshotState.MISSING.value
            found.append(ServedSnapshot(tokenizer.admission, tokenizer.served_name, state=missing))
    return tuple(found)


def _added(target: Composition, stable: Composition) -> list[Served]:
    return [each for each in target.tokenizers if each.id not in stable.ids]


def _snapshot(served: Served, situation: Situation, state: SnapshotState) -> ServedSnapshot:
    if served.id in situation.quarantined:
        state = SnapshotState.QUARANTINED
    elif state is SnapshotState.SERVING and not served.accelerated:
        state = SnapshotState.REFERENCE_ONLY
    verdict = Verdict.ADMITTED if served.accelerated else Verdict.REFERENCE_ONLY
    return ServedSnapshot(
        admission=served.admission,
        tokenizer=served.name,
        id=served.id,
        sha256=served.sha256,
        fingerprint=served.fingerprint,
        verdict=verdict.value,
        state=state.value,
    )
