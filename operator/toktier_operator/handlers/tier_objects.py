"""A TokTier's objects brought to what they should be, and those that it has no use for taken away.

Guarantee: an object that isn't this TokTier's own is neither changed nor deleted, whatever its name.
"""

from __future__ import annotations

import secrets
from collections.abc import Container

from ..cluster.client import Cluster
from ..cluster.errors import Conflict, Forbidden, Invalid, NotFound
from ..cluster.kinds import (
    CONFIG_MAP,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    Json,
    kind_of,
)
from ..cluster.observed import Observed, needs_apply
from ..resources import names
from ..resources.messages import peers_secret
from ..resources.owned import Owner

OPTIONAL = {kind.kind: kind for kind in (NETWORK_POLICY, POD_DISRUPTION_BUDGET, HORIZONTAL_POD_AUTOSCALER, HTTP_ROUTE)}
TOKEN_BYTES = 32


class Objects:
    """Of one TokTier, during one reconcile. failures: what was refused for good, in words for its user.

    Methods raise `Conflict` and `Unavailable`: then all of it is to be done again.
    """

    def __init__(self, cluster: Cluster, observed: Observed, owner: Owner) -> None:
        self._cluster, self._observed, self._owner = cluster, observed, owner
        self.failures: list[str] = []

    async def apply(self, manifest: Json) -> bool:
        """Whether it is as it should be now."""
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        about = f"{kind.kind} {name}"
        existing = self._observed.get(kind, self._owner.namespace, name)
        if existing is not None and not needs_apply(manifest, existing) and self._owner.owns(existing):
            return True
        try:
            if existing is None:
                existing = await self._cluster.get(kind, self._owner.namespace, name)
            if existing is not None and not self._may_change(existing, about):
                return False
            if needs_apply(manifest, existing):
                await self._cluster.apply(manifest)
        except (Invalid, Forbidden) as error:
            self.failures.append(f"{about}: {error.message}")
            return False
        except NotFound as error:
            if not error.kind_missing:
                raise Conflict(error.message, reason=error.reason, about=about) from error
            self.failures.append(f"{about}: the cluster has no such kind")
            return False
        return True

    def _may_change(self, existing: Json, about: str) -> bool:
        metadata = existing["metadata"]
        owners = metadata.get("ownerReferences") or ()
        namesake = any(each.get("kind") == "TokTier" and each.get("name") == self._owner.name for each in owners)
        if metadata.get("deletionTimestamp") or (namesake and not self._owner.owns(existing)):
            raise Conflict("it is being deleted, with the TokTier of before", about=about)
        if not self._owner.owns(existing):
            self.failures.append(f"{about}: there is one already that isn't this TokTier's")
            return False
        return True

    async def ensure_peers(self) -> None:
        await self._cluster.create_once(peers_secret(self._owner, secrets.token_urlsafe(TOKEN_BYTES)))

    async def prune_optional(self, wanted: Container[str]) -> None:
        """Objects of optional kinds that aren't among `wanted`: the spec doesn't ask for them any more."""
        for kind in (kind for name, kind in OPTIONAL.items() if name not in wanted):
            await self._delete(self._observed.get(kind, self._owner.namespace, self._owner.name))

    async def prune_settings(self, keep: str) -> None:
        """To be called only when every pod has the settings `keep`."""
        labels = {names.TOKTIER: self._owner.name}
        for item in self._observed.list(CONFIG_MAP, self._owner.namespace, labels):
            name = item["metadata"]["name"]
            if names.is_settings(self._owner.name, name) and name != keep:
                await self._delete(item)

    async def _delete(self, item: Json | None) -> None:
        if item is None or item["metadata"].get("deletionTimestamp") or not self._owner.owns(item):
            return
        kind, metadata = kind_of(item), item["metadata"]
        await self._cluster.delete(kind, self._owner.namespace, metadata["name"], uid=metadata["uid"])
        self._observed.remove(kind, self._owner.namespace, metadata["name"], metadata["uid"])
