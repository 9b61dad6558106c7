"""Every error these kernels raise on purpose, sorted by whose fault it is.

    KernelsError                  has .code (append-only, machine-readable) and .details (never a user's text)
    ├── CallerError               the same call fails again
    │   ├── InvalidText           kernels.invalid_utf8 (`offset`, `document`, `document_offset`)
    │   ├── InvalidArgument       kernels.invalid_spans, kernels.invalid_argument
    │   ├── InvalidTables         kernels.too_many_classes and what else tables can't express
    │   └── TextTooLarge          kernels.too_large: more than the memory limit, or 2**31 bytes, allows
    ├── StateError                this engine can't do that, another path can
    │   ├── Unsettled             kernels.unsettled: the text has to be normalized, and no normalizer was given
    │   ├── Overlong              kernels.overlong: stretches past a limit, and nothing was given to encode them
    │   └── Closed                kernels.closed
    └── EnvironmentFault          trying again may help
        ├── NotInstalled          kernels.not_installed: no torch or Triton that works here
        ├── OutOfMemory           kernels.out_of_memory: the device has less than the engine may use
        ├── DeviceFault           kernels.device: CUDA failed; `sticky`: this process can't use the device again
        └── Busy                  kernels.busy: as many callers wait as the engine lets wait

A code never changes its meaning and is never reused.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any


class KernelsError(Exception):
    """Base of all deliberate errors: a stable `code`, a sentence, and `details` safe to log."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class CallerError(KernelsError):
    pass


class InvalidText(CallerError):
    pass


class InvalidArgument(CallerError):
    pass


class InvalidTables(CallerError):
    pass


class TextTooLarge(CallerError):
    pass


class StateError(KernelsError):
    pass


class Unsettled(StateError):
    pass


class Overlong(StateError):
    pass


class Closed(StateError):
    pass


class EnvironmentFault(KernelsError):
    pass


class NotInstalled(EnvironmentFault):
    pass


class OutOfMemory(EnvironmentFault):
    pass


class DeviceFault(EnvironmentFault):
    pass


class Busy(EnvironmentFault):
    pass


def undecodable(documents: Any, offset: int) -> InvalidText:
    """`documents`: where each starts. `offset` counts from the first one, `document_offset` from the one it is in."""
    document = bisect_right(documents, offset) - 1
    return InvalidText(
        "kernels.invalid_utf8",
        f"the text isn't UTF-8 from byte {offset} on",
        offset=offset,
        document=document,
        document_offset=offset - int(documents[document]),
    )
