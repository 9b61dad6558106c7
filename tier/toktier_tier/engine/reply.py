"""One reply of SGLang's on its way to the client.

Guarantees: the chunks joined are the upstream's body, byte for byte; every wait ends (idle limit, deadline); closing
it, at whatever moment, closes the upstream's connection unless the body was read to its end; `finish` is called once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType

import httpx

from ..core.errors import EngineFault
from .upstreams import Deadline, timeout_fault
from .usage import Usage, watch_for

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"})
_HOP_BY_HOP |= {"te", "trailer", "transfer-encoding", "upgrade"}

Headers = list[tuple[str, str]]


def end_to_end(headers: Headers, *, also_without: frozenset[str] = frozenset()) -> Headers:
    """The headers in lower case, less those that concern one connection only (RFC 9110, 7.6.1) and those named."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in lowered if name == "connection" for each in value.split(",")}
    left_out = _HOP_BY_HOP | named | also_without
    return [(name, value) for name, value in lowered if name not in left_out]


@dataclass(frozen=True, slots=True)
class Opened:
    """A response whose head is here, and whatever was read of its body (`first`, perhaps nothing)."""

    response: httpx.Response
    chunks: AsyncIterator[bytes]
    first: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How a reply ended. Neither `whole` nor a `fault`: it was closed early.

    whole     read to its end or, by a client that then left, to its end mark
    end_mark  whether the stream's own last line came; None where the format has none
    """

    whole: bool
    usage: Usage | None = None
    end_mark: bool | None = None
    fault: EngineFault | None = None


class Reply:
    """Iterate over the body, then read `usage` and `ids`. For one task; closed by `async with` or `aclose`.

    status, headers  as the upstream sent them, less what concerns one connection only
    upstream         who answered
    usage            the counts it reported; None before the end, or if it reported none
    ids              matched, mismatched, unknown or not_sent; "pending" before the end
    """

    def __init__(
        self, opened: Opened, upstream: str, deadline: Deadline, idle_s: float, finish: Callable[[End], str]
    ) -> None:
        response = opened.response
        self.status = response.status_code
        raw_headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
        self.headers = end_to_end(raw_headers)
        self.upstream = upstream
        self.usage: Usage | None = None
        self.ids = "pending"
        self._response = response
        self._chunks = opened.chunks
        self._first = opened.first
        self._deadline = deadline
        self._idle_s = idle_s
        self._finish = finish
        self._watch = watch_for(response.headers.get("content-type", ""), response.headers.get("content-encoding", ""))
        self._ended = False

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk. Raises `EngineFault` (`engine.timeout`, `engine.cut`); then the reply is over."""
        chunk, self._first = self._first, b""
        while not chunk and not self._ended:
            chunk = await self._read()
        if not chunk:
            raise StopAsyncIteration
        self._watch.feed(chunk)
        return chunk

    async def _read(self) -> bytes:
        limit_s, phase = self._deadline.limit(self._idle_s, "idle")
        try:
            async with asyncio.timeout(limit_s):
                return await anext(self._chunks)
        except StopAsyncIteration:
            await self._end(End(True, self._watch.usage(), self._watch.complete()))
            return b""
        except TimeoutError:
            fault = timeout_fault(phase, self.upstream)
        except httpx.TransportError as error:
            fault = EngineFault("engine.cut", "the reply broke off", upstream=self.upstream)
            fault.__cause__ = error
        await self._end(End(False, fault=fault))
        raise fault

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises `EngineFault`, also where it is longer (`engine.bad_reply`)."""
        parts: list[bytes] = []
        length = 0
        async for chunk in self:
            length += len(chunk)
            if length > max_bytes:
                raise EngineFault("engine.bad_reply", "the reply is too long", upstream=self.upstream, limit=max_bytes)
            parts.append(chunk)
        return b"".join(parts)

    async def aclose(self) -> None:
        if not self._ended:
            # OpenAI's client library leaves at the end mark, often before the upstream has closed the body behind it.
            whole = self._watch.complete() is True
            await self._end(End(True, self._watch.usage(), True) if whole else End(False))

    async def _end(self, end: End) -> None:
        if self._ended:
            return
        self._ended = True
        self._first = b""
        self.usage = end.usage
        self.ids = self._finish(end)
        await self._response.aclose()

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
