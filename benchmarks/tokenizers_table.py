"""`make tokenizers`: admit every tokenizer of the catalog and write build/tokenizers.json.

A finished row is kept under the cache by file, seed, budget and versions, so an interrupted run goes on where it was.
Exit status 1 if a row is `Rejected` or fewer than `--at-least` files are admitted with accelerated repair.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import catalog
from toktier_tier.admission.campaign import admit
from toktier_tier.admission.comparisons import ProbeCache
from toktier_tier.admission.compiled import DERIVER_VERSION, Verdict
from toktier_tier.core.errors import TierError
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.candidates import CANDIDATES, encoder_version
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.sources import default_cache_dir

SEED = 7


def admit_family(family: str, budget_s: float, fresh: bool, probes: ProbeCache) -> dict[str, Any]:
    """One row; `seconds` is how long it took when it was made."""
    entry = catalog.entry_of(family)
    versions = [REFERENCE_VERSION, DERIVER_VERSION, *(encoder_version(name) for name in CANDIDATES)]
    key = hashlib.sha256(repr((entry.sha256, SEED, budget_s, versions)).encode()).hexdigest()
    cached = default_cache_dir() / "rows" / f"{key}.json"
    if cached.exists() and not fresh:
        row: dict[str, Any] = json.loads(cached.read_text())
        return row
    started = time.monotonic()
    try:
        data = catalog.path_of(family).read_bytes()
        report = admit(
            Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)),
            budget_s=budget_s,
            seed=SEED,
            probes=probes,
        ).report
    except TierError as error:
        return {
            "family": family,
            "sha256": entry.sha256,
            "verdict": "Error",
            "reason": f"{error.code}: {error.message}",
        }
    row = {
        "family": family,
        "sha256": entry.sha256,
        "verdict": report.verdict.value,
        "rule": report.rule.kind,
        "encoders": {
            name: {"verdict": found.verdict.value, "reason": found.reason, "unsafe_code_points": _points(found.unsafe)}
            for name, found in report.encoders.items()
        },
        "encoder": report.encoder,
        "reason": report.reason,
        "checks": report.checks,
        "divergences": report.divergences,
        "seconds": round(time.monotonic() - started, 1),
    }
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text(json.dumps(row))
    return row


def _points(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help="default: the whole catalog")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--budget", type=float, default=5.0, metavar="SECONDS", help="nominal budget per file")
    parser.add_argument("--at-least", type=int, default=82, help="files that must be admitted (whole catalog only)")
    parser.add_argument("--fresh", action="store_true", help="don't use rows of an earlier run")
    arguments = parser.parse_args()
    console = Console()
    families = arguments.families or [entry.family for entry in catalog.entries()]
    rows = []
    probes: ProbeCache = {}
    for index, family in enumerate(families):
        row = admit_family(family, arguments.budget, arguments.fresh, probes)
        rows.append(row)
        console.print(
            f"{index + 1:3}/{len(families)} {family:32} {row['verdict']:14} {row.get('rule', ''):10} "
            f"{row.get('encoder', ''):10} {row.get('checks', 0):>9,} checks {row.get('divergences', 0)} divergences "
            f"{row['reason']}",
            highlight=False,
            soft_wrap=True,
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tokenizers.json").write_text(json.dumps(rows, indent=1) + "\n")
    return _summary(rows, console, arguments.at_least if not arguments.families else len(families))


def _summary(rows: list[dict[str, Any]], console: Console, at_least: int) -> int:
    admitted = [row for row in rows if row["verdict"] == Verdict.ADMITTED.value]
    table = Table("", "files")
    table.add_row("admitted with accelerated repair", str(len(admitted)))
    for kind in ("classes", "adjacency"):
        table.add_row(f"  by {kind}", str(sum(row["rule"] == kind for row in admitted)))
    for encoder in sorted({row["encoder"] for row in admitted}):
        table.add_row(f"  served by {encoder}", str(sum(row["encoder"] == encoder for row in admitted)))
    table.add_row("others", str(len(rows) - len(admitted)))
    table.add_row("checks", f"{sum(row.get('checks', 0) for row in rows):,}")
    table.add_row("divergences", str(sum(row.get("divergences", 0) for row in rows)))
    console.print(table)
    failed = any(row["verdict"] in (Verdict.REJECTED.value, "Error") for row in rows)
    return 1 if failed or len(admitted) < at_least else 0


if __name__ == "__main__":
    sys.exit(main())
