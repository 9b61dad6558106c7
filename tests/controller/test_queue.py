"""The guarantees of `handlers.queue`, each by its number there."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import generate_latest

from toktier_operator.cluster.errors import Conflict, Unavailable
from toktier_operator.cluster.kinds import TOKTIER
from toktier_operator.handlers.metrics import Metrics
from toktier_operator.handlers.queue import Key, WorkQueue

A, B = Key(TOKTIER, "n", "a"), Key(TOKTIER, "n", "b")


@asynccontextmanager
async def running(reconcile: Callable[[Key], Awaitable[float | None]], **options: Any) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(reconcile, **options)
    task = asyncio.create_task(queue.run(grace_s=1.0))
    try:
        yield queue
    finally:
        queue.stop()
        await asyncio.wait_for(task, 5.0)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_key_that_is_named_often_is_looked_at_once() -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> None:
        seen.append(key)

    async def scenario() -> None:
        async with running(reconcile) as queue:
            for _ in range(100):
                queue.add(A)
            queue.add(B)
            await until(lambda: len(seen) == 2)
            await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert sorted(map(str, seen)) == [str(A), str(B)]


def test_a_key_is_never_looked_at_twice_at_once_and_again_if_it_was_named_meanwhile() -> None:
    active, most, runs = 0, 0, 0

    async def reconcile(key: Key) -> None:
        nonlocal active, most, runs
        active += 1
        most = max(most, active)
        runs += 1
        await asyncio.sleep(0.05)
        active -= 1

    async def scenario() -> None:
        async with running(reconcile) as queue:
            queue.add(A, 0.0)
            await until(lambda: active == 1)
            queue.add(A, 0.0)
            queue.add(A, 0.0)
            await until(lambda: runs == 2 and active == 0)
            await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert (most, runs) == (1, 2)


def test_no_more_than_the_workers_are_at_it() -> None:
    active, most, done = 0, 0, 0

    async def reconcile(key: Key) -> None:
        nonlocal active, most, done
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1
        done += 1

    async def scenario() -> None:
        async with running(reconcile, workers=3) as queue:
            for number in range(20):
                queue.add(Key(TOKTIER, "n", str(number)), 0.0)
            await until(lambda: done == 20)

    asyncio.run(scenario())
    assert most == 3


def test_errors_wait_ever_longer_and_a_success_forgets_them() -> None:
    times: list[float] = []

    async def reconcile(key: Key) -> None:
        times.append(time.monotonic())
        if len(times) < 6:
            raise RuntimeError("a defect")

    async def scenario() -> None:
        async with running(reconcile, first_wait_s=0.02, longest_wait_s=0.1) as queue:
            queue.add(A, 0.0)
            await until(lambda: len(times) == 6)
            await asyncio.sleep(0.2)
            assert len(times) == 6

    asyncio.run(scenario())
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    for wait_s, longest_s in zip(waits, [0.02, 0.04, 0.08, 0.1, 0.1], strict=True):
        assert longest_s / 2 <= wait_s < longest_s + 0.2


def test_what_the_server_asked_for_is_waited() -> None:
    times: list[float] = []

    async def reconcile(key: Key) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise Unavailable("too many requests", retry_after_s=0.3)

    async def scenario() -> None:
        async with running(reconcile, first_wait_s=0.01, longest_wait_s=1.0) as queue:
            queue.add(A, 0.0)
            await until(lambda: len(times) == 2)

    asyncio.run(scenario())
    assert times[1] - times[0] >= 0.3


def test_naming_a_key_that_failed_does_not_make_it_a_busy_loop() -> None:
    runs = 0

    async def reconcile(key: Key) -> None:
        nonlocal runs
        runs += 1
        raise Conflict("again")

    async def scenario() -> None:
        async with running(reconcile, first_wait_s=0.1) as queue:
            for _ in range(40):
                queue.add(A, 0.0)
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert 2 <= runs <= 9


def test_it_is_looked_at_again_when_the_reconcile_said_or_earlier_if_named() -> None:
    times: list[float] = []

    async def reconcile(key: Key) -> float | None:
        times.append(time.monotonic())
        return [0.15, 60.0, None][len(times) - 1]

    async def scenario() -> None:
        async with running(reconcile) as queue:
            queue.add(A, 0.0)
            await until(lambda: len(times) == 2)
            queue.add(A)
            await until(lambda: len(times) == 3, 1.0)

    asyncio.run(scenario())
    assert times[1] - times[0] >= 0.15


def test_nothing_is_begun_while_paused() -> None:
    runs = 0

    async def reconcile(key: Key) -> None:
        nonlocal runs
        runs += 1

    async def scenario() -> None:
        async with running(reconcile) as queue:
            queue.pause()
            queue.add(A, 0.0)
            await asyncio.sleep(0.1)
            assert runs == 0
            queue.pause(False)
            await until(lambda: runs == 1)

    asyncio.run(scenario())


def test_stopping_lets_begun_ones_finish_within_the_grace_and_cancels_the_others() -> None:
    ended: dict[str, str] = {}

    async def reconcile(key: Key) -> None:
        try:
            await asyncio.sleep(0.3 if key == A else 60.0)
            ended[key.name] = "finished"
        except asyncio.CancelledError:
            ended[key.name] = "cancelled"
            raise

    async def scenario() -> None:
        async with running(reconcile) as queue:
            queue.add(A, 0.0)
            queue.add(B, 0.0)
            await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert ended == {"a": "finished", "b": "cancelled"}


def test_metrics_tell_results_and_length() -> None:
    metrics = Metrics()
    runs = 0

    async def reconcile(key: Key) -> float | None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Conflict("again")
        return 60.0

    async def scenario() -> None:
        async with running(reconcile, first_wait_s=0.01, metrics=metrics) as queue:
            queue.add(A, 0.0)
            await until(lambda: runs == 2)
            await asyncio.sleep(0.05)

    asyncio.run(scenario())
    text = generate_latest(metrics.registry).decode()
    assert 'toktier_operator_reconciles_total{kind="TokTier",result="conflict"} 1.0' in text
    assert 'toktier_operator_reconciles_total{kind="TokTier",result="ok"} 1.0' in text
    assert "toktier_operator_queue_length 1.0" in text
