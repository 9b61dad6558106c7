"""A report gets through, once, however long that takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pods.kubernetes_api import CONFIG_MAPS, KubernetesApi, until
from toktier_tier.kubernetes.api import ApiServer
from toktier_tier.kubernetes.reports import Reports


@asynccontextmanager
async def reporting(api: KubernetesApi, token: Path | None = None) -> AsyncIterator[Reports]:
    if not api.port:
        await api.start()
    reports = Reports(ApiServer(api.url, token), "models", "t-reports", first_wait_s=0.02)
    running = asyncio.create_task(reports.run())
    try:
        yield reports
    finally:
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.stop()


def test_a_report_is_a_merge_patch_of_its_own_key(tmp_path: Path) -> None:
    async def talk() -> None:
        (tmp_path / "token").write_text("mine\n")
        api = KubernetesApi(CONFIG_MAPS)
        await api.hold("t-reports", **{"t-1.a-1": "theirs"})
        async with reporting(api, tmp_path / "token") as reports:
            reports.tell("t-0.a-1", {"id": "a-1", "position": 3, "text_chars": None})
            assert reports.pending == 1
            await until(lambda: reports.pending == 0)
            ((name, headers, document),) = api.patches
            assert (name, headers["content-type"], headers["fieldManager"], headers["authorization"]) == (
                "t-reports",
                "application/merge-patch+json",
                "toktier-tier",
                "Bearer mine",
            )
            assert list(document) == ["data"]
            assert list(document["data"]) == ["t-0.a-1"]
            assert json.loads(document["data"]["t-0.a-1"]) == {"id": "a-1", "position": 3, "text_chars": None}
            assert set(api.slices["t-reports"]["data"]) == {"t-0.a-1", "t-1.a-1"}

    asyncio.run(talk())


def test_of_one_key_only_the_first_is_sent() -> None:
    async def talk() -> None:
        api = KubernetesApi(CONFIG_MAPS)
        await api.hold("t-reports")
        async with reporting(api) as reports:
            for kind in ("witness", "shadow"):
                reports.tell("t-0.a-1", {"kind": kind})
            await until(lambda: reports.pending == 0)
            reports.tell("t-0.a-1", {"kind": "probe"})
            reports.tell("t-0.b-1", {"kind": "probe"})
            await until(lambda: len(api.patches) == 2)
            assert [document["data"] for _, _, document in api.patches] == [
                {"t-0.a-1": '{"kind":"witness"}'},
                {"t-0.b-1": '{"kind":"probe"}'},
            ]

    asyncio.run(talk())


def test_it_is_sent_until_it_got_through() -> None:
    async def talk() -> None:
        api = KubernetesApi(CONFIG_MAPS)
        await api.start()
        await api.stop()
        async with reporting(api) as reports:
            reports.tell("t-0.a-1", {"kind": "shadow"})
            await until(lambda: reports.counts["failed.ConnectError"] >= 2)
            await api.start()
            await until(lambda: reports.counts["failed.404"] >= 1)
            api.status = 403
            reports.tell("t-0.b-1", {"kind": "shadow"})  # one that isn't taken doesn't keep others back
            await until(lambda: reports.counts["failed.403"] >= 2)
            assert reports.pending == 2
            api.status = 200
            await api.hold("t-reports")
            await until(lambda: reports.pending == 0)
            assert sorted(api.slices["t-reports"]["data"]) == ["t-0.a-1", "t-0.b-1"]

    asyncio.run(talk())
