"""What a run of an admission found, as its `result.json` says it, in the words of the status. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api.admission_spec import AdmissionSpec
from ..api.admission_status import (
    ActiveRun,
    AdmissionStatus,
    Bundle,
    EncoderResult,
    FinishedRun,
    HistoryEntry,
    Outcome,
    ReportReference,
    Rule,
    Snapshot,
    Toolchain,
    Verdict,
)
from ..api.conditions import Trigger
from ..api.references import Raw
from ..api.structure import SpecError, read
from ..resources import names

MAX_MESSAGE_CHARS = 1000
SPEC_PARTS = ("source", "specialTokenPolicy", "referenceVersion", "encoders", "campaign")
"""What of a spec decides what a run finds; a change of the rest asks for none."""


@dataclass(frozen=True, slots=True)
class ResultError:
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """`result.json`. report_key: of the report beside it, "" without."""

    id: str
    run: int
    outcome: Outcome
    error: ResultError | None = None
    verdict: str = ""
    reason: str = ""
    sha256: str = ""
    fingerprint: str = ""
    policy: str = ""
    encoder: str = ""
    rule: Rule | None = None
    encoders: tuple[EncoderResult, ...] = ()
    checks: int = 0
    characters: int = 0
    divergences: int = 0
    chat_template: bool = False
    toolchain: Toolchain = field(default_factory=Toolchain)
    image: str = ""
    bundle: Bundle | None = None
    diff: Raw | None = None
    started_at: str = ""
    finished_at: str = ""
    report_key: str = ""

    @property
    def serves(self) -> bool:
        """Whether what was found may serve, accelerated or by the reference."""
        known = (Verdict.ADMITTED, Verdict.REFERENCE_ONLY)
        return self.outcome is Outcome.COMPLETED and self.verdict in known and self.bundle is not None


def read_result(config_map: Mapping[str, Any], admission: str, run: int) -> Result:
    """Of the ConfigMap `A-run-n`. One that can't be read is a run that failed (`result.unreadable`)."""
    data = config_map.get("data") or {}
    packed = f"{names.REPORT_KEY}.gz"
    report_key = names.REPORT_KEY if names.REPORT_KEY in data else ""
    if packed in (config_map.get("binaryData") or {}):
        report_key = packed
    try:
        document = json.loads(data.get(names.RESULT_KEY) or "")
        result = read(Result, {**document, "reportKey": report_key}, names.RESULT_KEY)
        if (result.id, result.run) != (names.admission_id(admission, run), run):
            raise ValueError(f"it is of {result.id}")
        if result.outcome is Outcome.COMPLETED and result.verdict not in tuple(Verdict):
            raise ValueError(f"unknown verdict {result.verdict!r}")
    except (ValueError, TypeError, SpecError) as error:
        failed = ResultError("result.unreadable", f"{names.RESULT_KEY} can't be read: {error}"[:MAX_MESSAGE_CHARS])
        created = str(config_map.get("metadata", {}).get("creationTimestamp") or "")
        id_ = names.admission_id(admission, run)
        return Result(id_, run, Outcome.FAILED, failed, finished_at=created)
    return result


def snapshot_of(result: Result, admission: str) -> Snapshot:
    return Snapshot(
        id=result.id,
        run=result.run,
        sha256=result.sha256,
        fingerprint=result.fingerprint,
        policy=result.policy,
        verdict=result.verdict,
        reason=result.reason[:MAX_MESSAGE_CHARS],
        encoder=result.encoder,
        chat_template=result.chat_template,
        rule=result.rule,
        encoders=result.encoders,
        checks=result.checks,
        characters=result.characters,
        divergences=result.divergences,
        toolchain=result.toolchain,
        image=result.image,
        bundle=result.bundle,
        admitted_at=result.finished_at,
        report=_report_of(result, admission),
    )


def finished_of(result: Result, admission: str, active: ActiveRun | None, status: AdmissionStatus) -> FinishedRun:
    error = result.error
    return FinishedRun(
        number=result.run,
        id=result.id,
        outcome=result.outcome,
        verdict=result.verdict,
        reason=error.code if error is not None else result.reason[:MAX_MESSAGE_CHARS],
        message=error.message[:MAX_MESSAGE_CHARS] if error is not None else "",
        trigger=_trigger_of(result, active, status),
        sha256=result.sha256,
        started_at=result.started_at or (active.started_at if active is not None else ""),
        finished_at=result.finished_at,
        diff=result.diff,
        report=_report_of(result, admission),
    )


def _report_of(result: Result, admission: str) -> ReportReference | None:
    if result.outcome is not Outcome.COMPLETED or not result.report_key:
        return None
    return ReportReference(names.admission_result(admission, result.run), result.report_key)


def _trigger_of(result: Result, active: ActiveRun | None, status: AdmissionStatus) -> str:
    """Of a new image, what of it mattered."""
    trigger = active.trigger if active is not None else ""
    before = status.current.toolchain if status.current is not None else None
    if trigger != Trigger.IMAGE or before is None:
        return trigger
    if result.toolchain.reference != before.reference:
        return Trigger.REFERENCE
    if dict(result.toolchain.encoders) != dict(before.encoders):
        return Trigger.ENCODER
    return Trigger.DERIVER if result.toolchain.deriver != before.deriver else trigger


def history_with(status: AdmissionStatus, limit: int) -> tuple[HistoryEntry, ...]:
    """The history once `last_run` is about to be followed by another: of failed runs in a row one is kept."""
    last = status.last_run
    if last is None or last.outcome == Outcome.UNCHANGED:
        return status.history[:limit]
    current = status.current
    entry = HistoryEntry(
        number=last.number,
        id=last.id,
        outcome=last.outcome,
        verdict=last.verdict,
        reason=last.reason,
        sha256=last.sha256,
        fingerprint=current.fingerprint if current is not None and current.run == last.number else "",
        finished_at=last.finished_at,
        diff=str((last.diff or {}).get("summary") or ""),
        report=last.report,
    )
    earlier = [each for each in status.history if each.number != entry.number]
    if earlier and earlier[0].outcome == entry.outcome == Outcome.FAILED:
        earlier = earlier[1:]
    return (entry, *earlier)[:limit]


def known_to(status: AdmissionStatus, results: Mapping[int, Result], trigger: str) -> dict[str, Any] | None:
    """What the run needn't examine again, `known` of its request: what the last verdict was about."""
    if trigger in (Trigger.FIRST, Trigger.ANNOTATION, Trigger.QUARANTINE):
        return None
    last = status.last_run
    if last is not None and last.outcome == Outcome.COMPLETED and last.number in results:
        found = results[last.number]
        return _known(found.sha256, found.policy, found.toolchain)
    current = status.current
    if current is None or current.toolchain is None:
        return None
    return _known(current.sha256, current.policy, current.toolchain)


def _known(sha256: str, policy: str, toolchain: Toolchain) -> dict[str, Any]:
    versions = {
        "reference": toolchain.reference,
        "deriver": toolchain.deriver,
        "encoders": dict(toolchain.encoders),
    }
    return {"sha256": sha256, "policy": policy, "toolchain": versions}


def spec_digest(body: Mapping[str, Any]) -> str:
    """Of what of an object's spec decides what a run finds."""
    spec = body.get("spec") or {}
    parts = {key: spec.get(key) for key in SPEC_PARTS}
    text = json.dumps([parts, (spec.get("job") or {}).get("image") or ""], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_image(spec: AdmissionSpec, operator_image: str) -> str:
    return spec.job.image or operator_image
