"""An admission as messages between two processes, both of which have the tokenizer.json.

Guarantee: what is read has the report's very bytes, or `StateCorrupt` (`admission.transfer`) is raised.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..core.boundaries import BoundaryRule
from ..core.errors import StateCorrupt
from ..core.snapshot import Snapshot
from .campaign import Admission
from .compiled import CompiledSnapshot, Verdict, from_bytes
from .report import Phase, Report

MADE_ANEW = frozenset(("snapshot", "rule", "phases", "encoders", "verdict", "trust"))
"""Fields of a report that aren't sent as they are: they come with the snapshot, the rule and the compiled snapshot."""


def pack_rule(snapshot: Snapshot, rule: BoundaryRule) -> bytes:
    """In the form of a compiled snapshot of which nothing but the rule counts."""
    carrier = CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=Verdict.REFERENCE_ONLY,
        reason="",
        rule=rule,
        encoder="",
    )
    return carrier.to_bytes()


def unpack_rule(data: bytes) -> BoundaryRule:
    """Raises `StateCorrupt` (`compiled.*`)."""
    return from_bytes(data).rule


def pack_admission(admission: Admission) -> tuple[bytes, bytes, bytes]:
    """The rule that was examined, the compiled snapshot, and the rest of the report."""
    report = admission.report
    own = {each.name: getattr(report, each.name) for each in dataclasses.fields(report) if each.name not in MADE_ANEW}
    rest = {
        "fields": own,
        "phases": [dataclasses.asdict(phase) for phase in report.phases],
        "sha256": hashlib.sha256(report.to_json().encode()).hexdigest(),
    }
    return pack_rule(report.snapshot, report.rule), admission.compiled.to_bytes(), json.dumps(rest).encode()


def unpack_admission(snapshot: Snapshot, messages: Sequence[bytes]) -> Admission:
    rule, compiled_, rest_ = messages
    compiled = from_bytes(compiled_)
    rest: dict[str, Any] = json.loads(rest_)
    if compiled.trust is None:
        raise StateCorrupt("admission.transfer", "the other process told nothing of untrusted spans")
    report = Report(
        snapshot=snapshot,
        rule=unpack_rule(rule),
        phases=tuple(Phase(**phase) for phase in rest["phases"]),
        encoders=compiled.encoders,
        verdict=compiled.verdict,
        trust=compiled.trust,
        **rest["fields"],
    )
    if hashlib.sha256(report.to_json().encode()).hexdigest() != rest["sha256"]:
        raise StateCorrupt("admission.transfer", "the report isn't the one that the other process made")
    return Admission(report, compiled)
