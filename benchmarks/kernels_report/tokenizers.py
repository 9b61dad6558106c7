"""Twins and interpreted kernels beside the reference, for one tokenizer after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from catalog import path_of
from kernels_report.columns import columns
from kernels_report.exactness import Outcome, by_twins, compare, hard_texts
from kernels_report.interpreter import batches, interpreted
from kernels_report.subjects import FAMILIES, Subject

TWIN_TEXTS = 5
"""As many times more texts go through the twins: they take a hundredth of the interpreter's time."""


@dataclass(frozen=True)
class Checked:
    """`seconds` are this machine's, and say nothing about a GPU."""

    family: str
    pattern: str
    twins: Outcome
    interpreter: Outcome
    seconds: float

    @property
    def red(self) -> bool:
        return self.twins.red or self.interpreter.red

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "red": self.red}


def check(family: str, texts: int, seed: int) -> Checked:
    """Needs TRITON_INTERPRET=1 from before the first import of Triton."""
    begun = time.monotonic()
    subject = Subject(family, path_of(family).read_bytes())
    twins = compare(by_twins(subject), [subject.samples(hard_texts(subject, texts * TWIN_TEXTS, seed))])
    samples = subject.samples(hard_texts(subject, texts, seed + 1))
    outcome = compare(interpreted(subject), batches(samples))
    return Checked(family, FAMILIES[family], twins, outcome, round(time.monotonic() - begun, 1))


def table(rows: Sequence[Checked]) -> str:
    header = ["tokenizer", "pattern", "by", "texts", "characters", "added tokens", "equal IDs", "equal ends", ""]
    lines = [
        [
            row.family,
            row.pattern,
            name,
            outcome.texts,
            outcome.characters,
            outcome.added_tokens,
            outcome.equal_ids,
            outcome.equal_ends,
            "RED" if outcome.red else "",
        ]
        for row in rows
        for name, outcome in (("twins", row.twins), ("interpreter", row.interpreter))
    ]
    wrong = [
        f"{row.family}: {outcome.difference}"
        for row in rows
        for outcome in (row.twins, row.interpreter)
        if outcome.difference
    ]
    return "\n".join(["Whole texts, beside the reference", columns(header, lines), *wrong])
