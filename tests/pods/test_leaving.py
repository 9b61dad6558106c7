"""A pod that is told to end, behind a balancer as a Service is one: nobody's request fails."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog import path_of
from servers import FAMILY, free_port, whole_tier
from toktier_tier.admission.compiled import save
from toktier_tier.client import AsyncTierClient
from toktier_tier.serve import _connection_s
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import PodSettings
from toktier_tier.transport.grpc_server import GrpcServer
from toktier_tier.transport.servicer import TokenizerServicer
from toktier_tier.transport.work import Work
from workshop import family_tier, fresh_tokenizer

LINGER_S = 5.0


class Pod:
    def __init__(self, name: str) -> None:
        self.name, self.grpc, self.http = name, free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path, peers: list[str]) -> None:
        settings = {
            "grpc": f"127.0.0.1:{self.grpc}",
            "http": f"127.0.0.1:{self.http}",
            "compiled_dir": str(directory / "compiled"),
            "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY))}],
            "pods": {"name": self.name, "peers": peers, "health_s": 0.2, "answer_s": 20, "linger_s": LINGER_S},
            "shadow": {"rate": 0},
        }
        path = directory / f"{self.name}.yaml"
        path.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "toktier_tier", "serve", str(path)]
        self.process = subprocess.Popen(command, env=dict(os.environ))

    async def ready(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"http://127.0.0.1:{self.http}/ready")).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    save(family_tier(FAMILY).compiled, tmp_path / "compiled")
    found = [Pod(name) for name in "ab"]
    peers = [f"{pod.name}=127.0.0.1:{pod.grpc}" for pod in found]
    for pod in found:
        pod.start(tmp_path, peers)
    yield found
    for pod in found:
        assert pod.process is not None
        pod.process.kill()
        pod.process.wait()


class Balancer:
    """New connections go to pods that are ready, one after the other; a connection stays where it is."""

    def __init__(self, pods: list[Pod], port: str) -> None:
        self._pods, self._port = pods, port
        self.ready: list[Pod] = []
        self.taken = 0
        self.open: Counter[str] = Counter()

    async def follow(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=1) as client:
            while True:
                self.ready = [pod for pod in self._pods if await pod.ready(client)]
                await asyncio.sleep(0.1)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        pod = self.ready[self.taken % len(self.ready)]
        there = await asyncio.open_connection("127.0.0.1", getattr(pod, self._port))
        self.open[pod.name] += 1
        try:
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer), return_exceptions=True)
        finally:
            self.open[pod.name] -= 1


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def balanced(pods: list[Pod], port: str, clients: int) -> AsyncIterator[tuple[Balancer, list[str]]]:
    """With an address for each client: gRPC's share their connections by address."""
    found = Balancer(pods, port)
    following = asyncio.create_task(found.follow())
    servers = [await asyncio.start_server(found.take, "127.0.0.1", 0) for _ in range(clients)]
    try:
        async with asyncio.timeout(60):
            while len(found.ready) < len(pods):
                await asyncio.sleep(0.1)
        yield found, [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    finally:
        following.cancel()
        for server in servers:
            server.close()


def test_nobodys_request_fails_when_a_pod_leaves(pods: list[Pod]) -> None:
    outcomes: Counter[str] = Counter()
    text = "Hello there, and so on. "
    ids = family_tier(FAMILY).ids(text)

    async def by_grpc(address: str, over: asyncio.Event) -> None:
        async with AsyncTierClient(address, timeout_s=20) as client:
            while not over.is_set():
                try:
                    assert (await client.encode(text)).tolist() == ids
                    outcomes["grpc"] += 1
                except Exception as error:
                    outcomes[f"grpc {error!r}"] += 1
                await asyncio.sleep(0.002)

    async def by_http(address: str, over: asyncio.Event) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20, base_url=f"http://{address}") as client:
            while not over.is_set():
                try:
                    answer = await client.post("/tokenize", json={"prompt": text})
                    assert answer.json()["tokens"] == ids
                    outcomes["http"] += 1
                except Exception as error:
                    outcomes[f"http {error!r}"] += 1
                await asyncio.sleep(0.005)

    async def talk() -> None:
        over = asyncio.Event()
        async with (
            balanced(pods, "grpc", 6) as (grpc, grpc_addresses),
            balanced(pods, "http", 4) as (http, http_addresses),
            asyncio.TaskGroup() as group,
        ):
            for address in grpc_addresses:
                group.create_task(by_grpc(address, over))
            for address in http_addresses:
                group.create_task(by_http(address, over))
            await asyncio.sleep(1)
            process = pods[0].process
            assert process is not None
            assert grpc.open["a"] > 0
            assert http.open["a"] > 0
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert await asyncio.to_thread(process.wait, 30) == 0
            assert time.monotonic() - begun >= LINGER_S
            await asyncio.sleep(0.5)
            over.set()

    asyncio.run(talk())
    assert set(outcomes) == {"grpc", "http"}, outcomes
    assert min(outcomes.values()) > 100


def test_grpc_connections_are_made_anew_before_a_pod_has_lingered_and_no_call_is_lost() -> None:
    several = PodSettings(peers=("a=h:1",), linger_s=5.0)
    assert _connection_s(several) == pytest.approx(4.0)
    assert _connection_s(dataclasses.replace(several, linger_s=0.0)) == _connection_s(PodSettings()) == 0.0
    tokenizer = fresh_tokenizer(family_tier(FAMILY))
    registry = Registry([Served(FAMILY, (), tokenizer, SessionService(tokenizer))])
    calls: Counter[str] = Counter()

    async def talk() -> None:
        work = Work()
        servicer = TokenizerServicer(registry, work)
        server = GrpcServer(servicer, "127.0.0.1:0", connection_s=0.3)
        await server.start()
        taken: list[int] = []

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(1)
            there = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer), return_exceptions=True)

        between = await asyncio.start_server(take, "127.0.0.1", 0)
        address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
        async with AsyncTierClient(address, timeout_s=20) as client:

            async def call() -> None:
                while len(taken) < 5:
                    await client.encode("Hello there")
                    calls["answered"] += 1

            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(call())
        between.close()
        await server.stop(1.0)
        work.close()

    asyncio.run(talk())
    assert calls["answered"] > 40


def test_a_retired_port_serves_on_and_ends_connections_with_their_answers(tmp_path: Path) -> None:
    with (
        whole_tier(tmp_path) as tier,
        httpx.Client(base_url=f"http://{tier.http}", trust_env=False) as used,
        httpx.Client(base_url=f"http://{tier.http}", trust_env=False) as fresh,
    ):
        assert "connection" not in used.get("/health").headers

        async def retire() -> None:
            tier._http.retire()

        tier.run(retire())
        time.sleep(1.2)  # uvicorn makes its headers anew each second
        for client in (used, fresh):
            for _ in range(2):
                answer: Any = client.post("/tokenize", json={"prompt": "Hello"})
                assert answer.json()["tokens"] == family_tier(FAMILY).ids("Hello")
                assert answer.headers["connection"] == "close"
