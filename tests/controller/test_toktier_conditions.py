"""What a status says, and when it says that something is ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.tiers import IMAGE, admitted, composition, spec_of
from toktier_operator.api.conditions import Condition, TierReason
from toktier_operator.api.rollout import Composition, Rollout, Stage
from toktier_operator.api.toktier_status import TokTierStatus
from toktier_operator.policies.conditions import Situation, Upstream, refused_status, status_of, stuck_in_s
from toktier_operator.policies.rollout import STUCK_S, Decision, PodSeen, SetSeen
from toktier_operator.policies.toktier import Choice, Problem

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = composition("qwen-1")


def decision(stage: Stage = Stage.STEADY, target: Composition = ONE, *, complete: bool = True) -> Decision:
    return Decision(Rollout(stage, ONE, target), target, 0, complete)


def seen(replicas: int = 2, updated: int = 2, ready: int = 2, pods: tuple[PodSeen, ...] = ()) -> SetSeen:
    found = pods or tuple(PodSeen(each, ONE.ids, True, True, NOW) for each in range(replicas))
    return SetSeen("t", True, replicas, replicas, updated, ready, found)


def status(before: TokTierStatus | None = None, **changes: Any) -> TokTierStatus:
    values: dict[str, Any] = {
        "generation": 4,
        "spec": spec_of(),
        "admissions": {"qwen": admitted("qwen-1")},
        "quarantined": frozenset(),
        "choice": Choice(ONE),
        "decision": decision(),
        "seen": seen(),
        "counted": True,
        "replicas": 2,
        "upstream": Upstream(None, TierReason.NO_UPSTREAM),
        "failures": [],
        "selector": "a=b",
        "now": NOW,
    }
    return status_of(Situation(**values | changes), before or TokTierStatus())


def said(found: TokTierStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in found.conditions}


def test_all_is_well() -> None:
    found = status()
    assert said(found) == {
        "Available": ("True", "PodsReady"),
        "Progressing": ("False", "RolledOut"),
        "Degraded": ("False", "Healthy"),
        "TokenizersAdmitted": ("True", "AllAdmitted"),
        "UpstreamReachable": ("Unknown", "NoUpstream"),
    }
    assert {each.observed_generation for each in found.conditions} == {found.observed_generation} == {4}
    assert (found.replicas, found.ready_replicas, found.updated_replicas, found.selector) == (2, 2, 2, "a=b")
    assert TokTierStatus.of({"status": found.to_dict()}) == found


@pytest.mark.parametrize("stage", [Stage.CANARY, Stage.ROLLING, Stage.REVERTING])
def test_it_progresses_until_the_rollout_is_over(stage: Stage) -> None:
    assert said(status(decision=decision(stage)))["Progressing"][0] == "True"


def test_it_progresses_until_every_pod_is_updated_and_ready() -> None:
    for each in (seen(updated=1), seen(ready=1), None):
        assert said(status(decision=decision(complete=False), seen=each))["Progressing"][0] == "True"


def test_pods_of_another_template_do_not_count_as_updated() -> None:
    assert status(counted=False, decision=decision(complete=False)).updated_replicas == 0


def test_nothing_to_serve_yet_is_waiting_not_progress() -> None:
    problem = Problem("qwen", TierReason.ADMISSION_PENDING, "qwen has no verdict", waiting=True)
    found = status(decision=None, seen=None, choice=Choice(None, (problem,), held=True))
    assert said(found)["Progressing"] == ("False", "WaitingForAdmission")
    assert said(found)["Available"] == ("False", "NoPodReady")
    assert said(found)["TokenizersAdmitted"] == ("False", "AdmissionPending")
    assert [each.state for each in found.snapshots] == ["Missing"]


def test_a_time_changes_with_the_status_and_with_nothing_else() -> None:
    first = status()
    later = NOW + timedelta(minutes=1)
    second = status(first, now=later, decision=decision(Stage.CANARY, composition("qwen-2")), generation=5)
    times = {each.type: each.last_transition_time for each in second.conditions}
    assert times["Progressing"] == "2026-01-01T12:01:00Z"
    assert times["Available"] == times["Degraded"] == "2026-01-01T12:00:00Z"
    third = status(second, now=later + timedelta(minutes=1), decision=decision(Stage.ROLLING, composition("qwen-2")))
    assert {each.type: each.last_transition_time for each in third.conditions} == times


def test_a_canary_stands_beside_what_serves() -> None:
    found = status(decision=decision(Stage.CANARY, composition("qwen-2")))
    assert [(each.id, each.state) for each in found.snapshots] == [("qwen-1", "Serving"), ("qwen-2", "Canary")]
    found = status(decision=decision(Stage.ROLLING, composition("qwen-2")), quarantined=frozenset({"qwen-1"}))
    assert [(each.id, each.state) for each in found.snapshots] == [("qwen-1", "Quarantined"), ("qwen-2", "Serving")]


def test_what_is_wrong_is_told_by_the_gravest() -> None:
    quarantined = frozenset({"qwen-1"})
    assert said(status(quarantined=quarantined))["Degraded"] == ("True", "Quarantined")
    assert said(status(quarantined=quarantined, failures=["Service chat: no"]))["Degraded"] == ("True", "ApplyFailed")
    assert said(status(quarantined=frozenset({"qwen-9"})))["Degraded"] == ("False", "Healthy")


def test_a_pod_that_does_not_get_ready_is_told_of_after_a_while() -> None:
    def with_pod(seconds: float) -> SetSeen:
        since = NOW - timedelta(seconds=seconds)
        return seen(ready=1, pods=(PodSeen(0, ONE.ids, True, True, NOW), PodSeen(1, ONE.ids, True, False, since)))

    progress = decision(complete=False)
    assert said(status(seen=with_pod(STUCK_S), decision=progress))["Degraded"] == ("True", "PodsFailing")
    assert said(status(seen=with_pod(STUCK_S - 9), decision=progress))["Degraded"] == ("False", "Healthy")
    assert stuck_in_s(with_pod(STUCK_S - 9), 2, NOW) == 9.0
    assert stuck_in_s(with_pod(STUCK_S), 2, NOW) is None


def test_a_pod_that_cannot_even_be_made_is_told_of_too() -> None:
    alone = seen(ready=1, pods=(PodSeen(0, ONE.ids, True, True, NOW),))
    since = (NOW - timedelta(seconds=STUCK_S)).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = TokTierStatus(conditions=(Condition("Progressing", "True", "Rolling", "", since, 4),))
    found = status(before, seen=alone, decision=decision(complete=False))
    assert said(found)["Degraded"] == ("True", "PodsFailing")
    assert "pod 1" in next(each.message for each in found.conditions if each.type == "Degraded")


def test_an_upgrade_that_was_given_up_is_remembered_in_words() -> None:
    problem = Problem("qwen", TierReason.QUARANTINED, "qwen-2 is quarantined")
    found = status(admissions={"qwen": admitted("qwen-2")}, choice=Choice(ONE, (problem,)))
    assert said(found)["Progressing"] == ("False", "CanaryReverted")
    assert said(found)["TokenizersAdmitted"] == ("False", "Quarantined")


def test_waiting_for_an_image_is_not_progress() -> None:
    problem = Problem("qwen", TierReason.WAITING_FOR_IMAGE, f"not admitted with {IMAGE}")
    found = status(choice=Choice(ONE, (problem,)))
    assert said(found)["Progressing"] == ("False", "WaitingForImage")
    assert said(found)["TokenizersAdmitted"] == ("True", "AllAdmitted")


def test_a_spec_that_cannot_be_read_changes_nothing_else() -> None:
    before = status()
    found = refused_status(before, 5, "spec.replicas: is a whole number", NOW + timedelta(minutes=1))
    assert said(found) == said(before) | {"Degraded": ("True", "SpecInvalid")}
    assert (found.rollout, found.snapshots, found.observed_generation) == (before.rollout, before.snapshots, 5)


def test_scaled_to_zero_is_not_available_and_not_a_fault() -> None:
    found = status(replicas=0, seen=seen(0, 0, 0))
    assert said(found)["Available"] == ("False", "ScaledToZero")
    assert said(found)["Degraded"] == ("False", "Healthy")
