"""EndpointSlices by list and watch, against a server that speaks the protocol and misbehaves on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pods.kubernetes_api import KubernetesApi, endpoint
from toktier_tier.kubernetes.api import ApiServer
from toktier_tier.pods.endpoint_slices import EndpointSliceMembership, peers_of
from toktier_tier.pods.ring import Peer


@asynccontextmanager
async def following(api: KubernetesApi, *, watch_s: int = 30) -> AsyncIterator[EndpointSliceMembership]:
    if not api.port:
        await api.start()
    found = EndpointSliceMembership(ApiServer(api.url), "models", "toktier", "grpc", watch_s=watch_s, first_wait_s=0.02)
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.stop()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.01)


def names(found: EndpointSliceMembership) -> str:
    return " ".join(peer.name for peer in found.peers)


def test_pods_come_and_go_as_they_are_told() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True), endpoint("b", "10.0.0.2", ready=False))
        async with following(api) as found:
            await until(lambda: names(found) == "a")
            assert found.peers == (Peer("a", "10.0.0.1:50051"),)
            told: list[tuple[Peer, ...]] = []
            found.subscribe(told.append)
            await until(lambda: bool(api.watching))
            await api.put("one", endpoint("a", "10.0.0.1", ready=True), endpoint("b", "10.0.0.2", ready=True))
            await until(lambda: names(found) == "a b")
            await api.put("two", endpoint("ü", "10.0.0.3", ready=True))
            await until(lambda: names(found) == "a b ü")
            await api.put("one", endpoint("a", "10.0.0.1", ready=False, serving=True, terminating=True))
            await until(lambda: names(found) == "ü")
            await api.drop("two")
            await until(lambda: names(found) == "")
            assert len(told) == 4
            assert found.counts["listed"] == found.counts["watches"] == 1
            listed, watched = api.requests
            assert listed["labelSelector"] == watched["labelSelector"] == "kubernetes.io/service-name=toktier"
            assert (watched["resourceVersion"], watched["allowWatchBookmarks"]) == ("101", "true")

    asyncio.run(talk())


def test_a_watch_that_ends_goes_on_where_it_was_after_a_bookmark_too() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True))
        async with following(api, watch_s=1) as found:
            await until(lambda: bool(api.watching))
            await api.bookmark()
            await until(lambda: len(api.requests) == 3)
            assert api.requests[2]["resourceVersion"] == "102"
            await api.put("one", endpoint("b", "10.0.0.2", ready=True))
            await until(lambda: names(found) == "b")
            assert (found.counts["listed"], found.counts.total() - found.counts["changed"]) == (
                1,
                1 + found.counts["watches"] + found.counts["events"],
            )

    asyncio.run(talk())


def test_a_watch_that_is_too_old_starts_over_from_a_list() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True))
        async with following(api) as found:
            await until(lambda: bool(api.watching))
            await api.put("two", endpoint("b", "10.0.0.2", ready=True))
            await until(lambda: names(found) == "a b")
            api.slices.pop("one")  # which no watch will ever tell
            api.forget()
            await api.cut()
            await until(lambda: names(found) == "b")
            assert (found.counts["expired"], found.counts["listed"]) == (1, 2)
            api.status = 410  # or as a status
            await api.cut()
            await until(lambda: found.counts["failed.410"] > 0)
            api.status = 200
            await until(lambda: found.counts["listed"] == 3)

    asyncio.run(talk())


@pytest.mark.parametrize("rest", [b"", b'{"type": "MODIFIED", "object": {"metad'])
def test_a_watch_that_breaks_off_goes_on_and_half_a_line_is_none(rest: bytes) -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True))
        async with following(api) as found:
            await until(lambda: bool(api.watching))
            await api.cut(rest)
            await api.put("one", endpoint("b", "10.0.0.2", ready=True))
            await until(lambda: names(found) == "b")
            assert (found.counts["listed"], found.counts["watches"]) == (1, 2)

    asyncio.run(talk())


def test_what_makes_no_sense_is_listed_anew() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True))
        async with following(api) as found:
            for number, event in enumerate(
                (
                    ["no event"],
                    {"type": "ADDED", "object": {"metadata": {}}},
                    {"type": "ERROR", "object": {"code": 500}},
                    {"type": "ADDED", "object": {**api.slices["one"], "endpoints": 3}},
                )
            ):
                await until(lambda count=number + 1: found.counts["watches"] == count)
                await api.send(event)
                await until(lambda count=number + 2: found.counts["listed"] == count)
                assert names(found) == "a"

    asyncio.run(talk())


def test_while_the_server_is_away_what_was_known_stays() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        await api.put("one", endpoint("a", "10.0.0.1", ready=True))
        async with following(api) as found:
            await until(lambda: bool(api.watching))
            await api.stop()
            await until(lambda: found.counts["failed.ConnectError"] >= 2)
            assert names(found) == "a"
            api.slices.clear()
            await api.start()
            await api.put("one", endpoint("b", "10.0.0.2", ready=True))
            await until(lambda: names(found) == "b")
            api.status = 403
            await api.cut()
            await until(lambda: found.counts["failed.403"] >= 2)
            assert names(found) == "b"
            api.status = 200

    asyncio.run(talk())


def test_a_server_that_is_away_is_asked_less_and_less() -> None:
    async def talk() -> None:
        api = KubernetesApi()
        async with following(api) as found:
            api.status = 500
            await api.cut()
            await asyncio.sleep(1.5)
            assert 3 <= found.counts["failed.500"] <= 12  # 20 ms, doubled each time, jittered

    asyncio.run(talk())


def test_the_pods_account_is_read_for_every_request(tmp_path: Path) -> None:
    async def talk() -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        api = KubernetesApi()
        await api.start()
        found = EndpointSliceMembership(
            ApiServer(api.url, token), "models", "toktier", "grpc", watch_s=30, first_wait_s=0.02
        )
        running = asyncio.create_task(found.run())
        await until(lambda: bool(api.watching))
        token.write_text("second\n")
        await api.cut()
        await until(lambda: len(api.requests) == 3)
        assert [each["authorization"] for each in api.requests] == ["Bearer first"] * 2 + ["Bearer second"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.stop()

    asyncio.run(talk())


def test_in_a_pod_the_server_is_found_by_its_environment(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = ApiServer.in_cluster(environment, tmp_path)
    assert (found.url, found.token_file, found.ca_file) == (
        "https://[fd00::1]:443",
        tmp_path / "token",
        tmp_path / "ca.crt",
    )
    with pytest.raises(KeyError):
        ApiServer.in_cluster({})


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": False}, False),
        ({"ready": True, "serving": False}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),  # publishNotReadyAddresses
    ],
)
def test_conditions_count_as_the_api_defines_them(conditions: dict[str, bool], ready: bool) -> None:
    item = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}]}
    assert [peer.name for peer in peers_of([item], 7)] == (["10.0.0.1:7"] if ready else [])


def test_a_pod_is_one_peer_however_many_slices_tell_of_it() -> None:
    four = {"addressType": "IPv4", "endpoints": [endpoint("a", "10.0.0.1")], "ports": [{"name": "grpc", "port": 5}]}
    six = {"addressType": "IPv6", "endpoints": [endpoint("a", "fd00::1")], "ports": [{"name": "grpc", "port": 5}]}
    names = {"addressType": "FQDN", "endpoints": [endpoint("z", "z.example")], "ports": [{"name": "grpc", "port": 5}]}
    other = {"addressType": "IPv4", "endpoints": [endpoint("b", "10.0.0.2")], "ports": [{"name": "http", "port": 5}]}
    expected = [Peer("a", "10.0.0.1:5")]
    assert peers_of([six, four, four, names, other], "grpc") == peers_of([four, six], "grpc") == expected
    assert peers_of([six], "grpc") == [Peer("a", "[fd00::1]:5")]
