"""`python -m gpu_check`: on one GPU, is it exact and how fast; writes build/gpu-check.json and prints tables.

Everything is compared first: each step with its twin, then IDs and ends of hard and of real text with the reference,
every timed text among them. One difference, and no time is taken or shown: exit status 1. A missed bar is shown as
missed and is no error. `--rehearse` goes the same way without a GPU, on tiny texts, and shows no times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_check")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokenizers", type=Path, help="a folder that --prepare wrote; default: the catalog's cache")
    parser.add_argument("--prepare", type=Path, help="write the tokenizer files into this folder, and nothing else")
    parser.add_argument("--budget-s", type=float, default=420.0, help="no more cells are begun after this")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, and without times")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.prepare:
        return prepare(options.prepare)
    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
        options.device, options.budget_s = "cpu", 3_600.0
    deadline = time.monotonic() + options.budget_s

    from gpu_check.machine import machine
    from gpu_check.plan import FULL, REHEARSAL
    from gpu_check.report import bars, bars_table, checks_table, times_tables
    from gpu_check.session import Session, as_json

    output = options.out / ("gpu-check-rehearsal.json" if options.rehearse else "gpu-check.json")
    output.unlink(missing_ok=True)
    session = Session(REHEARSAL if options.rehearse else FULL, options.device, options.tokenizers, options.seed)
    found = machine(options.device)
    print("\n".join(f"{name:11} {value}" for name, value in found.items()), flush=True)
    session.check()
    print("\nExactness\n" + checks_table(session.checks), flush=True)
    red = [check for check in session.checks if check.red]
    document = {"machine": found, "checks": as_json(session.checks), "red": bool(red)}
    if not red:
        session.time(deadline)
        document |= {"left_out": as_json(session.left_out)}
    if not red and not options.rehearse:
        reached = bars(session.latencies, session.bulks)
        print("\n" + times_tables(session.latencies, session.steps, session.bulks))
        print("\n" + bars_table(reached))
        print(f"\n{len(session.left_out)} cells were left out for want of time" if session.left_out else "")
        document |= {"latency": as_json(session.latencies), "steps": session.steps, "bulk": as_json(session.bulks)}
        document["bars"] = [{**row, "passed": bar.passed} for row, bar in zip(as_json(reached), reached, strict=True)]
    options.out.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    if red:
        print("\nRED: no times are taken where the answers are wrong")
    elif options.rehearse:
        print(f"\nRehearsed: {len(session.latencies)} cells, {len(session.bulks)} bulks, no times")
    return int(bool(red))


def prepare(folder: Path) -> int:
    from catalog import path_of
    from kernels_report.subjects import FAMILIES

    folder.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        target = folder / f"{family}.json.gz"
        target.write_bytes(gzip.compress(path_of(family).read_bytes(), mtime=0))
        print(f"{target.stat().st_size:>9} {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
