"""`status` of a TokenizerAdmission. Times are RFC 3339 in UTC. What runs found is copied from `result.json`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .conditions import Condition
from .references import Raw
from .structure import read, write


class Phase(enum.StrEnum):
    """PENDING: nothing was tried yet. FAILED: the last run didn't get to a verdict and nothing was admitted before."""

    PENDING = "Pending"
    ADMITTING = "Admitting"
    ADMITTED = "Admitted"
    REFERENCE_ONLY = "ReferenceOnly"
    REJECTED = "Rejected"
    QUARANTINED = "Quarantined"
    FAILED = "Failed"


class Verdict(enum.StrEnum):
    ADMITTED = "Admitted"
    REFERENCE_ONLY = "ReferenceOnly"
    REJECTED = "Rejected"


class Outcome(enum.StrEnum):
    COMPLETED = "Completed"
    UNCHANGED = "Unchanged"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Rule:
    kind: str = ""
    digest: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class EncoderResult:
    """unsafe_code_points: how many are left to the reference."""

    name: str
    version: str = ""
    verdict: str = ""
    reason: str = ""
    checks: int = 0
    divergences: int = 0
    unsafe_code_points: int = 0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Versions of all that a verdict holds for."""

    reference: str = ""
    deriver: str = ""
    encoders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """config_maps: of its chunks, in order."""

    sha256: str
    size_bytes: int = 0
    config_maps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportReference:
    """The campaign's whole report."""

    config_map: str
    key: str = "report.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run found, once it may serve: `id` is the admission id, by which pods and quarantines know it."""

    id: str
    run: int
    sha256: str = ""
    fingerprint: str = ""
    policy: str = ""
    verdict: str = ""
    reason: str = ""
    encoder: str = ""
    chat_template: bool = False
    rule: Rule | None = None
    encoders: tuple[EncoderResult, ...] = ()
    checks: int = 0
    characters: int = 0
    divergences: int = 0
    toolchain: Toolchain | None = None
    image: str = ""
    bundle: Bundle | None = None
    admitted_at: str = ""
    report: ReportReference | None = None

    @property
    def accelerated(self) -> bool:
        return self.verdict == Verdict.ADMITTED


@dataclass(frozen=True, slots=True)
class ActiveRun:
    number: int
    id: str
    job: str
    trigger: str = ""
    started_at: str = ""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """diff: of this run's snapshot with the one that served, as in `result.json`; message: of an error."""

    number: int
    id: str
    outcome: str
    verdict: str = ""
    reason: str = ""
    message: str = ""
    trigger: str = ""
    sha256: str = ""
    started_at: str = ""
    finished_at: str = ""
    diff: Raw | None = None
    report: ReportReference | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A snapshot or verdict of before, newest first; diff: the summary alone."""

    number: int
    id: str
    outcome: str = ""
    verdict: str = ""
    reason: str = ""
    sha256: str = ""
    fingerprint: str = ""
    finished_at: str = ""
    diff: str = ""
    report: ReportReference | None = None


@dataclass(frozen=True, slots=True)
class DivergenceReport:
    """What a pod told, never with text; see docs/decisions/0008."""

    pod: str
    toktier: str = ""
    kind: str = ""
    encoder: str = ""
    at: str = ""
    digest: str = ""
    text_chars: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """id: of the admission that is quarantined."""

    id: str
    since: str
    reports: tuple[DivergenceReport, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionStatus:
    """divergences: all that pods reported, ever. readmitted: the value of the annotation that was last followed.

    checked_at: when the source was last looked at. next_run: its number is never one that was used.
    spec_digest, source_version, image: of what the last run was started with. failures: runs in a row to no verdict.
    """

    phase: Phase = Phase.PENDING
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    current: Snapshot | None = None
    run: ActiveRun | None = None
    last_run: FinishedRun | None = None
    history: tuple[HistoryEntry, ...] = ()
    quarantine: Quarantine | None = None
    divergences: int = 0
    readmitted: str = ""
    checked_at: str = ""
    source_version: str = ""
    spec_digest: str = ""
    image: str = ""
    failures: int = 0
    next_run: int = 1

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> AdmissionStatus:
        """Of the object as the API server has it; nothing yet is all defaults. Raises `SpecError`."""
        return read(cls, body.get("status") or {}, "status")

    @property
    def upgrade_rejected(self) -> bool:
        """Whether the newest verdict is a rejection, with something admitted before it."""
        last, current = self.last_run, self.current
        return (
            last is not None and current is not None and last.verdict == Verdict.REJECTED and last.number > current.run
        )

    def to_dict(self) -> dict[str, Any]:
        written = write(self)
        assert isinstance(written, dict)
        return written
