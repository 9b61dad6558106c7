"""Many calls on one stream: each takes a message's share of what gRPC takes for a call of its own.

Guarantees: a call is answered as it would be by itself, under its own deadline, credential and limits; each one that
was read is answered, unless its caller gave it up. A stream that is to end says so (`last`) and is read until its
caller has ended its side: no call is lost by that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ..core.errors import InvalidRequest
from .answering import AnswerCall, Ended, Metadata, status_of
from .status import Late
from .v1 import toktier_pb2 as pb

MESSAGE_BYTES = 1 << 20
"""Of a caller's message: larger calls are for calls of their own."""
BATCH_BYTES = 1 << 20
"""Of answers that are put into one message, unless a single one has more."""
MOST_CALLS = 1_024
"""Of one stream at once, under way or answered and not yet sent. More aren't begun until some are through."""
LATE = Late("tier.late", "the deadline was over before the call was answered")
UNKNOWN = InvalidRequest("request.unknown_method", "no method that can be called here")
Context = grpc.aio.ServicerContext[bytes, bytes]


class _Gone(Exception):
    """The caller, as far as can be told: nothing can be written to it."""


class Streams:
    """All streams of a server, for one event loop.

    answers   by the methods' names
    lasts_s   after so long a stream is told to end; 0: never
    """

    def __init__(self, answers: Mapping[str, AnswerCall], lasts_s: float = 0.0) -> None:
        self._answers, self._lasts_s = answers, lasts_s
        self._open: set[_Stream] = set()
        self._retired = False

    async def serve(self, requests: object, context: Context) -> None:
        stream = _Stream(self._answers, context)
        self._open.add(stream)
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self._lasts_s, stream.end) if self._lasts_s else None
        if self._retired:
            stream.end()
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
            if ending is not None:
                ending.cancel()

    def retire(self) -> None:
        """Tell every stream to end: the open ones now, others with their first answers."""
        self._retired = True
        for stream in self._open:
            stream.end()


class _Caller:
    """What a call of a stream came with: see `answering.Caller`."""

    __slots__ = ("_context", "_metadata", "_until_s")

    def __init__(self, context: Context, metadata: Metadata, timeout_s: float) -> None:
        self._context, self._metadata = context, metadata
        self._until_s = monotonic() + timeout_s if timeout_s else None

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._context.auth_context()

    def time_remaining(self) -> float | None:
        return None if self._until_s is None else max(self._until_s - monotonic(), 0.0)


class _Stream:
    def __init__(self, answers: Mapping[str, AnswerCall], context: Context) -> None:
        self._answers, self._context = answers, context
        self._metadata: tuple[tuple[str, str | bytes], ...] = tuple(context.invocation_metadata() or ())
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answered: deque[tuple[int, bytes | Ended]] = deque()
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._ends = self._told = self._over = False

    def end(self) -> None:
        """Tell the caller to begin no more calls here."""
        self._ends = True
        self._wake.set()

    async def run(self) -> None:
        refused: InvalidRequest | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                try:
                    await self._read(tasks)
                except InvalidRequest as error:
                    refused = error
                    for call in self._running.values():
                        call.cancel()
                if self._running:
                    await asyncio.wait(self._running.values())
                self._over = True
                self._wake.set()
        except* _Gone:
            refused = None
        if refused is not None:  # once nothing is being written any more: gRPC can't take both
            await self._context.abort(*status_of(refused))

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        """Begin the calls that come, until the caller ends its side. Raises `InvalidRequest` for what isn't calls."""
        read: Any = self._context.read
        running = self._running
        while (data := await read()) is not grpc.aio.EOF:
            for call in _parsed(data).calls:
                if call.cancelled:
                    if call.id in running:
                        running[call.id].cancel()
                    continue
                while len(running) + len(self._answered) >= MOST_CALLS:
                    self._room.clear()
                    await self._room.wait()
                if call.id in running:
                    raise InvalidRequest("multiplex.id_in_use", "a call of this id is under way", id=call.id)
                task = running[call.id] = tasks.create_task(self._call(call))
                task.add_done_callback(partial(self._ended, call.id))

    def _ended(self, id_: int, task: asyncio.Task[None]) -> None:
        """Also of a call that was cancelled before it began."""
        del self._running[id_]
        self._room.set()

    async def _call(self, call: pb.Call) -> None:
        timeout_s = call.timeout_ms / 1e3
        metadata = (*self._metadata, *call.metadata.items()) if call.metadata else self._metadata
        answer = self._answers.get(call.method)
        try:
            if answer is None:
                raise Ended((grpc.StatusCode.UNIMPLEMENTED, *status_of(UNKNOWN)[1:]))
            caller = _Caller(self._context, metadata, timeout_s)
            async with asyncio.timeout(timeout_s or None):
                found: bytes | Ended = await answer(call.request, caller)
        except Ended as ended:
            found = ended
        except TimeoutError:
            found = Ended(status_of(LATE))
        self._answered.append((call.id, found))
        self._wake.set()

    async def _write(self) -> None:
        """What was answered while one message was on its way goes with the next. The first, without answers, tells that
        the stream is open."""
        await self._send()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._answered or (self._ends and not self._told):
                await self._send()
            if self._over:
                return

    async def _send(self) -> None:
        write: Any = self._context.write
        try:
            await write(self._batch())
        except Exception as error:  # gRPC has no class of its own for it
            raise _Gone from error
        self._room.set()

    def _batch(self) -> bytes:
        message, size = pb.MultiplexResponse(), 0
        while self._answered and size < BATCH_BYTES:
            id_, found = self._answered.popleft()
            answer = message.answers.add()
            answer.id = id_
            if isinstance(found, Ended):
                _fill(answer.failure, found)
            else:
                answer.response = found
                size += len(found)
        if self._ends and not self._told:
            message.last = self._told = True
        return message.SerializeToString()


def _parsed(data: bytes) -> pb.MultiplexRequest:
    """Raises `InvalidRequest` (`multiplex.too_large`, `request.malformed`)."""
    if len(data) > MESSAGE_BYTES:
        raise InvalidRequest("multiplex.too_large", "larger calls are for calls of their own", limit=MESSAGE_BYTES)
    try:
        return pb.MultiplexRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("request.malformed", "no MultiplexRequest") from None


def _fill(failure: pb.Failure, ended: Ended) -> None:
    status, failure.message, trailing = ended.status
    failure.status = status.value[0]
    for key, value in trailing:
        if isinstance(value, str):
            failure.metadata[key] = value
