"""`python -m demo --out build`: admit a real tokenizer, replay an agent session of over a million characters, check it.

Writes `demo.json` and `demo.html` under `--out`. Exit status: 0, 1 if any checked turn diverged from the reference
(or the tokenizer wasn't admitted), 2 if the tokenizer couldn't be had.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from agent_session import render, turns
from catalog import path_of
from demo.page import to_html
from demo.replay import replay, time_full_encodes, verify
from demo.report import Result, environment, tables, to_json
from toktier_tier.admission.campaign import Admission, admit
from toktier_tier.admission.compiled import Verdict
from toktier_tier.core.errors import EnvironmentFault
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.sessions.service import SessionService
from toktier_tier.tokenizer import TierTokenizer

CANDIDATE = "gigatoken"
DRAW_EVERY_S = 0.2
MIN_VERIFY_S = 30.0


class _Task:
    """One line of the progress bar. Nothing is drawn but in these calls: a drawing thread would disturb timings."""

    def __init__(self, bar: Progress, description: str) -> None:
        self._bar, self._description = bar, description
        self._task = bar.add_task(description, total=None)
        self._drawn_s = 0.0
        self._draw()

    def __call__(self, done: int, total: int, what: str = "") -> None:
        described = f"{self._description}: {what}" if what else self._description
        self._bar.update(self._task, completed=done, total=total, description=described)
        if time.monotonic() - self._drawn_s > DRAW_EVERY_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._bar.refresh()

    def finish(self) -> None:
        task = self._bar.tasks[self._task]
        total = task.total or 1
        done = task.completed if task.total else 1
        self._bar.update(self._task, completed=done, total=total, description=self._description)
        self._bar.stop_task(self._task)
        self._draw()


class _Phases:
    """How long each phase took, shown as it goes."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, description: str) -> Iterator[_Task]:
        """Times what happens inside, which may tell how far it is."""
        task = _Task(self._bar, description)
        began = time.monotonic()
        yield task
        self.seconds[name] = time.monotonic() - began
        task.finish()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    done = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    words = TextColumn("{task.description}", markup=False)
    try:
        with Progress(words, *done, console=console, auto_refresh=False) as bar:
            result = run(options, _Phases(bar))
    except EnvironmentFault as error:
        console.print(f"demo: {error}", markup=False)
        return 2
    if isinstance(result, Admission):
        console.print(f"{options.family} wasn't admitted: {result.report.reason or result.report.verdict.value}")
        return 1
    for table in tables(result):
        _print_table(console, table.title, table.header, table.rows, table.note)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "demo.json").write_text(to_json(result), encoding="utf-8")
    (options.out / "demo.html").write_text(to_html(result), encoding="utf-8")
    console.print(f"Written: {options.out / 'demo.json'}, {options.out / 'demo.html'}")
    return 1 if result.verification.divergences or not result.verification.checked else 0


def run(options: argparse.Namespace, phases: _Phases) -> Result | Admission:
    """The whole demo; an `Admission` where the tokenizer wasn't admitted."""
    facts, began = environment(), time.monotonic()
    with phases.phase("fetch", f"Fetch {options.family}"):
        data = path_of(options.family).read_bytes()
        reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    with phases.phase("admission", "Admit") as tell:
        admission = admit(
            reference,
            budget_s=options.admission_budget_s,
            seed=options.seed,
            progress=lambda what, done: tell(int(100 * done), 100, what),
        )
    if admission.compiled.verdict is not Verdict.ADMITTED:
        return admission
    with phases.phase("session", "Build the session from files of this machine"):
        session = list(turns(options.seed, options.turns, options.chars))
    service = SessionService(TierTokenizer(reference, admission.compiled))
    with phases.phase("replay", "Replay through the tier, timed") as tell:
        done = replay(service, session, tell)
    counts, state_bytes = service.counts(), service.state_bytes
    with phases.phase("full encodes", "Time full encodes at sampled sizes") as tell:
        full = time_full_encodes(reference, CANDIDATE, render(session), tell)
    with phases.phase("verification", "Check turns against the reference's full encode") as tell:
        left_s = max(options.budget_s - (time.monotonic() - began), MIN_VERIFY_S)
        verification = verify(service, session, done, left_s, tell)
    return Result(
        family=options.family,
        candidate=CANDIDATE,
        admission=admission,
        replay=done,
        full=full,
        verification=verification,
        counts=counts,
        state_bytes=state_bytes,
        seconds=phases.seconds,
        environment=facts,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description="One agent session through TokTier, checked.")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for demo.json and demo.html")
    parser.add_argument("--family", default="qwen-3", help="a family of the catalog")
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--chars", type=int, default=1_050_000, help="characters of context at the end, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--admission-budget-s", type=float, default=10.0)
    parser.add_argument("--budget-s", type=float, default=280.0, help="turns not checked by then stay so, visibly")
    return parser.parse_args(arguments)


def _print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    figures = any(header)
    table = RichTable(title=title, title_justify="left", title_style="bold", show_header=figures, caption=note or None)
    table.caption_justify = "left"
    for index, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if figures and index else "left"
        table.add_column(name, justify=justify, no_wrap=figures and console.width >= 120)
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table, markup=False)


if __name__ == "__main__":
    sys.exit(main())
