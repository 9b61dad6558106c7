"""The rules of `policies.admission`, one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from toktier_operator.api.admission_spec import AdmissionSpec
from toktier_operator.api.admission_status import AdmissionStatus, DivergenceReport, Phase
from toktier_operator.api.conditions import AdmissionCondition, AdmissionReason, Trigger
from toktier_operator.policies.admission import FIRST_RETRY_S, GRACE_S, decide
from toktier_operator.policies.admission_runs import Result, known_to, read_result, spec_digest
from toktier_operator.policies.admission_seen import Decision, JobSeen, Report, Seen

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CONFIG_MAP_SPEC = {"source": {"configMap": {"name": "source", "key": "tokenizer.json"}}}
HUB_SPEC = {"source": {"huggingFace": {"repo": "org/model", "revision": "main"}}}


def seen_of(spec: dict[str, Any] | None = None, **changes: Any) -> Seen:
    body = {"spec": spec if spec is not None else CONFIG_MAP_SPEC}
    version = "1" if "configMap" in body["spec"]["source"] else None
    start: dict[str, Any] = {
        "name": "a",
        "generation": 1,
        "spec": AdmissionSpec.of(body),
        "spec_digest": spec_digest(body),
        "status": AdmissionStatus(),
        "now": NOW,
        "image": "tier:1",
        "source_version": version,
    }
    return Seen(**(start | changes))


def result_of(
    run: int,
    verdict: str = "Admitted",
    outcome: str = "Completed",
    sha256: str = "aa",
    image: str = "tier:1",
    **more: Any,
) -> Result:
    bundle = {"sha256": f"{run:064x}", "sizeBytes": 10, "configMaps": [f"a-{run:016x}-0"]}
    document = {
        "id": f"a-{run}",
        "run": run,
        "outcome": outcome,
        "error": None,
        "verdict": verdict if outcome == "Completed" else "",
        "reason": "",
        "sha256": sha256,
        "fingerprint": f"f{run}",
        "policy": "none",
        "encoder": "gigatoken",
        "rule": {"kind": "", "digest": "", "summary": ""},
        "encoders": [],
        "toolchain": {"reference": "tokenizers==1", "deriver": "1", "encoders": {"gigatoken": "1"}},
        "image": image,
        "bundle": bundle if outcome == "Completed" and verdict != "Rejected" else None,
        "diff": {"summary": "3 of 10 texts differ"} if verdict == "Rejected" else None,
        "startedAt": "2026-11-30T11:59:00Z",
        "finishedAt": "2026-11-30T12:00:00Z",
        **more,
    }
    return read_result({"data": {"result.json": json.dumps(document), "report.json": "{}"}}, "a", run)


def step(seen: Seen, **changes: Any) -> tuple[Seen, Decision]:
    """One decision, and what is seen once its status is written."""
    seen = replace(seen, **changes)
    decision = decide(seen)
    read_back = AdmissionStatus.of({"status": decision.status.to_dict()})
    assert read_back.to_dict() == decision.status.to_dict()
    return replace(seen, status=read_back), decision


def admitted(**changes: Any) -> Seen:
    """After a first run that admitted."""
    seen, _ = step(seen_of(**changes))
    results = {1: result_of(1)}
    seen, decision = step(seen, results=results)
    assert decision.status.phase is Phase.ADMITTED
    return seen


def condition(decision: Decision, type_: AdmissionCondition) -> tuple[str, str]:
    found = next(each for each in decision.status.conditions if each.type == type_)
    return found.status, found.reason


def report(id_: str, pod: str = "t-0") -> Report:
    return Report(id_, DivergenceReport(pod, "t", "shadow"))


def test_a_new_admission_starts_run_1() -> None:
    _, decision = step(seen_of())
    assert decision.make_job == 1
    assert decision.status.run is not None
    assert (decision.status.run.trigger, decision.status.next_run) == (Trigger.FIRST, 2)
    assert decision.status.phase is Phase.ADMITTING


def test_a_missing_source_starts_nothing_and_says_so() -> None:
    _, decision = step(seen_of(source_version=""))
    assert decision.make_job is None
    assert decision.status.phase is Phase.PENDING
    assert condition(decision, AdmissionCondition.SOURCE_AVAILABLE) == ("False", AdmissionReason.SOURCE_MISSING)


def test_a_job_that_is_not_there_is_made_again_under_its_number_until_the_deadline() -> None:
    seen, _ = step(seen_of())
    seen, decision = step(seen)
    assert decision.make_job == 1
    late = NOW + timedelta(seconds=seen.spec.job.active_deadline_s + GRACE_S + 1)
    seen, decision = step(seen, now=late)
    assert decision.make_job is None
    assert decision.status.last_run is not None
    assert decision.status.last_run.reason == "JobVanished"
    _, decision = step(seen, now=late + timedelta(seconds=FIRST_RETRY_S))
    assert decision.make_job == 2


def test_a_result_is_adopted_and_the_next_decision_is_the_same() -> None:
    seen = admitted()
    again = decide(seen)
    assert again.status.to_dict() == seen.status.to_dict()
    assert (again.make_job, again.happenings, again.finished) == (None, (), ())
    assert condition(again, AdmissionCondition.UP_TO_DATE) == ("True", AdmissionReason.UP_TO_DATE)


@pytest.mark.parametrize(
    ("change", "trigger"),
    [
        ({"readmit": "please"}, Trigger.ANNOTATION),
        ({"spec_digest": "other"}, Trigger.SPEC),
        ({"source_version": "2"}, Trigger.SOURCE),
        ({"image": "tier:2"}, Trigger.IMAGE),
    ],
)
def test_each_change_starts_one_run(change: dict[str, Any], trigger: Trigger) -> None:
    seen = admitted()
    seen, decision = step(seen, **change)
    assert decision.status.run is not None
    assert decision.status.run.trigger == trigger
    seen, decision = step(seen, jobs={2: JobSeen("Running")})
    assert decision.make_job is None
    image = change.get("image", "tier:1")
    seen, decision = step(seen, results={1: result_of(1), 2: result_of(2, image=image)})
    assert decision.status.current is not None
    assert decision.status.current.id == "a-2"
    _, decision = step(seen)
    assert decision.status.run is None


def test_only_what_was_asked_for_by_hand_examines_known_bytes_again() -> None:
    seen, decision = step(admitted(), image="tier:2")
    known = known_to(decision.status, seen.results, Trigger.IMAGE)
    assert known is not None
    assert known["sha256"] == "aa"
    assert known["toolchain"]["encoders"] == {"gigatoken": "1"}
    assert known_to(decision.status, seen.results, Trigger.ANNOTATION) is None


def test_unchanged_under_a_new_image_moves_the_image_and_no_id() -> None:
    seen, _ = step(admitted(), image="tier:2")
    seen, decision = step(seen, results={1: result_of(1), 2: result_of(2, outcome="Unchanged", image="tier:2")})
    assert decision.status.current is not None
    assert (decision.status.current.id, decision.status.current.image) == ("a-1", "tier:2")
    assert decision.status.last_run is not None
    assert decision.status.last_run.number == 1
    _, decision = step(seen)
    assert decision.status.run is None


def test_a_rejected_upgrade_leaves_what_serves() -> None:
    seen, _ = step(admitted(), source_version="2")
    seen, decision = step(seen, results={1: result_of(1), 2: result_of(2, "Rejected", sha256="bb")})
    status = decision.status
    assert status.current is not None
    assert status.current.id == "a-1"
    assert status.phase is Phase.ADMITTED
    assert condition(decision, AdmissionCondition.UP_TO_DATE) == ("False", AdmissionReason.UPGRADE_REJECTED)
    assert status.last_run is not None
    assert status.last_run.diff == {"summary": "3 of 10 texts differ"}
    assert [each.reason for each in decision.happenings] == ["UpgradeRejected"]
    known = known_to(status, seen.results, Trigger.POLL)
    assert known is not None
    assert known["sha256"] == "bb"


def test_a_rejected_upgrade_may_take_the_fast_paths_away() -> None:
    spec = CONFIG_MAP_SPEC | {"upgrade": {"onRejected": "ReferenceOnly"}}
    seen, _ = step(admitted(spec=spec), source_version="2")
    _, decision = step(seen, results={1: result_of(1), 2: result_of(2, "Rejected", sha256="bb")})
    assert decision.status.phase is Phase.REFERENCE_ONLY
    assert condition(decision, AdmissionCondition.ADMITTED) == ("False", AdmissionReason.REFERENCE_ONLY)


def test_a_first_run_that_rejects_leaves_nothing_to_serve() -> None:
    seen, _ = step(seen_of())
    seen, decision = step(seen, results={1: result_of(1, "Rejected")})
    assert decision.status.phase is Phase.REJECTED
    assert decision.status.current is None
    _, decision = step(seen, now=NOW + timedelta(days=30))
    assert decision.status.run is None


def test_failures_are_tried_again_ever_later() -> None:
    seen, _ = step(seen_of())
    waits = []
    for number in range(1, 6):
        failed = result_of(
            number, outcome="Failed", error={"code": "source.fetch_failed", "message": "no answer"}, bundle=None
        )
        seen, decision = step(seen, results={number: replace(failed, finished_at=stamp(seen.now))})
        assert decision.status.phase is Phase.FAILED
        assert decision.status.run is None
        assert decision.look_again_s is not None
        waits.append(decision.look_again_s)
        seen, decision = step(seen, now=seen.now + timedelta(seconds=decision.look_again_s))
        assert decision.make_job == number + 1
    assert waits == [15, 30, 60, 120, 240]
    assert condition(decision, AdmissionCondition.SOURCE_AVAILABLE)[0] == "False" or decision.status.run is not None


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_failed_job_is_a_failed_run() -> None:
    seen, _ = step(admitted(), source_version="2")
    _, decision = step(seen, jobs={2: JobSeen("Failed", "BackoffLimitExceeded", "no memory")})
    assert decision.status.last_run is not None
    assert decision.status.last_run.reason == "BackoffLimitExceeded"
    assert decision.status.phase is Phase.ADMITTED
    assert condition(decision, AdmissionCondition.UP_TO_DATE) == ("False", AdmissionReason.UPGRADE_FAILED)
    assert decision.finished == ("Failed",)


def test_a_source_elsewhere_is_looked_at_every_poll_interval() -> None:
    seen = admitted(spec=HUB_SPEC)
    _, decision = step(seen, now=NOW + timedelta(minutes=59))
    assert decision.status.run is None
    assert decision.look_again_s == 60
    _, decision = step(seen, now=NOW + timedelta(minutes=60))
    assert decision.status.run is not None
    assert decision.status.run.trigger == Trigger.POLL
    assert condition(decision, AdmissionCondition.UP_TO_DATE)[0] == "True"


def test_a_report_of_what_serves_quarantines_it_once() -> None:
    seen, decision = step(admitted(), reports=(report("a-1"), report("a-0"), report("a-1", "t-1")))
    assert decision.status.phase is Phase.QUARANTINED
    assert (decision.divergences, decision.status.divergences) == (2, 2)
    assert [each.reason for each in decision.happenings] == ["Divergence", "Divergence"]
    _, decision = step(seen)
    assert (decision.divergences, decision.happenings) == (0, ())
    assert decision.status.phase is Phase.QUARANTINED


def test_a_report_of_an_older_id_changes_nothing() -> None:
    seen, _ = step(admitted(), readmit="x")
    seen, _ = step(seen, results={1: result_of(1), 2: result_of(2)})
    _, decision = step(seen, reports=(report("a-1"),))
    assert decision.status.phase is Phase.ADMITTED
    assert decision.divergences == 0


def test_a_new_admission_lifts_a_quarantine_and_nothing_else_does() -> None:
    seen, _ = step(admitted(), reports=(report("a-1"),))
    seen, _ = step(seen, reports=(), now=NOW + timedelta(days=1))
    assert seen.status.phase is Phase.QUARANTINED
    seen, decision = step(seen, readmit="now")
    assert decision.status.phase is Phase.QUARANTINED
    _, decision = step(seen, results={1: result_of(1), 2: result_of(2)})
    assert decision.status.phase is Phase.ADMITTED
    assert [each.reason for each in decision.happenings] == ["Admitted", "QuarantineLifted"]


def test_quarantine_starts_a_run_by_itself_only_if_the_policy_says_so_and_only_once() -> None:
    spec = CONFIG_MAP_SPEC | {"quarantine": {"readmit": "Automatic", "delay": "10m"}}
    seen, decision = step(admitted(spec=spec), reports=(report("a-1"),))
    assert decision.look_again_s == 600
    seen, decision = step(seen, now=NOW + timedelta(minutes=10))
    assert decision.status.run is not None
    assert decision.status.run.trigger == Trigger.QUARANTINE
    rejected = replace(result_of(2, "Rejected"), started_at=stamp(seen.now), finished_at=stamp(seen.now))
    seen, decision = step(seen, results={1: result_of(1), 2: rejected})
    assert decision.status.phase is Phase.QUARANTINED
    _, decision = step(seen, now=seen.now + timedelta(days=1))
    assert decision.status.run is None


def test_a_changed_spec_supersedes_the_run_under_way() -> None:
    seen, _ = step(seen_of())
    running = {1: JobSeen("Running")}
    seen, decision = step(seen, jobs=running, spec_digest="other")
    assert (decision.make_job, decision.delete_jobs) == (2, (1,))
    seen, decision = step(seen)
    assert decision.delete_jobs == (1,)
    _, decision = step(seen, results={1: result_of(1)})
    assert decision.status.current is None


def test_a_lost_status_is_found_again_from_jobs_and_results() -> None:
    seen = seen_of(
        results={2: result_of(2), 3: result_of(3, "Rejected", sha256="bb")},
        jobs={4: JobSeen("Running", started_at=stamp(NOW))},
        numbers=frozenset({2, 3, 4, 7}),
    )
    seen, decision = step(seen)
    status = decision.status
    assert status.current is not None
    assert status.current.id == "a-2"
    assert status.last_run is not None
    assert status.last_run.number == 3
    assert status.run is not None
    assert status.run.number == 4
    assert status.next_run == 8
    assert decision.make_job is None


def test_numbers_of_others_are_not_used_either() -> None:
    _, decision = step(seen_of(numbers=frozenset({5}), jobs={5: JobSeen("Running", foreign=True)}))
    assert decision.make_job == 6
    assert decision.delete_jobs == ()


def test_what_nothing_names_any_more_goes_and_what_serves_stays() -> None:
    spec = CONFIG_MAP_SPEC | {"historyLimit": 2}
    seen = admitted(spec=spec)
    results = dict(seen.results)
    for number in range(2, 6):
        seen, _ = step(seen, readmit=str(number))
        results[number] = result_of(number, "Rejected" if number > 2 else "Admitted")
        seen, decision = step(seen, results=results)
        results = {each: found for each, found in results.items() if each not in decision.delete_results}
    assert decision.status.current is not None
    assert decision.status.current.id == "a-2"
    assert sorted(results) == [2, 3, 4, 5]
    assert decision.needed_chunks == {f"a-{2:016x}-0"}
    _, decision = step(seen, used=frozenset({"a-00000000000000aa-0"}))
    assert decision.needed_chunks == {f"a-{2:016x}-0", "a-00000000000000aa-0"}


def test_bundles_are_let_alone_while_a_run_may_be_making_one() -> None:
    _, decision = step(admitted(), readmit="x")
    assert decision.needed_chunks is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "a-9", "run": 9, "outcome": "Completed"}'])
def test_a_result_that_cannot_be_read_is_a_failed_run(text: str) -> None:
    found = read_result({"data": {"result.json": text}, "metadata": {}}, "a", 1)
    assert found.error is not None
    assert found.error.code == "result.unreadable"
    assert not found.serves


def test_a_job_that_is_about_to_end_is_let_end_once_its_result_is_there() -> None:
    seen, _ = step(seen_of())
    _, decision = step(seen, results={1: result_of(1)}, jobs={1: JobSeen("Running")})
    assert decision.status.current is not None
    assert decision.delete_jobs == ()


def test_unchanged_from_nothing_is_a_failure_that_is_tried_again_from_scratch() -> None:
    seen, _ = step(seen_of())
    seen, decision = step(seen, results={1: result_of(1, outcome="Unchanged")})
    assert decision.status.last_run is not None
    assert decision.status.last_run.reason == "VerdictLost"
    seen, decision = step(seen, now=NOW + timedelta(seconds=FIRST_RETRY_S))
    assert decision.make_job == 2
    assert known_to(decision.status, seen.results, Trigger.RETRY) is None
