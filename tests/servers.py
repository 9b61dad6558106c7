"""Servers for tests, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.sessions.service import SessionService
from toktier_tier.telemetry import Telemetry
from toktier_tier.transport.grpc_server import GrpcServer, TokenizerServicer
from toktier_tier.transport.work import Work
from workshop import family_tier, fresh_tokenizer


class GrpcTier:
    """A tier's gRPC server in a thread of its own."""

    def __init__(self, *families: str, work: Work | None = None) -> None:
        self.tier = family_tier(families[0])
        self.served = []
        for family in families:
            tokenizer = fresh_tokenizer(family_tier(family))
            self.served.append(Served(family, (f"models/{family}",), tokenizer, SessionService(tokenizer)))
        self.sessions = self.served[0].sessions
        self.work = work or Work()
        self.telemetry = Telemetry()
        self.servicer = TokenizerServicer(Registry(self.served), self.work, self.telemetry)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self.run(self._start())
        self.address = f"127.0.0.1:{self._server.port}"

    async def _start(self) -> GrpcServer:
        server = GrpcServer(self.servicer, "127.0.0.1:0")
        await server.start()
        return server

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self.run(self._server.stop(1.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.work.close()


@contextmanager
def grpc_tier(*families: str, work: Work | None = None) -> Iterator[GrpcTier]:
    server = GrpcTier(*(families or ("gpt2-novelai",)), work=work)
    try:
        yield server
    finally:
        server.stop()
