"""The pods that are ready: a fixed list, or what DNS says.

Guarantees: `peers` is the last answer that arrived whole; a source that fails changes nothing but its counts. Whether
this pod is among them is the source's business. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address

from .ring import Peer

DEFAULT_POLL_S = 5.0
DEFAULT_LOOKUP_S = 5.0
log = logging.getLogger("toktier")

Told = Callable[[tuple[Peer, ...]], None]
Resolve = Callable[[str, int], Awaitable[list[str]]]


class Membership:
    """A fixed list of peers, and what all sources share.

    counts   what became of looking: `<what>` happened so often
    """

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        self._peers = tuple(sorted(set(peers)))
        self._told: list[Told] = []
        self.counts: Counter[str] = Counter()

    @property
    def peers(self) -> tuple[Peer, ...]:
        """In the order of their names."""
        return self._peers

    def subscribe(self, told: Told) -> Callable[[], None]:
        """`told` hears of every change from now on, in the event loop; the answer ends that."""
        self._told.append(told)
        return lambda: self._told.remove(told)

    def replace(self, peers: Iterable[Peer]) -> None:
        found = tuple(sorted(set(peers)))
        if found == self._peers:
            return
        log.info("ready pods: %s", ", ".join(peer.name for peer in found) or "none")
        self._peers = found
        self.counts["changed"] += 1
        for told in list(self._told):
            told(found)

    async def run(self) -> None:
        """Follow the source until cancelled."""
        await asyncio.Event().wait()


class DnsMembership(Membership):
    """Every address that `host` (a headless Service) resolves to. A pod's name is its address: `IP:port`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        poll_s: float = DEFAULT_POLL_S,
        lookup_s: float = DEFAULT_LOOKUP_S,
        resolve: Resolve | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        super().__init__()
        self._host, self._port = host, port
        self._poll_s, self._lookup_s = poll_s, lookup_s
        self._resolve = resolve or addresses_of
        self._random = randomness or random.Random()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._poll_s * self._random.uniform(0.8, 1.2))

    async def look(self) -> None:
        """Ask once. A lookup that fails, takes too long or finds nothing keeps the last answer."""
        try:
            async with asyncio.timeout(self._lookup_s):
                found = await self._resolve(self._host, self._port)
        except (OSError, UnicodeError, TimeoutError) as error:
            self.counts[f"failed.{type(error).__name__}"] += 1
            return
        if not found:
            self.counts["failed.empty"] += 1
            return
        self.counts["answered"] += 1
        self.replace(peer_at(address, self._port) for address in found)


async def addresses_of(host: str, port: int) -> list[str]:
    """A and AAAA records, by the resolver of the system, on a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


def peer_at(address: str, port: int) -> Peer:
    """A pod that is known by its address alone."""
    target = target_of(address, port)
    return Peer(target, target)


def target_of(address: str, port: int) -> str:
    found = ip_address(address)
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"
