"""Manifests that must be refused: by the schema, by a CEL rule of it, or by the webhook."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "manifests"


@dataclass(frozen=True)
class Wrong:
    """says: a piece of the message; before: a spec that is stored first, for a change that is refused."""

    kind: str
    case: str
    layer: str
    says: str
    spec: dict[str, Any]
    name: str = "wrong"
    before: dict[str, Any] = field(default_factory=dict)

    def manifest(self, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        metadata = {"name": self.name, "namespace": namespace}
        return {"apiVersion": "toktier.dev/v1alpha1", "kind": self.kind, "metadata": metadata, "spec": spec}


def wrong_manifests() -> list[Wrong]:
    return [
        Wrong(kind, **case)
        for kind, file in (("TokenizerAdmission", "wrong_admissions.yaml"), ("TokTier", "wrong_toktiers.yaml"))
        for case in yaml.safe_load((FOLDER / file).read_text())
    ]
