"""Phase and conditions of a TokenizerAdmission: a status said in words. Pure.

A condition's `lastTransitionTime` moves only with its status; everything else follows from the rest of the status
alone, so a status that says the same is the same.
"""

from __future__ import annotations

from ..api.admission_spec import AdmissionSpec, OnRejected
from ..api.admission_status import AdmissionStatus, Outcome, Phase, Verdict
from ..api.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    AdmissionCondition,
    AdmissionReason,
    Condition,
    Said,
    with_transitions,
)


def phase_of(status: AdmissionStatus, spec: AdmissionSpec) -> Phase:
    if status.current is not None:
        if status.quarantine is not None:
            return Phase.QUARANTINED
        accelerated = status.current.accelerated and not _held_back(status, spec)
        return Phase.ADMITTED if accelerated else Phase.REFERENCE_ONLY
    if status.run is not None:
        return Phase.ADMITTING
    if status.last_run is None:
        return Phase.PENDING
    return Phase.REJECTED if status.last_run.verdict == Verdict.REJECTED else Phase.FAILED


def conditions_of(
    status: AdmissionStatus,
    spec: AdmissionSpec,
    *,
    generation: int,
    source_version: str | None,
    spec_digest: str,
    image: str,
    now: str,
) -> tuple[Condition, ...]:
    said: dict[str, Said] = {
        AdmissionCondition.ADMITTED: _admitted(status, spec),
        AdmissionCondition.UP_TO_DATE: _up_to_date(status, spec, source_version, spec_digest, image),
        AdmissionCondition.QUARANTINED: _quarantined(status),
        AdmissionCondition.SOURCE_AVAILABLE: _source_available(status, source_version),
        AdmissionCondition.PROGRESSING: _progressing(status),
    }
    return with_transitions(status.conditions, said, generation, now)


def invalid_spec(status: AdmissionStatus, problem: str, generation: int, now: str) -> tuple[Condition, ...]:
    """The conditions of before, but that nothing goes on."""
    said = {each.type: (each.status, each.reason, each.message) for each in status.conditions}
    said[AdmissionCondition.PROGRESSING] = (FALSE, AdmissionReason.SPEC_INVALID, problem)
    return with_transitions(status.conditions, said, generation, now)


def _held_back(status: AdmissionStatus, spec: AdmissionSpec) -> bool:
    return status.upgrade_rejected and spec.upgrade.on_rejected is OnRejected.REFERENCE_ONLY


def _admitted(status: AdmissionStatus, spec: AdmissionSpec) -> Said:
    current, last = status.current, status.last_run
    if current is None:
        if last is not None and last.verdict == Verdict.REJECTED:
            return FALSE, AdmissionReason.REJECTED, last.reason or f"run {last.number} rejected it"
        return FALSE, AdmissionReason.NEVER_RUN, "no run has come to a verdict yet"
    if status.quarantine is not None:
        return FALSE, AdmissionReason.QUARANTINED, f"{current.id} is served by the reference, until another is admitted"
    if not current.accelerated:
        return FALSE, AdmissionReason.REFERENCE_ONLY, f"{current.id}: {current.reason or 'nothing faster was proven'}"
    if _held_back(status, spec):
        message = f"{current.id} is served by the reference while a newer snapshot is rejected (upgrade.onRejected)"
        return FALSE, AdmissionReason.REFERENCE_ONLY, message
    return TRUE, AdmissionReason.ADMITTED, f"{current.id}: {current.encoder}, {current.checks} checks"


def _up_to_date(
    status: AdmissionStatus, spec: AdmissionSpec, source_version: str | None, spec_digest: str, image: str
) -> Said:
    if status.last_run is None and status.current is None:
        return UNKNOWN, AdmissionReason.NEVER_RUN, "no run has come to a verdict yet"
    run, last = status.run, status.last_run
    if spec_digest != status.spec_digest:
        return FALSE, AdmissionReason.SPEC_CHANGED, "the spec was changed since the last run"
    if run is not None and run.trigger != "Poll":
        return FALSE, _WHY_RUNNING.get(run.trigger, AdmissionReason.RUN_RUNNING), f"run {run.number}: {run.trigger}"
    if source_version and source_version != status.source_version:
        reason = AdmissionReason.SOURCE_CHANGED
        if not spec.readmission.on_source_change:
            reason = AdmissionReason.READMISSION_OFF
        return FALSE, reason, "the source was changed since the last run"
    if image != status.image:
        return FALSE, AdmissionReason.READMISSION_OFF, f"examined with {status.image}, not with {image}"
    if last is not None and last.outcome == Outcome.FAILED:
        message = f"run {last.number}: {last.reason}" + (f": {last.message}" if last.message else "")
        return FALSE, AdmissionReason.UPGRADE_FAILED if status.current else AdmissionReason.RUN_FAILED, message
    if last is not None and last.verdict == Verdict.REJECTED:
        summary = str((last.diff or {}).get("summary") or "")
        message = f"run {last.number}: " + "; ".join(part for part in (last.reason, summary) if part)
        return FALSE, AdmissionReason.UPGRADE_REJECTED if status.current else AdmissionReason.REJECTED, message
    return TRUE, AdmissionReason.UP_TO_DATE, f"{status.current.id if status.current else ''} is of this source"


_WHY_RUNNING = {
    "SpecChanged": AdmissionReason.SPEC_CHANGED,
    "SourceChanged": AdmissionReason.SOURCE_CHANGED,
    "ImageChanged": AdmissionReason.TOOLCHAIN_CHANGED,
    "ReferenceChanged": AdmissionReason.TOOLCHAIN_CHANGED,
    "EncoderChanged": AdmissionReason.TOOLCHAIN_CHANGED,
    "DeriverChanged": AdmissionReason.TOOLCHAIN_CHANGED,
}


def _quarantined(status: AdmissionStatus) -> Said:
    quarantine = status.quarantine
    if quarantine is None:
        return FALSE, AdmissionReason.NO_DIVERGENCE, "no pod reported a wrong ID of what serves"
    pods = ", ".join(sorted({each.pod for each in quarantine.reports})[:5])
    message = f"{quarantine.id}: {len(quarantine.reports)} reports since {quarantine.since}, of {pods}"
    return TRUE, AdmissionReason.DIVERGENCE_REPORTED, message


def _source_available(status: AdmissionStatus, source_version: str | None) -> Said:
    if source_version == "":
        return FALSE, AdmissionReason.SOURCE_MISSING, "there is no such ConfigMap or Secret"
    last = status.last_run
    if last is not None and last.outcome == Outcome.FAILED and last.reason.startswith("source."):
        return FALSE, AdmissionReason.SOURCE_UNREADABLE, f"{last.reason}: {last.message}"
    if source_version is not None:
        return TRUE, AdmissionReason.SOURCE_FOUND, "it is there"
    if last is None or last.outcome == Outcome.FAILED:
        return UNKNOWN, AdmissionReason.NOT_CHECKED, "no run has read it yet"
    return TRUE, AdmissionReason.SOURCE_FOUND, f"run {last.number} read it"


def _progressing(status: AdmissionStatus) -> Said:
    if status.run is not None:
        return TRUE, AdmissionReason.RUN_RUNNING, f"run {status.run.number}, Job {status.run.job}"
    last = status.last_run
    if last is not None and last.outcome == Outcome.FAILED:
        return FALSE, AdmissionReason.RUN_FAILED, f"{status.failures} in a row; it is tried again"
    if last is None:
        return FALSE, AdmissionReason.RUN_PENDING, "waiting for the source"
    return FALSE, AdmissionReason.IDLE, "nothing to do"
