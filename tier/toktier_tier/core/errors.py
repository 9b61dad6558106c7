"""Every error the tier raises on purpose, sorted by whose fault it is.

    TierError                      has .code (append-only, machine-readable) and .details
    ├── CallerError                the request or file is wrong; the same call fails again
    │   ├── InvalidText            text that no UTF-8 encoder accepts
    │   ├── InvalidTokenizer       a tokenizer.json that can't be read or isn't one
    │   ├── UnsupportedTokenizer   a well-formed file with a feature that is refused by name
    │   ├── InvalidPattern         a regular expression outside the supported dialect
    │   └── InvalidRequest         positions, sizes or arguments out of range
    ├── StateError                 the stored state and the request don't fit
    │   ├── SessionNotFound
    │   ├── SnapshotNotFound       no tokenizer is served under that name
    │   ├── SessionBusy            another writer is at it, and the caller didn't want to wait
    │   ├── RevisionConflict       a stale writer; nothing was merged
    │   ├── StateCorrupt           an imported or stored state failed its own check
    │   └── CertificateInvalid     a patch whose certificate doesn't hold
    └── EnvironmentFault           a library, file system or network failed; trying again may help
        ├── SourceUnavailable
        ├── EncoderUnavailable     a candidate encoder can't be built for this snapshot
        ├── Overloaded             more work is waiting than the tier takes on
        └── EngineFault            the serving engine failed, was late, or answered something that can't be

A code never changes its meaning and is never reused.
"""

from __future__ import annotations

from typing import Any


class TierError(Exception):
    """Base of all deliberate errors: a stable `code`, a sentence, and `details` safe to log (never user text)."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class CallerError(TierError):
    pass


class InvalidText(CallerError):
    pass


class InvalidTokenizer(CallerError):
    pass


class UnsupportedTokenizer(CallerError):
    pass


class InvalidPattern(CallerError):
    pass


class InvalidRequest(CallerError):
    pass


class StateError(TierError):
    pass


class SessionNotFound(StateError):
    pass


class SnapshotNotFound(StateError):
    pass


class SessionBusy(StateError):
    pass


class RevisionConflict(StateError):
    pass


class StateCorrupt(StateError):
    pass


class CertificateInvalid(StateError):
    pass


class EnvironmentFault(TierError):
    pass


class SourceUnavailable(EnvironmentFault):
    pass


class EncoderUnavailable(EnvironmentFault):
    pass


class EngineFault(EnvironmentFault):
    pass


class Overloaded(EnvironmentFault):
    pass
