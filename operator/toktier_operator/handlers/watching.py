"""Events of all watched kinds: each only puts the object into the cache and its owner's key into the queue.

1. Watched is what carries the operator's labels (the API server filters), and the custom resources. Bundles have
   megabytes and are left out; sources belong to others, and only their metadata is looked at (`handlers.sources`).
2. Kopf reads and never writes: no finalizer, no annotation, no event of its own.
3. A watch that was away may have missed that something went. So everything is listed again at the start, after a pause,
   and every `resync_s`; what isn't there any more leaves the cache.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

import kopf

from ..cluster.client import Cluster
from ..cluster.kinds import (
    CONFIG_MAP,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    JOB,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    TOKENIZER_ADMISSION,
    TOKTIER,
    Json,
    Kind,
)
from ..cluster.observed import Observed
from ..resources import names
from .queue import Key, WorkQueue

SELECTORS: dict[Kind, str] = {
    TOKENIZER_ADMISSION: "",
    TOKTIER: "",
    CONFIG_MAP: f"{names.SELECTOR},!{names.BUNDLE}",
    JOB: names.SELECTOR,
    STATEFUL_SET: names.SELECTOR,
    SERVICE: names.SELECTOR,
    SERVICE_ACCOUNT: names.SELECTOR,
    ROLE: names.SELECTOR,
    ROLE_BINDING: names.SELECTOR,
    POD_DISRUPTION_BUDGET: names.SELECTOR,
    NETWORK_POLICY: names.SELECTOR,
    HORIZONTAL_POD_AUTOSCALER: names.SELECTOR,
    HTTP_ROUTE: names.SELECTOR,
    POD: names.TOKTIER,
}
"""What is watched, and the label selector that the API server applies."""
log = logging.getLogger("toktier.operator")


def register(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    kinds: Iterable[Kind],
    observed: Observed,
    queue: WorkQueue,
) -> None:
    """kinds: those of `SELECTORS` that the API server has; Kopf looks for them once."""
    for kind in kinds:
        selector = SELECTORS[kind]
        _watch(registry, kind, observed, queue)
        if selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector


def _watch(registry: kopf.OperatorRegistry, kind: Kind, observed: Observed, queue: WorkQueue) -> None:
    async def seen(event: Any, **_: object) -> None:
        take(kind, str(event.get("type") or ""), dict(event["object"]), observed, queue)

    kopf.on.event(kind.group, kind.version, kind.plural, id=f"seen-{kind.plural}", registry=registry)(seen)


def take(kind: Kind, event: str, item: Json, observed: Observed, queue: WorkQueue) -> None:
    """One event of a watch: ADDED, MODIFIED, DELETED, or "" for what a watch began with."""
    metadata = item["metadata"]
    if event == "DELETED":
        version = str(metadata.get("resourceVersion") or "")
        news = observed.remove(
            kind, str(metadata.get("namespace", "")), str(metadata["name"]), metadata.get("uid"), version
        )
    else:
        news = observed.put(kind, item)
    for key in keys_of(kind, item, observed):
        # What the operator wrote itself is no news to it, but TokTiers wait for what admissions say.
        if news or (kind == TOKENIZER_ADMISSION and key.kind == TOKTIER):
            queue.add(key)


def keys_of(kind: Kind, item: Json, observed: Observed) -> set[Key]:
    """Whose business an object is."""
    metadata = item["metadata"]
    namespace, name = str(metadata.get("namespace", "")), str(metadata["name"])
    if kind == TOKTIER:
        return {Key(TOKTIER, namespace, name)}
    if kind == TOKENIZER_ADMISSION:
        return {Key(kind, namespace, name)} | toktiers_with(observed, namespace, name)
    labels = metadata.get("labels") or {}
    keys = set()
    if toktier := labels.get(names.TOKTIER):
        keys.add(Key(TOKTIER, namespace, toktier))
        if kind == CONFIG_MAP and name == names.reports(toktier):
            keys |= {Key(TOKENIZER_ADMISSION, namespace, each) for each in _reported(item)}
    if admission := labels.get(names.ADMISSION):
        keys.add(Key(TOKENIZER_ADMISSION, namespace, admission))
    return keys


def toktiers_with(observed: Observed, namespace: str, admission: str) -> set[Key]:
    found = set()
    for item in observed.list(TOKTIER, namespace):
        tokenizers = (item.get("spec") or {}).get("tokenizers") or ()
        if any(each.get("admission") == admission for each in tokenizers):
            found.add(Key(TOKTIER, namespace, item["metadata"]["name"]))
    return found


def _reported(reports: Json) -> Iterable[str]:
    for key, text in (reports.get("data") or {}).items():
        for candidate in (key.rpartition(".")[2], _id_in(text)):
            if (id_ := names.admission_of(candidate)) is not None:
                yield id_[0]


def _id_in(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return ""
    return str(document.get("id") or "") if isinstance(document, dict) else ""


async def resync(cluster: Cluster, observed: Observed, queue: WorkQueue, namespaces: Iterable[str]) -> None:
    """List everything, drop what is gone, and look at every custom resource that there is or was."""
    keys: set[Key] = set()
    for namespace in namespaces or ("",):
        for kind, selector in SELECTORS.items():
            items, as_of = await cluster.snapshot(kind, namespace, selector)
            for item in observed.replace(kind, namespace, items, as_of):
                keys |= keys_of(kind, item, observed)
        for kind in (TOKENIZER_ADMISSION, TOKTIER):
            for item in observed.list(kind, namespace):
                keys.add(Key(kind, item["metadata"]["namespace"], item["metadata"]["name"]))
    for key in keys:
        queue.add(key)
    log.info("listed everything: %d custom resources to look at", len(keys))
