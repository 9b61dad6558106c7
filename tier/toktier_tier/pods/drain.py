"""Handing sessions over to the pods that own them by now: all of them when this pod leaves, some when another joined.

For each session, the one used last first:

 1. it is detached: from here on this pod neither serves nor changes it, and requests for it wait;
 2. it is sent to its owner, which shows it to be right on arrival (`sessions.handoff`);
 3. taken: it stays off this pod, and requests for it are told or sent where it went;
    refused, or never reached: it is attached again, and tried once more if that may help; but where there is another
    one of its name, it is dropped if this pod leaves (that one is newer), and kept otherwise (it may be an old copy);
    sent, but no answer came: the other pod may have it, so it is forgotten here. At worst that is a state miss.

So at no time do two pods serve it, and nothing that was answered from it is ever undone. A pod that leaves takes none
on: a session would come and go between it and one that doesn't know of its leaving yet, and be found at neither.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..core.errors import SessionBusy, SessionNotFound, StateError, TierError
from ..ports import Clock
from ..sessions.affinity import found_by_content_alone, ring_key
from ..sessions.registry import Served
from ..sessions.table import SessionKey
from ..transport.messages import MAX_MESSAGE_BYTES
from ..transport.status import INTERNAL, OwnerAnswered
from ..transport.tenants import OWN_TENANT
from ..transport.v1 import toktier_pb2 as pb
from .forward import Forwarder, NotServed
from .held import EXISTS, Detached, PodSessions
from .ring import Peer, Ring

CONCURRENT = 4
PAUSE_S = 0.1
"""Before sessions are tried again that were busy, or whose owner had no time for them."""
_HEADROOM_BYTES = 1 << 16
MOST_REMEMBERED = 65_536
"""Sessions of which this pod knows where they went."""
_PASSING = frozenset({"tier.overloaded", "session.busy"})
"""Refusals that don't hold for the next moment."""

Request = Callable[[SessionKey, bytes], pb.HandoffRequest]


def handoff_request(key: SessionKey, state: bytes) -> pb.HandoffRequest:
    """Named by its fingerprint: the other pod may know the tokenizer by another name."""
    return pb.HandoffRequest(model=key.fingerprint, session=key.session, state=state)


@dataclass(slots=True)
class HandoverReport:
    """moved: taken by their owners. left: still here. counts: attempts by what became of them."""

    moved: int = 0
    left: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


class Handover:
    """Belongs to one event loop.

    ring     the ring as this pod sees it now; without itself if it leaves
    request  makes the request, for what goes along with a state
    counts   attempts by what became of them
    """

    def __init__(
        self,
        served: Iterable[Served],
        forwarder: Forwarder,
        ring: Callable[[], Ring],
        *,
        concurrent: int = CONCURRENT,
        request: Request = handoff_request,
        clock: Clock = time.monotonic,
    ) -> None:
        self._sessions: dict[str, PodSessions] = {
            each.tokenizer.fingerprint: each.sessions for each in served if isinstance(each.sessions, PodSessions)
        }
        self._forwarder, self._ring, self._clock = forwarder, ring, clock
        self._concurrent, self._request = concurrent, request
        self._moving: dict[SessionKey, asyncio.Future[None]] = {}
        self._moved: dict[SessionKey, Peer] = {}
        self._runs = 0
        self.counts: Counter[str] = Counter()

    @property
    def active(self) -> bool:
        """Whether a session may be on its way, or has gone."""
        return bool(self._runs or self._moved)

    def stands_at(self, key: SessionKey) -> int | None:
        sessions = self._sessions.get(key.fingerprint)
        return None if sessions is None else sessions.stands_at(key)

    async def settled(self, key: SessionKey) -> Peer | None:
        """Wait until `key` isn't on its way; the pod that it went to, if it went and isn't here again."""
        while (moving := self._moving.get(key)) is not None:
            await asyncio.shield(moving)
        peer = self._moved.get(key)
        return peer if peer is not None and self.stands_at(key) is None else None

    async def run(self, budget_s: float, *, leaving: bool = False) -> HandoverReport:
        """Hand over what others own, within `budget_s`. What is cut off in the middle is forgotten here."""
        begun, report = self._clock(), HandoverReport()
        until = begun + budget_s
        refused: set[SessionKey] = set()
        self._runs += 1
        try:
            while (now := self._clock()) < until:
                todo = iter([key for key in self._elsewhere() if key not in refused])
                tried, reached = report.counts.total(), report.moved
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._concurrent):
                        group.create_task(self._work(todo, until, refused, report, leaving))
                if report.counts.total() == tried:
                    break
                if report.moved == reached:
                    await asyncio.sleep(min(PAUSE_S, max(until - now, 0.0)))
        finally:
            self._runs -= 1
        report.left, report.seconds = sum(1 for _ in self._elsewhere()), self._clock() - begun
        return report

    def forget(self) -> None:
        """The ring has changed: where a session went isn't where it is owned."""
        ring = self._ring()
        for key, peer in list(self._moved.items()):
            if ring.owner(key.tenant, ring_key(key.session)) != peer:
                del self._moved[key]

    def _elsewhere(self) -> Iterator[SessionKey]:
        """The sessions that others own, the hottest first; not those that no other pod would be asked for."""
        ring = self._ring()
        for sessions in self._sessions.values():
            for key in sessions.hottest():
                if key.tenant == OWN_TENANT or found_by_content_alone(key.session):
                    continue
                owner = ring.owner(key.tenant, ring_key(key.session))
                if owner is not None and owner.name != self._forwarder.me:
                    yield key

    async def _work(
        self,
        todo: Iterator[SessionKey],
        until: float,
        refused: set[SessionKey],
        report: HandoverReport,
        leaving: bool,
    ) -> None:
        for key in todo:
            left_s = until - self._clock()
            if left_s <= 0:
                return
            outcome = await self._hand_over(key, left_s, report, leaving)
            report.counts[outcome] += 1
            self.counts[outcome] += 1
            if outcome.startswith("refused.") and outcome.removeprefix("refused.") not in _PASSING:
                refused.add(key)

    async def _hand_over(self, key: SessionKey, left_s: float, report: HandoverReport, leaving: bool) -> str:
        owner = self._ring().owner(key.tenant, ring_key(key.session))
        if owner is None or owner.name == self._forwarder.me:
            return "owned"
        sessions = self._sessions[key.fingerprint]
        try:
            detached = sessions.detach(key)
        except SessionBusy:
            return "busy"
        except SessionNotFound:
            return "gone"
        except StateError as error:
            return f"refused.{error.code}"
        with self._on_its_way(key):
            outcome = await self._send(sessions, detached, owner, left_s, report, leaving)
            if outcome == "moved" or (leaving and outcome == f"refused.{EXISTS}"):
                self._moved[key] = owner
                if len(self._moved) > MOST_REMEMBERED:
                    del self._moved[next(iter(self._moved))]
            report.moved += outcome == "moved"
            return outcome

    async def _send(
        self,
        sessions: PodSessions,
        detached: Detached,
        owner: Peer,
        left_s: float,
        report: HandoverReport,
        leaving: bool,
    ) -> str:
        key = detached.key
        sent = False
        keep = True
        try:
            state = await asyncio.to_thread(sessions.export_detached, detached)
            if len(state) > MAX_MESSAGE_BYTES - _HEADROOM_BYTES:
                return "refused.too_large"
            data = self._request(key, state).SerializeToString()
            sent = True
            await self._forwarder.call(
                owner, "Handoff", data, key.tenant, fingerprint=key.fingerprint, timeout_s=2 * left_s
            )
            keep = False
            report.moved_bytes += len(state)
            return "moved"
        except OwnerAnswered as answered:
            code = answered.error.code
            keep = code != INTERNAL and not (leaving and code == EXISTS)  # nobody can say what an internal error did
            return f"refused.{code}"
        except NotServed as found:
            keep = found.untouched
            return found.reason
        except TierError as error:
            return f"refused.{error.code}"
        except asyncio.CancelledError:
            keep = not sent
            raise
        finally:
            if keep:
                sessions.attach(detached)

    @contextmanager
    def _on_its_way(self, key: SessionKey) -> Iterator[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moving[key] = future
        try:
            yield
        finally:
            del self._moving[key]
            future.set_result(None)
