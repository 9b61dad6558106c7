"""What was measured: rows, their JSON, and their percentiles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


class Unequal(Exception):
    """An engine's IDs differed from the reference's: nothing measured is shown."""


@dataclass(frozen=True)
class Row:
    """Times of one engine at one work item and size.

    equal   its IDs were compared with the reference's full encode, and are the same
    extra   further keys of the JSON: `text`, `warm`, `workers`, `route`
    """

    work: str
    engine: str
    context_chars: int
    delta_chars: int
    p50_us: float
    p90_us: float
    n: int
    equal: bool
    extra: Mapping[str, object] = field(default_factory=dict)

    def matches(self, **wanted: object) -> bool:
        document = self.document()
        return all(document.get(key) == value for key, value in wanted.items())

    def document(self) -> dict[str, object]:
        return {
            "work": self.work,
            "engine": self.engine,
            "context_chars": self.context_chars,
            "delta_chars": self.delta_chars,
            "p50_us": round(self.p50_us, 2),
            "p90_us": round(self.p90_us, 2),
            "n": self.n,
            "equal": self.equal,
            **self.extra,
        }


@dataclass(frozen=True)
class StateRow:
    """Memory of the tier's sessions of one text, in bytes per token."""

    text: str
    keep_text: bool
    context_chars: int
    tokens: int
    accounted: float
    measured: float
    sessions: int
    equal: bool

    def document(self) -> dict[str, object]:
        return {
            "work": "state_bytes_per_token",
            "engine": "tier",
            "context_chars": self.context_chars,
            "text": self.text,
            "keep_text": self.keep_text,
            "tokens": self.tokens,
            "accounted": round(self.accounted, 3),
            "measured": round(self.measured, 3),
            "sessions": self.sessions,
            "equal": self.equal,
        }


@dataclass(frozen=True)
class Results:
    """Everything of one run."""

    rows: Sequence[Row]
    states: Sequence[StateRow]

    def find(self, **wanted: object) -> Row | None:
        """The first row with these values; None if it wasn't measured."""
        return next((row for row in self.rows if row.matches(**wanted)), None)

    def p50_us(self, **wanted: object) -> float | None:
        row = self.find(**wanted)
        return None if row is None else row.p50_us

    def write(self, path: Path) -> None:
        documents = [row.document() for row in self.rows] + [state.document() for state in self.states]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")


def row_of(work: str, engine: str, sizes: tuple[int, int], times_ns: Sequence[int], **extra: Any) -> Row:
    """A row whose IDs were found equal; `sizes` are the context's and the delta's characters."""
    p50, p90 = np.percentile(np.array(times_ns, dtype=np.float64), (50, 90)) / 1_000
    return Row(work, engine, *sizes, float(p50), float(p90), len(times_ns), True, extra)
