"""The asyncio client: as `sync`, with `await`; short calls share a stream, long ones have a connection of their own."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any, Self

import grpc

from ..core.errors import RevisionConflict, SessionNotFound
from ..core.values import Ids, Patch
from ..transport.interface import METHODS, path_of
from ..transport.messages import bytes_of, ids_of, patch_of
from ..transport.status import error_of
from ..transport.v1 import toktier_pb2 as pb
from . import requests
from .buffer import IdBuffer
from .multiplex import MOST_BYTES, Multiplexer, NotMultiplexed

MULTIPLEXED = frozenset({"Encode", "OpenSession", "Append", "Edit", "CloseSession"})
"""What is short, in most cases."""
_ANSWERS = {method.name: getattr(pb, method.output_type.name) for method in METHODS}


class AsyncTierClient:
    """Connections to a tier, for one event loop. Raises what `TierClient` raises.

    channel     what to use in the place of connections of its own
    multiplex   short calls share a stream, and thus a pod: each takes a fraction of what a call of its own takes. Off
                where something on the way is to place each call by itself
    """

    def __init__(
        self,
        address: str,
        *,
        model: str = "",
        timeout_s: float = requests.DEFAULT_TIMEOUT_S,
        token: str = "",
        tls: requests.Tls | None = None,
        channel: Any = None,
        multiplex: bool = True,
    ) -> None:
        self.model, self.timeout_s = model, timeout_s
        self._metadata = requests.metadata(token)
        self._channel = channel or _open(address, tls)
        self._large = channel or _open(address, tls, (("grpc.use_local_subchannel_pool", 1),))
        self._calls, self._large_calls = _calls(self._channel), _calls(self._large)
        self._multiplexer = Multiplexer(self._channel, self._metadata) if multiplex else None

    async def encode(self, text: str, *, untrusted: requests.Ranges = ()) -> Ids:
        answer = await self.call("Encode", requests.encode(self.model, "", text, None, untrusted))
        return ids_of(answer.patch.ids)

    async def open(
        self, session: str, text: str = "", *, untrusted: requests.Ranges = (), text_of: requests.TextOf | None = None
    ) -> AsyncSession:
        found = AsyncSession(self, session, text_of)
        found._marked = bool(untrusted)
        request = requests.open_session(self.model, session, text, untrusted)
        found.take(await self.call("OpenSession", request))
        return found

    async def decode(self, ids: Ids, *, skip_special_tokens: bool = False) -> str:
        request = pb.DecodeRequest(model=self.model, ids=bytes_of(ids), skip_special_tokens=skip_special_tokens)
        return str((await self.call("Decode", request)).text)

    async def snapshots(self) -> list[pb.Snapshot]:
        return list((await self.call("ListSnapshots", pb.ListSnapshotsRequest())).snapshots)

    async def call(self, method: str, request: Any) -> Any:
        return _ANSWERS[method].FromString(await self.ask(method, request.SerializeToString()))

    async def ask(self, method: str, request: bytes) -> bytes:
        """`call` for serialized messages."""
        answer = await self._multiplexed(method, request) if method in MULTIPLEXED else None
        return await self._by_itself(method, request) if answer is None else answer

    async def close(self) -> None:
        if self._multiplexer is not None:
            await self._multiplexer.close()
        await self._channel.close()
        await self._large.close()

    async def _multiplexed(self, method: str, data: bytes) -> bytes | None:
        """None: the call is one for itself."""
        if self._multiplexer is None or len(data) > MOST_BYTES:
            return None
        try:
            return await self._multiplexer.call(method, data, self.timeout_s)
        except NotMultiplexed:  # an older tier, or one for small messages
            self._multiplexer = None
            return None

    async def _by_itself(self, method: str, data: bytes) -> bytes:
        call = (self._large_calls if len(data) > MOST_BYTES else self._calls)[method]
        try:
            answer: bytes = await call(data, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


def _open(address: str, tls: requests.Tls | None, options: tuple[tuple[str, int], ...] = ()) -> grpc.aio.Channel:
    options_: list[tuple[str, Any]] = [*requests.CHANNEL_OPTIONS, *options]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options_)
    return grpc.aio.secure_channel(address, tls.credentials(), options=[*options_, *tls.options()])


def _calls(channel: grpc.aio.Channel) -> dict[str, Any]:
    return {method: channel.unary_unary(path_of(method)) for method in _ANSWERS}


class AsyncSession:
    """As `Session`. One change at a time: two at once would race for the revision, and one of them would lose."""

    def __init__(self, client: AsyncTierClient, name: str, text_of: requests.TextOf | None = None) -> None:
        self._client, self.name = client, name
        self._text_of, self._marked = text_of, False
        self.reopened: Counter[str] = Counter()
        self._buffer = IdBuffer()

    @property
    def ids(self) -> Ids:
        return self._buffer.ids

    @property
    def revision(self) -> int:
        return self._buffer.revision

    async def append(self, delta: str, *, untrusted: requests.Ranges = ()) -> Patch:
        request = requests.append(self._client.model, self.name, delta, self.revision, untrusted)
        return await self._change("Append", request, self._text_of)

    async def edit(
        self, start_chars: int, stop_chars: int, replacement: str, *, untrusted: requests.Ranges = ()
    ) -> Patch:
        request = requests.edit(
            self._client.model, self.name, start_chars, stop_chars, replacement, self.revision, untrusted
        )
        return await self._change("Edit", request, self._text_of)

    async def full_text(self, text: str, *, untrusted: requests.Ranges = ()) -> Patch:
        request = requests.encode(self._client.model, self.name, text, self.revision, untrusted)
        return await self._change("Encode", request, self._text_of and (lambda: (text, untrusted)))

    async def close(self) -> bool:
        request = pb.CloseSessionRequest(model=self._client.model, session=self.name)
        return bool((await self._client.call("CloseSession", request)).closed)

    async def _change(self, method: str, request: Any, text_of: requests.TextOf | None) -> Patch:
        self._marked = self._marked or bool(request.untrusted)
        try:
            return self.take(await self._client.call(method, request))
        except (SessionNotFound, RevisionConflict) as error:
            again = requests.reopen(self._client.model, self.name, error, text_of, marked=self._marked)
            self.reopened[error.code] += 1
        return self.take(await self._client.call("OpenSession", again))

    def take(self, answer: Any) -> Patch:
        patch = patch_of(answer.patch)
        self._buffer.apply(patch)
        return patch
