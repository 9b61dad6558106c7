"""Whether another operator of the same Kopf peering has precedence, so that this one does nothing.

Kopf stops its watches then, and tells nobody; so the peering object is read here, too, every `POLL_S`. The rule is
Kopf's: a live peer of a higher priority, or of the same, freezes this one. There is no lock in it. For `POLL_S` two may
be at work, which costs calls and does no harm: statuses are written onto what was looked at, the rest is applied.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Mapping
from typing import Any

from ..api.times import instant
from ..cluster.client import Cluster
from ..cluster.kinds import CLUSTER_KOPF_PEERING, KOPF_PEERING
from ..config import Config

POLL_S = 3.0
LIFETIME_S = 30


def own_identity() -> str:
    """As Kopf would choose it in a pod: POD_ID."""
    return os.environ.get("POD_ID") or f"toktier-operator-{secrets.token_hex(4)}"


async def is_frozen(cluster: Cluster, config: Config, identity: str) -> bool:
    """A peering object that isn't there freezes, as it does with Kopf. Raises `ClusterError`."""
    if not config.peering:
        return False
    now = datetime.datetime.now(datetime.UTC)
    kind = KOPF_PEERING if config.namespaces else CLUSTER_KOPF_PEERING
    for namespace in config.namespaces or ("",):
        peering = await cluster.get(kind, namespace, config.peering)
        if peering is None or has_precedence(peering.get("status") or {}, identity, config.priority, now):
            return True
    return False


def has_precedence(peers: Mapping[str, Any], identity: str, priority: int, now: datetime.datetime) -> bool:
    """peers: the status of a peering, by identity `{priority, lastseen, lifetime}`."""
    return any(
        peer and name != identity and _is_alive(peer, now) and int(peer.get("priority") or 0) >= priority
        for name, peer in peers.items()
    )


def _is_alive(peer: Mapping[str, Any], now: datetime.datetime) -> bool:
    seen = instant(str(peer.get("lastseen")))
    if seen is None:
        return True
    return seen + datetime.timedelta(seconds=float(peer.get("lifetime") or 60)) > now
