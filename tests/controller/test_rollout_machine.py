"""Rollouts under anything that may happen: pods that fail, reports, new admissions, scaling, kills at any point."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.fake_stateful_set import FakeSet
from toktier_operator.api.rollout import Composition, Rollout, Served, Stage
from toktier_operator.policies.rollout import STUCK_S, Facts, PodSeen, SetSeen, decide
from workshop import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
HOLD_S = 60.0


def served(number: int, admission: str = "a") -> Served:
    return Served(
        name=admission,
        admission=admission,
        id=f"{admission}-{number}",
        sha256="0" * 64,
        fingerprint=f"f{number}",
        policy="none",
        bundle="1" * 64,
        config_maps=(f"{admission}-{number}-0",),
    )


def composition(*numbers: int, image: str = "tier:1") -> Composition:
    return Composition(image, tuple(served(number, "ab"[index]) for index, number in enumerate(numbers)))


def seen_of(set_: FakeSet) -> SetSeen:
    existing, updated, ready = set_.counts
    pods = tuple(
        PodSeen(ordinal, _ids(pod.made_of), pod.made_of == set_.update, pod.ready, pod.since)
        for ordinal, pod in set_.pods.items()
    )
    current = set_.observed == set_.generation
    return SetSeen(str(set_.template), current, set_.replicas, existing, updated, ready, pods)


def _ids(made_of: object) -> frozenset[str]:
    """What pods are made of here: (composition, number of the spec)."""
    assert isinstance(made_of, tuple)
    ids: frozenset[str] = made_of[0].ids
    return ids


class Rollouts(RuleBasedStateMachine):
    @initialize(replicas=st.integers(1, 4))
    def begin(self, replicas: int) -> None:
        self.now = START
        self.replicas, self.spec = replicas, 0
        self.admitted, self.image = [1, 1], "tier:1"
        self.reported: set[str] = set()
        self.broken: set[str] = set()
        self.stored: object = None
        self.set: FakeSet | None = None
        self.carried: dict[str, float] = {}
        self.scaled = False
        self.gave_up = False
        self.goes_on(times=3, seconds=1.0)

    def wanted(self, rollout: Rollout | None) -> Composition:
        """What `toktier.choose` does with two admissions."""
        newest = composition(*self.admitted, image=self.image)
        if rollout is None:
            return newest
        before = {each.admission: each for each in rollout.stable.tokenizers}
        return Composition(
            newest.image,
            tuple(before[each.admission] if each.id in self.reported else each for each in newest.tokenizers),
        )

    def reconcile(self, *, killed_after: int = 2) -> None:
        rollout = Rollout.from_status(self.stored)
        facts = Facts(
            seen=seen_of(self.set) if self.set is not None else None,
            template=lambda composition: str((composition, self.spec)),
            replicas=self.replicas,
            hold_s=HOLD_S,
            now=self.now,
            quarantined=frozenset(self.reported),
        )
        decision = decide(rollout, self.wanted(rollout), facts)
        self.check(rollout, decision.rollout, facts)
        if killed_after == 0:
            return
        self.stored = decision.rollout.to_status()
        assert Rollout.from_status(self.stored) == decision.rollout
        if killed_after == 1:
            return
        made_of = (decision.serve, self.spec)
        if self.set is None:
            self.set = FakeSet(self.replicas, made_of, decision.partition)
        else:
            before = self.set
            if before.template == made_of and before.replicas == self.replicas:
                assert decision.partition <= before.partition
            self.set.apply(made_of, self.replicas, decision.partition)

    def check(self, before: Rollout | None, after: Rollout, facts: Facts) -> None:
        if before is None:
            return
        if before.stage is Stage.CANARY and after.stage is Stage.ROLLING and self.replicas:
            ready_s = facts.canary_ready_s(before.target)
            assert ready_s is not None
            assert ready_s >= HOLD_S
        if after.stage in (Stage.CANARY, Stage.ROLLING) and after.target != before.target:
            new = after.target.ids - before.stable.ids
            assert not new & self.reported
        given_up = before.stage is Stage.ROLLING and (before.target.ids - before.stable.ids) & self.reported
        if given_up and not facts.complete(before.target):
            assert after.stage is Stage.REVERTING
        if before.stage is Stage.REVERTING and after.stage is Stage.CANARY:
            self.gave_up = True

    @rule(killed_after=st.sampled_from([0, 1, 2, 2, 2]))
    def reconciles(self, killed_after: int) -> None:
        self.reconcile(killed_after=killed_after)

    @rule(times=st.integers(1, 6), seconds=st.sampled_from([1.0, HOLD_S]))
    def goes_on(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.reconcile()
            self.controller_acts()
            self.at_most_two_sets_of_ids()
            self.canary_is_alone()
            self.pods_get_ready()
            self.time_passes(seconds)

    @rule()
    def controller_acts(self) -> None:
        if self.set is not None:
            self.set.step(self.now)

    @rule(seconds=st.sampled_from([1.0, 30.0, HOLD_S, STUCK_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def pods_get_ready(self) -> None:
        for pod in self.set.pods.values() if self.set is not None else ():
            if not pod.ready and not _ids(pod.made_of) & self.broken:
                pod.ready, pod.since = True, self.now

    @precondition(lambda self: self.set is not None and self.set.pods)
    @rule(data=st.data())
    def pod_fails(self, data: st.DataObject) -> None:
        assert self.set is not None
        pod = self.set.pods[data.draw(st.sampled_from(sorted(self.set.pods)))]
        if pod.ready:
            pod.ready, pod.since = False, self.now

    @precondition(lambda self: self.set is not None and self.set.pods)
    @rule(data=st.data())
    def pod_is_deleted(self, data: st.DataObject) -> None:
        assert self.set is not None
        del self.set.pods[data.draw(st.sampled_from(sorted(self.set.pods)))]

    @rule(which=st.sampled_from([0, 1]), broken=st.booleans())
    def newly_admitted(self, which: int, broken: bool) -> None:
        self.admitted[which] += 1
        if broken:
            self.broken.add(f"{'ab'[which]}-{self.admitted[which]}")

    @rule(which=st.sampled_from([0, 1]))
    def reports(self, which: int) -> None:
        self.reported.add(f"{'ab'[which]}-{self.admitted[which]}")

    @rule()
    def spec_changes(self) -> None:
        self.spec += 1

    @rule()
    def image_changes(self) -> None:
        self.image = "tier:2" if self.image == "tier:1" else "tier:1"

    @rule(replicas=st.integers(0, 5))
    def scales(self, replicas: int) -> None:
        self.replicas, self.scaled = replicas, True

    @invariant()
    def at_most_two_sets_of_ids(self) -> None:
        """A new set is begun only when the others are one; after scaling a former canary may keep what it had."""
        if getattr(self, "set", None) is None or self.gave_up:
            return
        assert self.set is not None
        assert len({_ids(pod.made_of) for pod in self.set.pods.values()}) <= 2

    @invariant()
    def canary_is_alone(self) -> None:
        rollout = Rollout.from_status(getattr(self, "stored", None))
        if rollout is None or rollout.stage is not Stage.CANARY or self.scaled or self.gave_up:
            return
        assert self.set is not None
        new = rollout.target.ids - rollout.stable.ids
        having = [ordinal for ordinal, pod in self.set.pods.items() if _ids(pod.made_of) & new]
        assert set(having) <= {self.set.replicas - 1}

    def teardown(self) -> None:
        """Left alone, it gets where it should: what is broken or reported doesn't."""
        if not hasattr(self, "now"):
            return
        for which in (0, 1):
            self.admitted[which] += 1
        for _ in range(60):
            self.reconcile()
            assert self.set is not None
            self.set.step(self.now)
            self.pods_get_ready()
            self.now += timedelta(seconds=STUCK_S)
            if self.arrived():
                return
        raise AssertionError(f"still {self.stored}")

    def arrived(self) -> bool:
        rollout = Rollout.from_status(self.stored)
        wanted = composition(*self.admitted, image=self.image)
        assert self.set is not None
        return (
            rollout == Rollout(Stage.STEADY, wanted, wanted)
            and len(self.set.pods) == self.replicas
            and {pod.made_of for pod in self.set.pods.values()} <= {(wanted, self.spec)}
        )


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=examples(100), stateful_step_count=40)
