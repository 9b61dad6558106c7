"""What is to be done about a TokenizerAdmission: from what is observed to a new status and a few actions. Pure.

Rules, whatever is observed and whenever the operator is killed:

 1. A run's number is never used again: the next is above every number that the status, a Job or a result names.
 2. The status says that a run is under way before its Job is made; a Job that isn't there is made (again) under the
    same number until the run's deadline has passed. So a lost Job is no lost run, and there is one Job at a time.
 3. The first result of a run is the run's. A result is taken in if it is of the run under way, or if the status knows
    nothing of its number (the status was lost): then in the order of the numbers. Others were superseded.
 4. `current` is replaced only by a Completed run that isn't Rejected. A run that is Rejected, Failed or Unchanged
    leaves it: what was admitted serves until something better is.
 5. A report that names `current`'s id quarantines it, for good; reports of other ids are counted by nobody. Quarantine
    ends only with another `current`, which has another id.
 6. A run is started for a reason (`Trigger`), and what it was started with is kept (`spec_digest`, `source_version`,
    `image`, `readmitted`), so that the same reason doesn't start another. A change of the spec supersedes a run.
 7. A run without a verdict is tried again after a wait that doubles, `FIRST_RETRY_S` to `LONGEST_RETRY_S`.
 8. Results and bundles go when no run that the status names, and no pod, needs them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ..api.admission_spec import Readmit
from ..api.admission_status import (
    ActiveRun,
    AdmissionStatus,
    FinishedRun,
    Outcome,
    Quarantine,
    Verdict,
)
from ..api.conditions import Trigger
from ..api.times import instant, rfc3339
from ..resources import names
from .admission_conditions import conditions_of, phase_of
from .admission_runs import Result, finished_of, history_with, snapshot_of
from .admission_seen import Decision, Happening, Seen

FIRST_RETRY_S = 15.0
LONGEST_RETRY_S = 1800.0
GRACE_S = 60.0
"""After a Job's deadline, or after its end, until what should have come of it counts as lost."""
MAX_REPORTS = 50


def decide(seen: Seen) -> Decision:
    return _Deciding(seen).decide()


def _has_verdict(status: AdmissionStatus) -> bool:
    last = status.last_run
    return status.current is not None or (last is not None and last.outcome == Outcome.COMPLETED)


class _Deciding:
    """The status as it grows, one rule after the other."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._limit = max(seen.spec.history_limit, 1)
        self._known_numbers = seen.status.next_run
        used = [number + 1 for number in (*seen.numbers, *seen.jobs, *seen.results)]
        if seen.status.last_run is not None:
            used.append(seen.status.last_run.number + 1)
        if seen.status.run is not None:
            used.append(seen.status.run.number + 1)
        self._status = replace(seen.status, next_run=max(seen.status.next_run, *used, 1))
        self._happenings: list[Happening] = []
        self._finished: list[str] = []
        self._waits_s: list[float] = []
        self._divergences = 0

    def decide(self) -> Decision:
        self._take_in_results()
        self._look_at_job()
        self._supersede()
        self._quarantine()
        trigger = self._due() if self._status.run is None else None
        if trigger is not None:
            self._start(trigger)
        make_job = self._job_to_make()
        seen = self._seen
        self._status = replace(
            self._status,
            observed_generation=seen.generation,
            phase=phase_of(self._status, seen.spec),
            conditions=conditions_of(
                self._status,
                seen.spec,
                generation=seen.generation,
                source_version=seen.source_version,
                spec_digest=seen.spec_digest,
                image=seen.image,
                now=rfc3339(seen.now),
            ),
        )
        results, chunks = self._prune()
        return Decision(
            status=self._status,
            make_job=make_job,
            delete_jobs=self._jobs_given_up(),
            delete_results=results,
            needed_chunks=chunks,
            happenings=tuple(self._happenings),
            finished=tuple(self._finished),
            divergences=self._divergences,
            look_again_s=max(min(self._waits_s), 0.0) if self._waits_s else None,
        )

    def _say(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._happenings.append(Happening("Warning" if warning else "Normal", reason, message))

    def _take_in_results(self) -> None:
        for number in sorted(self._seen.results):
            run = self._status.run
            if number >= self._known_numbers or (run is not None and number == run.number):
                self._take_in(self._seen.results[number])
        unknown = [number for number in self._seen.jobs if number >= self._known_numbers]
        taken = self._status.last_run.number if self._status.last_run is not None else 0
        newest = max(unknown, default=0)
        if self._status.run is None and newest > taken and not self._seen.jobs[newest].foreign:
            started_at = self._seen.jobs[newest].started_at or rfc3339(self._seen.now)
            self._status = replace(self._status, run=self._active(newest, Trigger.RETRY, started_at))

    def _take_in(self, result: Result) -> None:
        status, name = self._status, self._seen.name
        active = status.run if status.run is not None and status.run.number == result.run else None
        finished = finished_of(result, name, active, status)
        status = replace(status, run=None if active is not None else status.run)
        status = replace(status, checked_at=result.finished_at or rfc3339(self._seen.now))
        if result.outcome is Outcome.UNCHANGED and not _has_verdict(status):
            lost = "it is as before, and what was found before is lost"
            finished = replace(finished, outcome=Outcome.FAILED, reason="VerdictLost", message=lost)
        if finished.outcome == Outcome.FAILED:
            self._status = status
            self._fail(finished)
            return
        status = replace(status, failures=0)
        if result.outcome is Outcome.UNCHANGED:
            current = status.current
            if current is not None and current.sha256 == result.sha256 and result.image:
                status = replace(status, current=replace(current, image=result.image))
            if status.last_run is None or status.last_run.outcome != Outcome.COMPLETED:
                status = replace(status, last_run=finished)
        else:
            status = replace(status, history=history_with(status, self._limit), last_run=finished)
        self._status = status
        self._finished.append(result.outcome)
        if result.outcome is Outcome.COMPLETED:
            self._judge(result, finished)

    def _judge(self, result: Result, finished: FinishedRun) -> None:
        before = self._status.current
        if not result.serves:
            diff = str((finished.diff or {}).get("summary") or "")
            kept = f"; {before.id} goes on serving" if before is not None else ""
            reason = "UpgradeRejected" if before is not None else "Rejected"
            said = "; ".join(part for part in (finished.reason, diff) if part)
            self._say(
                reason, f"run {result.run} rejected the snapshot: {said or 'no reason given'}{kept}", warning=True
            )
            return
        quarantine = self._status.quarantine
        self._status = replace(self._status, current=snapshot_of(result, self._seen.name), quarantine=None)
        how = f"accelerated by {result.encoder}" if result.verdict == Verdict.ADMITTED else "by the reference alone"
        self._say(result.verdict, f"{result.id} serves {how}: {result.checks} checks, {result.divergences} divergences")
        if quarantine is not None:
            self._say("QuarantineLifted", f"{result.id} takes the place of {quarantine.id}")

    def _fail(self, finished: FinishedRun) -> None:
        status = self._status
        last = status.last_run
        keep = last is not None and last.outcome == Outcome.FAILED and last.number >= finished.number
        if not keep:
            status = replace(status, history=history_with(status, self._limit), last_run=finished)
        self._status = replace(status, failures=min(status.failures + 1, 1000))
        self._finished.append(Outcome.FAILED)
        said = ": ".join(part for part in (finished.reason, finished.message) if part)
        self._say("RunFailed", f"run {finished.number} came to no verdict: {said}", warning=True)

    def _look_at_job(self) -> None:
        """Without a result: whether there will be one."""
        run = self._status.run
        if run is None:
            return
        job = self._seen.jobs.get(run.number)
        now = self._seen.now
        deadline = (instant(run.started_at) or now) + timedelta(seconds=self._seen.spec.job.active_deadline_s + GRACE_S)
        if job is not None and job.state == "Failed":
            self._lose(job.reason or "JobFailed", job.message or f"Job {run.job} failed")
        elif job is not None and job.state == "Succeeded":
            ended = instant(job.finished_at) or instant(run.started_at) or now
            if now >= ended + timedelta(seconds=GRACE_S):
                self._lose("ResultMissing", f"Job {run.job} succeeded and left no result")
            else:
                self._waits_s.append(2.0)
        elif now >= deadline:
            missing = job is None or job.foreign
            self._lose("JobVanished" if missing else "JobTooLate", f"Job {run.job} came to no end in time")
        else:
            self._waits_s.append((deadline - now).total_seconds())

    def _lose(self, reason: str, message: str) -> None:
        run = self._status.run
        assert run is not None
        at = rfc3339(self._seen.now)
        self._status = replace(self._status, run=None, checked_at=at)
        self._fail(
            FinishedRun(
                number=run.number,
                id=run.id,
                outcome=Outcome.FAILED,
                reason=reason,
                message=message,
                trigger=run.trigger,
                started_at=run.started_at,
                finished_at=at,
            )
        )

    def _supersede(self) -> None:
        run = self._status.run
        if run is None or self._status.spec_digest in ("", self._seen.spec_digest):
            return
        self._status = replace(self._status, run=None)
        self._say("RunSuperseded", f"run {run.number} is given up: the spec was changed")

    def _quarantine(self) -> None:
        status = self._status
        if status.current is None:
            return
        id_ = status.current.id
        if status.quarantine is not None and status.quarantine.id != id_:
            status = self._status = replace(status, quarantine=None)
        before = status.quarantine.reports if status.quarantine is not None else ()
        known = {(each.toktier, each.pod) for each in before}
        fresh = [
            each.seen
            for each in self._seen.reports
            if each.id == id_ and (each.seen.toktier, each.seen.pod) not in known
        ]
        fresh = fresh[: max(MAX_REPORTS - len(before), 0)]
        if not fresh:
            return
        since = status.quarantine.since if status.quarantine is not None else rfc3339(self._seen.now)
        self._divergences = len(fresh)
        self._status = replace(
            status,
            quarantine=Quarantine(id_, since, (*before, *fresh)),
            divergences=status.divergences + len(fresh),
        )
        for each in fresh:
            where = f"{each.kind or 'a check'} in pod {each.pod}"
            self._say("Divergence", f"{id_}: {where} saw IDs that the reference doesn't give", warning=True)

    def _due(self) -> Trigger | str | None:
        """Why a run is to be started now, if one is; otherwise when it may be."""
        seen, status = self._seen, self._status
        readmission = seen.spec.readmission
        if seen.source_version == "":
            return None
        if status.last_run is None and status.current is None and not status.spec_digest:
            return Trigger.FIRST
        if seen.readmit and seen.readmit != status.readmitted:
            return Trigger.ANNOTATION
        if seen.spec_digest != status.spec_digest:
            return Trigger.SPEC
        moved = seen.source_version is not None and seen.source_version != status.source_version
        if moved and readmission.on_source_change:
            return Trigger.SOURCE
        if seen.image != status.image and (readmission.on_reference_change or readmission.on_encoder_change):
            return Trigger.IMAGE
        last = status.last_run
        if last is None:
            return Trigger.RETRY
        if last.outcome == Outcome.FAILED:
            wait_s = min(FIRST_RETRY_S * 2.0 ** min(max(status.failures - 1, 0), 30), LONGEST_RETRY_S)
            return (last.trigger or Trigger.RETRY) if self._passed(last.finished_at, wait_s) else None
        policy, quarantine = seen.spec.quarantine, status.quarantine
        if quarantine is not None and policy.readmit is Readmit.AUTOMATIC:
            since, began = instant(quarantine.since), instant(last.started_at)
            tried = since is not None and began is not None and began > since
            if not tried and self._passed(quarantine.since, policy.delay_s):
                return Trigger.QUARANTINE
        if seen.source_version is None and readmission.on_source_change:
            return Trigger.POLL if self._passed(status.checked_at, readmission.poll_interval_s) else None
        return None

    def _passed(self, since: str, seconds: float) -> bool:
        at = instant(since)
        left_s = (at + timedelta(seconds=seconds) - self._seen.now).total_seconds() if at is not None else 0.0
        if left_s > 0:
            self._waits_s.append(left_s)
        return left_s <= 0

    def _start(self, trigger: Trigger | str) -> None:
        seen, status = self._seen, self._status
        number = status.next_run
        self._waits_s.append(seen.spec.job.active_deadline_s + GRACE_S)
        self._status = replace(
            status,
            run=self._active(number, trigger, rfc3339(seen.now)),
            next_run=number + 1,
            spec_digest=seen.spec_digest,
            source_version=seen.source_version or "",
            image=seen.image,
            readmitted=seen.readmit,
        )
        self._say("RunStarted", f"run {number}: {trigger!s}")

    def _active(self, number: int, trigger: str, started_at: str) -> ActiveRun:
        name = self._seen.name
        return ActiveRun(
            number, names.admission_id(name, number), names.admission_job(name, number), trigger, started_at
        )

    def _job_to_make(self) -> int | None:
        run = self._status.run
        if run is None or (run.number in self._seen.jobs and not self._seen.jobs[run.number].foreign):
            return None
        self._waits_s.append(GRACE_S)
        return run.number

    def _jobs_given_up(self) -> tuple[int, ...]:
        """Those that still run, without a result, and whose result nobody would take."""
        run = self._status.run
        return tuple(
            number
            for number, job in sorted(self._seen.jobs.items())
            if job.state == "Running" and not job.foreign and number not in self._seen.results
            if run is None or number != run.number
        )

    def _prune(self) -> tuple[tuple[int, ...], frozenset[str] | None]:
        """Results that nothing names any more, and the bundle chunks that something does."""
        status = self._status
        kept = {entry.number for entry in status.history}
        kept |= {each.number for each in (status.last_run, status.run) if each is not None}
        kept |= {status.current.run} if status.current is not None else set()
        newest = status.run.number if status.run is not None else status.next_run
        results = tuple(number for number in sorted(self._seen.results) if number not in kept and number < newest)
        needed = set(self._seen.used)
        if status.current is not None and status.current.bundle is not None:
            needed |= set(status.current.bundle.config_maps)
        for number, result in self._seen.results.items():
            if result.bundle is not None and number in kept:
                needed |= set(result.bundle.config_maps)
        return results, None if status.run is not None else frozenset(needed)
