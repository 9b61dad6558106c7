"""Texts, session names and tokens are in no log, metric, span or error, whatever goes wrong."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from servers import Engine, OnThread, WholeTier, whole_tier
from toktier_tier.settings import SecuritySettings, UpstreamSettings
from toktier_tier.transport.interface import SERVICE
from toktier_tier.transport.v1 import toktier_pb2 as pb

CANARY = "kanarienvogel"
TOKEN = f"token-{CANARY}"
MESSAGE = {"role": "user", "content": f"{CANARY} naïve"}


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, spans: InMemorySpanExporter) -> Iterator[WholeTier]:
    directory = tmp_path_factory.mktemp("tier")
    tokens = directory / "tokens"
    tokens.write_text(f"{hashlib.sha256(TOKEN.encode()).hexdigest()} a\n")
    engine = OnThread(Engine().app)
    security, upstream = SecuritySettings(tokens=str(tokens)), UpstreamSettings(urls=(engine.url,))
    with whole_tier(directory, spans=spans, security=security, upstream=upstream) as found:
        yield found
    engine.stop()


def ask(server: WholeTier, method: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """Without a client library that would log the request itself."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        connection.request(method, path, body, {"authorization": f"Bearer {TOKEN}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def json_of(value: Any) -> bytes:
    return json.dumps(value).encode()


CHAT, TEXT = "/v1/chat/completions/render", "/generate"
REFUSED: list[tuple[str, bytes]] = [
    (CHAT, CANARY.encode()),
    (CHAT, b'{"messages": "' + CANARY.encode()),
    (CHAT, b'"' + CANARY.encode() + b'"'),
    (CHAT, b'{"x": "' + CANARY.encode() + b'\xff"}'),
    (CHAT, json_of({"messages": [{"role": "user", "content": f"{CANARY} \ud800"}]})),
    (CHAT, b'{"%b": 1, "%b": 2}' % (CANARY.encode(), CANARY.encode())),
    (CHAT, json_of({"messages": [{"role": CANARY, "content": CANARY}]})),
    (CHAT, json_of({"messages": [{"role": "user", "content": [{"type": CANARY}]}]})),
    (CHAT, json_of({"messages": [MESSAGE], "tools": [CANARY]})),
    (CHAT, json_of({"messages": [MESSAGE], "tool_choice": CANARY})),
    (CHAT, json_of({"messages": [MESSAGE], "chat_template_kwargs": {CANARY: CANARY}, "tools": CANARY})),
    ("/tokenize", json_of({"prompt": [CANARY, 5]})),
    ("/tokenize", json_of({"prompt": CANARY, "messages": [MESSAGE]})),
    ("/tokenize", json_of({"prompt": CANARY, "add_special_tokens": CANARY})),
    ("/detokenize", json_of({"tokens": [CANARY]})),
    ("/detokenize", json_of({"tokens": CANARY})),
    (f"/{CANARY}", b""),
]


def told_of(server: WholeTier, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter) -> str:
    """All that the tier tells to anybody but the caller, and not nothing."""
    assert caplog.records
    assert server.tier.telemetry._traces is not None
    server.tier.telemetry._traces.force_flush()
    assert {"tokenize", "find session"} & {span.name for span in spans.get_finished_spans()}
    parts = [server.page(), *(span.to_json() for span in spans.get_finished_spans())]
    formatter = logging.Formatter("%(name)s %(message)s")
    parts += [formatter.format(record) for record in caplog.records]  # with tracebacks
    parts += [repr((record.args, record.__dict__.get("extra"))) for record in caplog.records]
    return "\n".join(parts)


def test_nothing_that_goes_wrong_over_http_tells_of_texts(
    server: WholeTier, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    with caplog.at_level(logging.DEBUG):
        for path, body in REFUSED:
            status, told = ask(server, "POST", path, body, **{"x-toktier-session": CANARY})
            assert 400 <= status < 500, (path, body, told)
            assert CANARY not in told
        status, told = ask(server, "POST", CHAT, b"{}", authorization=f"Bearer wrong-{CANARY}")
        assert (status, CANARY in told) == (401, False)
        status, told = ask(server, "DELETE", f"/{CANARY}", b"", **{CANARY: CANARY})
        assert CANARY not in told
        for path in ("/v1/chat/completions", CHAT):
            for more in ({}, {"session_id": CANARY}, {"prompt_cache_key": CANARY * 50}):
                status, _ = ask(server, "POST", path, json_of({"messages": [MESSAGE], **more}))
                assert status == 200
        assert ask(server, "POST", TEXT, json_of({"text": CANARY}), **{"x-toktier-session": CANARY})[0] == 200
    assert CANARY not in told_of(server, caplog, spans)


def test_nothing_that_goes_wrong_over_grpc_tells_of_texts(
    server: WholeTier, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    requests: list[tuple[str, bytes]] = [
        ("Append", pb.AppendRequest(session=CANARY, delta=CANARY).SerializeToString()),
        ("OpenSession", pb.OpenSessionRequest(session=CANARY, text=CANARY).SerializeToString()),
        ("Append", pb.AppendRequest(session=CANARY, delta=CANARY).SerializeToString()),
        ("Append", pb.AppendRequest(session=CANARY, delta=CANARY, expected_revision=9).SerializeToString()),
        ("Append", pb.AppendRequest(session=CANARY * 80, delta=CANARY).SerializeToString()),
        ("Edit", pb.EditRequest(session=CANARY, start_chars=9, stop_chars=1, replacement=CANARY).SerializeToString()),
        ("Handoff", pb.HandoffRequest(session=CANARY, state=CANARY.encode()).SerializeToString()),
        ("Decode", pb.DecodeRequest(ids=CANARY.encode()[:12]).SerializeToString()),
        ("Append", b"\x12\x03\xed\xa0\x80" + CANARY.encode()),
        ("Encode", CANARY.encode()),
        ("GetSession", pb.GetSessionRequest(session=CANARY, include_ids=True).SerializeToString()),
    ]
    tokens = (("authorization", f"Bearer {TOKEN}"), (CANARY, CANARY), ("x-toktier-tenant", CANARY))
    failures = 0
    with caplog.at_level(logging.DEBUG), grpc.insecure_channel(server.grpc) as channel:
        for method, data in requests:
            for metadata in (tokens, (("authorization", f"Bearer x{CANARY}"),)):
                try:
                    channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=10, metadata=metadata)
                except grpc.RpcError as error:
                    failures += 1
                    found: Any = error
                    assert CANARY not in str(found.details())
                    assert CANARY not in repr(found.trailing_metadata())
    assert failures == 11 + 8
    assert CANARY not in told_of(server, caplog, spans)


def test_a_bug_of_ours_is_logged_by_type_and_place_only(
    server: WholeTier, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        try:
            raise ValueError(CANARY)
        except ValueError as error:
            raise KeyError(CANARY) from error

    for name in ("full_text", "append"):
        monkeypatch.setattr(server.sessions, name, broken)
    with caplog.at_level(logging.DEBUG), grpc.insecure_channel(server.grpc) as channel:
        status, told = ask(server, "POST", TEXT, json_of({"text": CANARY}))
        assert (status, json.loads(told)["error"]["code"]) == (500, "internal")
        with suppress(grpc.RpcError):
            request = pb.AppendRequest(session="s", delta=CANARY).SerializeToString()
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            channel.unary_unary(f"/{SERVICE}/Append")(request, timeout=10, metadata=metadata)
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(logged) == 2
    assert all("KeyError at broken:" in line and "; after ValueError at broken:" in line for line in logged)
    everything = told_of(server, caplog, spans)
    assert CANARY not in told + everything
    assert '"description": "KeyError"' in everything  # the span's status


def test_a_broken_token_file_is_logged_without_what_it_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(TOKEN.encode()).hexdigest()} a\n")
    with whole_tier(tmp_path, security=SecuritySettings(tokens=str(tokens))) as server, caplog.at_level(logging.DEBUG):
        tokens.write_text(f"{TOKEN} a\n")

        async def refresh() -> None:
            server.tier.security.refresh()

        server.run(refresh())
        assert any("tokens.malformed" in record.getMessage() for record in caplog.records)
        assert CANARY not in caplog.text + server.page()
