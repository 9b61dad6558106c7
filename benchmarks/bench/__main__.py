"""`python -m bench`: measure, check, show; `--help` lists the options.

Exit status: 0, measured (a missed bar is shown, not an error); 1, an engine's IDs differed, or the tokenizer wasn't
admitted, or the peer couldn't run: then nothing is shown or written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from catalog import path_of

from .appends import SessionWorks
from .cold import ColdWorks
from .engines import REFERENCE, TIER, Engines, NotAdmitted
from .peer_toktier import ENGINE as PEER
from .peer_toktier import Peer, PeerFailed
from .plan import ENGINES, Plan, full_plan, quick_plan
from .report import show, write_markdown
from .results import Results, Row, StateRow, Unequal
from .state import state_rows
from .texts import Texts
from .timing import keep_out_of_collections

FAMILY = "qwen-3"
"""The one tokenizer that the peer and the catalog have in common."""
ROOT = Path(__file__).parents[2]
ADMISSION_S = 10.0
PLAIN_COLUMNS = 150


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.quick and options.write_results:
        parser.error("a quick run has no results worth keeping")
    names = {*options.engines.split(","), REFERENCE}
    plan = (quick_plan if options.quick else full_plan)([name for name in ENGINES if name in names])
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_COLUMNS)
    output = options.out / "bench.json"
    output.unlink(missing_ok=True)  # no run leaves another's times
    try:
        results, facts = measure(plan, options.compiled_dir, options.admission_s, Console(stderr=True, log_path=False))
    except (Unequal, NotAdmitted, PeerFailed) as error:
        console.print(f"[bold red]nothing measured is shown:[/] {error}", highlight=False)
        return 1
    results.write(output)
    show(results, console)
    if options.write_results:
        write_markdown(results, facts, ROOT / "benchmarks" / "RESULTS.md")
    return 0


def measure(
    plan: Plan, compiled_dir: Path | None, admission_s: float, console: Console
) -> tuple[Results, dict[str, str]]:
    """All rows of `plan`, and facts of the run (versions, load). Raises `Unequal`, `NotAdmitted` and `PeerFailed`."""
    rows: list[Row] = []
    load = f"{os.getloadavg()[0]:.1f} before the run"
    tokenizer_json = path_of(FAMILY)
    with _step(console, "admission"):
        engines = Engines(tokenizer_json, compiled_dir=compiled_dir, budget_s=admission_s)
        keep_out_of_collections()
    with _step(console, f"starting {PEER}"):
        running = Peer(tokenizer_json) if plan.runs(PEER) else nullcontext()
    with running as peer:
        for alphabet, deltas in (("agent", plan.deltas), ("ascii", plan.ascii_deltas)):
            if not deltas:
                continue
            with _step(console, f"{alphabet} texts"):
                texts = _texts(plan, ascii_only=alphabet == "ascii")
            if alphabet == "agent":
                states = _states(plan, engines, texts, console)
                rows += _cold_rows(plan, engines, peer, texts, console)
            rows += _session_rows(plan, engines, peer, texts, alphabet, console)
    engines.check_trusted()
    facts = {"tokenizer": FAMILY, "peer": PEER, **engines.versions(), "tier's fallbacks": engines.fallbacks()}
    return Results(rows, states), {**facts, "load average": f"{load}, {os.getloadavg()[0]:.1f} at its end"}


def _texts(plan: Plan, *, ascii_only: bool) -> Texts:
    longest = max(max(plan.contexts), plan.state_chars, *(chars for _, chars in plan.cold))
    pool = 100 * max(chars for chars, _ in plan.deltas)
    return Texts(longest, pool, ascii_only=ascii_only)


def _states(plan: Plan, engines: Engines, texts: Texts, console: Console) -> list[StateRow]:
    with _step(console, "state of sessions"):
        return state_rows(plan, engines, texts)


def _cold_rows(plan: Plan, engines: Engines, peer: Peer | None, texts: Texts, console: Console) -> list[Row]:
    works = ColdWorks(plan, engines, peer, texts)
    rows: list[Row] = []
    for work, chars in plan.cold:
        with _step(console, f"{work} {chars:,}"):
            rows += works.chat(chars) if work == "cold_chat" else works.plain(chars)
    return rows


def _session_rows(
    plan: Plan, engines: Engines, peer: Peer | None, texts: Texts, alphabet: str, console: Console
) -> list[Row]:
    rows: list[Row] = []
    with _step(console, f"{alphabet}: seasoning"):
        works = SessionWorks(plan, engines, peer, texts, alphabet=alphabet)
    for context in plan.contexts:
        for delta, most in plan.deltas if alphabet == "agent" else plan.ascii_deltas:
            with _step(console, f"{alphabet}: append {delta:,} to {context:,}"):
                rows += works.appends(context, delta, most)
        if alphabet == "agent" and plan.runs(TIER):
            with _step(console, f"{alphabet}: edit the tail of {context:,}"):
                rows += works.edits(context, plan.deltas[0][1])
    return rows


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    with console.status(what):
        yield
    console.log(what, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="The tier beside its peers, in one run.")
    parser.add_argument("--quick", action="store_true", help="10 K characters and few repetitions")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which to run (the reference always runs)")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder for bench.json")
    parser.add_argument("--write-results", action="store_true", help="also write benchmarks/RESULTS.md")
    parser.add_argument("--compiled-dir", type=Path, default=None, help="where admissions are kept")
    parser.add_argument("--admission-s", type=float, default=ADMISSION_S, help="budget of an admission, if one is due")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
