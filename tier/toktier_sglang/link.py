"""The tier's gRPC calls, each with a deadline, from any thread.

Every failure is one of the tier's coded errors: `EnvironmentFault` (`grpc.*`) where the tier isn't reached in time.
The channel is opened by the first call, in the process that makes it, and finds a restarted tier within seconds.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import grpc

from toktier_tier.client import Tls, requests
from toktier_tier.core.errors import EnvironmentFault
from toktier_tier.transport.messages import MESSAGE_LIMITS
from toktier_tier.transport.status import error_of
from toktier_tier.transport.v1.toktier_pb2_grpc import TokenizerServiceStub

from .settings import TlsFiles

OPTIONS = (
    *MESSAGE_LIMITS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 60_000),
)


class Link:
    """`call("Append", request, deadline_s)`. The token file, if any, is read again whenever it has changed."""

    def __init__(self, address: str, token_file: str = "", tls: TlsFiles | None = None) -> None:
        self.address, self._token_file, self._tls = address, token_file, tls
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stub: Any = None
        self._token, self._token_changed_ns = "", -1

    def call(self, method: str, request: Any, deadline_s: float) -> Any:
        if deadline_s <= 0:
            raise EnvironmentFault("grpc.deadline_exceeded", "no time left for a call")
        metadata = self._metadata()
        try:
            return getattr(self._opened(), method)(request, timeout=deadline_s, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of(error) from None

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._stub = None

    def _opened(self) -> Any:
        with self._lock:
            if self._stub is None:
                self._channel = self._open()
                self._stub = TokenizerServiceStub(self._channel)  # type: ignore[no-untyped-call]
            return self._stub

    def _open(self) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(self.address, options=OPTIONS)
        files = self._tls
        tls = Tls(files.ca, files.certificate or None, files.key or None, files.server_name)
        return grpc.secure_channel(self.address, tls.credentials(), options=(*OPTIONS, *tls.options()))

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        if not self._token_file:
            return None
        path = Path(self._token_file)
        try:
            changed_ns = os.stat(path).st_mtime_ns
            if changed_ns != self._token_changed_ns:
                self._token, self._token_changed_ns = path.read_text(encoding="ascii").strip(), changed_ns
        except (OSError, ValueError) as error:
            raise EnvironmentFault(
                "token.unreadable", f"the token file can't be read: {type(error).__name__}"
            ) from None
        return requests.metadata(self._token)
