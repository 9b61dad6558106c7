"""An admission as messages between two processes, both of which have the tokenizer.json.

Guarantee: what is read has the report's very bytes, or `StateCorrupt` (`admission.transfer`) is raised. Of classes,
only dataclasses and enumerations of the tier are made, by nothing but their fields: no code comes with a message.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any

from ..core.boundaries import BoundaryRule
from ..core.errors import StateCorrupt
from ..core.snapshot import Snapshot
from .campaign import Admission
from .compiled import CompiledSnapshot, Verdict, from_bytes
from .report import Report

OWN = __name__.partition(".")[0] + "."
MADE_ANEW = ("snapshot", "rule")
"""Fields of a report that the other process has, or gets in the form of a compiled snapshot."""


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
    names = [each.name for each in dataclasses.fields(report) if each.name not in MADE_ANEW]
    rest = {
        "fields": {name: _plain(getattr(report, name)) for name in names},
        "sha256": _digest(report),
    }
    return pack_rule(report.snapshot, report.rule), admission.compiled.to_bytes(), json.dumps(rest).encode()


def unpack_admission(snapshot: Snapshot, messages: Sequence[bytes]) -> Admission:
    """Raises `StateCorrupt` (`compiled.*`, `admission.transfer`)."""
    rule, compiled, rest_ = messages
    rest = json.loads(rest_)
    fields = {name: _whole(value) for name, value in rest["fields"].items()}
    report = Report(snapshot=snapshot, rule=unpack_rule(rule), **fields)
    if _digest(report) != rest["sha256"]:
        raise StateCorrupt("admission.transfer", "the report isn't the one that the other process made")
    return Admission(report, from_bytes(compiled))


def pack_value(value: Any) -> bytes:
    """Of a dataclass of the tier's, with what it holds."""
    return json.dumps(_plain(value)).encode()


def unpack_value(data: bytes) -> Any:
    """Raises `StateCorrupt` (`admission.transfer`)."""
    return _whole(json.loads(data))


def _digest(report: Report) -> str:
    return hashlib.sha256(report.to_json().encode()).hexdigest()


def _plain(value: Any) -> Any:
    """JSON values, lists but for what is tagged: an object with one key."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return {"enum": [type(value).__module__, type(value).__name__, value.value]}
    if dataclasses.is_dataclass(value):
        fields = {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return {"class": [type(value).__module__, type(value).__name__, fields]}
    if isinstance(value, Mapping):
        return {"mapping": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    raise TypeError(f"a {type(value).__name__} has no form as a message")


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tuple":
        return tuple(_whole(each) for each in content)
    if tag == "mapping":
        return {_whole(key): _whole(each) for key, each in content}
    module, name, given = content
    kind = getattr(import_module(module), name) if module.startswith(OWN) else None
    if tag == "enum" and isinstance(kind, type) and issubclass(kind, Enum):
        return kind(given)
    if tag == "class" and isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**{field: _whole(each) for field, each in given.items()})
    raise StateCorrupt("admission.transfer", "a message holds something that isn't the tier's")
