"""SGLang over gRPC: token IDs in, output IDs out as they come.

Guarantees: the engine's count of prompt tokens equals the IDs sent, else the output ends in a fault; another upstream
is asked only if there was no connection to the one before; closing the iterator cancels the call, which aborts the
request in the engine; every wait has an end. Failures are `EngineFault`s, listed in `upstreams.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio

from ..core.errors import EngineFault
from ..ports import Clock
from .channels import connect_option, connected, open_channel
from .ids import CheckedIds
from .sampling import Sampling
from .upstreams import (
    DEFAULT_TIMEOUTS,
    Deadline,
    EngineEvent,
    Lease,
    Observe,
    Timeouts,
    Upstreams,
    observe_nothing,
    timeout_fault,
)
from .wires import Delta, Finished, Wire

_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),  # a generation isn't repeated behind the caller's back
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.use_local_subchannel_pool", 1),
)
# The engine or its gateway is not well; other statuses may be the request's own fault.
_UNHEALTHY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})
_MAX_SENTENCE_CHARS = 500


class SGLangGrpc:
    """Generates through the upstreams, whose names are gRPC targets (host:port). Belongs to one event loop."""

    def __init__(
        self,
        upstreams: Upstreams,
        wire: Wire,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: grpc.ChannelCredentials | None = None,
        clock: Clock = time.monotonic,
        observe: Observe = observe_nothing,
    ) -> None:
        self._upstreams = upstreams
        self._wire = wire
        self._timeouts = timeouts
        self._clock = clock
        self._observe = observe
        options = (*_OPTIONS, connect_option(max(timeouts.connect_s, 0.001)))
        self._channels = {name: open_channel(name, credentials, options) for name in upstreams.names}

    async def aclose(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def generate(
        self,
        ids: CheckedIds,
        sampling: Sampling,
        *,
        session: str = "",
        request_id: str = "",
        trace: Mapping[str, str] | None = None,
        total_s: float | None = None,
    ) -> AsyncGenerator[Delta | Finished, None]:
        """One or more `Delta`s (none, if the output is empty), then one `Finished`. Close it (`aclosing`) to abort.

        `trace` holds `traceparent` and `tracestate`. Raises `EngineFault`, and `InvalidRequest` before anything is
        sent.
        """
        trace = trace or {}
        request = self._wire.request(ids, sampling, request_id or uuid4().hex, session, trace)
        deadline = Deadline(self._timeouts.total_s if total_s is None else total_s, self._clock)
        lease = await self._connect(session, deadline)
        fault: EngineFault | None = None
        whole = False
        try:
            async with aclosing(self._receive(lease, request, self._wire.metadata(trace), deadline)) as records:
                async for record in records:
                    if isinstance(record, Finished):
                        whole = True
                        if record.prompt_tokens != len(ids):
                            raise _mismatch(len(ids), record.prompt_tokens, lease.name)
                    yield record
        except EngineFault as error:
            fault = error
            raise
        finally:
            if whole:
                lease.ended_well()
                self._observe(EngineEvent("ids", lease.name, "mismatched" if fault else "matched"))
            lease.close()
            reason = fault.code if fault else "ok" if whole else "closed_early"
            self._observe(EngineEvent("request", lease.name, reason))

    async def _connect(self, session: str, deadline: Deadline) -> Lease:
        """A lease of an upstream whose channel is ready. Raises `EngineFault`."""
        tried: list[str] = []
        unreachable: EngineFault | None = None
        while True:
            try:
                lease = self._upstreams.lease(session, tried)
            except EngineFault as fault:
                if unreachable is not None:
                    raise unreachable from None
                self._observe(EngineEvent("request", "", fault.code))
                raise
            limit_s, phase = deadline.limit(self._timeouts.connect_s, "connect")
            try:
                async with asyncio.timeout(limit_s):
                    ready = await connected(self._channels[lease.name])
            except TimeoutError:
                ready = False
            except BaseException:
                lease.close()
                raise
            if ready:
                return lease
            if phase == "connect":
                lease.failed()
            lease.close()
            tried.append(lease.name)
            unreachable = EngineFault("engine.unreachable", "no connection", upstream=lease.name)
            self._observe(EngineEvent("request", lease.name, unreachable.code))

    async def _receive(
        self, lease: Lease, request: bytes, metadata: tuple[tuple[str, str], ...], deadline: Deadline
    ) -> AsyncGenerator[Delta | Finished, None]:
        generate: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channels[lease.name].unary_stream(
            self._wire.method
        )
        call = generate(request, metadata=metadata)
        reader = self._wire.reader()
        wait_s, wait_name = self._timeouts.first_byte_s, "first_byte"
        try:
            while True:
                limit_s, phase = deadline.limit(wait_s, wait_name)
                try:
                    async with asyncio.timeout(limit_s):
                        message = await call.read()
                except TimeoutError:
                    # The caller's own short limit says nothing about the engine.
                    if phase != "total" or (wait_name == "first_byte" and deadline.total_s >= wait_s):
                        lease.failed()
                    raise timeout_fault(phase, lease.name) from None
                except grpc.aio.AioRpcError as error:
                    raise self._refusal(lease, error, begun=wait_name == "idle") from error
                if not isinstance(message, bytes):  # grpc.aio.EOF
                    lease.failed()
                    raise EngineFault("engine.cut", "the reply ended too early", upstream=lease.name)
                if wait_name == "first_byte":
                    lease.answered()
                    wait_s, wait_name = self._timeouts.idle_s, "idle"
                try:
                    read = reader.read(message)
                except EngineFault:
                    lease.failed()
                    raise
                for record in read:
                    yield record
                    if isinstance(record, Finished):
                        return
        finally:
            call.cancel()

    def _refusal(self, lease: Lease, error: grpc.aio.AioRpcError, *, begun: bool) -> EngineFault:
        status = error.code()
        if status in _UNHEALTHY:
            lease.failed()
        if status is grpc.StatusCode.CANCELLED or (begun and status is grpc.StatusCode.UNAVAILABLE):
            return EngineFault("engine.cut", "the reply broke off", upstream=lease.name)
        said = (error.details() or "")[:_MAX_SENTENCE_CHARS]
        return EngineFault(
            "engine.bad_status", f"the engine answered {status.name}: {said}", status=status.name, upstream=lease.name
        )


def _mismatch(sent: int, counted: int, upstream: str) -> EngineFault:
    sentence = "the engine counted other prompt tokens than were sent"
    return EngineFault("engine.prompt_tokens_mismatch", sentence, sent=sent, counted=counted, upstream=upstream)
