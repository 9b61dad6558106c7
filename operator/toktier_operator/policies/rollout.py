"""How a TokTier gets from one composition of its pods to the next: canary, hold, roll, back.

A composition is what a pod template is made of beside the spec: the image and the tokenizers with their admission ids.

    Steady     every pod is to have `stable`
    Canary     the highest ordinal has `target`, the others have `stable`
    Rolling    `target` goes to the others, one after the other
    Reverting  `stable` is put back, what was tried is given up

Guarantees, whatever is observed and whenever the operator is killed:

 1. Where an admission that the pods have already gets another id, the new one reaches no pod but the canary before the
    canary was Ready for `hold_s` at a stretch. Everything else (spec, image, tokenizers added or taken out) rolls
    directly, which still is one pod after the other.
 2. Once more than the canary may have `target`, nothing else goes out until every pod has it, or has `stable` again.
 3. While it isn't out everywhere, `target` is given up for `stable` as soon as a new id of it is quarantined, or
    `stable` is what is wanted. It is also given up where it doesn't come up and something else is wanted.
 4. `stable` changes only when every pod has `target` and is Ready, so there is always one to go back to.

Two exceptions, where waiting would mean to wait for ever: a first composition that no pod has got Ready with is
replaced at once; and if what was put back doesn't come up for `STUCK_S`, what is wanted by then is tried as a canary.

The state is to be written before what follows from it is applied. Then a decision that was cut short is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from ..api.rollout import Composition, Rollout, Stage

STUCK_S = 300.0
"""A new pod that isn't Ready for so long doesn't come up."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of the StatefulSet: `updated` if it is of the newest revision, `since` when `ready` became what it is.

    ids: of the admissions that it was made with.
    """

    ordinal: int
    ids: frozenset[str]
    updated: bool
    ready: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class SetSeen:
    """The StatefulSet as last observed.

    template  digest of the template that was applied last
    current   whether its controller has seen its newest spec; the counts mean nothing otherwise
    """

    template: str
    current: bool
    replicas: int
    existing: int
    updated: int
    ready: int
    pods: tuple[PodSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """rollout: to be written first. serve: what the template is made of. look_again_s: None for at the next event.

    complete: every pod has this template and is Ready. event: what happened just now, a reason, or "".
    """

    rollout: Rollout
    serve: Composition
    partition: int
    complete: bool
    look_again_s: float | None = None
    event: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """template: the digest of the template that a composition makes under the spec of today.

    canary: off, everything rolls directly. quarantined: admission ids.
    """

    seen: SetSeen | None
    template: Callable[[Composition], str]
    replicas: int
    hold_s: float
    now: datetime
    canary: bool = True
    quarantined: frozenset[str] = frozenset()

    def has(self, composition: Composition) -> bool:
        """Whether the StatefulSet, its counts and pods are those of this composition's template."""
        return self.seen is not None and self.seen.current and self.seen.template == self.template(composition)

    def complete(self, composition: Composition) -> bool:
        seen = self.seen
        return (
            seen is not None
            and self.has(composition)
            and seen.replicas == seen.existing == seen.updated == seen.ready == self.replicas
        )

    def canary_ready_s(self, composition: Composition) -> float | None:
        """How long the canary has been Ready; None while it isn't."""
        if self.seen is None or not self.has(composition):
            return None
        canary = next((pod for pod in self.seen.pods if pod.ordinal == self.replicas - 1), None)
        if canary is None or not canary.updated or not canary.ready:
            return None
        return (self.now - canary.since).total_seconds()

    def more_than_canary(self, stable: Composition) -> bool:
        """Whether other pods have new ids too: those that were the canary before the tier was scaled."""
        pods = self.seen.pods if self.seen is not None else ()
        return any(pod.ids - stable.ids for pod in pods if pod.ordinal < self.replicas - 1)

    def stuck_s(self, composition: Composition) -> float | None:
        """How long the new pod that waits longest hasn't been Ready; None if none waits."""
        if self.seen is None or not self.has(composition):
            return None
        waiting = [pod.since for pod in self.seen.pods if pod.updated and not pod.ready]
        return (self.now - min(waiting)).total_seconds() if waiting else None


def decide(rollout: Rollout | None, wanted: Composition, facts: Facts) -> Decision:
    """The next step from `rollout` (None: nothing is known of one) towards `wanted`."""
    if rollout is None:
        return _at(Rollout(Stage.ROLLING, wanted, wanted), facts, "RollStarted")
    if rollout.stage is Stage.STEADY:
        return _at(rollout, facts) if wanted == rollout.stable else _begin(rollout, wanted, facts)
    if rollout.stage is Stage.CANARY:
        return _canary(rollout, wanted, facts)
    if facts.complete(rollout.target):
        event = "RolledBack" if rollout.stage is Stage.REVERTING else "RolledOut"
        done = _at(Rollout(Stage.STEADY, rollout.target, rollout.target), facts, event)
        return done if wanted == rollout.target else replace(done, look_again_s=0.0)
    if (rollout.target.ids - rollout.stable.ids) & facts.quarantined:
        return _revert(rollout, facts)
    if wanted == rollout.target:
        return _at(rollout, facts)
    return _overtaken(rollout, wanted, facts)


def _canary(rollout: Rollout, wanted: Composition, facts: Facts) -> Decision:
    if wanted == rollout.stable:
        return _revert(rollout, facts)
    if wanted != rollout.target:
        return _revert(rollout, facts) if facts.more_than_canary(rollout.stable) else _begin(rollout, wanted, facts)
    if facts.canary and facts.replicas > 0:
        ready_s = facts.canary_ready_s(rollout.target)
        if ready_s is None:
            return _at(rollout, facts)
        if ready_s < facts.hold_s:
            return replace(_at(rollout, facts), look_again_s=facts.hold_s - ready_s)
    return _at(replace(rollout, stage=Stage.ROLLING), facts, "CanaryHeld")


def _overtaken(rollout: Rollout, wanted: Composition, facts: Facts) -> Decision:
    """Something else is wanted while `target` goes out, or is put back."""
    first = rollout.stage is Stage.ROLLING and rollout.target == rollout.stable
    if first and (facts.seen is None or facts.seen.ready == 0):
        return _at(Rollout(Stage.ROLLING, wanted, wanted), facts, "RollStarted")
    if first:
        return _begin(rollout, wanted, facts)
    if wanted == rollout.stable:
        return _revert(rollout, facts)
    stuck_s = facts.stuck_s(rollout.target)
    if stuck_s is None:
        return _at(rollout, facts)
    if stuck_s < STUCK_S:
        return replace(_at(rollout, facts), look_again_s=STUCK_S - stuck_s)
    return _revert(rollout, facts) if rollout.stage is Stage.ROLLING else _begin(rollout, wanted, facts)


def _begin(rollout: Rollout, wanted: Composition, facts: Facts) -> Decision:
    careful = rollout.stage is not Stage.STEADY or wanted.changes_ids_of(rollout.stable)
    if careful and facts.canary and facts.replicas > 0:
        return _at(Rollout(Stage.CANARY, rollout.stable, wanted), facts, "CanaryStarted")
    return _at(Rollout(Stage.ROLLING, rollout.stable, wanted), facts, "RollStarted")


def _revert(rollout: Rollout, facts: Facts) -> Decision:
    return _at(Rollout(Stage.REVERTING, rollout.stable, rollout.stable), facts, "RollingBack")


def _at(rollout: Rollout, facts: Facts, event: str = "") -> Decision:
    partition = max(facts.replicas - 1, 0) if rollout.stage is Stage.CANARY else 0
    complete = rollout.stage is not Stage.CANARY and facts.complete(rollout.target)
    return Decision(rollout, rollout.target, partition, complete, event=event)
