"""The peers that say they are ready, of those that a source lists: gRPC's own health check, asked all the time.

Guarantees: a peer is counted out as soon as it says that it doesn't serve, and once it has given no answer
`failures` times in a row; it is counted in again as soon as it says that it serves. This pod is in if the source lists
it. A peer that was never asked is out: `look` asks all of them once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from ..engine.channels import open_channel
from .forward import Credentials
from .membership import Membership
from .ring import Peer

EVERY_S, WAIT_S, FAILURES = 1.0, 1.0, 2
_CHECK = "/grpc.health.v1.Health/Check"
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVING = health_pb2.HealthCheckResponse.SERVING
log = logging.getLogger("toktier")


class _Watch:
    """What is known of one peer; its channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.check = channel.unary_unary(
            _CHECK, health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
        )
        self.serves, self.failed = False, 0


class HealthChecked(Membership):
    """`source`'s peers that are well. Run this in the place of `source`.

    every_s, wait_s   between two questions, and for an answer
    heard             is told of every answer that a peer serves
    counts            peers by what they said, and the source's own
    """

    def __init__(
        self,
        source: Membership,
        me: str,
        *,
        every_s: float = EVERY_S,
        wait_s: float = WAIT_S,
        failures: int = FAILURES,
        heard: Callable[[Peer], object] = lambda peer: None,
        credentials: Credentials | None = None,
        options: Iterable[tuple[str, Any]] = (),
        randomness: random.Random | None = None,
    ) -> None:
        super().__init__(peer for peer in source.peers if peer.name == me)
        self._source, self._me = source, me
        self._every_s, self._wait_s, self._failures, self._heard = every_s, wait_s, failures, heard
        self._credentials, self._options = credentials, (*_OPTIONS, *options)
        self._random = randomness or random.Random()
        self._watches: dict[Peer, _Watch] = {}
        self._news = asyncio.Event()
        self.counts = source.counts

    async def run(self) -> None:
        unsubscribe = self._source.subscribe(lambda peers: self._told_anew())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._source.run())
                group.create_task(self._ask_on())
        finally:
            unsubscribe()
            for watch in self._watches.values():
                await watch.channel.close()
            self._watches.clear()

    async def look(self) -> None:
        """Ask every listed peer once, and take what is found into use."""
        listed = [peer for peer in self._source.peers if peer.name != self._me]
        for peer in [peer for peer in self._watches if peer not in listed]:
            await self._watches.pop(peer).channel.close()
        for peer in listed:
            if peer not in self._watches:
                credentials = self._credentials() if self._credentials is not None else None
                self._watches[peer] = _Watch(open_channel(peer.address, credentials, self._options))
        await asyncio.gather(*(self._ask(peer, watch) for peer, watch in list(self._watches.items())))
        self._settle()

    def _told_anew(self) -> None:
        self._settle()
        self._news.set()

    async def _ask_on(self) -> None:
        while True:
            self._news.clear()
            await self.look()
            try:
                async with asyncio.timeout(self._every_s * self._random.uniform(0.8, 1.2)):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _ask(self, peer: Peer, watch: _Watch) -> None:
        try:
            answer = await watch.check(health_pb2.HealthCheckRequest(), timeout=self._wait_s)
        except grpc.aio.AioRpcError:
            watch.failed += 1
            self.counts["health.no_answer"] += 1
            if watch.failed < self._failures:
                return
            serves = False
        else:
            watch.failed, serves = 0, answer.status == _SERVING
            self.counts["health.serving" if serves else "health.not_serving"] += 1
            if serves:
                self._heard(peer)
        if serves != watch.serves:
            watch.serves = serves
            self._settle()

    def _settle(self) -> None:
        listed = self._source.peers
        self.replace(
            peer for peer in listed if peer.name == self._me or (peer in self._watches and self._watches[peer].serves)
        )
