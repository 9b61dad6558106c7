"""The run itself: every check of a plan, then its times; engines and expected answers are made once."""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from catalog import path_of
from gpu_check.checks import Check, like_the_reference, steps_like_twins
from gpu_check.plan import MAIN, Plan
from gpu_check.texts import CHAT, DECOMPOSED, NFC
from gpu_check.timing import Bulk, Cell, Latency, bulk, latency, step_times
from kernels_report.exactness import hard_texts
from kernels_report.subjects import Sample, Subject
from toktier_kernels.engine import Engine

MEMORY_BYTES = 6 << 30
KINDS = {kind.name: kind for kind in (NFC, DECOMPOSED, CHAT)}


class Session:
    """checks: in order; latencies, steps (family → characters → step → microseconds), bulks: of `time`."""

    def __init__(self, plan: Plan, device: str, tokenizers: Path | None, seed: int) -> None:
        self.plan, self._device, self._tokenizers, self._seed = plan, device, tokenizers, seed
        self.checks: list[Check] = []
        self.latencies: list[Latency] = []
        self.steps: dict[str, dict[int, dict[str, float]]] = {}
        self.bulks: list[Bulk] = []
        self.left_out: list[Cell] = []
        self._engines: dict[tuple[str, str], Engine] = {}
        self._subjects: dict[str, Subject] = {}

    def check(self) -> None:
        """Everything that is timed is among what is compared."""
        plan = self.plan
        for family in plan.families:
            subject = self._subject(family)
            self.checks += steps_like_twins(
                subject, self._device, plan.twin_texts, plan.edge_sizes, plan.broken, self._seed
            )
            hard = subject.samples(hard_texts(subject, plan.texts, self._seed + 1))
            for mode in plan.modes:
                engine = self._engine(family, mode)
                self.checks.append(like_the_reference(family, f"hard texts, {mode}", engine, hard))
            timed = {(c.text, c.chars) for c in plan.cells() if c.family == family} | {(CHAT.name, plan.sizes[0])}
            for text in KINDS:
                sizes = sorted(chars for name, chars in timed if name == text)
                samples = subject.samples([KINDS[text].text(chars) for chars in sizes])
                for mode in plan.modes if samples else ():
                    check = like_the_reference(
                        family, f"{text} text, {mode}", self._engine(family, mode), samples, False
                    )
                    self.checks.append(check)
        if MAIN in plan.families:
            self.checks.append(self._check_bulk())

    def time(self, deadline: float) -> None:
        """Cells, then steps, then the bulk; `deadline` is `time.monotonic`'s."""
        plan = self.plan
        for chars in plan.step_sizes:
            for family in plan.families if chars in plan.other_sizes else [MAIN]:
                data, engine = NFC.text(chars).encode(), self._engine(family, "eager")
                engine.encode([data])
                rounds, on_gpu = (1, False) if self._device == "cpu" else (20, True)
                times = step_times(lambda e=engine, d=data: e.encode([d]), rounds=rounds, on_gpu=on_gpu)  # type: ignore[misc]
                self.steps.setdefault(family, {})[chars] = times
        for copies in plan.copies:
            documents = [sample.data for sample in self._documents] * copies
            engine = self._engine(MAIN, plan.modes[0])
            self.bulks.append(bulk(MAIN, engine, documents, least=min(plan.least, 5), seconds=plan.seconds))
        for cell in plan.cells():
            if time.monotonic() > deadline:
                self.left_out.append(cell)
                continue
            engine, text = self._engine(cell.family, cell.mode), KINDS[cell.text].text(cell.chars)
            self.latencies.append(latency(cell, engine, text, least=plan.least, seconds=plan.seconds))

    def _check_bulk(self) -> Check:
        """The documents of the bulk, in as many copies as are timed."""
        engine, copies = self._engine(MAIN, self.plan.modes[0]), self.plan.copies[-1]
        return like_the_reference(MAIN, "bulk", engine, list(self._documents) * copies)

    @cached_property
    def _documents(self) -> Sequence[Sample]:
        text, chars = NFC.text(self.plan.sizes[-1]), self.plan.document_chars
        parts = [text[at : at + chars] for at in range(0, len(text), chars)]
        return self._subject(MAIN).samples(parts)

    def _subject(self, family: str) -> Subject:
        if family not in self._subjects:
            if self._tokenizers is not None:
                data = gzip.decompress((self._tokenizers / f"{family}.json.gz").read_bytes())
            else:
                data = path_of(family).read_bytes()
            self._subjects[family] = Subject(family, data)
        return self._subjects[family]

    def _engine(self, family: str, mode: str) -> Engine:
        key = family, mode
        if key not in self._engines:
            subject = self._subject(family)
            self._engines[key] = Engine(
                subject.tables,
                device=self._device,
                memory_bytes=MEMORY_BYTES,
                normalize=subject.normalize,
                encode_overlong=subject.encode_overlong,
                graphs=mode == "graph",
            )
        return self._engines[key]


def as_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Dataclasses, a cell's fields among those of its row."""
    found = []
    for row in rows:
        fields = asdict(row)
        found.append({**fields.pop("cell", {}), **fields})
    return found
