"""What containers of the operator's own leave to a spec: resources, environment, volumes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...api.quantities import quantity
from ...api.references import Resources
from .findings import Notes, repeated

RESERVED_ENV = ("POD_NAME", "POD_IP", "POD_NAMESPACE", "TOKTIER_BUNDLES", "TOKTIER_ADMISSION_REQUEST")
RESERVED_PATHS = (
    "/etc/toktier",
    "/etc/toktier-tokens",
    "/etc/toktier-tls",
    "/etc/toktier-client-ca",
    "/etc/toktier-upstream",
    "/var/run/toktier",
    "/var/run/secrets/kubernetes.io",
    "/snapshots",
    "/bundles",
)
RESERVED_VOLUMES = ("settings", "peers", "tokens", "tls", "client-ca", "upstream", "snapshots", "tmp", "bundles")


def check_resources(notes: Notes, path: str, resources: Resources) -> None:
    for name, requested in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and quantity(requested) > quantity(limit):
            notes.error(
                f"{path}.requests.{name}", f"{requested} is more than the limit, {limit}; lower it or raise the limit"
            )
    for name, amount in (*resources.requests.items(), *resources.limits.items()):
        if name == "memory" and 0 < quantity(amount) < 1 << 20:
            notes.error(f"{path}: memory", f"{amount} is less than a mebibyte; a unit such as Mi or Gi is missing")


def check_env(notes: Notes, path: str, env: Sequence[Mapping[str, Any]]) -> None:
    names = [str(each.get("name", "")) for each in env]
    for name in repeated(names):
        notes.error(path, f"{name} is there twice; take one out")
    for name in names:
        if name in RESERVED_ENV:
            notes.error(path, f"{name} is set by the operator; take it out")
    for each in env:
        if "value" in each and each.get("valueFrom"):
            notes.error(path, f"{each.get('name')} has a value and a valueFrom; take one out")


def check_volumes(
    notes: Notes, path: str, volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]]
) -> None:
    names = [str(each.get("name", "")) for each in volumes]
    for name in repeated(names):
        notes.error(f"{path}.volumes", f"{name} is there twice; rename one")
    for name in names:
        if name in RESERVED_VOLUMES or name.startswith("bundle-"):
            notes.error(f"{path}.volumes", f"{name} is a volume of the operator's own; choose another name")
    for mount in mounts:
        if mount.get("name") not in names:
            notes.error(f"{path}.volumeMounts", f"{mount.get('name')} isn't among podTemplate.volumes; add it there")
    places = [posixpath.normpath(str(each.get("mountPath", ""))) for each in mounts]
    for place in repeated(places):
        notes.error(f"{path}.volumeMounts", f"two volumes are mounted at {place}; move one")
    for place in places:
        if not place.startswith("/"):
            notes.error(f"{path}.volumeMounts", f"mountPath {place} is absolute: begin it with '/'")
        taken = _within(place, RESERVED_PATHS)
        if taken or place in ("/", "/tmp"):
            notes.error(
                f"{path}.volumeMounts", f"{place} is taken by the tier itself ({taken or place}); mount it elsewhere"
            )


def _within(place: str, folders: Iterable[str]) -> str:
    """The folder that `place` is or lies in or is above of; "" if it is apart from all."""
    for folder in folders:
        if place == folder or place.startswith(f"{folder}/") or folder.startswith(f"{place.rstrip('/')}/"):
            return folder
    return ""
