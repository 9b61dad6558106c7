"""A tier as its settings describe it: started as a process, asked over both addresses, ended by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog import path_of
from toktier_tier.admission.compiled import save
from toktier_tier.client import TierClient
from toktier_tier.settings import load_settings
from workshop import compile_with, family_reference, family_rule, family_tier

FAMILY = "gpt2-novelai"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


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


def wait_until_ready(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).json() == {"ready": True}
            return
        except httpx.TransportError:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_tier_serves_until_it_is_told_to_stop(tmp_path: Path, compiled_dir: Path) -> None:
    grpc, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(compiled_dir),
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY)), "models": ["a/model"]}],
        "shadow": {"rate": 1.0, "samples": str(tmp_path / "samples")},
    }
    process = start(settings, tmp_path)
    try:
        wait_until_ready(process, http)
        tier = family_tier(FAMILY)
        with TierClient(f"127.0.0.1:{grpc}", model="a/model") as client:
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


def test_wrong_ids_that_are_planted_are_found_and_served_right_from_then_on(tmp_path: Path, compiled_dir: Path) -> None:
    served = tmp_path / "compiled"
    save(compile_with(family_reference(FAMILY), family_rule(FAMILY), "gigatoken"), served)
    grpc, http = free_port(), free_port()
    settings = {
        "grpc": f"127.0.0.1:{grpc}",
        "http": f"127.0.0.1:{http}",
        "compiled_dir": str(served),
        "tokenizers": [{"name": FAMILY, "source": str(path_of(FAMILY))}],
        "shadow": {"rate": 1.0, "samples": str(tmp_path / "samples"), "fault_rate": 0.2},
    }
    process = start(settings, tmp_path, TOKTIER_ALLOW_FAULTS="1")
    try:
        wait_until_ready(process, http)
        tier = family_tier(FAMILY)
        with TierClient(f"127.0.0.1:{grpc}") as client:
            until = time.monotonic() + 30
            while not client.snapshots()[0].quarantined:
                assert time.monotonic() < until
                client.encode("some text to be encoded")
            for number in range(100):
                assert client.encode(f"text number {number}").tolist() == tier.ids(f"text number {number}")
        (sample,) = (tmp_path / "samples").iterdir()
        assert "some text" not in sample.read_text()
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


def test_the_example_is_read_as_it_stands() -> None:
    settings = load_settings(Path(__file__).parents[1] / "examples" / "tier.yaml")
    assert [each.name for each in settings.tokenizers] == ["qwen3"]
    assert settings.upstream.urls == ()
