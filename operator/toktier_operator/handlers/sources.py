"""ConfigMaps and Secrets that admissions read their tokenizer from: whether they changed, by their metadata alone.

They carry no label of the operator's and may be large, so they are neither watched nor read. One list of metadata for
each namespace that has such an admission is asked for every `POLL_S`; the operator's own ConfigMaps aren't in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..api.group import OPERATOR
from ..cluster.client import Cluster
from ..cluster.errors import ClusterError
from ..cluster.kinds import CONFIG_MAP, CONFIG_MAP_SOURCE, SECRET, SECRET_SOURCE, TOKENIZER_ADMISSION
from ..cluster.observed import Observed
from ..resources import names
from .queue import Key, WorkQueue

POLL_S = 10.0
OTHERS = f"{names.MANAGED_BY}!={OPERATOR}"
log = logging.getLogger("toktier.operator")

Users = Mapping[tuple[str, str], set[str]]
"""(namespace, name of a source) -> names of admissions."""


def users_of(observed: Observed, source: str) -> dict[tuple[str, str], set[str]]:
    """source: configMap or secret."""
    users: dict[tuple[str, str], set[str]] = {}
    for item in observed.list(TOKENIZER_ADMISSION):
        reference = ((item.get("spec") or {}).get("source") or {}).get(source)
        if reference and reference.get("name"):
            metadata = item["metadata"]
            users.setdefault((metadata["namespace"], str(reference["name"])), set()).add(metadata["name"])
    return users


async def look(cluster: Cluster, observed: Observed, queue: WorkQueue) -> None:
    """Once at all sources; what changed is put into the queue."""
    config_maps, secrets = users_of(observed, "configMap"), users_of(observed, "secret")
    for namespace in sorted({namespace for namespace, _ in config_maps}):
        try:
            items, as_of = await cluster.snapshot(CONFIG_MAP, namespace, OTHERS, metadata_only=True)
        except ClusterError as error:
            log.warning("sources in %s not looked at: %s", namespace, error)
            continue
        used = [item for item in items if (namespace, item["metadata"]["name"]) in config_maps]
        for item in observed.replace(CONFIG_MAP_SOURCE, namespace, used, as_of):
            _name_users(queue, config_maps, namespace, item["metadata"]["name"])
    for namespace, name in sorted(secrets):
        try:
            found = await cluster.get_metadata(SECRET, namespace, name)
        except ClusterError as error:
            log.debug("Secret %s/%s not looked at: %s", namespace, name, error)
            continue
        if observed.put(SECRET_SOURCE, found) if found else observed.remove(SECRET_SOURCE, namespace, name):
            _name_users(queue, secrets, namespace, name)


def _name_users(queue: WorkQueue, users: Users, namespace: str, name: str) -> None:
    for admission in users.get((namespace, name), ()):
        queue.add(Key(TOKENIZER_ADMISSION, namespace, admission))
