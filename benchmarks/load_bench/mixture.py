"""The load: cold starts of long transcripts and appends to running sessions, over gRPC, at times drawn beforehand.

Latencies count from the time at which a request was due, not from when it could be sent: a tier that falls behind
doesn't slow its own measurement down.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from dataclasses import dataclass, field
from time import perf_counter

from bench.results import Unequal
from toktier_tier.client import AsyncTierClient
from toktier_tier.core.errors import TierError
from toktier_tier.encoders.reference import Reference
from toktier_tier.transport.messages import ids_of
from toktier_tier.transport.v1 import toktier_pb2 as pb

COLD_SHARE = 0.023
COLD_CHARS = (100_000, 1_000_000)
DELTA_CHARS = 1_500
COLD_TEXTS, DELTAS = 48, 4_096
SLOTS = 192
LATE_S = 20.0
"""How long after the last request was due answers are waited for."""


@dataclass
class Step:
    """One offered rate: latencies in seconds, in order of arrival, of what was answered by the end."""

    offered_per_s: float
    seconds: float = 0.0
    appends: list[float] = field(default_factory=list)
    colds: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def answered_per_s(self) -> float:
        return (len(self.appends) + len(self.colds)) / self.seconds


class Mixture:
    """`SLOTS` conversations of one client. A conversation has one request under way at a time, as an agent has."""

    def __init__(self, client: AsyncTierClient, source: str, seed: int) -> None:
        self._ask = client.ask
        self._chooser = random.Random(seed)
        low, high = (math.log(chars) for chars in COLD_CHARS)
        self._texts = [self._cut(source, round(math.exp(self._chooser.uniform(low, high)))) for _ in range(COLD_TEXTS)]
        self._deltas = [self._cut(source, DELTA_CHARS) for _ in range(DELTAS)]
        self._text_bytes = [pb.OpenSessionRequest(text=text).SerializeToString() for text in self._texts]
        self._delta_bytes = [pb.AppendRequest(delta=text).SerializeToString() for text in self._deltas]
        self._names = [pb.AppendRequest(session=f"agent-{slot}").SerializeToString() for slot in range(SLOTS)]
        self._idle: deque[int] = deque()
        self._free = asyncio.Condition()
        self._history: list[list[str]] = [[] for _ in range(SLOTS)]

    def _cut(self, source: str, chars: int) -> str:
        start = self._chooser.randrange(len(source) - chars)
        return source[start : start + chars]

    async def warm_up(self) -> None:
        for slot in range(SLOTS):
            await self._cold(slot)
            self._idle.append(slot)

    async def step(self, per_s: float, seconds: float) -> Step:
        """Requests at exponentially distributed intervals, `per_s` on average, for `seconds`."""
        found = Step(per_s)
        running: set[asyncio.Task[None]] = set()
        begun = due = perf_counter()
        while (due := due + self._chooser.expovariate(per_s)) < begun + seconds:
            if (early := due - perf_counter()) > 0.0005:
                await asyncio.sleep(early)
            task = asyncio.create_task(self._request(due, found))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(set(running), timeout=LATE_S)
        found.seconds = perf_counter() - begun
        unanswered = set(running)
        for task in unanswered:
            task.cancel()
        if unanswered:
            found.errors["unanswered"] = len(unanswered)
            await asyncio.wait(unanswered)
        return found

    async def _request(self, due: float, step: Step) -> None:
        async with self._free:
            await self._free.wait_for(lambda: bool(self._idle))
            slot = self._idle.popleft()
        try:
            if self._chooser.random() < COLD_SHARE:
                await self._cold(slot)
                step.colds.append(perf_counter() - due)
            else:
                which = self._chooser.randrange(DELTAS)
                await self._ask("Append", self._names[slot] + self._delta_bytes[which])
                self._history[slot].append(self._deltas[which])
                step.appends.append(perf_counter() - due)
        except TierError as error:
            step.errors[error.code] = step.errors.get(error.code, 0) + 1
            await self._cold(slot)  # an agent that was refused starts over
        finally:
            async with self._free:
                self._idle.append(slot)
                self._free.notify()

    async def _cold(self, slot: int) -> None:
        which = self._chooser.randrange(COLD_TEXTS)
        await self._ask("OpenSession", self._names[slot] + self._text_bytes[which])
        self._history[slot] = [self._texts[which]]

    async def check(self, reference: Reference, sessions: int) -> int:
        """Raises `Unequal`; returns how many sessions were compared with a full encode by the reference."""
        for slot in self._chooser.sample(range(SLOTS), sessions):
            request = self._names[slot] + pb.GetSessionRequest(include_ids=True).SerializeToString()
            answer = pb.GetSessionResponse.FromString(await self._ask("GetSession", request))
            text = "".join(self._history[slot])
            if ids_of(answer.ids).tobytes() != reference.encode(text).tobytes():
                raise Unequal(f"session {slot} of {len(text):,} characters")
        return sessions
