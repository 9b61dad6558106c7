"""Sessions in memory: least recently used first out, by bytes, by each tenant's share, and by age.

Guarantees: the sum of the entries' sizes stays within the budget except for a single entry that is alone; a tenant's
own sum within the tenants' budget except for a single entry of its own; an entry older than its time to live is never
returned. Where the whole is over the budget, what goes is the least recently used entry of the tenant that holds the
most: so no tenant can push out another that holds less than itself. Not thread-safe: the service holds its lock
around calls.

Every call costs O(log tenants) and what it evicts, amortized (`_Largest`).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from ..ports import Clock

Value = TypeVar("Value")


class SessionKey(NamedTuple):
    """Who and what: equal text of another tenant, or under another snapshot, is another session."""

    tenant: str
    fingerprint: str
    session: str


@dataclass(slots=True)
class _Share:
    """What one tenant holds: its keys, the least recently used first; `bound_bytes` is at least its bytes."""

    keys: OrderedDict[SessionKey, None] = field(default_factory=OrderedDict)
    bytes_: int = 0
    bound_bytes: int = -1


class _Largest:
    """Finds the share with the most bytes.

    The heap holds an upper bound of each share, with an eighth to spare: a share that grows is pushed anew only once it
    passes its bound, and one that comes to the top with a loose bound goes back with its exact one. Each such return
    was paid for by a push. Entries whose bound isn't the share's any more are dead.
    """

    def __init__(self, shares: Mapping[str, _Share]) -> None:
        self._shares = shares
        self._heap: list[tuple[int, str]] = []

    def grown(self, tenant: str, share: _Share) -> None:
        """To be called once a share's bytes are above its bound."""
        self._push(tenant, share, share.bytes_ + share.bytes_ // 8)

    def find(self) -> str:
        """The tenant with the most bytes, of several the first by name. There is one."""
        while True:
            heap = self._heap  # a push may have made a new one
            bound, tenant = -heap[0][0], heap[0][1]
            share = self._shares.get(tenant)
            if share is None or share.bound_bytes != bound:
                heapq.heappop(heap)
            elif share.bytes_ == bound:
                return tenant
            else:
                heapq.heappop(heap)
                self._push(tenant, share, share.bytes_)

    def _push(self, tenant: str, share: _Share, bound: int) -> None:
        share.bound_bytes = bound
        heapq.heappush(self._heap, (-bound, tenant))
        if len(self._heap) > 2 * len(self._shares) + 64:
            self._heap = [(-each.bound_bytes, name) for name, each in self._shares.items()]
            heapq.heapify(self._heap)


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    bytes_: int
    used_at: float


class SessionTable(Generic[Value]):
    """`budget_bytes`, `tenant_budget_bytes` (by default none of its own) and `ttl_s` bound what is kept.

    `evicted` counts by reason (`bytes`, `tenant_bytes`, `ttl`). `on_removal` is told of every value that leaves the
    table, for whatever reason.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        ttl_s: float,
        clock: Clock,
        on_removal: Callable[[Value], None],
        tenant_budget_bytes: int | None = None,
    ) -> None:
        self._on_removal = on_removal
        self._entries: OrderedDict[SessionKey, _Entry[Value]] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._largest = _Largest(self._shares)
        self._budget_bytes, self._ttl_s, self._clock = budget_bytes, ttl_s, clock
        self._tenant_budget_bytes = math.inf if tenant_budget_bytes is None else tenant_budget_bytes
        self._next_expiry = -math.inf
        """Nothing in the table is too old before this time."""
        self.bytes_ = 0
        self.evicted = {"bytes": 0, "tenant_bytes": 0, "ttl": 0}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SessionKey]:
        return iter(list(self._entries))

    def share_bytes(self, tenant: str) -> int:
        """What a tenant holds."""
        share = self._shares.get(tenant)
        return share.bytes_ if share is not None else 0

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
        self._shares[key.tenant].keys.move_to_end(key)
        return entry.value

    def put(self, key: SessionKey, value: Value, bytes_: int) -> None:
        """Insert an entry as the most recently used in place of any other, and evict to stay within the budgets."""
        self.pop(key)
        self._entries[key] = _Entry(value, 0, self._clock())
        self._shares.setdefault(key.tenant, _Share()).keys[key] = None
        self.resize(key, bytes_)

    def resize(self, key: SessionKey, bytes_: int) -> None:
        """Note an entry's new size, and evict to stay within the budgets: it may be the entry itself that goes."""
        entry, share = self._entries[key], self._shares[key.tenant]
        grown = bytes_ - entry.bytes_
        entry.bytes_ = bytes_
        self.bytes_ += grown
        share.bytes_ += grown
        if share.bytes_ > share.bound_bytes:
            self._largest.grown(key.tenant, share)
        while share.bytes_ > self._tenant_budget_bytes and len(share.keys) > 1:
            self._drop(next(iter(share.keys)), "tenant_bytes")
        while self.bytes_ > self._budget_bytes and len(self._entries) > 1:
            self._drop(next(iter(self._shares[self._largest.find()].keys)), "bytes")

    def pop(self, key: SessionKey) -> Value | None:
        """Remove an entry; None if there was none or its time was over."""
        self._expire(self._clock())
        return self._remove(key)

    def _remove(self, key: SessionKey) -> Value | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        share = self._shares[key.tenant]
        del share.keys[key]
        if not share.keys:
            del self._shares[key.tenant]
        share.bytes_ -= entry.bytes_
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
