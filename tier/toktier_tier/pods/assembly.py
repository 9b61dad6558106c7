"""The other pods as the settings name them, and what goes on with them while this pod serves and when it leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator

from ..core.errors import InvalidRequest
from ..kubernetes.api import ApiServer
from ..sessions.lookup import ContentIndex, packed
from ..sessions.registry import Registry
from ..sessions.table import SessionKey
from ..settings import PodSettings, TierSettings, own_name
from ..telemetry import Telemetry
from ..transport.v1 import toktier_pb2 as pb
from .credentials import PeerTls, PeerToken
from .drain import Handover, handoff_request
from .endpoint_slices import EndpointSliceMembership
from .forward import Credentials, Forwarder, Timeouts
from .health import HealthChecked
from .held import PodSessions
from .membership import DnsMembership, Membership
from .ring import Peer
from .router import Pods

SETTLE_S = 0.5
"""From a change of the ring until sessions move: others that changed at the same time are known by then."""
REBALANCE_S = 30.0
FIRST_WAIT_S, TRIES = 2.0, 5
"""Sessions that couldn't move are tried again so often, after growing waits."""
MOST_LOOKED_S = 5.0
log = logging.getLogger("toktier")


class Neighbours:
    """Made in the event loop that the tier serves in. Raises `InvalidRequest` (`pods.*`).

    begin      from then on the others are known, more or less
    join       once this pod has something to serve
    leave      hand everything over; requests are served meanwhile
    """

    pods: Pods

    def __init__(self, settings: TierSettings, telemetry: Telemetry) -> None:
        given = self._settings = settings.pods
        self.me = own_name(given)
        self._token = PeerToken(given.token_file) if given.token_file else None
        self._tls = _tls(settings)
        if _callers_are_told_apart(settings) and self._token is None and not (self._tls and _shows_one(settings)):
            raise InvalidRequest("pods.credential", "callers are told apart: pods need a token or a certificate")
        credentials: Credentials | None = self._tls.credentials if self._tls is not None else None
        options = self._tls.options if self._tls is not None else ()
        self.forwarder = Forwarder(
            self.me,
            timeouts=Timeouts(given.connect_s, given.answer_s),
            metadata=self._metadata,
            credentials=credentials,
            options=options,
        )
        self.membership = _source(given, self.me)
        if given.health_s:
            self.membership = HealthChecked(
                self.membership,
                self.me,
                every_s=given.health_s,
                heard=self.forwarder.heard,
                credentials=credentials,
                options=options,
            )
        self.index = ContentIndex()
        self._telemetry = telemetry
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks.append(asyncio.create_task(self.membership.run()))

    async def join(self, registry: Registry) -> Pods:
        if isinstance(self.membership, HealthChecked):
            try:
                async with asyncio.timeout(MOST_LOOKED_S):
                    await self.membership.look()
            except TimeoutError:
                pass
        if self._token is not None:
            token = self._token
            for served in registry:
                if isinstance(served.sessions, PodSessions):
                    served.sessions.secret = lambda: token.shown
        handover = Handover(registry, self.forwarder, lambda: self.pods.ring, request=self._request)
        self.pods = Pods(self.me, self.membership, registry, self.forwarder, handover=handover)
        self.membership.subscribe(lambda peers: self._changed.set())
        self._tasks.append(asyncio.create_task(self._rebalance()))
        self._meters()
        return self.pods

    async def leave(self) -> None:
        """At most `drain_s` for handing over, at least `linger_s` in all."""
        begun = time.monotonic()
        budget_s, linger_s = self._settings.drain_s, self._settings.linger_s
        report = await self.pods.drain(budget_s)
        log.warning("handed over %d sessions, %d are left: %s", report.moved, report.left, dict(report.counts))
        await asyncio.sleep(max(begun + linger_s - time.monotonic(), 0.0))
        left_s = begun + max(budget_s, linger_s) - time.monotonic()
        if left_s > 0:  # what was opened here meanwhile, since nobody else answered
            await self.pods.drain(left_s)

    def refresh(self, *, force: bool = False) -> None:
        """Read the credentials again if their files have changed, or anyway."""
        if self._token is not None:
            self._token.refresh(force=force)
        if self._tls is not None and self._tls.refresh(force=force):
            self.forwarder.renew()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "pods"):
            await self.pods.aclose()
        else:
            await self.forwarder.aclose()

    async def _rebalance(self) -> None:
        """Hand over what others own since the last change, until this pod leaves."""
        while True:
            await self._changed.wait()
            wait_s = SETTLE_S
            for _ in range(TRIES):
                await asyncio.sleep(wait_s)
                if self.pods.leaving:
                    return
                self._changed.clear()
                report = await self.pods.rebalance(REBALANCE_S)
                if report.counts:
                    log.warning("handed over %d sessions, %d are left", report.moved, report.left)
                wait_s = SETTLE_S if self._changed.is_set() else FIRST_WAIT_S if wait_s == SETTLE_S else 2 * wait_s
                if not report.left and not self._changed.is_set():
                    break

    def _request(self, key: SessionKey, state: bytes) -> pb.HandoffRequest:
        request = handoff_request(key, state)
        request.chain = packed(self.index.chain(key.tenant, key.fingerprint, key.session))
        return request

    def _metadata(self) -> Iterator[tuple[str, str]]:
        yield from self._telemetry.headers().items()
        if self._token is not None:
            yield from self._token.metadata

    def _meters(self) -> None:
        counts = {
            "request": self.pods.counts,
            "call": self.forwarder.counts,
            "membership": self.membership.counts,
            "handover": self.pods.handover.counts,
        }
        self._telemetry.watch(
            "toktier.pods.events",
            "{event}",
            "requests by where they were served, calls to other pods, looking for them, sessions handed over",
            lambda: [
                (count, {"kind": kind, "event": event})
                for kind, by_event in counts.items()
                for event, count in list(by_event.items())
            ],
        )
        self._telemetry.watch(
            "toktier.pods.ready", "{pod}", "pods in the ring", lambda: [(len(self.pods.ring.peers), {})]
        )


def _source(given: PodSettings, me: str) -> Membership:
    if given.peers:
        peers = [_peer(each) for each in given.peers]
        if me not in {peer.name for peer in peers}:
            raise InvalidRequest("pods.name", f"pods.peers doesn't name this pod, {me[:200]!r}")
        return Membership(peers)
    if given.dns:
        host, _, port = given.dns.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise InvalidRequest("settings.value", "pods.dns is HOST:PORT")
        return DnsMembership(host.strip("[]"), int(port))
    slices = given.endpoint_slices
    try:
        api = ApiServer.in_cluster(os.environ)
    except KeyError:
        raise InvalidRequest("pods.not_in_cluster", "pods.endpoint_slices needs Kubernetes around the pod") from None
    return EndpointSliceMembership(api, slices.namespace, slices.service, slices.port_name)


def _peer(text: str) -> Peer:
    name, _, address = text.partition("=")
    if not name or not address.rpartition(":")[0] or not address.rpartition(":")[2].isdecimal():
        raise InvalidRequest("settings.value", f"pods.peers are NAME=HOST:PORT, not {text[:200]!r}")
    return Peer(name, address)


def _callers_are_told_apart(settings: TierSettings) -> bool:
    security = settings.security
    return bool(security.tokens or security.tls.tenant_from or security.tls.clients)


def _shows_one(settings: TierSettings) -> bool:
    return bool(settings.pods.tls.certificate or settings.security.tls.client_ca)


def _tls(settings: TierSettings) -> PeerTls | None:
    """None where the tier's own address is in the clear: the others' are too."""
    given, own = settings.pods.tls, settings.security.tls
    if not own.certificate:
        return None
    certificate, key = given.certificate, given.key
    if not certificate and own.client_ca:
        certificate, key = own.certificate, own.key
    return PeerTls(given.ca or own.client_ca, certificate, key, given.server_name)
