"""Single steps of a rollout; whole ones, with all that may happen, are in `test_rollout_machine`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from controller.tiers import composition
from toktier_operator.api.rollout import Composition, Rollout, Stage
from toktier_operator.policies.rollout import STUCK_S, Decision, Facts, PodSeen, SetSeen, decide

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO, THREE = composition("qwen-1"), composition("qwen-2"), composition("qwen-3")
CANARY = Rollout(Stage.CANARY, ONE, TWO)
ROLLING = Rollout(Stage.ROLLING, ONE, TWO)


def pods(*made_of: Composition, updated: Composition, ready_s: float = 0.0, waiting: int = -1) -> tuple[PodSeen, ...]:
    """One for each composition, Ready for `ready_s`; the one at `waiting` hasn't been Ready for as long."""
    since = NOW - timedelta(seconds=ready_s)
    return tuple(
        PodSeen(ordinal, each.ids, each == updated, ordinal != waiting, since) for ordinal, each in enumerate(made_of)
    )


def facts(
    of: Composition = TWO,
    there: tuple[PodSeen, ...] = (),
    *,
    template: str = "",
    current: bool = True,
    replicas: int = 3,
    canary: bool = True,
    quarantined: frozenset[str] = frozenset(),
) -> Facts:
    """The set has the template of `of`, unless `template` says otherwise, and three replicas."""
    updated, ready = sum(pod.updated for pod in there), sum(pod.ready for pod in there)
    seen = SetSeen(template or str(of), current, 3, len(there), updated, ready, there)
    return Facts(seen, str, replicas, 60.0, NOW, canary, quarantined)


def step(rollout: Rollout | None, wanted: Composition, found: Facts) -> tuple[Stage, Composition, int]:
    decision = decide(rollout, wanted, found)
    return decision.rollout.stage, decision.serve, decision.partition


def test_the_first_composition_goes_out_at_once() -> None:
    assert step(None, ONE, facts()) == (Stage.ROLLING, ONE, 0)


def test_another_id_goes_to_the_highest_ordinal_first() -> None:
    steady = Rollout(Stage.STEADY, ONE, ONE)
    assert step(steady, TWO, facts(ONE)) == (Stage.CANARY, TWO, 2)
    assert step(steady, TWO, facts(ONE, canary=False)) == (Stage.ROLLING, TWO, 0)
    assert step(steady, composition("qwen-1", image="newer"), facts(ONE))[0] is Stage.ROLLING
    assert step(steady, composition("qwen-1", "llama-1"), facts(ONE))[0] is Stage.ROLLING


def test_the_canary_is_held_from_when_it_was_ready() -> None:
    held = decide(CANARY, TWO, facts(there=pods(ONE, ONE, TWO, updated=TWO, ready_s=59.0)))
    assert (held.rollout.stage, held.partition, held.look_again_s) == (Stage.CANARY, 2, 1.0)
    assert step(CANARY, TWO, facts(there=pods(ONE, ONE, TWO, updated=TWO, ready_s=60.0))) == (Stage.ROLLING, TWO, 0)


@pytest.mark.parametrize(
    ("template", "current"), [("", False), ("another", True)], ids=["not seen by its controller", "of an older spec"]
)
def test_readiness_of_another_template_does_not_count(template: str, current: bool) -> None:
    there = pods(ONE, ONE, TWO, updated=TWO, ready_s=999.0)
    assert step(CANARY, TWO, facts(there=there, template=template, current=current))[0] is Stage.CANARY
    everywhere = pods(TWO, TWO, TWO, updated=TWO, ready_s=999.0)
    assert step(ROLLING, TWO, facts(there=everywhere, template=template, current=current))[0] is Stage.ROLLING


def test_a_canary_that_is_not_ready_or_not_the_new_one_is_waited_for() -> None:
    for there in (pods(ONE, ONE, TWO, updated=TWO, waiting=2), pods(ONE, ONE, ONE, updated=TWO, ready_s=999.0), ()):
        assert step(CANARY, TWO, facts(there=there))[0] is Stage.CANARY


def test_a_canary_is_taken_back_or_replaced() -> None:
    there = pods(ONE, ONE, TWO, updated=TWO)
    assert step(CANARY, ONE, facts(there=there)) == (Stage.REVERTING, ONE, 0)
    assert step(CANARY, THREE, facts(there=there)) == (Stage.CANARY, THREE, 2)


def test_a_canary_beside_a_former_canary_is_not_replaced_but_taken_back() -> None:
    there = pods(ONE, TWO, TWO, updated=TWO)
    assert step(CANARY, THREE, facts(there=there)) == (Stage.REVERTING, ONE, 0)


def test_what_goes_out_is_finished_before_anything_newer() -> None:
    there = pods(ONE, TWO, TWO, updated=TWO)
    assert step(ROLLING, THREE, facts(there=there)) == (Stage.ROLLING, TWO, 0)
    done = decide(ROLLING, THREE, facts(there=pods(TWO, TWO, TWO, updated=TWO)))
    assert (done.rollout, done.look_again_s) == (Rollout(Stage.STEADY, TWO, TWO), 0.0)


def test_a_quarantined_id_goes_no_further_whatever_is_wanted_by_then() -> None:
    found = facts(there=pods(ONE, TWO, TWO, updated=TWO), quarantined=frozenset({"qwen-2"}))
    for wanted in (ONE, TWO, THREE):
        assert step(ROLLING, wanted, found) == (Stage.REVERTING, ONE, 0)
    other = facts(there=pods(ONE, TWO, TWO, updated=TWO), quarantined=frozenset({"qwen-1"}))
    assert step(ROLLING, TWO, other) == (Stage.ROLLING, TWO, 0)


def test_what_does_not_come_up_gives_way_to_something_newer_after_a_while() -> None:
    def waiting(seconds: float) -> Decision:
        there = pods(ONE, TWO, TWO, updated=TWO, ready_s=seconds, waiting=1)
        return decide(ROLLING, THREE, facts(there=there))

    assert waiting(STUCK_S - 7).look_again_s == 7.0
    assert waiting(STUCK_S - 7).serve == TWO
    assert waiting(STUCK_S).rollout == Rollout(Stage.REVERTING, ONE, ONE)


def test_what_was_put_back_and_does_not_come_up_gives_way_to_a_canary() -> None:
    reverting = Rollout(Stage.REVERTING, ONE, ONE)
    there = pods(ONE, ONE, ONE, updated=ONE, ready_s=STUCK_S, waiting=2)
    assert step(reverting, ONE, facts(ONE, there)) == (Stage.REVERTING, ONE, 0)
    assert step(reverting, TWO, facts(ONE, there)) == (Stage.CANARY, TWO, 2)


def test_a_first_composition_that_nobody_got_ready_with_is_replaced_at_once() -> None:
    first = Rollout(Stage.ROLLING, ONE, ONE)
    assert step(first, TWO, facts(ONE)) == (Stage.ROLLING, TWO, 0)
    assert step(first, TWO, facts(ONE, pods(ONE, ONE, updated=ONE)))[0] is Stage.CANARY


def test_without_pods_there_is_no_canary_to_wait_for() -> None:
    assert step(CANARY, TWO, facts(replicas=0))[0] is Stage.ROLLING
    assert step(Rollout(Stage.STEADY, ONE, ONE), TWO, facts(ONE, replicas=0))[0] is Stage.ROLLING


def test_complete_means_every_pod_of_this_very_template() -> None:
    steady = Rollout(Stage.STEADY, ONE, ONE)
    whole = pods(ONE, ONE, ONE, updated=ONE)
    assert decide(steady, ONE, facts(ONE, whole)).complete
    for found in (
        facts(ONE, whole, replicas=4),
        facts(ONE, whole, current=False),
        facts(ONE, whole, template="of an older spec"),
        facts(ONE, pods(ONE, ONE, ONE, updated=ONE, waiting=1)),
        facts(ONE, whole[:2]),
    ):
        assert not decide(steady, ONE, found).complete
