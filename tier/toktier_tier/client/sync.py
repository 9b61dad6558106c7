"""The blocking client."""

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


class TierClient:
    """One channel to a tier. Thread-safe; its sessions are for one thread each.

    Every call raises the tier's own coded errors (`core.errors`), and `EnvironmentFault` (`grpc.*`) where the tier
    isn't reached within `timeout_s`. `token` is the bearer token to show; send one over TLS only.
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
    ) -> None:
        self.model, self.timeout_s = model, timeout_s
        self._metadata = requests.metadata(token)
        if channel is not None:
            self._channel = channel
        elif tls is not None:
            options = (*requests.CHANNEL_OPTIONS, *tls.options())
            self._channel = grpc.secure_channel(address, tls.credentials(), options=options)
        else:
            self._channel = grpc.insecure_channel(address, options=requests.CHANNEL_OPTIONS)
        self._stub = TokenizerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def encode(self, text: str, *, untrusted: requests.Ranges = ()) -> Ids:
        """The IDs of a text by itself."""
        answer = self.call(self._stub.Encode, requests.encode(self.model, "", text, None, untrusted))
        return ids_of(answer.patch.ids)

    def open(
        self, session: str, text: str = "", *, untrusted: requests.Ranges = (), text_of: requests.TextOf | None = None
    ) -> Session:
        """Start a session, or start it over.

        untrusted   spans of `text` (start, stop), in characters, in which no added token is recognized; every change
                    takes those of the text that it brings
        text_of     the session's whole text, with the change that is being made: where the tier has lost the session (a
                    pod was lost, or it was evicted) it is opened again with that. For the only writer of a session.
                    With untrusted spans: the text and all of its spans.
        """
        found = Session(self, session, text_of)
        found._marked = bool(untrusted)
        found.take(self.call(self._stub.OpenSession, requests.open_session(self.model, session, text, untrusted)))
        return found

    def decode(self, ids: Ids, *, skip_special_tokens: bool = False) -> str:
        request = pb.DecodeRequest(model=self.model, ids=bytes_of(ids), skip_special_tokens=skip_special_tokens)
        return str(self.call(self._stub.Decode, request).text)

    def snapshots(self) -> list[pb.Snapshot]:
        return list(self.call(self._stub.ListSnapshots, pb.ListSnapshotsRequest()).snapshots)

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(error) from None

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Session:
    """A session and its IDs. Each change names the revision it was made for: a stale one raises `RevisionConflict`.

    reopened    how often it was opened again, by the code of what was answered
    """

    def __init__(self, client: TierClient, name: str, text_of: requests.TextOf | None = None) -> None:
        self._client, self._stub, self.name = client, client._stub, name
        self._text_of, self._marked = text_of, False
        self.reopened: Counter[str] = Counter()
        self._buffer = IdBuffer()

    @property
    def ids(self) -> Ids:
        """A view that holds until the next change."""
        return self._buffer.ids

    @property
    def revision(self) -> int:
        return self._buffer.revision

    def append(self, delta: str, *, untrusted: requests.Ranges = ()) -> Patch:
        request = requests.append(self._client.model, self.name, delta, self.revision, untrusted)
        return self._change(self._stub.Append, request, self._text_of)

    def edit(self, start_chars: int, stop_chars: int, replacement: str, *, untrusted: requests.Ranges = ()) -> Patch:
        request = requests.edit(
            self._client.model, self.name, start_chars, stop_chars, replacement, self.revision, untrusted
        )
        return self._change(self._stub.Edit, request, self._text_of)

    def full_text(self, text: str, *, untrusted: requests.Ranges = ()) -> Patch:
        """Make `text` the session's text; the tier finds what it has in common with the old one."""
        request = requests.encode(self._client.model, self.name, text, self.revision, untrusted)
        return self._change(self._stub.Encode, request, self._text_of and (lambda: (text, untrusted)))

    def close(self) -> bool:
        request = pb.CloseSessionRequest(model=self._client.model, session=self.name)
        return bool(self._client.call(self._stub.CloseSession, request).closed)

    def _change(self, method: Callable[..., Any], request: Any, text_of: requests.TextOf | None) -> Patch:
        self._marked = self._marked or bool(request.untrusted)
        try:
            return self.take(self._client.call(method, request))
        except (SessionNotFound, RevisionConflict) as error:
            again = requests.reopen(self._client.model, self.name, error, text_of, marked=self._marked)
            self.reopened[error.code] += 1
        return self.take(self._client.call(self._stub.OpenSession, again))

    def take(self, answer: Any) -> Patch:
        patch = patch_of(answer.patch)
        self._buffer.apply(patch)
        return patch
