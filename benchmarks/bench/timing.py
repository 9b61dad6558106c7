"""The timed loops, for the bench's own process and the peer's alike: both run exactly this code.

Guarantees: each call is timed by itself with `perf_counter_ns`; garbage is collected before a block of calls and not
inside; no text is built, cut or joined inside a timed section. Standard library only: it runs in foreign
environments too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, Protocol

MIN_GROWTH_CHARS = 6_000
PRIMER = "a " * 100_000
"""One piece, over and over: after it an encoder has built whatever it builds on first use, but knows no text."""


class Session(Protocol):
    """A conversation of some engine."""

    def append(self, delta: str) -> None: ...


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside, one directly before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_out_of_collections() -> None:
    """What lives now is never garbage: the collections before each block needn't walk it."""
    gc.collect()
    gc.freeze()


class Appender:
    """Appends to a session of about `context`, again and again.

    Guarantee: no append is timed on a text longer than the context by more than a tenth of it (or
    `MIN_GROWTH_CHARS`); before that the session is opened anew, untimed.

    pending   how many deltas the session has taken since it was opened
    """

    def __init__(self, open_session: Callable[[str], Session], context: str) -> None:
        self._open, self._context = open_session, context
        self._growth_chars = max(len(context) // 10, MIN_GROWTH_CHARS)
        self.session = open_session(context)
        self.pending, self._grown_chars = 0, 0

    def run(self, deltas: Sequence[str]) -> list[int]:
        """Append each; nanoseconds per append."""
        times = []
        with undisturbed():
            for delta in deltas:
                if self._grown_chars > self._growth_chars:
                    self.session = self._open(self._context)
                    self.pending, self._grown_chars = 0, 0
                append = self.session.append
                start = perf_counter_ns()
                append(delta)
                times.append(perf_counter_ns() - start)
                self.pending += 1
                self._grown_chars += len(delta)
        return times


def time_encodes(encode: Callable[[str], Any], texts: Iterable[str], *, prewarm: bool) -> tuple[list[int], Any]:
    """(nanoseconds per encode, the last result); with `prewarm` each text is encoded once before, untimed."""
    times, result = [], None
    with undisturbed():
        for text in texts:
            if prewarm:
                encode(text)
            result = None  # freed outside the timed section
            start = perf_counter_ns()
            result = encode(text)
            times.append(perf_counter_ns() - start)
    return times, result
