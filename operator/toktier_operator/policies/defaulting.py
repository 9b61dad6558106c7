"""Defaults that follow from other fields, which a schema can't say, and spellings that everybody uses. Pure.

Each function takes an object as it was sent, which nothing has validated yet, and returns what to merge into it; what
it doesn't understand it leaves alone. Called on its own result it returns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.toktier_spec import DEFAULT_CPU_PERCENT

HUB = "https://huggingface.co/"


def default_admission(body: Mapping[str, Any]) -> dict[str, Any]:
    """A SHA-256 in capitals or after `sha256:`, and a hub's repository by its address."""
    source = _mapping(_mapping(body.get("spec")).get("source"))
    changed: dict[str, Any] = {}
    digest = _mapping(source.get("https")).get("sha256")
    if isinstance(digest, str) and (plain := digest.strip().lower().removeprefix("sha256:")) != digest:
        changed["https"] = {"sha256": plain}
    repo = _mapping(source.get("huggingFace")).get("repo")
    if isinstance(repo, str) and (short := repo.removeprefix(HUB).strip("/")) != repo:
        changed["huggingFace"] = {"repo": short}
    return {"spec": {"source": changed}} if changed else {}


def default_toktier(body: Mapping[str, Any]) -> dict[str, Any]:
    """The upstream's namespace, what the autoscaler measures, and the name in the pods' certificate."""
    metadata, spec = _mapping(body.get("metadata")), _mapping(body.get("spec"))
    name, namespace = metadata.get("name"), metadata.get("namespace")
    changed: dict[str, Any] = {}
    service = _mapping(_mapping(spec.get("upstream")).get("service"))
    if service and namespace and not service.get("namespace"):
        changed["upstream"] = {"service": {"namespace": namespace}}
    scaling = _mapping(spec.get("autoscaling"))
    if scaling and scaling.get("metric") is None and scaling.get("targetCPUUtilizationPercentage") is None:
        changed["autoscaling"] = {"targetCPUUtilizationPercentage": DEFAULT_CPU_PERCENT}
    tls = _mapping(_mapping(spec.get("security")).get("tls"))
    if tls and name and namespace and not tls.get("serverName"):
        changed["security"] = {"tls": {"serverName": f"{name}.{namespace}.svc"}}
    return {"spec": changed} if changed else {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
