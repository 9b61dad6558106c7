"""Which objects are to be looked at, and when: a level-triggered queue.

1. One entry per key, however often it is named.
2. Never two reconciles of one key at once; a key that is named meanwhile is looked at again afterwards.
3. After an error a key waits, twice as long each time, `FIRST_WAIT_S` to `LONGEST_WAIT_S`, and differently from others;
   naming it again doesn't shorten that below `FIRST_WAIT_S`. After a success it waits as long as the reconcile says.
4. While paused nothing is begun; what was begun is finished.
5. Nothing that a reconcile raises ends the queue; stopping lets begun reconciles finish for `grace_s`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..cluster.errors import ClusterError, Conflict, Unavailable
from ..cluster.kinds import Kind
from .metrics import Metrics

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 60.0
SETTLE_S = 0.02
"""Events come in bursts; a key that an event named waits so long for the rest of it."""
RECONCILE_TIMEOUT_S = 120.0
log = logging.getLogger("toktier.operator")


@dataclass(frozen=True, slots=True)
class Key:
    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"


Reconcile = Callable[[Key], Awaitable[float | None]]
"""Looks at one object and does what is to be done. Returns seconds until it is to be looked at again, if at all."""


class WorkQueue:
    """Owned by the task that awaits `run`."""

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        workers: int = 8,
        metrics: Metrics | None = None,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._metrics = metrics if metrics is not None else Metrics()
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()
        self._active: dict[Key, float] = {}
        """When to look again at what is being looked at now; infinity for never."""
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._changed = asyncio.Event()
        self._paused = False
        self._stopping = False

    def add(self, key: Key, after_s: float = SETTLE_S) -> None:
        """Look at it in `after_s`, or earlier if it is due earlier."""
        due = max(_now() + after_s, self._not_before.get(key, 0.0))
        if key in self._active:
            self._active[key] = min(self._active[key], due)
        elif due < self._due.get(key, math.inf):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._numbers), key))
            self._metrics.waiting.set(len(self._due))
            self._changed.set()

    def forget(self, key: Key) -> None:
        """It is gone: no more waiting for it."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        if key in self._active:
            self._active[key] = math.inf

    def pause(self, paused: bool = True) -> None:
        self._paused = paused
        self._changed.set()

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def idle(self) -> bool:
        """Whether nothing is being looked at, and nothing is due now."""
        return not self._active and not any(due <= _now() + SETTLE_S for due in self._due.values())

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    async def run(self, grace_s: float = 10.0) -> None:
        """Until `stop`. Cancelling it cancels what was begun."""
        begun: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            begun.discard(task)
            self._changed.set()

        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                self._changed.clear()
                while not self._paused and len(begun) < self._workers and (key := self._next()) is not None:
                    task = group.create_task(self._work(key), name=str(key))
                    begun.add(task)
                    task.add_done_callback(ended)
                await self._wait(full=len(begun) >= self._workers)
            if begun:
                _, late = await asyncio.wait(begun, timeout=grace_s)
                for task in late:
                    task.cancel()

    def _next(self) -> Key | None:
        while self._heap and self._heap[0][0] <= _now():
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._metrics.waiting.set(len(self._due))
                self._active[key] = math.inf
                return key
        return None

    async def _wait(self, *, full: bool) -> None:
        """Until something changed or the next one is due."""
        wait_s = None
        if self._heap and not self._paused and not full:
            wait_s = max(self._heap[0][0] - _now(), 0.0)
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _work(self, key: Key) -> None:
        started = _now()
        again_s: float | None = None
        try:
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                again_s = await self._reconcile(key)
        except Exception as error:  # whatever it is, the others go on
            result = _result_of(error)
            again_s = self._failed(key, error)
        else:
            result = "ok"
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
        finally:
            named_s = self._active.pop(key) - _now()
        self._metrics.reconciled(key.kind.kind, result, _now() - started)
        wait_s = min(named_s, again_s if again_s is not None else math.inf)
        if wait_s < math.inf:
            self.add(key, max(wait_s, 0.0))

    def _failed(self, key: Key, error: Exception) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        longest_s = min(self._first_wait_s * 2.0 ** min(failures, 30), self._longest_wait_s)
        wait_s = longest_s * random.uniform(0.5, 1.0)
        if isinstance(error, Unavailable) and error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, self._longest_wait_s))
        self._not_before[key] = _now() + min(wait_s, self._first_wait_s)
        if isinstance(error, Conflict):
            log.debug("%s: %s; again in %.1f s", key, error, wait_s)
        elif isinstance(error, ClusterError | TimeoutError):
            log.warning("%s: %s; again in %.1f s", key, error or "not done in time", wait_s)
        else:
            log.error("%s: unexpected error; again in %.1f s", key, wait_s, exc_info=error)
        return wait_s


def _result_of(error: Exception) -> str:
    if isinstance(error, ClusterError):
        return type(error).__name__.lower()
    return "timeout" if isinstance(error, TimeoutError) else "error"


def _now() -> float:
    return asyncio.get_running_loop().time()
