"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault: in `file` (under tier/toktier_tier), the only occurrence of `old` becomes `new`.

    tests   what has to fail then: arguments of pytest
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
