"""The requests that both clients send."""

from __future__ import annotations

from ..transport.v1 import toktier_pb2 as pb

DEFAULT_TIMEOUT_S = 30.0


def encode(model: str, session: str, text: str, expected: int | None) -> pb.EncodeRequest:
    return pb.EncodeRequest(model=model, session=session, text=text, expected_revision=expected)


def append(model: str, session: str, delta: str, expected: int) -> pb.AppendRequest:
    return pb.AppendRequest(model=model, session=session, delta=delta, expected_revision=expected)


def edit(model: str, session: str, start: int, stop: int, replacement: str, expected: int) -> pb.EditRequest:
    return pb.EditRequest(
        model=model,
        session=session,
        start_chars=start,
        stop_chars=stop,
        replacement=replacement,
        expected_revision=expected,
    )
