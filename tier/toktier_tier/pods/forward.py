"""Calls from pod to pod: one channel per peer, one breaker per peer, and the marks that a forwarded call carries.

Guarantees: every wait has an end; a peer that can't be reached costs one wait, then none until its breaker lets a trial
through; one that is slow with a call while it answers others costs that call alone, as does a connection that breaks:
if the peer is gone with it, the next call can't reach it; what the owner answered, errors included, comes back as it
was; a call that is cancelled is cancelled there.

    x-toktier-forwarded    the pod that forwards; a call that has it is never forwarded again. Where pods share a token
                           it is refused from anyone else; otherwise it is obeyed: it can only stop a call's travels
    x-toktier-fingerprint  the snapshot that the pod would use itself: served by that one or refused
    x-toktier-tenant       whose session it is; believed only of callers that are known to be pods
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from ..engine.breaker import Breaker, BreakerPolicy
from ..engine.channels import connect_option, connected, open_channel
from ..ports import Clock
from ..transport.interface import path_of
from ..transport.messages import MESSAGE_LIMITS
from ..transport.status import CODE_KEY, STARTING, OwnerAnswered
from ..transport.tenants import FORWARDED_KEY, TENANT_KEY
from .ring import Peer

FORWARDED = FORWARDED_KEY
FINGERPRINT = "x-toktier-fingerprint"
MOST_SLOW = 8
"""Calls in a row that a peer may be late with, though it shows life, until it is left alone too."""
CLOSE_GRACE_S = 30.0
"""How long calls to a peer that has left may go on."""
_OPTIONS: tuple[tuple[str, Any], ...] = (
    *MESSAGE_LIMITS,
    ("grpc.service_config_disable_resolution", 1),  # no retries but of what has surely not been processed
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)
_LOST = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
)
"""Without a code of the tier's own these come from the connection."""
_SLOW = frozenset({"unreachable", "late"})
"""What a busy peer may be, too; or this pod, which then notices answers too late."""
Metadata = Callable[[], Iterable[tuple[str, str]]]
Credentials = Callable[[], grpc.ChannelCredentials]


class NotServed(Exception):
    """The peer gave no answer: `reason` is open, unreachable, starting, unauthorized, lost, late or unknown_method.

    untouched   it has surely done nothing
    blamed      it counts against the peer: it isn't the caller's short time, nor a connection that broke
    """

    def __init__(self, reason: str, *, blamed: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.blamed = reason, blamed

    @property
    def untouched(self) -> bool:
        return self.reason not in ("lost", "late")

    @property
    def silent(self) -> bool:
        """The peer may be what it was, and answer the next call."""
        return self.reason in ("open", "unreachable", "lost", "late")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """connect_s: to have a connection. answer_s, and answer_s_per_mb for each MB sent: to have the answer.

    Of a caller's own time at most half is spent on each: the rest is for serving the request here.
    """

    connect_s: float = 0.5
    answer_s: float = 5.0
    answer_s_per_mb: float = 1.0

    def patience_s(self, size_bytes: int) -> float:
        return self.answer_s + self.answer_s_per_mb * size_bytes / 1e6


def hop_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The pod that forwarded a call, or empty."""
    return next((str(value) or "?" for key, value in metadata or () if key == FORWARDED), "")


def snapshot_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The fingerprint that the pod which forwarded a call would serve it by, or empty."""
    return next((str(value) for key, value in metadata or () if key == FINGERPRINT), "")


class _Line:
    """The channel to one peer and what is known of it."""

    def __init__(self, channel: grpc.aio.Channel, breaker: Breaker) -> None:
        self.channel, self.breaker = channel, breaker
        self.heard_s, self.silent_from_s, self.slow = -math.inf, math.inf, 0
        self.calls: dict[str, Any] = {}

    def method(self, name: str) -> Any:
        found = self.calls.get(name)
        if found is None:
            found = self.calls[name] = self.channel.unary_unary(path_of(name))
        return found

    def hear(self, now_s: float) -> None:
        self.heard_s, self.silent_from_s = now_s, math.inf

    def answered(self, ticket: int, now_s: float) -> None:
        self.hear(now_s)
        self.slow = 0
        self.breaker = self.breaker.succeeded(ticket)


class Forwarder:
    """Belongs to one event loop: channels are made in it, when they are first needed.

    me           this pod's name
    metadata     what else goes with every call: trace context, this pod's credentials
    credentials  of the channels, asked for each one; none: in the clear
    options      more options of the channels
    counts       `<what became of a call>`
    """

    def __init__(
        self,
        me: str,
        *,
        timeouts: Timeouts | None = None,
        policy: BreakerPolicy | None = None,
        metadata: Metadata = tuple,
        credentials: Credentials | None = None,
        options: Iterable[tuple[str, Any]] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self.me = me
        self.timeouts = timeouts or Timeouts()
        self._policy = policy or BreakerPolicy(failures_to_open=1, open_s=1.0, max_open_s=10.0, trial_s=30.0)
        self._metadata, self._credentials, self._clock = metadata, credentials, clock
        self._options = (*_OPTIONS, *options, connect_option(self.timeouts.connect_s))
        self._lines: dict[Peer, _Line] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def call(
        self,
        peer: Peer,
        method: str,
        data: bytes,
        tenant: str,
        *,
        fingerprint: str = "",
        timeout_s: float | None = None,
    ) -> bytes:
        """The answer's bytes; `fingerprint` is of the snapshot to serve it by. Raises `OwnerAnswered`, `NotServed`."""
        line = self._line(peer)
        begun = self._clock()
        line.breaker, ticket = line.breaker.admit(begun)
        if ticket is None:
            self.counts["open"] += 1
            raise NotServed("open")
        try:
            answer = await self._ask(line, method, data, tenant, fingerprint, timeout_s)
        except NotServed as found:
            self.counts[found.reason] += 1
            line.silent_from_s = min(line.silent_from_s, self._clock())
            if found.reason == "unknown_method":
                line.breaker = line.breaker.succeeded(ticket)
            elif not found.blamed or (found.reason in _SLOW and self._lives(line, begun)):
                line.breaker = line.breaker.abandoned(ticket, self._clock())
            else:
                line.breaker = line.breaker.failed(ticket, self._clock())
            raise
        except OwnerAnswered:
            self.counts["refused"] += 1
            line.answered(ticket, self._clock())
            raise
        except BaseException:
            line.breaker = line.breaker.abandoned(ticket, self._clock())
            raise
        self.counts["answered"] += 1
        line.answered(ticket, self._clock())
        return answer

    def heard(self, peer: Peer) -> None:
        """The peer has said elsewhere, just now, that it serves."""
        line = self._lines.get(peer)
        if line is not None:
            line.hear(self._clock())

    def silent_s(self, peer: Peer) -> float:
        """For how long calls to the peer have got no answer, and nothing else was heard of it. 0: the last got one."""
        line = self._lines.get(peer)
        return 0.0 if line is None else max(self._clock() - line.silent_from_s, 0.0)

    def keep(self, peers: Iterable[Peer]) -> None:
        """Close the channels to all others; their running calls may end."""
        kept = set(peers)
        self.renew([peer for peer in self._lines if peer not in kept])

    def renew(self, peers: Iterable[Peer] | None = None) -> None:
        """Forget what is known of these peers, or of all, and close their channels; their running calls may end."""
        for peer in list(self._lines if peers is None else peers):
            line = self._lines.pop(peer, None)
            if line is None:
                continue
            task = asyncio.get_running_loop().create_task(line.channel.close(CLOSE_GRACE_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            await line.channel.close()

    def _lives(self, line: _Line, since_s: float) -> bool:
        """Whether a peer that gave a call no answer in time has shown life meanwhile, and isn't late all the time."""
        line.slow += 1
        return line.heard_s > since_s and line.slow < MOST_SLOW

    def _line(self, peer: Peer) -> _Line:
        found = self._lines.get(peer)
        if found is None:
            credentials = self._credentials() if self._credentials is not None else None
            channel = open_channel(peer.address, credentials, self._options)
            found = self._lines[peer] = _Line(channel, Breaker(self._policy))
        return found

    async def _ask(
        self, line: _Line, method: str, data: bytes, tenant: str, fingerprint: str, timeout_s: float | None
    ) -> bytes:
        begun = self._clock()
        connect_s = _share(timeout_s, self.timeouts.connect_s)
        try:
            async with asyncio.timeout(connect_s):
                reached = await connected(line.channel)
        except TimeoutError:
            raise NotServed("unreachable", blamed=connect_s >= self.timeouts.connect_s) from None
        except grpc.aio.UsageError:  # the peer has left, and its channel is closed
            reached = False
        if not reached:
            raise NotServed("unreachable")
        left_s = None if timeout_s is None else timeout_s - (self._clock() - begun)
        patience_s = _share(left_s, self.timeouts.patience_s(len(data)))
        snapshot = ((FINGERPRINT, fingerprint),) if fingerprint else ()
        metadata = ((FORWARDED, self.me), (TENANT_KEY, tenant), *snapshot, *self._metadata())
        try:
            answer: bytes = await line.method(method)(data, metadata=metadata, timeout=patience_s)
        except grpc.aio.UsageError:  # the peer left while we waited for the connection
            raise NotServed("unreachable") from None
        except grpc.aio.AioRpcError as error:
            raise _meaning(error, late_blamed=patience_s >= self.timeouts.connect_s) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise NotServed("lost", blamed=False) from None  # its channel was closed: the peer left
        return answer


def _share(left_s: float | None, limit_s: float) -> float:
    return limit_s if left_s is None else min(limit_s, max(left_s, 0.0) / 2)


def _meaning(error: grpc.aio.AioRpcError, *, late_blamed: bool) -> Exception:
    code = next((value for key, value in error.trailing_metadata() or () if key == CODE_KEY), None)
    if code == STARTING:
        return NotServed("starting")
    if isinstance(code, str) and code.startswith("auth."):
        return NotServed("unauthorized")  # it is this pod that isn't believed, not its caller
    if code is not None:
        return OwnerAnswered(error)
    status = error.code()
    if status in _LOST:
        return NotServed("lost", blamed=False)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NotServed("late", blamed=late_blamed)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return NotServed("unknown_method")  # a pod of another version
    return OwnerAnswered(error)
