"""Odd calls of the gRPC interface, and what may become of a session by them."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from servers import GrpcTier
from toktier_tier.core.errors import TierError
from toktier_tier.transport.interface import METHODS, path_of
from toktier_tier.transport.messages import ids_of
from toktier_tier.transport.v1 import toktier_pb2 as pb

CHANGING = {"Encode", "OpenSession", "Append", "Edit", "CloseSession", "Handoff", "EncodeAll"}
STATED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}
KEPT = "Kept <|endoftext|> text, naïve 中文 🙂"
NAMES = st.sampled_from(["kept", "", "other", "x" * 600, "a/b", "\x00", "кт", "kept "])
TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["<|endoftext|>", "\u0301\u0301", "\U0010ffff", "\x00" * 40, "a" * 5_000, "\r\n \t\u2028"]),
)
NUMBERS = st.one_of(st.integers(0, 60), st.sampled_from([2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]))


def value_of(field: Any) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return NAMES if field.name in ("model", "session") else TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=200)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_of(field.message_type)
    bits = 64 if field.type == FieldDescriptor.TYPE_UINT64 else 32
    return NUMBERS.filter(lambda number: number < 2**bits)


@st.composite
def message_of(draw: st.DrawFn, descriptor: Any) -> Any:
    message = getattr(pb, descriptor.name)()
    for field in descriptor.fields:
        if draw(st.integers(0, 3)) == 0:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(value_of(field), max_size=4)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(draw(value_of(field)))
        else:
            setattr(message, field.name, draw(value_of(field)))
    return message


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    """(method, bytes): well-formed messages of odd values, the same cut or with a byte changed, and any bytes."""

    @st.composite
    def request(draw: st.DrawFn) -> tuple[str, bytes]:
        method = draw(st.sampled_from(METHODS))
        kind = draw(st.integers(0, 4))
        if kind == 4:
            return method.name, draw(st.binary(max_size=120))
        message = draw(message_of(method.input_type))
        if any(field.name == "model" for field in method.input_type.fields) and draw(st.booleans()):
            message.model = ""
        data = bytearray(message.SerializeToString())
        if kind == 3 and data:
            at = draw(st.integers(0, len(data) - 1))
            data[at] = draw(st.integers(0, 255))
        return method.name, bytes(data)

    return request()


def ask(channel: Any, method: str, data: bytes) -> tuple[bytes, Any]:
    """The answer's bytes and None, or nothing and the error."""
    try:
        return channel.unary_unary(path_of(method))(data, timeout=20), None
    except grpc.RpcError as error:
        return b"", error


def state_of(server: GrpcTier) -> Any:
    try:
        info, ids = server.sessions.snapshot("default", "kept")
    except TierError:
        return None
    return info, ids.tobytes()


def check_kept(server: GrpcTier, channel: Any) -> None:
    """The session's IDs, as they leave, are still those of its text."""
    request = pb.GetSessionRequest(session="kept", include_ids=True).SerializeToString()
    data, refused = ask(channel, "GetSession", request)
    if refused is not None:
        assert refused.code() is grpc.StatusCode.NOT_FOUND
        return
    answer = pb.GetSessionResponse.FromString(data)
    with server.sessions._lock:
        key = server.sessions._key("default", "kept")
        live = server.sessions._table.get(key)
    assert live is not None
    assert ids_of(answer.ids).tolist() == server.tier.ids(live.state.text())
