"""The ready pods of a Service, as Kubernetes tells them: EndpointSlices, listed once and watched.

Guarantees: a pod that is terminating, not ready or not serving is left out; what `kubernetes.watch` guarantees.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from ..kubernetes.api import ApiServer
from ..kubernetes.watch import FIRST_WAIT_S, WATCH_S, Followed, Json
from .membership import Membership, target_of
from .ring import Peer


class EndpointSliceMembership(Membership):
    """The pods of `service` in `namespace`, at the port that its slices call `port` (a name, or a number to use).

    A pod's name is its Kubernetes name; an endpoint without one goes by its address.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        service: str,
        port: str | int,
        *,
        watch_s: int = WATCH_S,
        randomness: random.Random | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        super().__init__()
        self._port = port
        self._followed = Followed(
            api,
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            {"labelSelector": f"kubernetes.io/service-name={service}"},
            self._take,
            counts=self.counts,
            watch_s=watch_s,
            randomness=randomness,
            first_wait_s=first_wait_s,
        )

    async def run(self) -> None:
        await self._followed.run()

    def _take(self, slices: Mapping[str, Json]) -> None:
        self.replace(peers_of(slices.values(), self._port))


def peers_of(slices: Iterable[Json], port: str | int) -> list[Peer]:
    """The ready endpoints of the slices. A pod with an IPv4 and an IPv6 address is one peer, at the former."""
    found: dict[str, tuple[str, Peer]] = {}
    for item in slices:
        family, number = str(item.get("addressType", "")), _port(item, port)
        if family not in ("IPv4", "IPv6") or number is None:
            continue
        for endpoint in item.get("endpoints") or ():
            addresses = endpoint.get("addresses") or ()
            if not addresses or not _ready(endpoint.get("conditions") or {}):
                continue
            target = target_of(addresses[0], number)
            reference = endpoint.get("targetRef") or {}
            name = str(reference.get("name") or target)
            entry = (family, Peer(name, target))
            found[name] = min(found.get(name, entry), entry)
    return [peer for _, peer in found.values()]


def _port(item: Json, port: str | int) -> int | None:
    if isinstance(port, int):
        return port
    return next((int(each["port"]) for each in item.get("ports") or () if each.get("name") == port), None)


def _ready(conditions: Json) -> bool:
    """A condition that isn't told counts as the API defines: ready and serving, not terminating."""
    return conditions.get("ready") is not False and (
        conditions.get("serving") is not False and conditions.get("terminating") is not True
    )
