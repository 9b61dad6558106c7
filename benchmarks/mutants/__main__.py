"""`make mutants`: plant every fault of the tables in a copy of the tree, one at a time, and run what should find it.

A fault is caught if pytest says that tests failed. What was tried is kept under OUT by fault and by the content of the
file that it is in and of its tests, so that an interrupted run goes on where it was (`--fresh` starts over). Exit
status 1 if one survives, doesn't apply, or breaks the run itself; the same tests also have to pass without a fault.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from . import encoding, rule, sessions
from .child import FAILED, PASSED, run
from .mutation import Mutation

MUTATIONS = (*sessions.MUTATIONS, *encoding.MUTATIONS, *rule.MUTATIONS)
COPIED = ("tier", "operator", "kernels", "benchmarks", "tests", "pyproject.toml")
TIMEOUT_S = 900
START, END = "<!-- mutants: start -->", "<!-- mutants: end -->"
ROOT = Path(__file__).resolve().parents[2]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "hypothesis", "numpy", "tokenizers", "gigatoken", "fastokens", "ahocorasick_rs", "grpc"]
)
OUTCOMES = {PASSED: "survived", FAILED: "caught"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[""], help="how areas, or 'area: name', start")
    parser.add_argument("--fresh", action="store_true", help="try again what was tried before")
    parser.add_argument("--document", type=Path, help="write what was found between its markers")
    parser.add_argument("--without-baseline", action="store_true", help="don't run the tests without a fault")
    given = parser.parse_args()
    if given.fresh:
        (given.out / "mutants.json").unlink(missing_ok=True)
    chosen = [found for found in MUTATIONS if any(f"{found.area}: {found.name}".startswith(o) for o in given.only)]
    results = Results(given.out / "mutants.json")
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        trees = [_copy(Path(directory) / str(number)) for number in range(given.processes)]
        runner = Run(trees, results)
        with ThreadPoolExecutor(given.processes) as pool:
            outcomes = list(pool.map(runner.outcome, chosen))
            bare = {found.tests for found, outcome in zip(chosen, outcomes, strict=True) if outcome == "caught"}
            broken = (
                []
                if given.without_baseline
                else [tests for tests, passed in zip(bare, pool.map(runner.passes, bare), strict=True) if not passed]
            )
    lines = [
        f"{outcome}: {found.area}: {found.name} (`{found.file}`)"
        for found, outcome in zip(chosen, outcomes, strict=True)
        if outcome != "caught"
    ]
    lines += [f"fails without a fault: `{' '.join(tests)}`" for tests in broken]
    caught = Counter(found.area for found, outcome in zip(chosen, outcomes, strict=True) if outcome == "caught")
    tried = Counter(found.area for found in chosen)
    areas = ", ".join(f"{area} {caught[area]} of {number}" for area, number in tried.items())
    print("\n".join([*lines, summary := f"**{caught.total()} of {tried.total()} caught**: {areas}."]))
    if given.document is not None:
        _write(given.document, [summary, "", *(f"* {line}" for line in lines)])
    return 0 if caught.total() == tried.total() and not broken else 1


def _write(document: Path, lines: list[str]) -> None:
    """Put `lines` between the two markers of `document`."""
    before, rest = document.read_text().split(START)
    text = "\n".join(lines).rstrip()
    document.write_text(f"{before}{START}\n{text}\n{END}{rest.split(END)[1]}")


class Results:
    """What was tried, by key; written after each."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str) -> str | None:
        return self._kept.get(key)

    def put(self, key: str, outcome: str) -> None:
        with self._lock:
            self._kept[key] = outcome
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(".tmp")
            draft.write_text(json.dumps(self._kept, indent=0))
            os.replace(draft, self._path)


class Run:
    """Tries faults, each in one of the `trees` that nobody else is using."""

    def __init__(self, trees: list[Path], results: Results) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for tree in trees:
            self._free.put(tree)
        self._results = results

    def outcome(self, found: Mutation) -> str:
        """What became of `found`: caught, survived, or why it is neither."""
        tree = self._free.get()
        target = tree / "tier" / "toktier_tier" / found.file
        text = target.read_text()
        try:
            key = _key(tree, found.tests, repr(found), text)
            known = self._results.get(key)
            if known in OUTCOMES.values():
                return str(known)
            if text.count(found.old) != 1:
                return f"doesn't apply ({text.count(found.old)} places)"
            target.write_text(text.replace(found.old, found.new))
            code = _pytest(tree, found.tests)
        finally:
            target.write_text(text)
            self._free.put(tree)
        outcome = OUTCOMES.get(code, f"pytest ended with {code}")
        print(f"{outcome}: {found.area}: {found.name}", flush=True)
        self._results.put(key, outcome)
        return outcome

    def passes(self, tests: tuple[str, ...]) -> bool:
        """Whether `tests` pass without a fault."""
        tree = self._free.get()
        try:
            key = _key(tree, tests, "no fault", _tier_digest(tree))
            if self._results.get(key) == "survived":
                return True
            code = _pytest(tree, tests)
        finally:
            self._free.put(tree)
        if code == PASSED:
            self._results.put(key, "survived")
        return code == PASSED


def _tier_digest(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted((tree / "tier").rglob("*.py")):
        digest.update(path.relative_to(tree).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _copy(tree: Path) -> Path:
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)
    return tree


def _pytest(tree: Path, tests: tuple[str, ...]) -> int:
    """pytest's exit status, from a process that has loaded the libraries before, but nothing of the tree."""
    process = _CONTEXT.Process(target=run, args=(str(ROOT), str(tree), tests))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return FAILED  # a test that never ends has failed
    return process.exitcode


def _key(tree: Path, tests: tuple[str, ...], *more: str) -> str:
    """SHA-256 (16 digits) over what is tried: the files that change, the tests and what those build with."""
    digest = hashlib.sha256(repr((tests, *more)).encode())
    for name in ("tests/workshop.py", *sorted({name.split("::")[0] for name in tests if name.startswith("tests/")})):
        digest.update((tree / name).read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
