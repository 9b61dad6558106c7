"""The asyncio client: as `sync`, with `await`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from ..core.errors import RevisionConflict, SessionNotFound
from ..core.values import Ids, Patch
from ..transport.messages import bytes_of, ids_of, patch_of
from ..transport.status import error_of
from ..transport.v1 import toktier_pb2 as pb
from ..transport.v1.toktier_pb2_grpc import TokenizerServiceStub
from . import requests
from .buffer import IdBuffer


class AsyncTierClient:
    """One channel to a tier, for one event loop. Raises what `TierClient` raises."""

    def __init__(
        self,
        address: str,
        *,
        model: str = "",
        timeout_s: float = requests.DEFAULT_TIMEOUT_S,
        token: str = "",
        tls: requests.Tls | None = None,
        channel: Any = None,
    ) -> None:
        self.model, self.timeout_s = model, timeout_s
        self._metadata = requests.metadata(token)
        if channel is not None:
            self._channel = channel
        elif tls is not None:
            options = (*requests.CHANNEL_OPTIONS, *tls.options())
            self._channel = grpc.aio.secure_channel(address, tls.credentials(), options=options)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=requests.CHANNEL_OPTIONS)
        self._stub = TokenizerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def encode(self, text: str, *, untrusted: requests.Ranges = ()) -> Ids:
        answer = await self.call(self._stub.Encode, requests.encode(self.model, "", text, None, untrusted))
        return ids_of(answer.patch.ids)

    async def open(
        self, session: str, text: str = "", *, untrusted: requests.Ranges = (), text_of: requests.TextOf | None = None
    ) -> AsyncSession:
        found = AsyncSession(self, session, text_of)
        found._marked = bool(untrusted)
        request = requests.open_session(self.model, session, text, untrusted)
        found.take(await self.call(self._stub.OpenSession, request))
        return found

    async def decode(self, ids: Ids, *, skip_special_tokens: bool = False) -> str:
        request = pb.DecodeRequest(model=self.model, ids=bytes_of(ids), skip_special_tokens=skip_special_tokens)
        return str((await self.call(self._stub.Decode, request)).text)

    async def snapshots(self) -> list[pb.Snapshot]:
        return list((await self.call(self._stub.ListSnapshots, pb.ListSnapshotsRequest())).snapshots)

    async def call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return await method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession:
    """As `Session`. One change at a time: two at once would race for the revision, and one of them would lose."""

    def __init__(self, client: AsyncTierClient, name: str, text_of: requests.TextOf | None = None) -> None:
        self._client, self._stub, self.name = client, client._stub, name
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
        return await self._change(self._stub.Append, request, self._text_of)

    async def edit(
        self, start_chars: int, stop_chars: int, replacement: str, *, untrusted: requests.Ranges = ()
    ) -> Patch:
        request = requests.edit(
            self._client.model, self.name, start_chars, stop_chars, replacement, self.revision, untrusted
        )
        return await self._change(self._stub.Edit, request, self._text_of)

    async def full_text(self, text: str, *, untrusted: requests.Ranges = ()) -> Patch:
        request = requests.encode(self._client.model, self.name, text, self.revision, untrusted)
        return await self._change(self._stub.Encode, request, self._text_of and (lambda: (text, untrusted)))

    async def close(self) -> bool:
        request = pb.CloseSessionRequest(model=self._client.model, session=self.name)
        return bool((await self._client.call(self._stub.CloseSession, request)).closed)

    async def _change(self, method: Callable[..., Any], request: Any, text_of: requests.TextOf | None) -> Patch:
        self._marked = self._marked or bool(request.untrusted)
        try:
            return self.take(await self._client.call(method, request))
        except (SessionNotFound, RevisionConflict) as error:
            again = requests.reopen(self._client.model, self.name, error, text_of, marked=self._marked)
            self.reopened[error.code] += 1
        return self.take(await self._client.call(self._stub.OpenSession, again))

    def take(self, answer: Any) -> Patch:
        patch = patch_of(answer.patch)
        self._buffer.apply(patch)
        return patch
