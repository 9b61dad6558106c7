"""A client's calls on one stream: `transport.multiplex` from the other side.

Guarantees: a call ends with its answer, its own error or its deadline; one that is given up is given up by the tier,
too. A stream that breaks fails the calls that are under way on it, as a connection that breaks fails calls of their
own; the next call makes another stream.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from importlib import import_module
from itertools import count
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..core.errors import EnvironmentFault
from ..transport.interface import MULTIPLEX, path_of
from ..transport.status import error_of
from ..transport.v1 import toktier_pb2 as pb

BATCH_BYTES = 64 << 10
"""Of calls that are put into one message, the last of which may have as many again."""
MOST_BYTES = 64 << 10
"""Of a call here: a larger one would keep others waiting."""
LONGEST_MS = 2**32 - 1
_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


class NotMultiplexed(Exception):
    """The tier takes no streams; nothing was done."""


class Multiplexer:
    """Calls over a channel, for one event loop. `metadata` goes with every stream, a trace's context with a call."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] | None = None) -> None:
        self._start: Any = channel.stream_stream(path_of(MULTIPLEX))
        self._metadata = metadata
        self._stream: _Stream | None = None
        self._ids = count(1)

    async def call(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """The answer's bytes. Raises the tier's errors, `EnvironmentFault` (`grpc.*`), `NotMultiplexed`."""
        stream = self._stream
        if stream is None or stream.ending:
            stream = self._stream = _Stream(self._start(metadata=self._metadata))
        answer = await stream.answer(_Call(next(self._ids), method, request, timeout_s))
        if answer.HasField("failure"):
            failure = answer.failure
            status = _STATUSES.get(failure.status, grpc.StatusCode.UNKNOWN)
            raise error_of(_Failed(status, failure.message, dict(failure.metadata)))
        return answer.response

    async def close(self) -> None:
        """Calls that are under way fail (`grpc.cancelled`)."""
        if self._stream is not None:
            await self._stream.close()


class _Failed:
    """What `error_of` reads, of a call that has no gRPC call of its own."""

    def __init__(self, status: grpc.StatusCode, message: str, metadata: dict[str, str] | None = None) -> None:
        self._status, self._message, self._metadata = status, message, metadata or {}

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> list[tuple[str, str]]:
        return list(self._metadata.items())


def _closed() -> EnvironmentFault:
    return EnvironmentFault("grpc.cancelled", "the client was closed")


class _Call:
    __slots__ = ("future", "id", "method", "request", "sent", "timeout_s", "trace")

    def __init__(self, id_: int, method: str, request: bytes, timeout_s: float | None) -> None:
        self.id, self.method, self.request, self.timeout_s = id_, method, request, timeout_s
        self.future: asyncio.Future[pb.Answer] = asyncio.get_running_loop().create_future()
        self.trace, self.sent = _trace(), False


def _trace() -> dict[str, str]:
    """W3C context of the current span. Who has one has loaded OpenTelemetry; this client doesn't load it for others."""
    found: dict[str, str] = {}
    loaded = sys.modules.get("opentelemetry.trace")
    if loaded is not None and loaded.get_current_span().get_span_context().is_valid:
        import_module("opentelemetry.propagate").inject(found)
    return found


class _Stream:
    """ending   no more calls begin here"""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting: dict[int, _Call] = {}
        self._unsent: deque[_Call] = deque()
        self._given_up: list[int] = []
        self._opened, self._wake = asyncio.Event(), asyncio.Event()
        self.ending = self._broken = False
        self._tasks = asyncio.create_task(self._write()), asyncio.create_task(self._read())

    async def answer(self, call: _Call) -> pb.Answer:
        self._waiting[call.id] = call
        self._unsent.append(call)
        self._wake.set()
        try:
            async with asyncio.timeout(call.timeout_s):
                return await call.future
        except TimeoutError:
            raise error_of(_Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")) from None
        finally:
            if self._waiting.pop(call.id, None) is not None and call.sent:
                self._given_up.append(call.id)
                self._wake.set()

    async def close(self) -> None:
        self._fail(_closed())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.cancel()

    async def _write(self) -> None:
        """What is called while one message is on its way goes with the next. The first waits for the tier's: a write on
        a stream that was refused would hide why it was."""
        try:
            await self._opened.wait()
            while True:
                await self._wake.wait()
                self._wake.clear()
                while data := self._batch():
                    await self._stream.write(data)
                if self.ending:
                    await self._stream.done_writing()
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._broken = True  # and `_read` learns it too

    def _batch(self) -> bytes:
        """Empty: there is nothing to send."""
        message, size = pb.MultiplexRequest(), 0
        while self._unsent and size < BATCH_BYTES:
            call = self._unsent.popleft()
            if call.id not in self._waiting:
                continue
            call.sent = True
            to = message.calls.add()
            to.id, to.method, to.request = call.id, call.method, call.request
            if call.timeout_s is not None:
                to.timeout_ms = min(max(int(call.timeout_s * 1e3), 1), LONGEST_MS)
            for key, value in call.trace.items():
                to.metadata[key] = value
            size += len(call.request)
        for id_ in self._given_up:
            message.calls.add(id=id_, cancelled=True)
        self._given_up.clear()
        return message.SerializeToString()

    async def _read(self) -> None:
        try:
            while (data := await self._stream.read()) is not grpc.aio.EOF:
                self._opened.set()
                message = pb.MultiplexResponse.FromString(data)
                for answer in message.answers:
                    call = self._waiting.pop(answer.id, None)
                    if call is not None and not call.future.done():
                        call.future.set_result(answer)
                if message.last:
                    self.ending = True
                    self._wake.set()
            found: Any = _Failed(grpc.StatusCode.UNAVAILABLE, "the stream has ended")
        except asyncio.CancelledError:  # with its channel, or by `close`
            self._fail(_closed())
            raise
        except DecodeError:
            found = _Failed(grpc.StatusCode.INTERNAL, "no MultiplexResponse")
            self._stream.cancel()
        except grpc.aio.AioRpcError as error:
            found = error
            if self._broken and error.code() is grpc.StatusCode.INTERNAL:  # a write that failed hides what was told
                found = _Failed(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        if found.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._fail(NotMultiplexed())
        else:
            self._fail(error_of(found))

    def _fail(self, error: Exception) -> None:
        self.ending = True
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            if not call.future.done():
                call.future.set_exception(error)
        self._unsent.clear()
        self._opened.set()
        self._wake.set()
