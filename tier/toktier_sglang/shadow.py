"""A share of the tier's answers, made again by the own tokenizer off the request path.

Guarantee: the queue is bounded and never waited for; what finds no room is counted as dropped. The first difference is
told once, with the position of the first other ID and no text.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable

from .counts import Counts, log
from .own import Call, OwnTokenizer

QUEUED = 32
QUEUED_CHARS = 16 << 20


class ShadowCheck:
    """`offer` every answer. `on_difference` is called from the checking thread, which then ends."""

    def __init__(
        self,
        own: OwnTokenizer,
        rate: float,
        counts: Counts,
        on_difference: Callable[[str], None],
        seed: int | None = None,
    ) -> None:
        self._own, self._rate, self._counts, self._on_difference = own, rate, counts, on_difference
        self._random = random.Random(seed)
        self._queue: queue.Queue[tuple[Call, str, list[int]]] = queue.Queue(QUEUED)
        self._lock = threading.Lock()
        self._chars = 0
        self._thread: threading.Thread | None = None

    def offer(self, call: Call, text: str, ids: list[int]) -> None:
        if self._rate <= 0 or self._random.random() >= self._rate:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._check, name="toktier-shadow", daemon=True)
                self._thread.start()
            room = self._chars + len(text) <= QUEUED_CHARS or self._chars == 0
            if room:
                try:
                    self._queue.put_nowait((call, text, list(ids)))
                    self._chars += len(text)
                except queue.Full:
                    room = False
        if not room:
            self._counts.shadowed("dropped")

    def _check(self) -> None:
        while True:
            call, text, ids = self._queue.get()
            with self._lock:
                self._chars -= len(text)
            try:
                expected = self._own.ids(call, text)
            except Exception:  # the own tokenizer's: SGLang would have answered that request with it
                log.exception("TokTier: the own tokenizer failed in a shadow check")
                self._counts.shadowed("failed")
                continue
            if expected == ids:
                self._counts.shadowed("same")
                continue
            self._counts.shadowed("differs")
            at = next(
                (n for n, (a, b) in enumerate(zip(expected, ids, strict=False)) if a != b), min(len(expected), len(ids))
            )
            self._on_difference(
                f"{len(text)} characters, {len(expected)} IDs, the tier's {len(ids)} differ from {at} on"
            )
            return
