"""Errors at the edge: one table from the tier's errors to the status codes of gRPC and HTTP, and back.

An exception that isn't a `TierError` is a bug of ours: it is told as `internal`, without its text, and logged.
"""

from __future__ import annotations

import json
import logging
import traceback
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
STARTING = "tier.starting"
"""The tier isn't ready: nothing was done."""
RETRY_AFTER_S = 1
"""What who is turned away for load is told to wait."""
_RETRY_MS = str(1_000 * RETRY_AFTER_S)
_TOLD = ("toktier-", "retry-after-ms", "grpc-retry-pushback-ms")
"""Beginnings of the names of what the tier tells in trailing metadata."""
_RETRY_METADATA = (("retry-after-ms", _RETRY_MS), ("grpc-retry-pushback-ms", _RETRY_MS))
log = logging.getLogger("toktier")


class Unauthenticated(CallerError):
    """No credential, or one that isn't known."""


class PermissionDenied(CallerError):
    """The credential doesn't allow this call."""


class Late(EnvironmentFault):
    """The time that the caller or the tier gives a request is over."""


_TABLE: tuple[tuple[type[TierError], grpc.StatusCode, int], ...] = (  # the first class that fits decides
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, 401),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, 403),
    (SessionNotFound, grpc.StatusCode.NOT_FOUND, 404),
    (SnapshotNotFound, grpc.StatusCode.NOT_FOUND, 404),
    (RevisionConflict, grpc.StatusCode.ABORTED, 409),
    (SessionBusy, grpc.StatusCode.ABORTED, 409),
    (StateCorrupt, grpc.StatusCode.FAILED_PRECONDITION, 422),
    (CertificateInvalid, grpc.StatusCode.FAILED_PRECONDITION, 422),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION, 409),
    (CallerError, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    (Late, grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    (EnvironmentFault, grpc.StatusCode.UNAVAILABLE, 503),
)
_BY_CODE = {"text.too_long": 413, "body.late": 408}


def grpc_status(error: TierError) -> grpc.StatusCode:
    return next((status for kind, status, _ in _TABLE if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def http_status(error: TierError) -> int:
    found = _BY_CODE.get(error.code)
    return found or next((status for kind, _, status in _TABLE if isinstance(error, kind)), 500)


def http_headers(error: TierError) -> dict[str, str]:
    """Of the answer that tells `error`."""
    status = http_status(error)
    if status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}


def metadata_of(error: TierError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata: the code, the details as ASCII JSON, and after how long to come again."""
    told = (CODE_KEY, error.code), (DETAILS_KEY, json.dumps(error.details, default=str))
    return (*told, *_RETRY_METADATA) if isinstance(error, Overloaded) else told


def told(error: BaseException) -> TierError:
    """What the caller is told: a deliberate error as it is, anything else as `internal`."""
    if isinstance(error, TierError):
        return error
    log.error("internal error: %s", _where(error))
    return TierError(INTERNAL, "the tier failed; its log says more")


def _where(error: BaseException) -> str:
    """Types and places of an error and its causes. Not its message, and no value: they may be a user's text."""
    seen: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(seen) < 5:
        frames = traceback.extract_tb(cause.__traceback__, limit=-12)
        places = " < ".join(f"{frame.name}:{frame.filename}:{frame.lineno}" for frame in reversed(frames))
        seen.append(f"{type(cause).__qualname__} at {places or 'no place'}")
        cause = cause.__cause__ or cause.__context__
    return "; after ".join(seen)


_BACK: dict[grpc.StatusCode, type[TierError]] = {
    grpc.StatusCode.NOT_FOUND: SessionNotFound,
    grpc.StatusCode.ABORTED: RevisionConflict,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.DEADLINE_EXCEEDED: Late,
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


class OwnerAnswered(Exception):
    """Another pod answered a call with an error: its status, sentence and trailing metadata as they came."""

    def __init__(self, call: Any) -> None:
        super().__init__(call.details())
        self.status: grpc.StatusCode = call.code()
        self.details: str = call.details() or ""
        self.trailing: tuple[tuple[str, str | bytes], ...] = tuple(
            (key, value) for key, value in call.trailing_metadata() or () if key.startswith(_TOLD)
        )
        self.error: TierError = error_of(call)
