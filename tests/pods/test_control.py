"""What the operator quarantines is heard at once, and never taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pods.kubernetes_api import CONFIG_MAPS, KubernetesApi, until
from toktier_tier.kubernetes.api import ApiServer
from toktier_tier.kubernetes.control import Control, quarantined_ids


class Heard:
    def __init__(self, api: KubernetesApi, **more: Any) -> None:
        self.told: list[list[str]] = []
        self.control = Control(
            ApiServer(api.url), "models", "t-control", lambda ids: self.told.append(sorted(ids)), **more
        )


@asynccontextmanager
async def listening(api: KubernetesApi) -> AsyncIterator[Heard]:
    if not api.port:
        await api.start()
    heard = Heard(api, first_wait_s=0.02)
    running = asyncio.create_task(heard.control.run())
    try:
        yield heard
    finally:
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.stop()


def test_ids_are_told_once_when_they_appear_and_stay_told() -> None:
    async def talk() -> None:
        api = KubernetesApi(CONFIG_MAPS)
        await api.hold("t-control", quarantined='["a-1"]')
        await api.hold("other-control", quarantined='["b-1"]')
        async with listening(api) as heard:
            assert await heard.control.listed(10)
            assert heard.told == [["a-1"]]
            await until(lambda: bool(api.watching))
            begun = asyncio.get_running_loop().time()
            await api.hold("t-control", quarantined='["a-1", "a-2", "c-7"]')
            await until(lambda: len(heard.told) == 2)
            assert asyncio.get_running_loop().time() - begun < 1
            await api.hold("other-control", quarantined='["b-2"]')
            await api.hold("t-control", quarantined="[]")
            await api.drop("t-control")
            await api.hold("t-control", quarantined='["a-2", "a-3"]')
            await until(lambda: len(heard.told) == 3)
            assert heard.told == [["a-1"], ["a-2", "c-7"], ["a-3"]]
            assert heard.control.known == {"a-1", "a-2", "a-3", "c-7"}
            assert {each["fieldSelector"] for each in api.requests} == {"metadata.name=t-control"}

    asyncio.run(talk())


def test_without_a_config_map_nothing_is_quarantined_and_that_is_known() -> None:
    async def talk() -> None:
        async with listening(KubernetesApi(CONFIG_MAPS)) as heard:
            assert await heard.control.listed(10)
            assert heard.told == []

    asyncio.run(talk())


@pytest.mark.parametrize("nonsense", ['["a-1"', '{"a-1": 1}', "[1]", "[null]"])
def test_a_list_that_makes_no_sense_changes_nothing_until_there_is_a_better_one(nonsense: str) -> None:
    async def talk() -> None:
        api = KubernetesApi(CONFIG_MAPS)
        await api.hold("t-control", quarantined='["a-1"]')
        async with listening(api) as heard:
            await until(lambda: bool(api.watching))
            await api.hold("t-control", quarantined=nonsense)
            await until(lambda: sum(n for name, n in heard.control.counts.items() if "failed." in name) >= 2)
            assert heard.told == [["a-1"]]
            await api.hold("t-control", quarantined='["a-2"]')
            await until(lambda: heard.told == [["a-1"], ["a-2"]])

    asyncio.run(talk())


def test_a_server_that_is_away_at_the_start_is_heard_once_it_is_there() -> None:
    async def talk() -> None:
        api = KubernetesApi(CONFIG_MAPS)
        await api.hold("t-control", quarantined='["a-1"]')
        await api.start()
        await api.stop()
        async with listening(api) as heard:
            assert not await heard.control.listed(0.2)
            await api.start()
            assert await heard.control.listed(5)
            assert heard.told == [["a-1"]]

    asyncio.run(talk())


def test_what_stands_in_the_config_map_is_read() -> None:
    assert quarantined_ids(None) == quarantined_ids({}) == quarantined_ids({"data": None}) == frozenset()
    assert quarantined_ids({"data": {"other": "x"}}) == frozenset()
    assert quarantined_ids({"data": {"quarantined": json.dumps(["a-1", "a-1"])}}) == {"a-1"}
