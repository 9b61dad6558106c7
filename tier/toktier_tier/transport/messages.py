"""Patches between the tier's values and the wire's messages.

Guarantee: `patch_of` of a message that `fill` wrote gives an equal patch. IDs travel as little-endian uint32 bytes:
`ids_of` is a view on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from ..core.errors import InvalidRequest
from ..core.values import Certificate, Ids, Patch, Reason, Route
from .v1 import toktier_pb2 as pb

MAX_MESSAGE_BYTES = 256 << 20


def message_limits(receive_bytes: int, send_bytes: int) -> tuple[tuple[str, int], ...]:
    """As options of channels and servers."""
    return ("grpc.max_receive_message_length", receive_bytes), ("grpc.max_send_message_length", send_bytes)


MESSAGE_LIMITS = message_limits(MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
"""Of servers and clients alike, unless told otherwise."""
ROUTES: dict[Route, pb.Route] = {
    Route.REPAIR: pb.ROUTE_REPAIR,
    Route.ENCODE: pb.ROUTE_ENCODE,
    Route.REFERENCE: pb.ROUTE_REFERENCE,
    Route.UNCHANGED: pb.ROUTE_UNCHANGED,
}
ROUTES_BACK = {message: route for route, message in ROUTES.items()}
_LITTLE = sys.byteorder == "little"


def bytes_of(ids: Ids) -> bytes:
    return ids.tobytes() if _LITTLE else ids.astype("<u4").tobytes()


def ids_of(data: bytes) -> Ids:
    """Raises `InvalidRequest` (`ids.not_whole`) for bytes that are no whole number of IDs."""
    if len(data) % 4:
        raise InvalidRequest("ids.not_whole", "IDs are packed as 4 bytes each", bytes=len(data))
    found = np.frombuffer(data, dtype="<u4")
    return found if _LITTLE else found.astype(np.uint32)


def ranges_of(ranges: Iterable[pb.Range]) -> list[tuple[int, int]]:
    return [(each.start_chars, each.stop_chars) for each in ranges]


def message_ranges(ranges: Iterable[tuple[int, int]]) -> list[pb.Range]:
    """Raises `InvalidRequest` (`trust.bad_span`) for what can't be sent."""
    try:
        return [pb.Range(start_chars=start, stop_chars=stop) for start, stop in ranges]
    except (TypeError, ValueError):
        raise InvalidRequest("trust.bad_span", "an untrusted span is a pair of positions") from None


def fill(message: pb.Patch, patch: Patch) -> None:
    """Write `patch` into an empty message: half the time of making one by keyword arguments and copying it."""
    message.keep = patch.keep
    message.ids = bytes_of(patch.ids)
    message.resume = patch.resume
    message.total = patch.total
    message.revision = patch.revision
    message.route = ROUTES[patch.route]
    message.reason = patch.reason
    if patch.certificate is not None:
        to = message.certificate
        (
            to.fingerprint,
            to.rule_digest,
            to.window_chars,
            to.boundary_chars,
            to.resume_chars,
            to.text_chars,
            to.overlap_tokens,
            to.overlap_digest,
        ) = patch.certificate


def patch_of(message: pb.Patch) -> Patch:
    """Raises `InvalidRequest` for a message that no tier of this version sends."""
    route = ROUTES_BACK.get(message.route)
    if route is None:
        raise InvalidRequest("patch.unknown_route", f"route {message.route} is unknown here")
    try:
        reason = Reason(message.reason)
    except ValueError:
        raise InvalidRequest("patch.unknown_reason", f"reason {message.reason[:80]!r} is unknown here") from None
    certificate = None
    if message.HasField("certificate"):
        found = message.certificate
        certificate = Certificate(
            found.fingerprint,
            found.rule_digest,
            found.window_chars,
            found.boundary_chars,
            found.resume_chars,
            found.text_chars,
            found.overlap_tokens,
            found.overlap_digest,
        )
    return Patch(
        message.keep,
        ids_of(message.ids),
        message.resume,
        message.total,
        message.revision,
        route,
        reason,
        certificate,
    )
