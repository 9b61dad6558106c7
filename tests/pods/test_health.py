"""Peers are counted in and out by what they say of themselves, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from pods.cluster import silent_port
from toktier_tier.pods.health import HealthChecked
from toktier_tier.pods.membership import Membership
from toktier_tier.pods.ring import Peer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Told:
    """A server that says of itself what it is told to."""

    async def start(self, address: str = "127.0.0.1:0") -> Peer:
        self.server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.peer = Peer("b", f"127.0.0.1:{self.server.add_insecure_port(address)}")
        await self.server.start()
        return self.peer


async def until(found: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.01)


def test_a_peer_is_in_the_ring_while_it_says_that_it_serves() -> None:
    async def talk() -> None:
        b, me = Told(), Peer("a", "127.0.0.1:1")
        source = Membership([me, await b.start()])
        heard: list[str] = []
        found = HealthChecked(source, "a", every_s=0.05, wait_s=1.0, heard=lambda peer: heard.append(peer.name))
        seen: list[list[str]] = []
        found.subscribe(lambda peers: seen.append([peer.name for peer in peers]))
        assert found.peers == (me,)
        running = asyncio.create_task(found.run())
        await until(lambda: found.peers == (me, b.peer))
        await b.health.set("", NOT_SERVING)
        await until(lambda: found.peers == (me,))
        await b.health.set("", SERVING)
        await until(lambda: found.peers == (me, b.peer))
        await b.server.stop(None)
        await until(lambda: found.peers == (me,))
        assert found.counts["health.no_answer"] >= 2
        assert heard == ["b"] * found.counts["health.serving"]
        await b.start(b.peer.address)
        await until(lambda: found.peers == (me, b.peer))
        source.replace([me])
        assert found.peers == (me,)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert seen == [["a", "b"], ["a"]] * 3
        await b.server.stop(None)

    asyncio.run(talk())


def test_one_question_without_an_answer_changes_nothing_and_a_silent_peer_is_never_in() -> None:
    async def talk() -> None:
        b, me = Told(), Peer("a", "127.0.0.1:1")
        async with silent_port() as address:
            source = Membership([me, await b.start(), Peer("silent", address)])
            found = HealthChecked(source, "a", wait_s=0.3)
            await found.look()
            assert found.peers == (me, b.peer)
            await b.server.stop(None)
            await found.look()
            assert found.peers == (me, b.peer)
            await found.look()
            assert found.peers == (me,)

    asyncio.run(talk())
