"""The ready pods: a fixed list, and what DNS says; what fails changes nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest

from toktier_tier.pods.membership import DnsMembership, Membership, addresses_of, peer_at
from toktier_tier.pods.ring import Peer


def test_a_fixed_list_stays_and_tells_its_changes() -> None:
    found = Membership([Peer("b", "2:2"), Peer("a", "1:1"), Peer("a", "1:1")])
    assert [peer.name for peer in found.peers] == ["a", "b"]
    told: list[tuple[Peer, ...]] = []
    end = found.subscribe(told.append)
    found.replace([Peer("a", "1:1"), Peer("b", "2:2")])
    assert told == []
    found.replace([Peer("a", "1:9")])
    assert told == [(Peer("a", "1:9"),)]
    end()
    found.replace([])
    assert len(told) == 1


def test_a_pod_known_by_its_address_is_named_by_it() -> None:
    assert peer_at("10.0.0.7", 50051) == Peer("10.0.0.7:50051", "10.0.0.7:50051")
    assert peer_at("fd00:0::7", 1).address == "[fd00::7]:1"


def test_a_name_is_resolved_by_the_system() -> None:
    async def talk() -> None:
        found = DnsMembership("localhost", 50051)
        await found.look()
        expected = {info[4][0] for info in socket.getaddrinfo("localhost", 50051, type=socket.SOCK_STREAM)}
        assert {peer.address for peer in found.peers} == {peer_at(str(each), 50051).address for each in expected}
        assert found.counts["answered"] == 1

    asyncio.run(talk())


def test_a_lookup_that_fails_keeps_the_last_answer() -> None:
    answers: list[list[str] | Exception] = [["10.0.0.1", "10.0.0.2"], socket.gaierror(-3, "later"), [], ["10.0.0.2"]]

    async def resolve(host: str, port: int) -> list[str]:
        if host != "toktier-headless":
            return await addresses_of(host, port)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def talk() -> None:
        found = DnsMembership("toktier-headless", 1, resolve=resolve)
        seen: list[list[str]] = []
        for _ in range(4):
            await found.look()
            seen.append([peer.name for peer in found.peers])
        assert seen == [["10.0.0.1:1", "10.0.0.2:1"]] * 3 + [["10.0.0.2:1"]]
        assert found.counts == {"answered": 2, "changed": 2, "failed.gaierror": 1, "failed.empty": 1}
        missing = DnsMembership("no-such-host.invalid", 1, resolve=resolve, lookup_s=20)
        await missing.look()
        assert missing.peers == ()
        assert missing.counts["failed.gaierror"] == 1

    asyncio.run(talk())


def test_a_lookup_that_takes_too_long_is_given_up() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def talk() -> None:
        found = DnsMembership("slow", 1, resolve=never, lookup_s=0.05)
        await found.look()
        assert found.counts == {"failed.TimeoutError": 1}

    asyncio.run(talk())


def test_it_goes_on_looking_until_it_is_cancelled() -> None:
    async def talk() -> None:
        looked = 0

        async def resolve(host: str, port: int) -> list[str]:
            nonlocal looked
            looked += 1
            return [f"10.0.0.{looked}"]

        found = DnsMembership("x", 1, resolve=resolve, poll_s=0.01)
        running = asyncio.create_task(found.run())
        while looked < 3:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert found.counts["changed"] >= 2

    asyncio.run(talk())
