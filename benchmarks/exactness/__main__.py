"""`python -m exactness splits|ids|sessions|history|marks|table --out build --seconds N [family ...]`.

Each start goes on where the last one stopped (state files under OUT/exactness), with texts that weren't compared
before. `marks` compares all pairs of combining characters on every catalog file with a normalizer. `table` writes what
was compared into docs/exactness.md, between its two markers. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from catalog import entries

from . import ids, marks, splits
from .plan import FAMILIES
from .state import Tally
from .table import write

KINDS: dict[str, Callable[[str, Path, float], Tally]] = {
    "splits": splits.run,
    "ids": ids.run_ids,
    "sessions": ids.run_sessions,
    "history": ids.run_history,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="exactness", description=__doc__)
    parser.add_argument("kind", choices=[*KINDS, "marks", "table"])
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seconds", type=float, default=600.0, help="in all, shared by the tokenizers")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--document", type=Path, default=Path("docs/exactness.md"))
    parser.add_argument("family", nargs="*")
    given = parser.parse_intermixed_args()
    if given.kind == "table":
        return 1 if write(given.out, given.document) else 0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    families = given.family or list(FAMILIES)
    if given.kind == "marks":
        everything = [entry.family for entry in entries()]
        families = [family for family in given.family or everything if marks.normalizes(family)]
    share = given.seconds * given.processes / len(families)
    with ProcessPoolExecutor(given.processes, max_tasks_per_child=1) as pool:
        waiting = [
            pool.submit(marks.run, family, given.out)
            if given.kind == "marks"
            else pool.submit(KINDS[given.kind], family, given.out, share)
            for family in families
        ]
        divergent = 0
        for done in waiting:
            tally = done.result()
            divergent += tally.divergent
            total = sum(sum(counts.values()) for counts in tally.counts.values())
            print(f"{tally.kind} {tally.family}: {total:,} comparisons, {tally.divergent} differ", flush=True)
    return 1 if divergent else 0


if __name__ == "__main__":
    sys.exit(main())
