"""The HTTP port against slow, large and odd senders; every refusal has its code, and nobody else waits for it."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from servers import WholeTier, rendered, whole_tier
from toktier_tier.settings import LimitSettings
from workshop import family_tier

LIMITS = LimitSettings(
    body_bytes=100_000,
    message_bytes=100_000,
    tenant_bytes=200_000,
    tenant_requests=4,
    body_s=1.5,
    ids_s=0.5,
    header_bytes=4_096,
    header_s=1.0,
    keep_alive_s=1,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeTier]:
    with whole_tier(tmp_path_factory.mktemp("tier"), limits=LIMITS, threads=1) as found:
        yield found


def connect(server: WholeTier) -> socket.socket:
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(path: str, length: int, *more: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}", *more, "", ""]).encode()


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def first(connection: socket.socket) -> str:
    """The body of the first answer, a short one."""
    received = b""
    while not received.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, received
        received += part
    return received.decode()


def answer(connection: socket.socket) -> tuple[int, str]:
    """(status, code) of the first answer."""
    top, _, body = first(connection).partition("\r\n\r\n")
    return int(top.split()[1]), json.loads(body)["error"]["code"]


def post(server: WholeTier, path: str, body: object) -> httpx.Response:
    return httpx.post(f"http://{server.http}{path}", json=body, trust_env=False, timeout=30)


@pytest.mark.parametrize("sent", [b"", b"POST /tokenize HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_a_head_that_does_not_come_ends_its_connection(server: WholeTier, sent: bytes) -> None:
    begun = time.monotonic()
    with connect(server) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""
    assert 0.5 < time.monotonic() - begun < 10


def test_a_head_that_trickles_in_ends_its_connection_also_on_one_that_was_used(server: WholeTier) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert "ok" in first(connection)
        begun = time.monotonic()
        with suppress(OSError):  # the other side has closed
            while time.monotonic() - begun < 10:
                connection.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - begun < 5


def test_a_connection_without_requests_is_closed_after_its_time(server: WholeTier) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert "ok" in first(connection)
        assert rest(connection) == b""


def test_a_body_that_trickles_in_is_refused_in_time_and_counts_as_none(server: WholeTier) -> None:
    with connect(server) as connection:
        connection.sendall(head("/tokenize", 1_000))
        begun = time.monotonic()
        while not select.select([connection], [], [], 0.05)[0]:
            assert time.monotonic() - begun < 10
            connection.sendall(b" ")
        assert answer(connection) == (408, "body.late")
    assert server.tier.security.limits.requests == 0


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server: WholeTier) -> None:
    with connect(server) as connection:
        connection.sendall(head("/tokenize", 100_001))
        assert answer(connection) == (413, "text.too_long")
    with connect(server) as connection:  # one that doesn't say how long it is
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 4)
        assert answer(connection) == (413, "text.too_long")


def test_a_head_beyond_the_limit_is_refused(server: WholeTier) -> None:
    with connect(server) as connection:
        connection.sendall(head("/tokenize", 0, *(f"x-{number}: {'y' * 900}" for number in range(9))))
        assert rest(connection).startswith(b"HTTP/1.1 400")


def test_bodies_beyond_the_tenants_budget_are_refused_with_the_time_to_come_again(server: WholeTier) -> None:
    held = [connect(server) for _ in range(2)]
    try:
        for connection in held:  # all but the last byte
            connection.sendall(head("/tokenize", 99_999) + b" " * 99_998)
        until = time.monotonic() + 1.2
        while server.tier.security.limits._loads["default"].bytes_ < 2 * 99_998:
            assert time.monotonic() < until
            time.sleep(0.005)
        refused = post(server, "/tokenize", {"prompt": "x" * 1_000})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "limits.tenant_bytes")
        assert refused.headers["retry-after"] == "1"
    finally:
        for connection in held:
            connection.close()
    until = time.monotonic() + 10
    while server.tier.security.limits.requests:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert server.tier.security.limits._loads["default"].bytes_ == 0
    assert post(server, "/tokenize", {"prompt": "x" * 1_000}).status_code == 200


def test_requests_beyond_the_tenants_bound_are_refused_but_health_is_told(server: WholeTier) -> None:
    held = [connect(server) for _ in range(4)]
    try:
        for connection in held:
            connection.sendall(head("/tokenize", 10))
        until = time.monotonic() + 1.2
        while server.tier.security.limits.requests < 4:
            assert time.monotonic() < until
            time.sleep(0.005)
        refused = post(server, "/tokenize", {"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "limits.tenant_requests")
        assert httpx.get(f"http://{server.http}/health", trust_env=False).status_code == 200
    finally:
        for connection in held:
            connection.close()


def test_a_request_whose_ids_take_too_long_is_told_so_and_was_never_run(server: WholeTier) -> None:
    free = threading.Event()

    async def hold() -> None:
        server.tier.work._pool.submit(free.wait, 30)

    server.run(hold())
    try:
        late = post(server, "/generate", {"text": "late " * 10_000})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "tier.late")
    finally:
        free.set()
    text = "in time " * 10_000
    answer = post(server, "/v1/chat/completions/render", {"messages": [{"role": "user", "content": text}]})
    assert answer.json()["token_ids"] == family_tier("gpt2-novelai").ids(rendered([{"role": "user", "content": text}]))
    assert len(server.sessions) == 1  # the first of all texts here that was long enough; the late one isn't there
