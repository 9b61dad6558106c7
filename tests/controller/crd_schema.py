"""The CRDs as files, and what the API server does with their schemas before anybody sees an object."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CRDS = {
    "TokenizerAdmission": ROOT / "manifests/crds/tokenizeradmissions.yaml",
    "TokTier": ROOT / "manifests/crds/toktiers.yaml",
}
Schema = dict[str, Any]


@functools.cache
def crd(kind: str) -> dict[str, Any]:
    """Not to be changed: everybody gets the same one."""
    found = yaml.safe_load(CRDS[kind].read_text())
    assert isinstance(found, dict)
    return found


def schema(kind: str) -> Schema:
    found = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(found, dict)
    return found


def defaulted(schema: Schema, value: Any) -> Any:
    """As the API server's structural defaulting: top down, into what is there."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        for key, inner in schema.get("properties", {}).items():
            if key not in value and "default" in inner:
                value[key] = copy.deepcopy(inner["default"])
            if key in value:
                value[key] = defaulted(inner, value[key])
    if isinstance(value, list):
        value = [defaulted(schema.get("items", {}), each) for each in value]
    return value


def parts(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in it with the path to it."""
    yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from parts(inner, f"{path}.{key}" if path else key)
    if isinstance(schema.get("items"), dict):
        yield from parts(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from parts(schema["additionalProperties"], f"{path}{{}}")


def closed(schema: Schema) -> Schema:
    """The same for a JSON Schema validator, refusing unknown fields as strict field validation does."""
    plain = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes") and key != "format"}
    if "properties" in plain:
        plain["properties"] = {key: closed(inner) for key, inner in plain["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            plain["additionalProperties"] = False
    if isinstance(plain.get("items"), dict):
        plain["items"] = closed(plain["items"])
    if isinstance(plain.get("additionalProperties"), dict):
        plain["additionalProperties"] = closed(plain["additionalProperties"])
    if schema.get("x-kubernetes-list-type") == "set":
        plain["uniqueItems"] = True
    return plain


def repeats(schema: Schema, value: Any) -> bool:
    """Whether a list that is a map has a key twice, which the API server refuses."""
    if isinstance(value, dict):
        return any(repeats(inner, value[key]) for key, inner in schema.get("properties", {}).items() if key in value)
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", [])
        named = [tuple(str(each.get(key)) for key in keys) for each in value] if keys else []
        return len(named) != len(set(named)) or any(repeats(schema.get("items", {}), each) for each in value)
    return False
