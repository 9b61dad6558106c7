"""What the watches last said, so that a reconcile which has nothing to do costs no call.

1. Of each object the newest version that was seen stays: watches and answers may come in any order.
2. What was seen deleted doesn't come back by an older version.
3. Objects in it are never changed; who gets one may keep it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..api.group import GROUP
from ..api.quantities import quantity
from .kinds import Json, Jsons, Kind

APPLIED = f"{GROUP}/applied"
"""Annotation: digest of the manifest that the operator applied last."""
MAX_GONE = 10_000


class Observed:
    """A cache of objects by kind, namespace and name."""

    def __init__(self) -> None:
        self._items: dict[tuple[Kind, str], dict[str, Json]] = {}
        self._gone: dict[tuple[Kind, str, str], int] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        return self._items.get((kind, namespace), {}).get(name)

    def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> list[Json]:
        """By namespace and name; those that have all of `labels`; of every namespace if `namespace` is empty."""
        if namespace:
            items = self._items.get((kind, namespace), {})
            found = [items[name] for name in sorted(items)]
        else:
            places = sorted(place for of, place in self._items if of == kind)
            found = [item for place in places for item in self.list(kind, place)] if any(places) else []
        if not labels:
            return found
        wanted = labels.items()
        return [item for item in found if wanted <= (item["metadata"].get("labels") or {}).items()]

    def put(self, kind: Kind, item: Json) -> bool:
        """Whether that was news; an older resourceVersion than the one known isn't taken."""
        metadata = item["metadata"]
        namespace, name = str(metadata.get("namespace", "")), str(metadata["name"])
        version = _version(item)
        if version <= self._gone.get((kind, namespace, name), -1):
            return False
        items = self._items.setdefault((kind, namespace), {})
        there = items.get(name)
        if there is not None and version <= _version(there):
            return False
        kept = {key: value for key, value in metadata.items() if key != "managedFields"}
        items[name] = {"apiVersion": kind.api_version, "kind": kind.kind, **item, "metadata": kept}
        return True

    def remove(self, kind: Kind, namespace: str, name: str, uid: str | None = None, version: str = "") -> bool:
        """Whether it was there. `version`: resourceVersion of the deletion; a newer object of that name stays."""
        items = self._items.get((kind, namespace), {})
        there = items.get(name)
        gone = int(version) if version.isdigit() else (_version(there) if there is not None else -1)
        if there is not None and uid is not None and there["metadata"].get("uid") != uid:
            return False
        if there is not None and _version(there) > gone:
            return False
        key = (kind, namespace, name)
        self._gone.pop(key, None)
        self._gone[key] = gone
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        if there is None:
            return False
        del items[name]
        return True

    def replace(self, kind: Kind, namespace: str, items: Iterable[Json], as_of: int) -> Jsons:
        """`items` is all there was at resourceVersion `as_of`, in `namespace` or everywhere.

        Returns what was news or had gone without a word.
        """
        seen = list(items)
        news = [item for item in seen if self.put(kind, item)]
        names = {(str(item["metadata"].get("namespace", "")), str(item["metadata"]["name"])) for item in seen}
        for item in self.list(kind, namespace):
            key = (str(item["metadata"].get("namespace", "")), str(item["metadata"]["name"]))
            if key not in names and _version(item) <= as_of:
                self._items[kind, key[0]].pop(key[1])
                news.append(item)
        return news


def _version(item: Json) -> int:
    """resourceVersions of one kind can be compared as whole numbers (Kubernetes 1.35; etcd's own before that)."""
    version = str(item["metadata"].get("resourceVersion") or "0")
    return int(version) if version.isdigit() else 0


def digest(manifest: Json) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def with_digest(manifest: Json) -> Json:
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def needs_apply(desired: Json, observed: Json | None) -> bool:
    """Whether `Cluster.apply(desired)` would change anything: absent, another digest, or a field of it was changed."""
    if observed is None:
        return True
    wanted = with_digest(desired)
    if (observed["metadata"].get("annotations") or {}).get(APPLIED) != wanted["metadata"]["annotations"][APPLIED]:
        return True
    associative = _ASSOCIATIVE if desired.get("kind") != "NetworkPolicy" else frozenset[str]()
    return not _contains(observed, wanted, "", associative)


_ASSOCIATIVE = frozenset(
    {
        "containers",
        "initContainers",
        "env",
        "volumes",
        "volumeMounts",
        "ports",
        "imagePullSecrets",
        "ownerReferences",
        "topologySpreadConstraints",
        "volumeClaimTemplates",
    }
)
"""Lists whose items belong to whoever applied them: others may add theirs (injected sidecars, for one)."""


def _contains(there: Any, wanted: Any, key: str, associative: frozenset[str]) -> bool:
    """Whether `there` has all that is wanted; what the API server adds by default, or others, may be there."""
    if isinstance(wanted, Mapping):
        if not isinstance(there, Mapping):
            return not wanted and there is None
        return all(_contains(there.get(each), value, each, associative) for each, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not isinstance(there, list):
            return not wanted and there is None
        if key in associative and all(isinstance(each, Mapping) for each in wanted):
            return all(any(_contains(item, each, "", associative) for item in there) for each in wanted)
        return len(there) == len(wanted) and all(
            _contains(item, each, "", associative) for item, each in zip(there, wanted, strict=True)
        )
    if there is None:
        return wanted is None or wanted in ("", 0, False)
    return bool(there == wanted) or _same_quantity(there, wanted)


def _same_quantity(one: Any, other: Any) -> bool:
    """The API server writes 1000m as 1 and 1024Mi as 1Gi."""
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    try:
        return quantity(one) == quantity(other)
    except ValueError:
        return False
