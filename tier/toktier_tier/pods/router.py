"""Here or there: every request of every pod comes through here before it touches a session.

Guarantees: what a client is answered was processed by one pod; a request is forwarded at most once, and then served or
refused where it arrives (rule 1 of the package). If its owner doesn't answer, it is served here: a full text is encoded
anew, a change of a session that isn't here is answered `session.not_found`, and the client opens it again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ..core.errors import EnvironmentFault, InvalidRequest, SessionNotFound, SnapshotNotFound
from ..ports import Clock
from ..sessions.registry import Registry
from ..sessions.table import SessionKey
from .affinity import ring_key
from .drain import Handover, HandoverReport
from .forward import Arrival, Forwarder, NotServed, OwnerAnswered, arrival_of
from .membership import Membership
from .ring import Peer, Ring

FORWARDED_METHODS = frozenset({"Encode", "OpenSession", "Append", "Edit", "CloseSession", "GetSession"})
CHANGES = frozenset({"Append", "Edit"})
"""Of a session whose text the request doesn't hold."""
MOVED = "session.moved"
Context = grpc.aio.ServicerContext[Any, Any]
Here = Callable[[], Awaitable[bytes]]


class Pods:
    """One per pod, in its event loop. `membership` is run by the owner of this object, as a task of its own.

    trusts   whether a call comes from a pod: only then its tenant is believed
    counts   requests by what was decided
    """

    def __init__(
        self,
        me: str,
        membership: Membership,
        registry: Registry,
        forwarder: Forwarder | None = None,
        *,
        handover: Handover | None = None,
        trusts: Callable[[Context], bool] = lambda context: False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.me, self.membership, self.registry = me, membership, registry
        self.forwarder = forwarder or Forwarder(me)
        self.handover = handover or Handover(registry, self.forwarder, lambda: self.ring)
        self._trusts, self._clock = trusts, clock
        self.leaving = False
        self.counts: Counter[str] = Counter()
        self.ring = Ring(membership.peers)
        self._unsubscribe = membership.subscribe(lambda peers: self._changed())

    # --- requests ---------------------------------------------------------------------------------------------------

    def arrival(self, context: Context) -> Arrival:
        return arrival_of(context.invocation_metadata() or (), trusted=self._trusts(context))

    async def serve(
        self, method: str, request: Any, data: bytes, tenant: str, hop: str, timeout_s: float | None, here: Here
    ) -> bytes:
        """Serve a gRPC call: `request` is what `data` says, `hop` who forwarded it, `here` serves it on this pod.

        Raises `OwnerAnswered` for the call to end as it ended there, `InvalidRequest` (`session.revision_required`),
        `EnvironmentFault` (`session.moved`) to a pod that forwarded it, and what `here` raises.
        """
        session = request.session if method in FORWARDED_METHODS else ""
        if not session:
            return await here()
        expected = _expected(method, request)
        key, went = await self._whereabouts(tenant, request)
        if hop:
            self.counts["marked"] += 1
            peer = self._successor(tenant, key, went)
        else:
            peer = went or self._away(method, tenant, session, key, expected)
        if peer is None:
            if not hop:
                self.counts["here"] += 1
            try:
                return await here()
            except SessionNotFound:  # it may have been taken away while the request waited for it
                _, peer = await self._whereabouts(tenant, request)
                if peer is None:
                    raise
        if hop:
            raise EnvironmentFault(MOVED, "handed over to another pod", owner=peer.name, address=peer.address)
        answer = await self._ask(peer, method, data, tenant, timeout_s)
        return await here() if answer is None else answer

    async def ask(
        self, method: str, key: str, data: bytes, tenant: str, *, hop: str = "", timeout_s: float | None = None
    ) -> bytes | None:
        """The owner's answer to a request that holds all it needs, placed by `key` (see `affinity`). None: serve it
        here. Raises the owner's own `TierError`s.
        """
        if hop:
            self.counts["marked"] += 1
            return None
        peer = self._owner(tenant, key)
        if peer is None:
            self.counts["here"] += 1
            return None
        try:
            return await self._ask(peer, method, data, tenant, timeout_s)
        except OwnerAnswered as answered:
            raise answered.error from None

    # --- coming and going -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Own nothing from now on."""
        self.leaving = True
        self._changed()

    async def drain(self, budget_s: float) -> HandoverReport:
        """Leave, and hand over every session. Requests are served meanwhile, and after."""
        self.leave()
        return await self.handover.run(budget_s)

    async def rebalance(self, budget_s: float) -> HandoverReport:
        """Hand over what others own since the last change of the membership."""
        return await self.handover.run(budget_s)

    async def aclose(self) -> None:
        self._unsubscribe()
        await self.forwarder.aclose()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        ring = Ring(self.membership.peers)
        self.ring = ring.without(self.me) if self.leaving else ring
        self.forwarder.keep(self.membership.peers)
        self.handover.forget()

    def _owner(self, tenant: str, key: str) -> Peer | None:
        peer = self.ring.owner(tenant, key)
        return None if peer is None or peer.name == self.me else peer

    def _away(
        self, method: str, tenant: str, session: str, key: SessionKey | None, expected: int | None
    ) -> Peer | None:
        """None if the request is served here: by the ring, or since its session, not handed over yet, is."""
        peer = self._owner(tenant, ring_key(session))
        if peer is None or key is None or method == "OpenSession":
            return peer
        revision = self.handover.stands_at(key)
        return None if revision is not None and expected in (None, revision) else peer

    def _successor(self, tenant: str, key: SessionKey | None, went: Peer | None) -> Peer | None:
        """Who has a session that another pod believes to be here. A pod that leaves takes on no new ones."""
        if went is None and self.leaving and key is not None and self.handover.stands_at(key) is None:
            return self._owner(tenant, ring_key(key.session))
        return went

    async def _whereabouts(self, tenant: str, request: Any) -> tuple[SessionKey | None, Peer | None]:
        """(the session's key while sessions move, where it went if it did), once it isn't on its way."""
        if not (self.leaving or self.handover.active):
            return None, None
        try:
            fingerprint = self.registry.find(request.model).tokenizer.fingerprint
        except SnapshotNotFound:
            return None, None
        key = SessionKey(tenant, fingerprint, request.session)
        return key, await self.handover.settled(key)

    async def _ask(self, peer: Peer, method: str, data: bytes, tenant: str, timeout_s: float | None) -> bytes | None:
        """The owner's answer; None if it gives none. An owner that is leaving names its successor, once."""
        until = None if timeout_s is None else self._clock() + timeout_s
        for redirected in (False, True):
            left_s = None if until is None else until - self._clock()
            try:
                answer = await self.forwarder.call(peer, method, data, tenant, timeout_s=left_s)
            except NotServed as found:
                self.counts[f"fallback.{found.reason}"] += 1
                return None
            except OwnerAnswered as answered:
                successor = _successor(answered)
                if successor is None:
                    self.counts["refused"] += 1
                    raise
                if redirected or successor.name == self.me:
                    self.counts["fallback.moved"] += 1
                    return None
                self.counts["redirected"] += 1
                peer = successor
            else:
                self.counts["forwarded"] += 1
                return answer
        return None


def _successor(answered: OwnerAnswered) -> Peer | None:
    details = answered.error.details
    owner, address = details.get("owner"), details.get("address")
    if answered.error.code != MOVED or not isinstance(owner, str) or not isinstance(address, str):
        return None
    return Peer(owner, address) if owner and address else None


def _expected(method: str, request: Any) -> int | None:
    """The revision that a request is for. Raises `InvalidRequest` for a change that names none: with several pods, the
    session that it finds may be an old copy.
    """
    if "expected_revision" not in request.DESCRIPTOR.fields_by_name:
        return None
    if request.HasField("expected_revision"):
        return int(request.expected_revision)
    if method in CHANGES:
        raise InvalidRequest("session.revision_required", "with several pods, a change names the revision it is for")
    return None
