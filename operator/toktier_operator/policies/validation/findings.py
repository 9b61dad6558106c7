"""Errors and warnings about one spec, in the order in which they were found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_WARNING_CHARS = 256
"""Longer ones may be cut off by the API server."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Each like `spec.drain.linger: what is wrong, and what to change`."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(self.errors + other.errors, self.warnings + other.warnings)

    @property
    def refusal(self) -> str:
        """All errors in one line; empty if there are none."""
        return "; ".join(self.errors)


@dataclass(slots=True)
class Notes:
    """Findings while they are being made."""

    _errors: list[str] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)

    def error(self, path: str, problem: str) -> None:
        self._errors.append(f"{path}: {problem}")

    def warning(self, path: str, problem: str) -> None:
        self._warnings.append(f"{path}: {problem}"[:MAX_WARNING_CHARS])

    def findings(self) -> Findings:
        return Findings(tuple(self._errors), tuple(self._warnings))


def repeated(values: Iterable[str]) -> list[str]:
    """Those that come more than once, each once."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for value in values:
        if value in seen:
            twice[value] = None
        seen.add(value)
    return list(twice)
