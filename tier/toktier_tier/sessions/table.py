"""Sessions in memory: least recently used first out, by bytes, and by age.

Guarantees: the sum of the entries' sizes stays within the budget except for a single entry larger than it; an
entry older than its time to live is never returned. Not thread-safe: the service holds its lock around calls.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ..ports import Clock

Value = TypeVar("Value")


class SessionKey(NamedTuple):
    """Who and what: equal text of another tenant, or under another snapshot, is another session."""

    tenant: str
    fingerprint: str
    session: str


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    bytes_: int
    used_at: float


class SessionTable(Generic[Value]):
    """`budget_bytes` and `ttl_s` bound what is kept; `evicted` counts by reason (`bytes`, `ttl`).

    `on_removal` is told of every value that leaves the table, for whatever reason.
    """

    def __init__(self, *, budget_bytes: int, ttl_s: float, clock: Clock, on_removal: Callable[[Value], None]) -> None:
        self._on_removal = on_removal
        self._entries: OrderedDict[SessionKey, _Entry[Value]] = OrderedDict()
        self._budget_bytes, self._ttl_s, self._clock = budget_bytes, ttl_s, clock
        self._next_expiry = -math.inf
        """Nothing in the table is too old before this time."""
        self.bytes_ = 0
        self.evicted = {"bytes": 0, "ttl": 0}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SessionKey]:
        return iter(list(self._entries))

    def get(self, key: SessionKey) -> Value | None:
        """The entry's value, now the most recently used; None if there is none or its time is over."""
        now = self._clock()
        if now >= self._next_expiry:
            self._expire(now)
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used_at = now
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: SessionKey, value: Value, bytes_: int) -> None:
        """Insert an entry as the most recently used in place of any other, and evict to stay within the budget."""
        self.pop(key)
        self._entries[key] = _Entry(value, 0, self._clock())
        self.resize(key, bytes_)

    def resize(self, key: SessionKey, bytes_: int) -> None:
        """Note an entry's new size, and evict others to stay within the budget."""
        entry = self._entries[key]
        self.bytes_ += bytes_ - entry.bytes_
        entry.bytes_ = bytes_
        while self.bytes_ > self._budget_bytes and len(self._entries) > 1:
            self._drop(next(iter(self._entries)), "bytes")

    def pop(self, key: SessionKey) -> Value | None:
        """Remove an entry; None if there was none or its time was over."""
        self._expire(self._clock())
        return self._remove(key)

    def _remove(self, key: SessionKey) -> Value | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.bytes_ -= entry.bytes_
        self._on_removal(entry.value)
        return entry.value

    def _expire(self, now: float) -> None:
        limit = now - self._ttl_s
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at > limit:
                self._next_expiry = entry.used_at + self._ttl_s
                return
            self._drop(key, "ttl")

    def _drop(self, key: SessionKey, reason: str) -> None:
        self._remove(key)
        self.evicted[reason] += 1
