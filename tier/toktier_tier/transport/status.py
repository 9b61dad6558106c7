"""Errors at the edge: one table from the tier's errors to the status codes of gRPC and HTTP, and back.

An exception that isn't a `TierError` is a bug of ours: it is told as `internal`, without its text, and logged.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import grpc

from ..core.errors import (
    CallerError,
    CertificateInvalid,
    EnvironmentFault,
    InvalidRequest,
    Overloaded,
    RevisionConflict,
    SessionBusy,
    SessionNotFound,
    SnapshotNotFound,
    StateCorrupt,
    StateError,
    TierError,
)

CODE_KEY, DETAILS_KEY = "toktier-code", "toktier-details"
INTERNAL = "internal"
log = logging.getLogger("toktier")

_TABLE: tuple[tuple[type[TierError], grpc.StatusCode, int], ...] = (  # the first class that fits decides
    (SessionNotFound, grpc.StatusCode.NOT_FOUND, 404),
    (SnapshotNotFound, grpc.StatusCode.NOT_FOUND, 404),
    (RevisionConflict, grpc.StatusCode.ABORTED, 409),
    (SessionBusy, grpc.StatusCode.ABORTED, 409),
    (StateCorrupt, grpc.StatusCode.FAILED_PRECONDITION, 422),
    (CertificateInvalid, grpc.StatusCode.FAILED_PRECONDITION, 422),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION, 409),
    (CallerError, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    (EnvironmentFault, grpc.StatusCode.UNAVAILABLE, 503),
)
_TOO_LARGE = "text.too_long"


def grpc_status(error: TierError) -> grpc.StatusCode:
    return next((status for kind, status, _ in _TABLE if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def http_status(error: TierError) -> int:
    if error.code == _TOO_LARGE:
        return 413
    return next((status for kind, _, status in _TABLE if isinstance(error, kind)), 500)


def metadata_of(error: TierError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata: the code, and the details as ASCII JSON."""
    return (CODE_KEY, error.code), (DETAILS_KEY, json.dumps(error.details, default=str))


def told(error: BaseException) -> TierError:
    """What the caller is told: a deliberate error as it is, anything else as `internal`."""
    if isinstance(error, TierError):
        return error
    log.error("internal error", exc_info=error)
    return TierError(INTERNAL, "the tier failed; its log says more")


_BACK: dict[grpc.StatusCode, type[TierError]] = {
    grpc.StatusCode.NOT_FOUND: SessionNotFound,
    grpc.StatusCode.ABORTED: RevisionConflict,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
}


def error_of(call: Any) -> TierError:
    """The tier's error behind a failed call (a `grpc.RpcError` with code, details and trailing metadata)."""
    trailing = {key: value for key, value in (call.trailing_metadata() or ()) if isinstance(value, str)}
    code = trailing.get(CODE_KEY)
    status: grpc.StatusCode = call.code()
    kind = _BACK.get(status, EnvironmentFault)
    if code is None:
        return EnvironmentFault(f"grpc.{status.name.lower()}", str(call.details()))
    if code.startswith("snapshot."):
        kind = SnapshotNotFound
    message = str(call.details()).removeprefix(f"[{code}] ")
    try:
        details = dict(json.loads(trailing.get(DETAILS_KEY, "{}")))
    except (ValueError, TypeError):
        details = {}
    return kind(code, message, **{key: value for key, value in details.items() if key not in ("code", "message")})
