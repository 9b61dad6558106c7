"""Where a call runs: short ones on the event loop, long ones on threads, never more than a bound waiting.

A repair takes some 50 µs: handing it to a thread would cost more than doing it. What may take longer (a large text,
a tokenizer without a rule, a session that another thread holds) goes to a thread, at a lower priority than the event
loop's. Those whose encoder keeps the interpreter's lock share one: side by side they are no faster, and the event loop
would wait for the lock behind each of them. A call whose caller has left before a thread took it up isn't run.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from ..core.errors import Overloaded, SessionBusy
from ..sessions.registry import Served
from .status import Late

INLINE_CHARS = 16_384
DEFAULT_THREADS = 4
DEFAULT_WAITING = 256
NICENESS = 10

Answer = TypeVar("Answer")


class Work:
    """`threads` run long calls, beside the one of those that keep the interpreter's lock; `waiting` bounds how many of
    them all there are at once, running ones included."""

    def __init__(self, threads: int = DEFAULT_THREADS, waiting: int = DEFAULT_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, "toktier-work", _step_back)
        self._locking = ThreadPoolExecutor(1, "toktier-encode", _step_back)
        self._lock = threading.Lock()
        self._waiting, self._limit = 0, waiting

    @property
    def waiting(self) -> int:
        """Long calls under way or waiting for a thread."""
        return self._waiting

    async def run(self, served: Served, chars: int, call: Callable[[bool], Answer]) -> Answer:
        """`call(wait)`: with `wait` off it must raise `SessionBusy` rather than wait for a lock.

        Raises `Overloaded` (`tier.overloaded`) instead of queueing without bound.
        """
        if chars <= INLINE_CHARS and served.tokenizer.repairer is not None:
            try:
                return call(False)
            except SessionBusy:
                pass
        return await self._in(self._locking if served.tokenizer.keeps_lock else self._pool, lambda: call(True))

    async def for_size(self, size: int, call: Callable[[], Answer]) -> Answer:
        """`call` here if what it works on is small (characters or bytes), else on a thread."""
        return call() if size <= INLINE_CHARS else await self.in_thread(call)

    async def in_thread(self, call: Callable[[], Answer]) -> Answer:
        return await self._in(self._pool, call)

    async def _in(self, threads: ThreadPoolExecutor, call: Callable[[], Answer]) -> Answer:
        """Cancelled, it counts as waiting until a thread has come to it."""
        with self._lock:
            if self._waiting >= self._limit:
                raise Overloaded("tier.overloaded", "too many long calls are waiting", limit=self._limit)
            self._waiting += 1
        left = False

        def job() -> Answer:
            try:
                if left:
                    raise Late("tier.late", "the caller has left")
                return call()
            finally:
                with self._lock:
                    self._waiting -= 1

        try:
            running = asyncio.get_running_loop().run_in_executor(threads, job)
        except RuntimeError:  # the pool is closed
            with self._lock:
                self._waiting -= 1
            raise
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            left = True
            running.add_done_callback(_forget)
            raise

    def close(self) -> None:
        for threads in (self._pool, self._locking):
            threads.shutdown(wait=False, cancel_futures=True)


def _forget(done: asyncio.Future[Answer]) -> None:
    """What nobody waits for any more isn't logged by asyncio either, with whatever its message holds."""
    if not done.cancelled():
        done.exception()


def _step_back() -> None:
    """On Linux a priority is a thread's own."""
    with suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), NICENESS))
