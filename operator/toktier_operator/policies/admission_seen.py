"""What a decision about a TokenizerAdmission follows from, and what it says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..api.admission_spec import AdmissionSpec
from ..api.admission_status import AdmissionStatus, DivergenceReport
from .admission_runs import Result


@dataclass(frozen=True, slots=True)
class JobSeen:
    """state: Running, Succeeded or Failed; finished_at: "" while it runs; foreign: it belongs to something else."""

    state: str
    reason: str = ""
    message: str = ""
    started_at: str = ""
    finished_at: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Of a pod, about an admission id."""

    id: str
    seen: DivergenceReport


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision follows from.

    readmit         value of the annotation, "" without
    source_version  of a source that the API server has; None if it isn't looked at there, "" if it isn't there
    numbers         of every Job and result of that name, whoever's
    used            names of the bundle ConfigMaps that pods have or may go back to
    """

    name: str
    generation: int
    spec: AdmissionSpec
    spec_digest: str
    status: AdmissionStatus
    now: datetime
    image: str
    readmit: str = ""
    source_version: str | None = None
    jobs: Mapping[int, JobSeen] = field(default_factory=dict)
    results: Mapping[int, Result] = field(default_factory=dict)
    numbers: frozenset[int] = frozenset()
    reports: tuple[Report, ...] = ()
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Happening:
    """An Event to post. type_: Normal or Warning."""

    type_: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`status` is to be written before anything else is done; Job `make_job` is made of it.

    finished: outcomes of runs that ended just now. divergences: how many reports are new. needed_chunks: bundle
    ConfigMaps that stay, all others of the admission go; None while a run may be making some.
    """

    status: AdmissionStatus
    make_job: int | None = None
    delete_jobs: tuple[int, ...] = ()
    delete_results: tuple[int, ...] = ()
    needed_chunks: frozenset[str] | None = None
    happenings: tuple[Happening, ...] = ()
    finished: tuple[str, ...] = ()
    divergences: int = 0
    look_again_s: float | None = None
