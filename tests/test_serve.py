"""A tier as its settings describe it: started as a process, asked over both addresses, ended by a signal."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from catalog import path_of
from certificates import Authority
from servers import WholeTier, free_port
from toktier_tier import serve
from toktier_tier.admission.compiled import save
from toktier_tier.client import TierClient, Tls
from toktier_tier.core.errors import EnvironmentFault
from toktier_tier.loading import Loaded, load
from toktier_tier.settings import TierSettings, load_settings
from toktier_tier.transport.interface import SERVICE
from toktier_tier.transport.status import Unauthenticated
from workshop import (
    byte_level,
    byte_telltale,
    compile_with,
    family_reference,
    family_rule,
    family_tier,
    normalizers,
    replace,
    tokenizer_json,
)

FAMILY = "gpt2-novelai"


@pytest.fixture(scope="module")
def compiled_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Admission takes longer than a test: what the other tests compile by hand is put in its place."""
    directory = tmp_path_factory.mktemp("compiled")
    save(family_tier(FAMILY).compiled, directory)
    return directory


def start(settings: dict[str, Any], directory: Path, **environment: str) -> subprocess.Popen[str]:
    path = directory / "tier.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    command = [sys.executable, "-m", "toktier_tier", "serve", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def wait_until_ready(process: subprocess.Popen[str], port: int, verify: ssl.SSLContext | bool = True) -> None:
    url = f"{'http' if verify is True else 'https'}://127.0.0.1:{port}"
    until = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}/ready", trust_env=False, verify=verify).json() == {"ready": True}:
                return
        except httpx.TransportError:
            pass
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_tier_serves_until_it_is_told_to_stop(tmp_path: Path, compiled_dir: Path) -> None:
    grpc_port, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc_port}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(compiled_dir),
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY)), "models": ["a/model"]}],
        "shadow": {"rate": 1.0, "samples": str(tmp_path / "samples")},
    }
    process = start(settings, tmp_path)
    try:
        wait_until_ready(process, http)
        tier = family_tier(FAMILY)
        with TierClient(f"127.0.0.1:{grpc_port}", model="a/model") as client:
            session = client.open("s", "Hello")
            session.append(" there, you")
            assert session.ids.tolist() == tier.ids("Hello there, you")
        answer = httpx.post(f"http://127.0.0.1:{http}/tokenize", json={"prompt": "Hello"}, trust_env=False)
        assert answer.json()["tokens"] == tier.ids("Hello")
        page = httpx.get(f"http://127.0.0.1:{http}/metrics", trust_env=False).text
        assert re.search(r'toktier_tokenize_duration_seconds_count\{.*method="Append".*\} 1', page)
        assert re.search(r'toktier_sessions\{.*tokenizer="gpt2-novelai".*\} 1', page)
        assert re.search(r'toktier_shadow_samples\{.*outcome="diverged".*\} 0', page)
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in told


def test_a_file_that_is_refused_is_told_by_name_and_the_others_are_served(tmp_path: Path, compiled_dir: Path) -> None:
    bombs = normalizers(*[replace("a", "a" * 10)] * 8)
    bad = tmp_path / "bad.json"
    bad.write_bytes(tokenizer_json(byte_telltale("ab"), normalizer=bombs, pre_tokenizer=byte_level()))
    grpc_port, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc_port}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(compiled_dir),
        "tokenizers": [{"name": "bad", "source": str(bad)}, {"name": "good", "source": str(path_of(FAMILY))}],
    }
    process = start(settings, tmp_path)
    try:
        wait_until_ready(process, http)
        answers = {
            name: httpx.post(
                f"http://127.0.0.1:{http}/tokenize", json={"prompt": "Hello", "model": name}, trust_env=False
            )
            for name in ("good", "bad")
        }
        assert answers["good"].json()["tokens"] == family_tier(FAMILY).ids("Hello")
        assert answers["bad"].status_code == 404
        assert "snapshot.refused" in answers["bad"].text
        assert "tokenizer.text_growth" in answers["bad"].text
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "tokenizer bad isn't served: [tokenizer.text_growth]" in told


def test_wrong_ids_that_are_planted_are_found_and_served_right_from_then_on(tmp_path: Path, compiled_dir: Path) -> None:
    served = tmp_path / "compiled"
    save(compile_with(family_reference(FAMILY), family_rule(FAMILY), "gigatoken"), served)
    grpc_port, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc_port}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(served),
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY))}],
        "shadow": {"rate": 1.0, "samples": str(tmp_path / "samples"), "fault_rate": 0.2},
    }
    process = start(settings, tmp_path, TOKTIER_ALLOW_FAULTS="1")
    try:
        wait_until_ready(process, http)
        tier = family_tier(FAMILY)
        with TierClient(f"127.0.0.1:{grpc_port}") as client:
            until = time.monotonic() + 30
            while not client.snapshots()[0].quarantined:
                assert time.monotonic() < until
                client.encode("some text to be encoded")
            for number in range(100):
                assert client.encode(f"text number {number}").tolist() == tier.ids(f"text number {number}")
        samples = list((tmp_path / "samples").iterdir())  # those that were waiting are found too
        assert samples
        assert all("some text" not in sample.read_text() for sample in samples)
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert "quarantined" in told
    assert "some text" not in told


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"tokenizers": []}, "settings.value"),
        ({"tokenizers": [{"name": "a", "source": "/no/such/file"}]}, "source."),
        ({"tokenizers": [{"name": "a", "source": "x"}], "nonsense": 1}, "settings.unknown_key"),
        (
            {"tokenizers": [{"name": "a", "source": str(path_of(FAMILY))}], "shadow": {"fault_rate": 0.1}},
            "faults.not_allowed",
        ),
    ],
)
def test_settings_that_cannot_be_served_end_the_process_with_their_code(
    settings: dict[str, Any], code: str, tmp_path: Path, compiled_dir: Path
) -> None:
    process = start({"compiled_dir": str(compiled_dir), **settings}, tmp_path)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert code in told


def test_both_addresses_tell_that_the_tier_is_not_ready_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def slow(settings: TierSettings) -> Loaded:
        loading.set()
        assert go_on.wait(60)
        return load(settings)

    monkeypatch.setattr(serve, "load", slow)
    server = WholeTier(tmp_path)
    starting = asyncio.run_coroutine_threadsafe(server.tier.start(), server._loop)
    try:
        assert loading.wait(30)
        assert server.tier.grpc is not None
        address = f"127.0.0.1:{server.tier.grpc.port}"

        def health() -> int:
            with grpc.insecure_channel(address) as channel:
                request = health_pb2.HealthCheckRequest(service=SERVICE)
                return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status)

        with httpx.Client(base_url=f"http://{server.http}", trust_env=False) as web, TierClient(address) as client:
            assert web.get("/health").status_code == 200
            assert (web.get("/ready").status_code, web.get("/ready").json()) == (503, {"ready": False})
            answer = web.post("/tokenize", json={"prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "tier.starting")
            assert answer.headers["retry-after"] == "1"
            assert health() == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(EnvironmentFault) as caught:
                client.encode("x")
            assert caught.value.code == "tier.starting"
            go_on.set()
            starting.result(60)
            assert web.get("/ready").json() == {"ready": True}
            assert health() == health_pb2.HealthCheckResponse.SERVING
            assert client.encode("x").tolist() == family_tier(FAMILY).ids("x")
    finally:
        go_on.set()
        server.stop()


def test_a_tier_that_still_admits_its_tokenizers_ends_when_it_is_told_to(tmp_path: Path) -> None:
    http = free_port()
    settings = {
        "grpc": f"127.0.0.1:{free_port()}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(tmp_path / "compiled"),  # none there: admission begins
        "admission_s": 120,
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY))}],
    }
    process = start(settings, tmp_path)
    try:
        until = time.monotonic() + 60
        while True:
            assert process.poll() is None
            assert time.monotonic() < until
            with suppress(httpx.TransportError):
                assert httpx.get(f"http://127.0.0.1:{http}/health", trust_env=False).status_code == 200
                break
            time.sleep(0.1)
        assert httpx.get(f"http://127.0.0.1:{http}/ready", trust_env=False).status_code == 503
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in told


def test_a_tier_with_tls_and_tokens_reads_them_again_when_it_is_told_to(tmp_path: Path, compiled_dir: Path) -> None:
    authority = Authority()
    issued = authority.issue("tier")
    for name, data in (("ca", authority.certificate), ("crt", issued.certificate), ("key", issued.key)):
        (tmp_path / name).write_bytes(data)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'one').hexdigest()} a\n")
    grpc_port, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc_port}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(compiled_dir),
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY))}],
        "security": {
            "tokens": str(tokens),
            "tls": {"certificate": str(tmp_path / "crt"), "key": str(tmp_path / "key")},
        },
    }
    process = start(settings, tmp_path)
    try:
        wait_until_ready(process, http, ssl.create_default_context(cafile=str(tmp_path / "ca")))
        address, tls = f"127.0.0.1:{grpc_port}", Tls(ca=tmp_path / "ca")
        with TierClient(address, token="one", tls=tls) as one, TierClient(address, token="two", tls=tls) as two:
            one.encode("x")
            tokens.write_text(f"{hashlib.sha256(b'two').hexdigest()} a\n")
            process.send_signal(signal.SIGHUP)
            until = time.monotonic() + 20
            while True:
                assert time.monotonic() < until
                with suppress(Unauthenticated):
                    two.encode("x")
                    break
            with pytest.raises(Unauthenticated):
                one.encode("x")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"security": {"tokens": "/no/such/file"}}, "tokens.unreadable"),
        ({"security": {"anonymous_tenant": "two words"}}, "auth.bad_tenant"),
        ({"upstream": {"urls": ["http://127.0.0.1:1"], "api_key_file": "/no/such/file"}}, "settings.api_key"),
        ({"security": {"tls": {"certificate": "/no/such/file", "key": "/no/such/file"}}}, "tls.unreadable"),
        ({"http": "192.0.2.1:1"}, "http.address"),
        ({"grpc": "192.0.2.1:1"}, "grpc.address"),
    ],
)
def test_credentials_and_addresses_that_cannot_be_used_end_the_process_with_their_code(
    change: dict[str, Any], code: str, tmp_path: Path, compiled_dir: Path
) -> None:
    tokenizers = [{"name": FAMILY, "source": str(path_of(FAMILY))}]
    addresses = {"grpc": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
    process = start({"compiled_dir": str(compiled_dir), "tokenizers": tokenizers, **addresses, **change}, tmp_path)
    _, told = process.communicate(timeout=60)
    assert code in told
    assert process.returncode == 2


def test_the_example_is_read_as_it_stands() -> None:
    settings = load_settings(Path(__file__).parents[1] / "examples" / "tier.yaml")
    assert [each.name for each in settings.tokenizers] == ["qwen3"]
    assert settings.upstream.urls == ()
