"""Which engine serves a session, and when none may be asked.

Guarantees:
 1. The same session goes to the same upstream as long as that one is admitted (rendezvous hashing), because its KV
    cache is there. When an upstream goes, only its sessions move; when it returns, they return.
 2. An upstream never has more than `max_in_flight` requests of this tier; nothing queues here.
 3. A failing upstream is left alone by its breaker (`breaker.py`).

Every failure of an engine is an `EngineFault` with one of these codes:

    engine.unreachable              no connection; nothing was sent, so another upstream may be asked
    engine.timeout                  `details["phase"]`: connect, first_byte, idle or total
    engine.cut                      the connection broke after the request was sent
    engine.bad_status               refused; `details["status"]` is the HTTP or gRPC status
    engine.bad_reply                something came that can't be
    engine.circuit_open             every upstream left is being left alone; `details["retry_after_s"]`
    engine.busy                     every upstream left has `max_in_flight` requests
    engine.prompt_tokens_mismatch   the engine counted another number of prompt tokens than were sent
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType

from ..core.errors import EngineFault
from ..ports import Clock
from .breaker import Breaker, BreakerPolicy, Phase


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something to count.

    name      request, question (of the tier's own), ids, reply or breaker
    upstream  its name, or "" where none was chosen
    reason    request: ok, closed_early or an error's code; question: an error's code; ids: matched, mismatched, unknown
              or ignored_before;
              reply: no_end_mark (a stream without [DONE]); breaker: the phase that was entered
    """

    name: str
    upstream: str
    reason: str


Observe = Callable[[EngineEvent], None]


def observe_nothing(event: EngineEvent) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each wait may take, in seconds.

    first_byte_s  from the request's first byte out to a streamed reply's first byte in (queueing and prefill); a reply
                  that isn't streamed has until the deadline
    idle_s        between two chunks of a reply
    total_s       the whole request, where the caller names no deadline
    """

    connect_s: float = 2.0
    first_byte_s: float = 300.0
    idle_s: float = 120.0
    total_s: float = 3600.0

    def __post_init__(self) -> None:
        if min(self.connect_s, self.first_byte_s, self.idle_s, self.total_s) <= 0:
            raise ValueError("a wait takes more than no time")


class Deadline:
    """The end of one request: every wait is the shorter of its own limit and what is left."""

    def __init__(self, total_s: float, clock: Clock = time.monotonic) -> None:
        self.total_s = total_s
        self._clock = clock
        self._end_s = clock() + total_s

    def left_s(self) -> float:
        return max(0.0, self._end_s - self._clock())

    def limit(self, wait_s: float, phase: str) -> tuple[float, str]:
        """(seconds, the phase to blame when they are over)."""
        left_s = self.left_s()
        return (wait_s, phase) if wait_s < left_s else (left_s, "total")


def timeout_fault(phase: str, upstream: str) -> EngineFault:
    return EngineFault("engine.timeout", f"the engine was late ({phase})", phase=phase, upstream=upstream)


DEFAULT_BREAKER = BreakerPolicy()
DEFAULT_TIMEOUTS = Timeouts()


@dataclass(slots=True)
class _Upstream:
    name: str
    breaker: Breaker
    in_flight: int = field(default=0)


class Upstreams:
    """The engines of one tier, by name (their URL or address). For one event loop: nothing here waits."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        breaker: BreakerPolicy = DEFAULT_BREAKER,
        max_in_flight: int = 512,
        clock: Clock = time.monotonic,
        observe: Observe = observe_nothing,
    ) -> None:
        if not names or len(set(names)) != len(names) or max_in_flight < 1:
            raise ValueError("one upstream or more, each named once")
        self._upstreams = {name: _Upstream(name, Breaker(breaker)) for name in names}
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._observe = observe
        self._turn = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._upstreams)

    def phases(self) -> dict[str, Phase]:
        return {name: each.breaker.phase for name, each in self._upstreams.items()}

    def in_flight(self) -> dict[str, int]:
        return {name: each.in_flight for name, each in self._upstreams.items()}

    def lease(self, session: str, tried: Collection[str] = ()) -> Lease:
        """The first upstream of the session's ranking that is admitted, has room, and wasn't tried.

        Without a session (""), the least busy one. Raises `EngineFault` (`engine.busy`, `engine.circuit_open`).
        """
        busy = False
        wait_s = float("inf")
        now_s = self._clock()
        for upstream in self._ranked(session):
            if upstream.name in tried:
                continue
            if upstream.in_flight >= self._max_in_flight:
                busy = True
                continue
            breaker, ticket = upstream.breaker.admit(now_s)
            self.enter(upstream, breaker)
            if ticket is not None:
                return Lease(self, upstream, ticket)
            wait_s = min(wait_s, breaker.until_s - now_s)
        if busy:
            raise EngineFault("engine.busy", "every engine has as many requests as it may", limit=self._max_in_flight)
        raise EngineFault("engine.circuit_open", "no engine may be asked now", retry_after_s=round(wait_s, 3))

    def _ranked(self, session: str) -> list[_Upstream]:
        if session:
            return [self._upstreams[name] for name in ranked(self.names, session)]
        self._turn += 1
        order = {name: place for place, name in enumerate(ranked(self.names, str(self._turn)))}
        return sorted(self._upstreams.values(), key=lambda each: (each.in_flight, order[each.name]))

    def enter(self, upstream: _Upstream, breaker: Breaker) -> None:
        if breaker.phase is not upstream.breaker.phase:
            self._observe(EngineEvent("breaker", upstream.name, breaker.phase))
        upstream.breaker = breaker

    def now_s(self) -> float:
        return self._clock()


class Lease:
    """One request's place at one upstream: taken by `Upstreams.lease`, given back by `close`, which may be repeated.

    A lease that is closed without more says nothing about the upstream. In `CLOSED` only a reply's good end counts as a
    success, so that an upstream whose replies all break off is found out.
    """

    def __init__(self, upstreams: Upstreams, upstream: _Upstream, ticket: int) -> None:
        self._upstreams = upstreams
        self._upstream = upstream
        self._ticket = ticket
        self._open = True
        upstream.in_flight += 1

    @property
    def name(self) -> str:
        return self._upstream.name

    def answered(self) -> None:
        """The first byte of a reply came: enough for a trial, whose end may be minutes away."""
        if self._upstream.breaker.phase is Phase.HALF_OPEN:
            self.ended_well()

    def ended_well(self) -> None:
        self._upstreams.enter(self._upstream, self._upstream.breaker.succeeded(self._ticket))

    def failed(self) -> None:
        now_s = self._upstreams.now_s()
        self._upstreams.enter(self._upstream, self._upstream.breaker.failed(self._ticket, now_s))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._upstream.in_flight -= 1
            now_s = self._upstreams.now_s()
            self._upstreams.enter(self._upstream, self._upstream.breaker.abandoned(self._ticket, now_s))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ranked(names: Sequence[str], session: str) -> list[str]:
    """The names by the weight of (name, session), highest first: rendezvous (highest random weight) hashing.

    The weight of a name doesn't depend on the other names, so taking one away moves nothing else.
    """
    key = session.encode("utf-8", "surrogatepass")

    def weight(name: str) -> bytes:
        encoded = name.encode()
        return blake2b(len(encoded).to_bytes(4, "little") + encoded + key, digest_size=8).digest()

    return sorted(names, key=lambda name: (weight(name), name), reverse=True)
