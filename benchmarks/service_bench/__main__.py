"""`python -m service_bench`: Append through gRPC beside a bare echo of the same sizes; writes build/bench-service.json.

Echo and tier live in one server process and are asked by one client process, in turns of short blocks: the echo by a
call each, the tier by a call each (`call`), and as `AsyncTierClient` asks it, whose calls share a stream (`stream`).
Afterwards every session's IDs are compared with a full encode by the reference: if one differs nothing is shown or
written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from agent_session import plain_text
from bench.results import Unequal
from catalog import path_of
from toktier_tier.client import AsyncTierClient
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.sources import default_cache_dir
from toktier_tier.transport.interface import path_of as path_of_method
from toktier_tier.transport.messages import ids_of
from toktier_tier.transport.v1 import toktier_pb2 as pb
from toktier_tier.transport.v1.toktier_pb2_grpc import TokenizerServiceStub

from .server import ECHO_METHOD

FAMILY = "qwen-3"
CONTEXT_CHARS, DELTA_CHARS = 100_000, 1_500
SESSIONS = 64
SIZED = 640
"""Appends from which the echo's sizes are taken: the mean ones."""
IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64)
RATIO_AT = 16
OVERHEAD_BAR, THROUGHPUT_BAR = 1.6, 0.7

ECHO, CALL, STREAM = "echo", "call", "stream"

Ask = Callable[[int], Awaitable[None]]
Call = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True)
class Row:
    """`engine` with `in_flight` requests at once: times in µs, `per_s` requests a second, over `n` requests."""

    work: str
    engine: str
    in_flight: int
    p50_us: float
    p90_us: float
    p99_us: float
    per_s: float
    n: int


class Load:
    """Closed-loop load: `in_flight` workers, each with the next request as soon as its last is answered."""

    def __init__(self, asks: dict[str, Ask]) -> None:
        self._asks = asks

    async def compare(self, in_flight: int, rounds: int, block_s: float) -> list[Row]:
        times: dict[str, list[float]] = {name: [] for name in self._asks}
        spent = dict.fromkeys(self._asks, 0.0)
        for _ in range(rounds):
            for name, ask in self._asks.items():
                begun = perf_counter()
                times[name] += await self._block(ask, in_flight, begun + block_s)
                spent[name] += perf_counter() - begun
        return [_row(name, in_flight, times[name], spent[name]) for name in self._asks]

    @staticmethod
    async def _block(ask: Ask, in_flight: int, until: float) -> list[float]:
        times: list[float] = []

        async def work(worker: int) -> None:
            while (begun := perf_counter()) < until:
                await ask(worker)
                times.append(perf_counter() - begun)

        await asyncio.gather(*(work(worker) for worker in range(in_flight)))
        return times


def _row(name: str, in_flight: int, times: list[float], seconds: float) -> Row:
    cuts = statistics.quantiles(times, n=100)
    p50, p90, p99 = (round(cuts[at] * 1e6, 1) for at in (49, 89, 98))
    return Row("append", name, in_flight, p50, p90, p99, round(len(times) / seconds, 1), len(times))


class Appends:
    """Sessions of `CONTEXT_CHARS` that grow by `DELTA_CHARS` a call, and start over once they have doubled.

    Requests are put together from serialized parts and answers are left as bytes: client and server share the cores,
    and the echo's client does no more.
    """

    def __init__(self, channel: grpc.aio.Channel, source: str) -> None:
        self._stub: Any = TokenizerServiceStub(channel)  # type: ignore[no-untyped-call]
        self.call: Any = channel.unary_unary(path_of_method("Append"))
        self._source, self._next = source, 0
        deltas = [source[at : at + DELTA_CHARS] for at in range(0, len(source) - DELTA_CHARS, DELTA_CHARS)]
        self._deltas = [(text, pb.AppendRequest(delta=text).SerializeToString()) for text in deltas]
        self._sessions = [pb.AppendRequest(session=f"s{worker}").SerializeToString() for worker in range(SESSIONS)]
        self._parts: dict[int, list[str]] = {}

    async def open(self, worker: int) -> None:
        start = worker * 997 % 50_000
        text = self._source[start : start + CONTEXT_CHARS]
        await self._stub.OpenSession(pb.OpenSessionRequest(session=f"s{worker}", text=text))
        self._parts[worker] = [text]

    def by(self, call: Call) -> Ask:
        async def ask(worker: int) -> None:
            await self.append(worker, call)

        return ask

    async def append(self, worker: int, call: Call) -> tuple[int, int]:
        """Bytes of the request and of its answer."""
        self._next = (self._next + 1) % len(self._deltas)
        delta, data = self._deltas[self._next]
        request = self._sessions[worker] + data
        answer = await call(request)
        self._parts[worker].append(delta)
        return len(request), len(answer)

    async def trim(self) -> None:
        for worker, parts in self._parts.items():
            if len(parts) * DELTA_CHARS > CONTEXT_CHARS:
                await self.open(worker)

    async def check(self, reference: Reference) -> int:
        for worker, parts in self._parts.items():
            text = "".join(parts)
            answer = await self._stub.GetSession(pb.GetSessionRequest(session=f"s{worker}", include_ids=True))
            if ids_of(answer.ids).tobytes() != reference.encode(text).tobytes():
                raise Unequal(f"session {worker} of {len(text):,} characters")
        return len(self._parts)


async def measure(ports: dict[str, Any], rounds: int, block_s: float, console: Console) -> tuple[list[Row], int]:
    source = plain_text(2_000_000, 21)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{ports['tier']}") as tier,
        grpc.aio.insecure_channel(f"127.0.0.1:{ports['echo']}") as echo,
    ):
        appends = Appends(tier, source)
        for worker in range(SESSIONS):
            await appends.open(worker)
        sizes = [await appends.append(at % SESSIONS, appends.call) for at in range(SIZED)]
        asked, answered = (round(statistics.mean(side)) for side in zip(*sizes, strict=True))
        payload = answered.to_bytes(4, "little") + bytes(asked - 4)
        call: Any = echo.unary_unary(ECHO_METHOD)
        client = AsyncTierClient("", channel=tier)

        async def ask_echo(worker: int) -> None:
            await call(payload)

        def multiplexed(request: bytes) -> Awaitable[bytes]:
            return client.ask("Append", request)

        load = Load({ECHO: ask_echo, CALL: appends.by(appends.call), STREAM: appends.by(multiplexed)})
        await load.compare(4, 1, block_s)  # warm-up
        rows: list[Row] = []
        for in_flight in IN_FLIGHT:
            console.log(f"{in_flight} in flight")
            await appends.trim()
            rows += await load.compare(in_flight, rounds, block_s)
        console.log("comparing with the reference")
        data = path_of(FAMILY).read_bytes()
        checked = await appends.check(Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)))
        await client.close()
    return rows, checked


def bars(rows: list[Row]) -> list[tuple[str, str, float, bool]]:
    """The bars are for calls as `AsyncTierClient` makes them; calls by themselves are told beside them."""
    by = {(row.engine, row.in_flight): row for row in rows}
    found = []
    for engine, what in ((STREAM, ""), (CALL, ", a call each")):
        overhead = by[engine, 1].p50_us / by[ECHO, 1].p50_us
        throughput = by[engine, RATIO_AT].per_s / by[ECHO, RATIO_AT].per_s
        found += [
            (
                f"P50 of Append over the echo, one in flight{what}",
                f"≤ {OVERHEAD_BAR}×",
                overhead,
                overhead <= OVERHEAD_BAR,
            ),
            (
                f"requests/s over the echo's, {RATIO_AT} in flight{what}",
                f"≥ {THROUGHPUT_BAR}×",
                throughput,
                throughput >= THROUGHPUT_BAR,
            ),
        ]
    return found


def show(rows: list[Row], checked: int, console: Console) -> None:
    table = Table(title=f"Append of {DELTA_CHARS:,} characters to sessions of 100 to 200 K, {checked} sessions checked")
    for column in ("in flight", "engine", "P50 µs", "P90 µs", "P99 µs", "requests/s", "n"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = (f"{value:,.0f}" for value in (row.p50_us, row.p90_us, row.p99_us, row.per_s, row.n))
        table.add_row(str(row.in_flight), row.engine, *figures)
    console.print(table)
    for name, required, measured, passed in bars(rows):
        console.print(f"{name}: {required}, measured {measured:.2f}×, {'pass' if passed else 'fail'}", highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m service_bench")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--block-s", type=float, default=0.5)
    parser.add_argument("--compiled-dir", type=Path, default=default_cache_dir() / "compiled")
    options = parser.parse_args()
    output = options.out / "bench-service.json"
    output.unlink(missing_ok=True)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    command = [sys.executable, "-m", "service_bench.server", FAMILY, str(options.compiled_dir), "10"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ports = json.loads(server.stdout.readline() or "null")
            if ports is None:
                console.print("the server didn't start")
                return 1
            log = Console(stderr=True, log_path=False)
            rows, checked = asyncio.run(measure(ports, options.rounds, options.block_s, log))
        except Unequal as error:
            console.print(f"[bold red]nothing measured is shown: other IDs than the reference:[/] {error}")
            return 1
        finally:
            assert server.stdin is not None
            server.stdin.close()
    found = [
        {"bar": name, "required": required, "measured": round(measured, 3), "passed": passed}
        for name, required, measured, passed in bars(rows)
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    document = {
        "rows": [asdict(row) for row in rows],
        "bars": found,
        "sessions_checked": checked,
        "delta_chars": DELTA_CHARS,
        "context_chars": CONTEXT_CHARS,
        "cores": os.cpu_count(),
    }
    output.write_text(json.dumps(document, indent=1) + "\n")
    show(rows, checked, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
