"""What was compared so far, one file for each kind and tokenizer, written whole and moved into place."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .plan import versions

SAVE_S = 10.0
MAX_DIVERGENCES = 50
TRIES = 2_000


@dataclass
class Tally:
    """Comparisons of one kind on one tokenizer, by the code they were made with.

    batch    number of the next batch: it is part of the seed, so that nothing is compared twice
    counts   by code digest, by sort of comparison
    differing   how many differed, by code digest
    """

    kind: str
    family: str
    batch: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)
    divergences: list[dict[str, Any]] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)

    @property
    def divergent(self) -> int:
        """How many differed with the code as it is."""
        return self.differing.get(versions()["code"], 0)

    def add(self, sort: str, number: int) -> None:
        mine = self.counts.setdefault(versions()["code"], {})
        mine[sort] = mine.get(sort, 0) + number

    def diverged(self, sort: str, text: str, expected: Any, got: Any) -> None:
        code = versions()["code"]
        self.differing[code] = self.differing.get(code, 0) + 1
        if self.divergent > MAX_DIVERGENCES:
            return
        found = {"sort": sort, "text": text, "expected": expected, "got": got, **versions()}
        print(f"DIVERGENCE {self.family} {json.dumps(found, ensure_ascii=True)}", flush=True)
        self.divergences.append(found)


def path_of_tally(out: Path, kind: str, family: str) -> Path:
    return out / "exactness" / kind / f"{family}.json"


def load(out: Path, kind: str, family: str) -> Tally:
    path = path_of_tally(out, kind, family)
    return Tally(**json.loads(path.read_text())) if path.exists() else Tally(kind, family)


def save(out: Path, tally: Tally) -> None:
    path = path_of_tally(out, tally.kind, tally.family)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(tally)))
    os.replace(draft, path)


def run_for(out: Path, tally: Tally, seconds: float, one_batch: Callable[[int], None]) -> None:
    """Batches until the time is over (one at least), saved every few seconds: a second start goes on behind them."""
    begun = saved = time.monotonic()
    while True:
        before = time.monotonic()
        one_batch(tally.batch)
        now = time.monotonic()
        tally.batch, tally.seconds = tally.batch + 1, tally.seconds + now - before
        over = now - begun >= seconds
        if over or now - saved > SAVE_S:
            save(out, tally)
            saved = now
        if over:
            return


def minimized(text: str, differs: Callable[[str], bool]) -> str:
    """A shorter text that still differs: parts of it are dropped, halves first, as long as that holds."""
    tries, size = 0, len(text) // 2
    while size and tries < TRIES:
        at = 0
        while at < len(text) and tries < TRIES:
            shorter = text[:at] + text[at + size :]
            tries += 1
            if shorter and differs(shorter):
                text = shorter
            else:
                at += size
        size //= 2
    return text
