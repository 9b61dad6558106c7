"""From a call's bytes to its answer's: who calls, within which bounds, here or on another pod, what errors become.

Guarantees: every deliberate error becomes a status with its code in the trailing metadata, anything else `internal`. A
call is worked on for the tenant of its credential only, within the limits, and before its deadline. With several pods,
a call goes to the pod that has its session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError

from ..core.errors import InvalidRequest, TierError
from .elsewhere import Elsewhere
from .interface import path_of
from .servicer import TokenizerServicer
from .status import Late, OwnerAnswered, PermissionDenied, grpc_status, metadata_of, told
from .tenants import FORWARDED_KEY, Identity
from .v1 import toktier_pb2 as pb

FOR_PEERS = frozenset({"Handoff", "EncodeAll"})
"""What only other pods may call, where callers are told apart or pods share a token."""
Metadata = Iterable[tuple[str, str | bytes]]
Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]


class Caller(Protocol):
    """What a call came with, as gRPC's contexts tell it."""

    def invocation_metadata(self) -> Metadata | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def time_remaining(self) -> float | None: ...


class Ended(Exception):
    """A call failed: its status, sentence and trailing metadata."""

    def __init__(self, status: Status) -> None:
        super().__init__(status[1])
        self.status = status


AnswerCall = Callable[[bytes, Caller], Awaitable[bytes]]


def answering(servicer: TokenizerServicer, method: MethodDescriptor) -> AnswerCall:
    """Answers the calls of one method, each under the span of its request; raises `Ended`."""
    handle = getattr(servicer, method.name)
    parse = getattr(pb, method.input_type.name).FromString
    telemetry, span = servicer.telemetry, path_of(method.name)[1:]
    tracing = telemetry.tracing
    identify, anonymous = servicer.identities.of_call, servicer.identities.unasked
    enter, leave = servicer.limits.enter, servicer.limits.leave
    peers_only = method.name in FOR_PEERS and anonymous is None
    pods, marks_checked = servicer.pods, servicer.identities.knows_pods

    async def by_pods(elsewhere: Elsewhere, data: bytes, who: Identity, caller: Caller) -> bytes:
        request, tenant = parse(data), who.tenant

        async def here() -> bytes:
            return (await handle(request, tenant)).SerializeToString()  # type: ignore[no-any-return]

        metadata, left_s = caller.invocation_metadata(), caller.time_remaining()
        if marks_checked and not who.peer and any(key == FORWARDED_KEY for key, _ in metadata or ()):
            raise _not_a_peer()
        return await elsewhere.serve(method.name, request, data, tenant, metadata, left_s, here)

    async def answer(data: bytes, caller: Caller) -> bytes:
        try:
            who = anonymous or identify(caller.invocation_metadata(), caller.auth_context)
            if peers_only and not who.peer:
                raise _not_a_peer()
            size = len(data)
            load = enter(who.tenant, size)
            try:
                if caller.time_remaining() == 0:
                    raise Late("tier.late", "the deadline was over before the call was worked on")
                if pods is None and not tracing:
                    return (await handle(parse(data), who.tenant)).SerializeToString()  # type: ignore[no-any-return]
                with telemetry.receive(span, lambda: _carrier(caller)):
                    if pods is not None:
                        return await by_pods(pods, data, who, caller)
                    return (await handle(parse(data), who.tenant)).SerializeToString()  # type: ignore[no-any-return]
            finally:
                leave(load, size)
        except DecodeError:
            error: TierError = InvalidRequest("request.malformed", f"no {method.input_type.name}")
            status = status_of(error)
        except OwnerAnswered as answered:
            error, status = answered.error, (answered.status, answered.details, answered.trailing)
        except Exception as raised:
            error = told(raised)
            status = status_of(error)
        telemetry.failed(method.name, error.code)
        raise Ended(status)

    return answer


def status_of(error: TierError) -> Status:
    return grpc_status(error), str(error), metadata_of(error)


def _not_a_peer() -> PermissionDenied:
    return PermissionDenied("auth.peers_only", "only other pods of the tier may call this")


def _carrier(caller: Caller) -> dict[str, str]:
    return {key: value for key, value in caller.invocation_metadata() or () if isinstance(value, str)}
