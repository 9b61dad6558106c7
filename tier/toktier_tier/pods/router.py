"""Here or there: every request of every pod comes through here before it touches a session.

Guarantees: what a client is answered was processed by one pod; a request that was forwarded is served or refused where
it arrives (rule 1 of the package). Where it is looked for until somebody has an answer, once each but where it says
"again":

    the pod that its session was handed to, or the session's owner
    if that gives no answer, or hasn't the session at that revision's life:
        the key's second, who owns it without the owner, and who owned it before the owner joined
        for a while after a change of the ring, who owned it before: that may not have handed it over yet
        if the request names a revision, the other pods, within bounds: a session whose owner and second gave no answer
        was made where its client happened to ask; then those again that gave no answer, for a short while and as long
        as they are in the ring: a connection may break, and a session isn't lost by that
    if none of them answers, here

A full text that isn't found is encoded anew; a change of a session that nobody has is answered `session.not_found` or
`session.revision_conflict`, by its owner, and the client opens it again. Only by a revision is a session told from an
old copy of it on some pod: what names none isn't looked for everywhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..core.errors import EnvironmentFault, InvalidRequest, SessionNotFound, SnapshotNotFound, TierError
from ..ports import Clock
from ..sessions.affinity import ring_key
from ..sessions.lives import life_of
from ..sessions.registry import Registry
from ..sessions.table import SessionKey
from ..transport.status import OwnerAnswered
from .drain import Handover, HandoverReport
from .forward import Forwarder, NotServed, hop_of, snapshot_of
from .membership import Membership
from .ring import Peer, Ring

FORWARDED_METHODS = frozenset({"Encode", "OpenSession", "Append", "Edit", "CloseSession", "GetSession"})
CHANGES = frozenset({"Append", "Edit"})
"""Of a session whose text the request doesn't hold."""
OPEN, CLOSE, FULL_TEXT = "OpenSession", "CloseSession", "Encode"
HANDOFF = "Handoff"
BY_FINGERPRINT = frozenset({"EncodeAll", HANDOFF})
"""What names its snapshot in the place of a model."""
MOVED = "session.moved"
OTHER_SNAPSHOT = "pods.other_snapshot"
LEAVING = "pods.leaving"
BEFORE_S = 30.0
"""For how long after a change of the ring the owners before it are asked too."""
OTHERS_S = 10.0
"""For how long a pod that has another snapshot isn't asked for this one: each time, the text would be sent in vain."""
_NOT_BY_THAT = frozenset({OTHER_SNAPSHOT, "snapshot.not_found", "snapshot.refused"})
"""Answers of a pod that hasn't the snapshot which this one has."""
MOST_BEFORE = 4
"""Changes that are remembered, the last ones."""
MOST_SEARCHED, SEARCH_S = 8, 1.0
"""Of the other pods, how many are asked for a session that isn't where it belongs, and for how long."""
AGAIN_S, AGAIN_EVERY_S = 2.0, 0.05
"""For how long, from its first failure, a pod of the ring that gives no answer is asked again before its sessions count
as lost, and how often. It is longer than a breaker leaves a pod alone at first, and about as long as it takes to count
out one that is gone.
"""
Here = Callable[[], Awaitable[bytes]]


@dataclass(slots=True)
class _Search:
    """Where a request looks for its session: where it belongs, who was asked, and who of those gave no answer."""

    places: Sequence[Peer] = ()
    until_s: float = math.inf
    asked: set[Peer] = field(default_factory=set)
    silent: set[Peer] = field(default_factory=set)


class Pods:
    """One per pod, in its event loop. `membership` is run by the owner of this object, as a task of its own.

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
        clock: Clock = time.monotonic,
        before_s: float = BEFORE_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self.me, self.membership, self.registry = me, membership, registry
        self.forwarder = forwarder or Forwarder(me)
        self.handover = handover or Handover(registry, self.forwarder, lambda: self.ring)
        self._clock, self._before_s, self._again_s = clock, before_s, again_s
        self.leaving = False
        self.counts: Counter[str] = Counter()
        self.ring = Ring(membership.peers)
        self._before: deque[Ring] = deque(maxlen=MOST_BEFORE)
        self._others: dict[tuple[Peer, str], float] = {}
        self._forgetting: asyncio.TimerHandle | None = None
        self._unsubscribe = membership.subscribe(lambda peers: self._changed())

    # --- requests ---------------------------------------------------------------------------------------------------

    async def serve(
        self,
        method: str,
        request: Any,
        data: bytes,
        tenant: str,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        timeout_s: float | None,
        here: Here,
    ) -> bytes:
        """Serve a gRPC call: `request` is what `data` says, `here` serves it on this pod.

        Raises `OwnerAnswered` for the call to end as it ended there, `InvalidRequest` (`session.revision_required`),
        `EnvironmentFault` (`session.moved`, `pods.other_snapshot`, `pods.leaving`) to another pod, what `here` raises.
        """
        session = request.session if method in FORWARDED_METHODS else ""
        if not session:
            if method not in BY_FINGERPRINT:
                return await here()
            if method == HANDOFF and self.leaving:
                raise EnvironmentFault(LEAVING, "this pod hands its sessions over: it takes none on")
            try:
                return await here()
            except SnapshotNotFound:
                self.counts["other_snapshot"] += 1
                raise _other_snapshot() from None
        expected = _expected(method, request)
        try:
            key = SessionKey(tenant, self.registry.find(request.model).tokenizer.fingerprint, session)
        except SnapshotNotFound:  # it may be known where the session lives
            key = SessionKey(tenant, "", session)
        went = await self.handover.settled(key) if self._moving else None
        if hop_of(metadata):
            self.counts["marked"] += 1
            if snapshot_of(metadata) not in ("", key.fingerprint):
                self.counts["other_snapshot"] += 1
                raise _other_snapshot()
            return await self._serve_marked(key, went, here)
        if went is None and self._stays(method, key, expected):
            try:
                answer = await self._try_here(key, here)
                self.counts["here"] += 1
                return answer
            except SessionNotFound:  # it may have been taken away while the request waited for it
                went = await self.handover.settled(key)
        return await self._look(method, key, went, expected, data, timeout_s, here)

    async def ask(self, method: str, key: SessionKey, placed_by: str, data: bytes) -> bytes | None:
        """The owner's answer to a request that holds all it needs, placed by `placed_by` (see `affinity`). None: serve
        it here, maybe since `key`, the session that it goes on with as far as is known here, is here. Raises the
        owner's own `TierError`s.
        """
        peer = await self.handover.settled(key) if self._moving else None
        if peer is None:
            if self._moving and self.handover.stands_at(key) is not None:
                self.counts["here"] += 1
                return None
            peer, second = self.ring.ranked(key.tenant, placed_by)
        else:
            second = None
        for each in (peer, second):
            if each is None or each.name == self.me:
                break
            try:
                answer = await self._ask(each, method, data, key, _Search())
            except OwnerAnswered as answered:
                raise answered.error from None
            if answer is not None:
                return answer
        self.counts["here"] += 1
        return None

    async def stay(self, key: SessionKey, placed_by: str) -> None:
        """Return if a request that another pod has sent here is to be served here. Raises `EnvironmentFault`
        (`session.moved`) if its session has gone elsewhere, or this pod leaves and hasn't got it.
        """
        if self._moving:
            peer = self._successor(key, placed_by, await self.handover.settled(key))
            if peer is not None:
                raise _moved(peer)

    # --- coming and going -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Own nothing from now on."""
        self.leaving = True
        self._changed()

    async def drain(self, budget_s: float) -> HandoverReport:
        """Leave, and hand over every session. Requests are served meanwhile, and after."""
        self.leave()
        return await self.handover.run(budget_s, leaving=True)

    async def rebalance(self, budget_s: float) -> HandoverReport:
        """Hand over what others own since the last change of the membership."""
        return await self.handover.run(budget_s)

    async def aclose(self) -> None:
        self._unsubscribe()
        if self._forgetting is not None:
            self._forgetting.cancel()
        await self.forwarder.aclose()

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _moving(self) -> bool:
        """Whether sessions are on their way, or have gone."""
        return self.leaving or self.handover.active

    def _changed(self) -> None:
        known, ring = self.ring, Ring(self.membership.peers)
        if self.leaving:
            ring = ring.without(self.me)
        if ring.peers == known.peers:
            return
        self.ring = ring
        self._others.clear()
        self._before.appendleft(known)
        self.forwarder.keep([*ring.peers, *(peer for before in self._before for peer in before.peers)])
        self.forwarder.renew([peer for peer in ring.peers if peer not in known.peers])  # it may have been away
        self.handover.forget()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(self._before_s, self._settle)

    def _settle(self) -> None:
        self._before.clear()
        self.forwarder.keep(self.ring.peers)

    def _stays(self, method: str, key: SessionKey, expected: int | None) -> bool:
        """Whether the request is served here at once: by the ring, or since its session is still here."""
        owner = self.ring.owner(key.tenant, ring_key(key.session))
        if owner is None:
            return True
        if owner.name == self.me:
            return _creates(method, expected)
        if expected is None:
            return method == FULL_TEXT and self._moving and self.handover.stands_at(key) is not None
        return self.handover.stands_at(key) == expected

    async def _try_here(self, key: SessionKey, here: Here) -> bytes:
        """`here`; once more if the session was on its way when the request's turn came, and is back since."""
        try:
            return await here()
        except SessionNotFound:
            if await self.handover.settled(key) is None and self.handover.stands_at(key) is not None:
                return await here()
            raise

    async def _serve_marked(self, key: SessionKey, went: Peer | None, here: Here) -> bytes:
        peer = self._successor(key, ring_key(key.session), went)
        if peer is None:
            try:
                return await self._try_here(key, here)
            except SessionNotFound:
                peer = await self.handover.settled(key)
                if peer is None:
                    raise
        raise _moved(peer)

    def _successor(self, key: SessionKey, placed_by: str, went: Peer | None) -> Peer | None:
        """Who has a session that another pod believes to be here. A pod that leaves takes on no new ones."""
        if went is None and self.leaving and self.handover.stands_at(key) is None:
            return self.ring.owner(key.tenant, placed_by)
        return went

    async def _look(
        self,
        method: str,
        key: SessionKey,
        went: Peer | None,
        expected: int | None,
        data: bytes,
        timeout_s: float | None,
        here: Here,
    ) -> bytes:
        until = math.inf if timeout_s is None else self._clock() + timeout_s
        missing: TierError | OwnerAnswered | None = None
        tried_here = False
        search = _Search(self._places(key, went, _creates(method, expected)), until)
        for peer in self._order(search, everywhere=expected is not None):
            if peer is None:
                await asyncio.sleep(AGAIN_EVERY_S)
                continue
            try:
                if peer.name == self.me:
                    tried_here = True
                    answer: bytes | None = await self._try_here(key, here)
                else:
                    answer = await self._ask(peer, method, data, key, search, here)
            except (TierError, OwnerAnswered) as error:
                if missing is None and not _may_be_elsewhere(error, expected):
                    raise
                missing = missing or error
                continue
            if answer is None or (method == CLOSE and not answer):
                continue
            if peer.name == self.me:
                self.counts["here"] += 1
            if missing is not None:
                self.counts["found"] += 1
            return answer
        if missing is not None:
            raise missing
        if method == CLOSE and tried_here:
            return b""  # nobody had it
        self.counts["here"] += 1
        return await here()

    def _places(self, key: SessionKey, went: Peer | None, creates: bool) -> list[Peer]:
        """Where to look, in order. A session is made at its owner, or at its second."""
        placed_by = ring_key(key.session)
        owner, second = self.ring.ranked(key.tenant, placed_by)
        before = () if creates else (ring.owner(key.tenant, placed_by) for ring in self._before)
        return list(dict.fromkeys(peer for peer in (went, owner, second, *before) if peer is not None))

    def _order(self, search: _Search, *, everywhere: bool) -> Iterator[Peer | None]:
        """Whom to ask, one after the other, as the head of this module says; None: wait a moment. `search` grows
        meanwhile.
        """
        yield from search.places
        if not everywhere:
            return
        until = self._clock() + SEARCH_S
        others = (peer for peer in self.ring.peers if peer.name != self.me and peer not in search.asked)
        for number, peer in enumerate(islice(others, MOST_SEARCHED)):
            if self._clock() > until:
                break
            self.counts["searched"] += number == 0
            yield peer
        search.until_s = min(search.until_s, self._clock() + self._again_s)
        while silent := [
            peer for peer in self.ring.peers if peer in search.silent and self.forwarder.silent_s(peer) < self._again_s
        ]:
            yield None
            if self._clock() >= search.until_s:
                return
            self.counts["again"] += len(silent)
            yield from silent

    async def _ask(
        self, peer: Peer, method: str, data: bytes, key: SessionKey, search: _Search, here: Here | None = None
    ) -> bytes | None:
        """The peer's answer; None if it gives none, or has another snapshot. One that is leaving names its successor,
        once, which is asked then; `here` is called if that is this pod.
        """
        for redirected in (False, True):
            search.asked.add(peer)
            search.silent.discard(peer)
            if self._others.get((peer, key.fingerprint), 0.0) > self._clock():
                self.counts["fallback.other_snapshot"] += 1
                return None
            left_s = None if search.until_s == math.inf else search.until_s - self._clock()
            try:
                answer = await self.forwarder.call(
                    peer, method, data, key.tenant, fingerprint=key.fingerprint, timeout_s=left_s
                )
            except NotServed as found:
                self.counts[f"fallback.{found.reason}"] += 1
                if found.silent:
                    search.silent.add(peer)
                return None
            except OwnerAnswered as answered:
                successor = _successor(answered)
                if key.fingerprint and answered.error.code in _NOT_BY_THAT:
                    self._others[peer, key.fingerprint] = self._clock() + OTHERS_S
                    self.counts["fallback.other_snapshot"] += 1
                    return None
                if successor is None:
                    self.counts["refused"] += 1
                    raise
                if successor.name == self.me and here is not None:
                    return await self._try_here(key, here)
                if redirected or successor.name == self.me:
                    self.counts["fallback.moved"] += 1
                    return None
                self.counts["redirected"] += 1
                peer = successor
            else:
                self.counts["forwarded"] += 1
                return answer
        return None


def _moved(peer: Peer) -> EnvironmentFault:
    return EnvironmentFault(MOVED, "handed over to another pod", owner=peer.name, address=peer.address)


def _other_snapshot() -> EnvironmentFault:
    return EnvironmentFault(OTHER_SNAPSHOT, "this pod serves that model by another snapshot")


def _successor(answered: OwnerAnswered) -> Peer | None:
    details = answered.error.details
    owner, address = details.get("owner"), details.get("address")
    if answered.error.code != MOVED or not isinstance(owner, str) or not isinstance(address, str):
        return None
    return Peer(owner, address) if owner and address else None


def _creates(method: str, expected: int | None) -> bool:
    """Whether the request makes its session where there is none."""
    return method == OPEN or (method == FULL_TEXT and expected is None)


def _may_be_elsewhere(error: TierError | OwnerAnswered, expected: int | None) -> bool:
    """Whether another pod may have the session: this one has none, or one of another life than the request is for."""
    told = error.error if isinstance(error, OwnerAnswered) else error
    if isinstance(told, SessionNotFound):
        return told.code == "session.not_found"
    actual = told.details.get("actual")
    return (
        told.code == "session.revision_conflict"
        and expected is not None
        and isinstance(actual, int)
        and life_of(actual) != life_of(expected)
    )


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
