"""The requests that both clients send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from ..core.errors import InvalidRequest, TierError
from ..transport.messages import MESSAGE_LIMITS, message_ranges
from ..transport.v1 import toktier_pb2 as pb

DEFAULT_TIMEOUT_S = 30.0
LOST = frozenset({"session.not_found", "session.revision_conflict"})
"""What a change is answered whose session the tier hasn't got, or has as it never was for its only writer."""
CHANNEL_OPTIONS = (
    *MESSAGE_LIMITS,
    ("grpc.initial_reconnect_backoff_ms", 100),  # a pod that is back is found within a second
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
Ranges = Sequence[tuple[int, int]]
TextOf = Callable[[], str | tuple[str, Ranges]]
"""The whole text of a session, or that with its untrusted spans."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: `ca` that the tier's certificate must be of (default: the usual authorities), and the client's own
    `certificate` and `key` where the tier asks for one. `server_name`: the name in the tier's certificate, if the
    address is another."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises `InvalidRequest` (`client.tls`) for files that can't be read."""
        try:
            ca, key, certificate = (
                Path(path).read_bytes() if path is not None else None for path in (self.ca, self.key, self.certificate)
            )
        except OSError as error:
            raise InvalidRequest("client.tls", f"a TLS file can't be read: {error.strerror}") from None
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def options(self) -> tuple[tuple[str, str], ...]:
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


def metadata(token: str) -> tuple[tuple[str, str], ...] | None:
    """Raises `InvalidRequest` (`client.token`) for what can't be sent as one."""
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("client.token", "a token is printable ASCII without blanks")
    return (("authorization", f"Bearer {token}"),)


def encode(model: str, session: str, text: str, expected: int | None, untrusted: Ranges = ()) -> pb.EncodeRequest:
    return pb.EncodeRequest(
        model=model, session=session, text=text, expected_revision=expected, untrusted=message_ranges(untrusted)
    )


def open_session(model: str, session: str, text: str, untrusted: Ranges = ()) -> pb.OpenSessionRequest:
    return pb.OpenSessionRequest(model=model, session=session, text=text, untrusted=message_ranges(untrusted))


def append(model: str, session: str, delta: str, expected: int, untrusted: Ranges = ()) -> pb.AppendRequest:
    return pb.AppendRequest(
        model=model, session=session, delta=delta, expected_revision=expected, untrusted=message_ranges(untrusted)
    )


def edit(
    model: str, session: str, start: int, stop: int, replacement: str, expected: int, untrusted: Ranges = ()
) -> pb.EditRequest:
    return pb.EditRequest(
        model=model,
        session=session,
        start_chars=start,
        stop_chars=stop,
        replacement=replacement,
        expected_revision=expected,
        untrusted=message_ranges(untrusted),
    )


def reopen(
    model: str, session: str, error: TierError, text_of: TextOf | None, *, marked: bool
) -> pb.OpenSessionRequest:
    """The request that makes a session again after a change was answered `error`. Raises `error` where it can't: also
    where the session's text was `marked` untrusted in part, and `text_of` doesn't tell where.
    """
    if text_of is None or error.code not in LOST:
        raise error
    whole = text_of()
    if isinstance(whole, str):
        if marked:
            raise error
        whole = whole, ()
    return open_session(model, session, *whole)
