"""What every object of a TokTier has: its name, its labels, its owner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api.group import API_VERSION, TOKTIER
from . import names

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The TokTier that an object is made for."""

    name: str
    namespace: str
    uid: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Owner:
        metadata = body["metadata"]
        return cls(metadata["name"], metadata["namespace"], metadata["uid"])

    def manifest(self, api_version: str, kind: str, name: str, annotations: Mapping[str, str] | None = None) -> Json:
        """The beginning of one; gone with its owner."""
        metadata: Json = {
            "name": name,
            "namespace": self.namespace,
            "labels": names.tier_labels(self.name),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": TOKTIER.kind,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata}

    def owns(self, item: Mapping[str, Any]) -> bool:
        return owned_by(item, self.uid)


def owned_by(item: Mapping[str, Any], uid: object) -> bool:
    """Whether an owner of `item` is the object of that uid, and no namesake."""
    return any(each.get("uid") == uid for each in item["metadata"].get("ownerReferences") or ())


def digest(value: object) -> str:
    """Hex SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
