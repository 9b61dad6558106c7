"""What several specs refer to, and pieces of pods that are passed through as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]
"""An object of Kubernetes' own, validated by the API server where it ends up."""


@dataclass(frozen=True, slots=True)
class KeyReference:
    """A key of a ConfigMap or Secret in the same namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class NameReference:
    name: str


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A path in a PersistentVolumeClaim of the same namespace, relative to its root."""

    claim_name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """As a container has them; values are quantities."""

    limits: Mapping[str, int | str] = field(default_factory=dict)
    requests: Mapping[str, int | str] = field(default_factory=dict)
