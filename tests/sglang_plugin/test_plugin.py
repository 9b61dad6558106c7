"""The plugin's edge: settings, what is imported when, and that nothing is wrapped where it shouldn't be."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from toktier_sglang.asking import Sent
from toktier_sglang.counts import LOG_EVERY_S, Counts
from toktier_sglang.own import Call
from toktier_sglang.plugin import register
from toktier_sglang.reasons import Off, Own, PluginOff
from toktier_sglang.settings import PluginSettings, TlsFiles, read_settings

ROOT = Path(__file__).parents[2]


def test_without_an_address_there_are_no_settings() -> None:
    assert read_settings({}) is None
    assert read_settings({"TOKTIER_ADDRESS": " ", "TOKTIER_TIMEOUT_MS": "nonsense"}) is None


def test_tls_is_on_where_an_authority_is_named() -> None:
    told = {"TOKTIER_ADDRESS": "tier:1", "TOKTIER_TLS_CA": "ca.pem"}
    found = read_settings(told | {"TOKTIER_TLS_CERT": "c", "TOKTIER_TLS_KEY": "k", "TOKTIER_TLS_NAME": "tier"})
    assert found is not None
    assert found.tls == TlsFiles("ca.pem", "c", "k", "tier")
    with pytest.raises(PluginOff, match="TOKTIER_TLS_KEY"):
        read_settings(told | {"TOKTIER_TLS_CERT": "c"})


def test_settings_are_read_in_their_units() -> None:
    assert read_settings({"TOKTIER_ADDRESS": "unix:/run/toktier.sock"}) == PluginSettings("unix:/run/toktier.sock")
    told = {
        "TOKTIER_ADDRESS": "tier:50051",
        "TOKTIER_MODEL": "qwen",
        "TOKTIER_TIMEOUT_MS": "80",
        "TOKTIER_MIN_CHARS": "10",
        "TOKTIER_TOKEN_FILE": "/token",
        "TOKTIER_SHADOW_RATE": "0.5",
        "TOKTIER_MEMORY_MB": "2",
    }
    found = read_settings(told)
    assert found == PluginSettings("tier:50051", "qwen", 0.08, 10, "/token", 0.5, 2 << 20)
    assert found is not None
    assert found.deadline_s(1_000_000) == pytest.approx(1.08)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKTIER_TIMEOUT_MS", "0"),
        ("TOKTIER_TIMEOUT_MS", "soon"),
        ("TOKTIER_MIN_CHARS", "-1"),
        ("TOKTIER_SHADOW_RATE", "1.5"),
        ("TOKTIER_SHADOW_RATE", "nan"),
        ("TOKTIER_MEMORY_MB", "inf"),
    ],
)
def test_a_setting_that_cant_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(PluginOff, match=name) as caught:
        read_settings({"TOKTIER_ADDRESS": "tier:1", name: value})
    assert caught.value.code is Off.SETTINGS


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "tier"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() + done.stderr.strip()


def test_without_an_address_registering_imports_nothing() -> None:
    program = (
        "import sys; from toktier_sglang.plugin import register; register(); print({'grpc', 'numpy'} & {*sys.modules})"
    )
    assert run(program) == "set()"


def test_in_a_process_without_sglang_it_says_so_and_goes_on() -> None:
    program = "from toktier_sglang.plugin import register; register()"
    assert f"[{Off.SGLANG.value}]" in run(program, TOKTIER_ADDRESS="tier:1")
    assert f"[{Off.SETTINGS.value}]" in run(program, TOKTIER_ADDRESS="tier:1", TOKTIER_MIN_CHARS="few")


def test_it_brings_the_client_along_and_nothing_else_of_the_tier() -> None:
    program = (
        "import sys, toktier_sglang.bridge;"
        "print(*sorted({name for name in sys.modules if name.startswith('toktier_tier.')}), sep='\\n');"
        "print(*sorted({'tokenizers', 'httpx', 'starlette', 'opentelemetry', 'yaml', 'jinja2'} & {*sys.modules}))"
    )
    whole = ("", "core", "engine", "transport", "transport.interface", "transport.status")
    allowed = ("client", "core.errors", "core.values", "engine.breaker", "transport.v1", "transport.messages")
    for name in run(program).splitlines():
        part = name.removeprefix("toktier_tier.")
        assert part in whole or part.startswith(allowed), name


def test_sglang_finds_the_entry_point() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    value = told["project"]["entry-points"]["sglang.srt.plugins"]["toktier-sglang"]
    assert EntryPoint("toktier-sglang", value, "sglang.srt.plugins").load() is register


def test_a_line_a_minute_tells_of_doubts_and_of_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    counts = Counts(clock=lambda: now[0])
    for _ in range(100):
        counts.by_own(Call.TEXT, Own.SHORT)
        counts.by_tier(Call.TEXT, Sent("append", 5), 100, 0.001)
    assert caplog.records == []
    for _ in range(3):
        counts.by_own(Call.CHAT, Own.LATE)
    assert [record.getMessage() for record in caplog.records] == [
        "TokTier: tokenized by SGLang itself since the last such line: tier.late 1"
    ]
    now[0] = LOG_EVERY_S
    counts.by_own(Call.CHAT, Own.BREAKER)
    assert caplog.records[-1].getMessage().endswith("tier.breaker_open 1, tier.late 2")
    assert len(caplog.records) == 2
    assert counts.requests["chat", "own", "tier.late"] == 3
    assert counts.chars == {"text": 10_000, "sent": 500}
