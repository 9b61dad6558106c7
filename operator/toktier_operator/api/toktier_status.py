"""`status` of a TokTier. Times are RFC 3339 in UTC. `status.rollout` is `rollout.Rollout`'s."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .conditions import Condition
from .references import Raw
from .structure import read, write


class SnapshotState(enum.StrEnum):
    """SERVING: by its admitted fast paths. CANARY: on one pod. MISSING: there is no such admission, or no verdict."""

    SERVING = "Serving"
    CANARY = "Canary"
    QUARANTINED = "Quarantined"
    REFERENCE_ONLY = "ReferenceOnly"
    MISSING = "Missing"


@dataclass(frozen=True, slots=True)
class ServedSnapshot:
    """id: the admission id; tokenizer: how requests call it."""

    admission: str
    tokenizer: str = ""
    id: str = ""
    sha256: str = ""
    fingerprint: str = ""
    verdict: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class TokTierStatus:
    """selector: of the pods, as text, for the scale subresource."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    selector: str = ""
    conditions: tuple[Condition, ...] = ()
    snapshots: tuple[ServedSnapshot, ...] = ()
    rollout: Raw | None = None
    image: str = ""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> TokTierStatus:
        """Of the object as the API server has it; nothing yet is all defaults. Raises `SpecError`."""
        return read(cls, body.get("status") or {}, "status")

    def to_dict(self) -> dict[str, Any]:
        written = write(self)
        assert isinstance(written, dict)
        return written
