"""`toktier.v1.TokenizerService` over grpc.aio, with health and reflection: a call each, or many on one stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from ..core.errors import EnvironmentFault
from .answering import AnswerCall, Ended, answering
from .interface import METHODS, MULTIPLEX, SERVICE, path_of
from .messages import MAX_MESSAGE_BYTES, message_limits
from .multiplex import MESSAGE_BYTES, Streams
from .servicer import TokenizerServicer
from .status import STARTING, metadata_of
from .tls import ServerTls

STREAMS = 1_024
"""Calls at once on one connection; more wait at the client."""
STREAM_AGE = 1.1
"""Of a connection's: by then the client knows that its connection is to end, and makes its next stream on another."""
NOT_READY = EnvironmentFault(STARTING, "the tier isn't ready yet")
Context = grpc.aio.ServicerContext[Any, Any]


def options(message_bytes: int = MAX_MESSAGE_BYTES, connection_s: float = 0.0) -> tuple[tuple[str, int], ...]:
    """Of a server that takes messages of up to `message_bytes`, and connections for `connection_s` (0: for ever)."""
    limits = message_limits(message_bytes, MAX_MESSAGE_BYTES)
    age = (("grpc.max_connection_age_ms", int(1e3 * connection_s)),) if connection_s else ()
    return (*limits, *age, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS))


OPTIONS = options()


def _unary(answer: AnswerCall) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(data: bytes, context: Context) -> bytes:
        try:
            return await answer(data, context)
        except Ended as ended:
            await context.abort(*ended.status)
            return b""  # abort has raised

    return grpc.unary_unary_rpc_method_handler(call)


async def _starting(_: object, context: Context) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(NOT_READY), metadata_of(NOT_READY))
    return b""  # abort has raised


class _Methods(grpc.GenericRpcHandler):
    """The service's calls; until they are served, all of them are told to come later."""

    def __init__(self) -> None:
        unary: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(_starting)
        self._handlers = {path_of(method.name): unary for method in METHODS}
        self._handlers[path_of(MULTIPLEX)] = grpc.stream_stream_rpc_method_handler(_starting)

    def set(self, answers: Mapping[str, AnswerCall], streams: Streams | None) -> None:
        """Without `streams`, clients are told that there are none."""
        self._handlers = {path_of(name): _unary(answer) for name, answer in answers.items()}
        if streams is not None:
            self._handlers[path_of(MULTIPLEX)] = grpc.stream_stream_rpc_method_handler(streams.serve)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(details.method)


class GrpcServer:
    """The service with health and reflection on one address.

    Without a servicer it takes calls as one that isn't ready, `NOT_SERVING`, until `serve`. Raises `EnvironmentFault`
    (`grpc.address`) for an address that can't be had.

    message_bytes   the largest message; with less than a stream's messages may have, there are no streams
    connection_s    after so long, more or less a tenth, a client is told to connect anew; its calls end as they would
                    have (measured: none of 14,000 was lost over 80 such moments; `stop` under load loses some, since
                    calls that come in before its GOAWAY is heard are cancelled). 0: never
    """

    def __init__(
        self,
        servicer: TokenizerServicer | None,
        address: str,
        *,
        tls: ServerTls | None = None,
        message_bytes: int = MAX_MESSAGE_BYTES,
        connection_s: float = 0.0,
    ) -> None:
        self._server = grpc.aio.server(options=options(message_bytes, connection_s))
        self._methods, self._serving = _Methods(), False
        self._message_bytes, self._connection_s = message_bytes, connection_s
        self._streams: Streams | None = None
        self._server.add_generic_rpc_handlers((self._methods,))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )
        if servicer is not None:
            self._take(servicer)
        try:
            self.port = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, tls.grpc_credentials())
            )
        except RuntimeError:
            raise EnvironmentFault("grpc.address", f"can't listen on {address}") from None

    async def start(self) -> None:
        await self._tell()
        await self._server.start()

    async def serve(self, servicer: TokenizerServicer) -> None:
        """From now on by `servicer`."""
        self._take(servicer)
        await self._tell()

    async def retire(self) -> None:
        """Tell `NOT_SERVING` from now on, and streams to end; calls are served as before."""
        if self._streams is not None:
            self._streams.retire()
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Tell `NOT_SERVING`, take no new calls, let the running ones end within `grace_s`."""
        await self.retire()
        await self._server.stop(grace_s)

    def _take(self, servicer: TokenizerServicer) -> None:
        answers = {method.name: answering(servicer, method) for method in METHODS}
        if self._message_bytes >= MESSAGE_BYTES:
            self._streams = Streams(answers, STREAM_AGE * self._connection_s)
        self._methods.set(answers, self._streams)
        self._serving = True

    async def _tell(self) -> None:
        states = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, states.SERVING if self._serving else states.NOT_SERVING)
