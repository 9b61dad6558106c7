"""The HTTP port: uvicorn, with TLS that follows its files, client certificates told to the routes, slow heads cut off.

uvicorn waits for a request's head without end; here a new connection has `head_s` to bring one, and an idle one from
its first byte on. Bodies have their time in `http_admission`, answers in the engine's timeouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .http_admission import NAMES_STATE
from .tls import ServerTls, client_names

_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class PortBounds:
    """connections: beyond them, requests are answered with 503 at once
    head_bytes, head_s: of a request's line and headers
    keep_alive_s: how long a connection stays open without a request; longer than load balancers keep theirs
    stop_s: how long requests have to end once the server is told to
    """

    connections: int = 8_192
    head_bytes: int = 64 << 10
    head_s: float = 30.0
    keep_alive_s: int = 75
    stop_s: int = 10


def http_server(app: Any, host: str, port: int, bounds: PortBounds, tls: ServerTls | None = None) -> HttpPort:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_protocol(bounds.head_s),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        limit_concurrency=bounds.connections,
        h11_max_incomplete_event_size=bounds.head_bytes,
        timeout_keep_alive=bounds.keep_alive_s,
        timeout_graceful_shutdown=bounds.stop_s,
    )
    config.load()
    if tls is not None:
        config.ssl = tls.context()
    return HttpPort(config)


class HttpPort(uvicorn.Server):
    """Without signal handlers of its own, which would end the process before the rest of the tier has ended."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def retire(self) -> None:
        """Serve on, but end each connection with its next answer, told by `Connection: close`: whoever comes again
        connects anew, elsewhere. Idle connections stay open: to close them would cross requests on their way.
        """
        self.config.encoded_headers = [*self.config.encoded_headers, _CLOSE]
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]

    def end(self) -> None:
        self.should_exit = True


def _protocol(head_s: float) -> type[asyncio.Protocol]:
    class Protocol(_Protocol):
        limit_s = head_s

    return Protocol


class _Protocol(H11Protocol):
    limit_s: float
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        names = client_names(connection.getpeercert()) if connection is not None else None
        self.app_state = {**self.app_state, NAMES_STATE: names}
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """For a whole head, unless a request is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.limit_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
