"""A tier and its operator, by the API server: what is quarantined, and what is reported."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog import path_of
from pods.kubernetes_api import CONFIG_MAPS, KubernetesApi
from servers import FAMILY, WholeTier
from toktier_tier import operated
from toktier_tier.admission.compiled import save
from toktier_tier.client import TierClient
from toktier_tier.core.errors import InvalidRequest
from toktier_tier.kubernetes.api import ApiServer
from toktier_tier.settings import KubernetesSettings, ShadowSettings, TokenizerSettings
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import compile_with, family_reference, family_rule, family_tier, sample_text

NAMES = KubernetesSettings("models", "t-control", "t-reports")


class Server:
    """An API server in a thread of its own, so that it answers while a tier's loop is busy."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.api = KubernetesApi(CONFIG_MAPS)
        self.run(self.api.start())
        self.run(self.api.hold("t-control", quarantined="[]"))
        self.run(self.api.hold("t-reports"))

    def run(self, work: Any) -> Any:
        found: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return found.result(30)

    def quarantine(self, *ids: str) -> None:
        self.run(self.api.hold("t-control", quarantined=json.dumps(ids)))

    def reports(self) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in self.api.slices["t-reports"]["data"].items()}

    def stop(self) -> None:
        self.run(self.api.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()
    url = found.api.url  # the address may come and go, but stays the same
    monkeypatch.setattr(ApiServer, "in_cluster", classmethod(lambda cls, environment: cls(url)))
    monkeypatch.setenv("POD_NAME", "t-0")
    yield found
    found.stop()


def until(true: Callable[[], bool], seconds: float = 15) -> float:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() < begun + seconds
        time.sleep(0.01)
    return time.monotonic() - begun


def tier(directory: Path, *, encoder: str = "", rate: float = 0.0) -> WholeTier:
    compiled = directory / "of-the-admission"
    made = compile_with(family_reference(FAMILY), family_rule(FAMILY), encoder) if encoder else None
    save(made or family_tier(FAMILY).compiled, compiled)
    tokenizer = TokenizerSettings(FAMILY, str(path_of(FAMILY)), admission="a-2", compiled_dir=str(compiled))
    return WholeTier(
        directory,
        tokenizers=(tokenizer,),
        unadmitted="refuse",
        kubernetes=NAMES,
        shadow=ShadowSettings(rate=rate, process=False),
    )


def test_what_the_operator_quarantines_goes_to_the_reference_within_a_second(server: Server, tmp_path: Path) -> None:
    found = tier(tmp_path).start()
    try:
        with TierClient(found.grpc) as client:
            session = client.open("s", "Hello")
            (snapshot,) = client.snapshots()
            assert (snapshot.admission, snapshot.quarantined) == ("a-2", False)
            server.quarantine("a-1", "b-2")
            assert found.tier.operated is not None
            control = found.tier.operated.control
            until(lambda: control is not None and "a-1" in control.known)
            assert not client.snapshots()[0].quarantined
            server.quarantine("a-1", "a-2")
            assert until(lambda: client.snapshots()[0].quarantined) < 1
            session.append(" there")
            assert session.ids.tolist() == family_tier(FAMILY).ids("Hello there")
            server.quarantine()  # nothing is lifted in a running pod
            time.sleep(0.3)
            assert client.snapshots()[0].quarantined
        assert server.reports() == {}  # it found nothing by itself
        page = found.page()
        assert 'toktier_operator_events{event="told",kind="control"' in page
        assert "toktier_queue_calls" in page
    finally:
        found.stop()


def test_what_is_quarantined_at_the_start_never_serves_by_a_fast_path(server: Server, tmp_path: Path) -> None:
    server.quarantine("a-2")
    found = tier(tmp_path)
    seen: list[bool] = []
    found.tier._on_ready = lambda: seen.append(next(iter(found.tier.loaded.registry)).tokenizer.quarantined)
    try:
        found.start()
        assert seen == [True]
    finally:
        found.stop()


def test_an_api_server_that_is_away_at_the_start_keeps_the_pod_only_for_a_while(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operated.Operated.join, "__kwdefaults__", {"first_list_s": 0.5})
    server.quarantine("a-2")
    server.run(server.api.stop())
    found = tier(tmp_path)
    try:
        found.start()
        assert httpx.get(f"http://{found.http}/ready", trust_env=False).json() == {"ready": True}
        assert not found.served.tokenizer.quarantined
        server.run(server.api.start())
        until(lambda: found.served.tokenizer.quarantined, 5)
    finally:
        found.stop()


def test_wrong_ids_are_reported_once_and_without_text(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKTIER_ALLOW_FAULTS", "1")
    monkeypatch.setenv("TOKTIER_FAULT_RATE", "0.3")
    found = tier(tmp_path, encoder="gigatoken", rate=1.0).start()
    try:
        with TierClient(found.grpc) as client:
            until(lambda: client.encode("some text to be encoded") is not None and found.served.tokenizer.quarantined)
        until(lambda: bool(server.reports()))
        ((key, report),) = server.reports().items()
        assert key == "t-0.a-2"
        at = report.pop("at")
        assert (len(at), at[-1]) == (len("2026-01-01T00:00:00.000Z"), "Z")
        digest, chars, position = (report.pop(name) for name in ("digest", "text_chars", "position"))
        assert (len(digest), chars) == (64, len("some text to be encoded"))
        assert 0 <= position <= len(family_tier(FAMILY).ids("some text to be encoded"))
        assert report == {
            "id": "a-2",
            "pod": "t-0",
            "fingerprint": found.served.tokenizer.fingerprint,
            "kind": "shadow",
            "encoder": "gigatoken",
        }
        assert len(server.api.patches) == 1
        assert "some text" not in json.dumps(server.api.patches)
    finally:
        found.stop()


def test_a_failed_witness_is_reported(server: Server, tmp_path: Path) -> None:
    found = tier(tmp_path).start()
    try:
        with TierClient(found.grpc) as client:
            client.open("s", sample_text(3_000))
            ids = found.sessions._find(found.sessions._key("default", "s")).state.tail_ids
            ids.setflags(write=True)
            ids ^= 1  # as if a fast path had answered wrong before
            client.call(client._stub.Append, pb.AppendRequest(session="s", delta=" And on it goes."))
        until(lambda: bool(server.reports()))
        report = server.reports()["t-0.a-2"]
        assert (report["kind"], report["digest"], report["position"]) == ("witness", "", None)
    finally:
        found.stop()


def test_outside_of_kubernetes_such_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidRequest) as caught:
        WholeTier(tmp_path, kubernetes=NAMES)
    assert caught.value.code == "kubernetes.not_in_cluster"
