"""Which pod owns a session: rendezvous hashing (highest random weight).

Guarantees: the owner depends on the set of names, the tenant and the key alone: every process and version that sees
the same names finds the same owner. When a peer leaves, only its keys move; when one joins, keys move only to it.

D. Thaler, C. Ravishankar: Using name-based mappings to increase hit rates, 1998.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

SCORE_BYTES = 8
REMEMBERED = 4_096
"""Owners a ring remembers: hot sessions ask again and again."""
_PERSON = b"toktier-ring-1"


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """A pod: a name that is its own for as long as it lives, and where its gRPC is served (host:port)."""

    name: str
    address: str

    def __post_init__(self) -> None:
        if not self.name or not self.address:
            raise ValueError("a peer has a name and an address")


class Ring:
    """Immutable. O(peers) per new key, some 0.6 µs a peer; owners asked for lately are remembered.

    A key's second is who owns it once its owner has left, and who owned it before its owner joined.
    """

    def __init__(self, peers: Iterable[Peer]) -> None:
        self.peers = tuple(sorted({peer.name: peer for peer in sorted(peers)}.values()))
        self._by_name = {peer.name: peer for peer in self.peers}
        self._seeds = [(_seed(peer.name), peer) for peer in self.peers]
        self._ranked = lru_cache(REMEMBERED)(self._search)

    def __len__(self) -> int:
        return len(self.peers)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def owner(self, tenant: str, key: str) -> Peer | None:
        """None if there are no peers."""
        return self._ranked(tenant, key)[0]

    def ranked(self, tenant: str, key: str) -> tuple[Peer | None, Peer | None]:
        """(the owner, the second)."""
        return self._ranked(tenant, key)

    def without(self, name: str) -> Ring:
        return Ring(peer for peer in self.peers if peer.name != name)

    def _search(self, tenant: str, key: str) -> tuple[Peer | None, Peer | None]:
        named = tenant.encode("utf-8", "surrogatepass")
        data = len(named).to_bytes(4, "little") + named + key.encode("utf-8", "surrogatepass")
        best, owner = b"", None
        next_best, second = b"", None
        for seed, peer in self._seeds:  # in the order of names: a tie goes to the first
            scored = seed.copy()
            scored.update(data)
            score = scored.digest()
            if owner is None or score > best:
                next_best, second = best, owner
                best, owner = score, peer
            elif second is None or score > next_best:
                next_best, second = score, peer
        return owner, second


def _seed(name: str) -> hashlib.blake2b:
    """The hash that scores keys for this peer: BLAKE2b keyed by its name."""
    key = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return hashlib.blake2b(digest_size=SCORE_BYTES, key=key, person=_PERSON)
