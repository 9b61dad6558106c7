"""Samples between the request's thread, which never waits, and the verifier's, which does.

Guarantees: at most `max_samples` samples are held, and at most `max_bytes` bytes except for a single sample larger
than that; the one being verified counts. What doesn't fit is refused at once. First in, first out.
"""

from __future__ import annotations

import threading
from collections import deque

from ..core.errors import InvalidRequest
from .sample import Sample


class Backlog:
    """Thread-safe, for any number of givers and one taker, who takes the next sample once the last is `done`."""

    def __init__(self, max_samples: int, max_bytes: int) -> None:
        if max_samples < 1 or max_bytes < 0:
            raise InvalidRequest("shadow.queue", "the queue holds at least one sample")
        self._max_samples, self._max_bytes = max_samples, max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Sample] = deque()
        self._taken: Sample | None = None
        self._closed = False
        self.bytes_ = 0

    def __len__(self) -> int:
        """Samples held, the one taken included."""
        return len(self._waiting) + (self._taken is not None)

    def offer(self, sample: Sample) -> bool:
        """Whether it was accepted."""
        with self._changed:
            held = len(self)
            if self._closed or held >= self._max_samples or (held and self.bytes_ + sample.bytes_ > self._max_bytes):
                return False
            self._waiting.append(sample)
            self.bytes_ += sample.bytes_
            self._changed.notify_all()
        return True

    def take(self) -> Sample | None:
        """The oldest sample, waiting for one; None once the backlog is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._taken = self._waiting.popleft() if self._waiting else None
            return self._taken

    def done(self) -> None:
        """The sample taken last is verified: what it held is free."""
        with self._changed:
            if self._taken is not None:
                self.bytes_ -= self._taken.bytes_
                self._taken = None
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether nothing is held any more, waiting `timeout_s` for it."""
        with self._changed:
            return self._changed.wait_for(lambda: not len(self), max(timeout_s, 0.0))

    def close(self) -> None:
        """Accept nothing more; what is held can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> int:
        """Let go of all samples not taken; how many there were."""
        with self._changed:
            count = len(self._waiting)
            self.bytes_ -= sum(sample.bytes_ for sample in self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        return count
