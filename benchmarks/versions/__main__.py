"""`python -m versions`: the catalog under tokenizers 0.22.2, 0.23.3 and 1.0.0rc3, and the cause of each difference.

Texts, comparison and causes are those of `toktier_tier.admission.differences`, which also tells a user what another
release changes. A finished row is kept under the cache by the file's parts that decide IDs and by this code, so an
interrupted run goes on where it was, and files that differ in nothing that decides IDs share one.

Writes build/versions.json and build/versions.md. Exit status 1 if the reference itself refuses a file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import catalog
from toktier_tier.admission import causes, differences, release_texts, texts
from toktier_tier.encoders.reference import REFERENCE_VERSION
from toktier_tier.sources import default_cache_dir
from versions.install import ensure_releases

REFERENCE = REFERENCE_VERSION.partition("==")[2]
OTHERS = ("0.22.2", "1.0.0rc3")
DECIDING = ("added_tokens", "normalizer", "pre_tokenizer", "model")
CODE = (causes, differences, release_texts, texts)


def row_of(family: str, code: str, every: int, fresh: bool) -> dict[str, Any]:
    """The differences on one file; `seconds` is how long that took when it was done.

    A row of all texts is taken where there is one, whatever `every` is.
    """
    document = json.loads(catalog.path_of(family).read_bytes())
    for share in (1, every):
        kept = _kept(document, code, share)
        if kept.exists() and not fresh:
            return {"family": family, **json.loads(kept.read_text())}
    started = time.monotonic()
    releases = [causes.release_of(version) for version in OTHERS]
    found = differences.release_differences(document, causes.release_of(REFERENCE), releases, every=every)
    row = {
        "every": every,
        "compared": [each.to_document() for each in found],
        "summaries": [each.summary for each in found],
        "seconds": round(time.monotonic() - started, 1),
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(row))
    return {"family": family, **row}


def _kept(document: dict[str, Any], code: str, every: int) -> Path:
    deciding = json.dumps([document.get(part) for part in DECIDING], sort_keys=True)
    key = hashlib.sha256(f"{code}{REFERENCE}{OTHERS}{every}{deciding}".encode()).hexdigest()
    return default_cache_dir() / "versions" / f"{key}.json"


def markdown(rows: list[dict[str, Any]]) -> str:
    """What a reader wants to know: files by outcome, the causes with their characters, and a line for each file."""
    lines = [
        "| release | files equal | files that differ | refused | texts compared | texts that differ |",
        "| --- " * 6 + "|",
    ]
    for at, version in enumerate(OTHERS):
        found = [row["compared"][at] for row in rows]
        refused = sum(bool(each["refused"]) for each in found)
        differing = sum(bool(each["texts"]) for each in found)
        units, texts_ = sum(each["units"] for each in found), sum(each["texts"] for each in found)
        equal = len(found) - refused - differing
        lines.append(f"| {version} | {equal} | {differing} | {refused} | {units:,} | {texts_:,} |")
    lines += ["", "| release | part | cause | files | texts | characters | shortest text, reference, release |"]
    lines.append("| --- " * 7 + "|")
    lines += [line for at, version in enumerate(OTHERS) for line in _causes(rows, at, version)]
    lines += ["", "| file | blocks of texts | " + " | ".join(OTHERS) + " |", "| --- " * (len(OTHERS) + 2) + "|"]
    for row in rows:
        cells = " | ".join(_cell(each) for each in row["compared"])
        lines.append(f"| {row['family']} | 1 in {row['every']} | {cells} |")
    return "\n".join(lines) + "\n"


def _causes(rows: list[dict[str, Any]], at: int, version: str) -> list[str]:
    files: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    points: dict[tuple[str, str], set[int]] = {}
    example: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        for group in row["compared"][at]["groups"]:
            cause = (group["part"], group["detail"])
            files[cause] += 1
            counts[cause] += group["texts"]
            own = points.setdefault(cause, set())
            for first, last in group["points"]:
                own.update(range(first, last + 1))
            if cause not in example and group["examples"]:
                example[cause] = group["examples"][0]
    return [
        f"| {version} | {part} | {detail} | {files[part, detail]} | {count:,} | {len(points[part, detail])} | "
        f"{_example(example.get((part, detail)))} |"
        for (part, detail), count in counts.most_common()
    ]


def _example(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    text = ascii(found["text"]).replace("|", "\\|")
    return f"`{text}` {found['before']} {found['after']}"


def _cell(found: Mapping[str, Any]) -> str:
    if found["refused"]:
        return f"refused: {found['refused'].partition(': ')[2][:80]}".replace("|", "\\|")
    return f"{found['texts']:,} of {found['units']:,}" if found["texts"] else "equal"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help="default: the whole catalog")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one block of texts in N (default: all)")
    parser.add_argument("--fresh", action="store_true", help="don't use rows of an earlier run")
    arguments = parser.parse_args()
    console = Console()
    ensure_releases()
    code = hashlib.sha256(b"".join(Path(module.__file__ or "").read_bytes() for module in CODE)).hexdigest()
    families = arguments.families or [entry.family for entry in catalog.entries()]
    rows = []
    for index, family in enumerate(families):
        row = row_of(family, code, arguments.every, arguments.fresh)
        rows.append(row)
        for summary in row["summaries"]:
            console.print(f"{index + 1:3}/{len(families)} {family:28} {summary}", highlight=False, soft_wrap=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"reference": REFERENCE_VERSION, "releases": OTHERS, "rows": rows}
    (arguments.out / "versions.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "versions.md").write_text(markdown(rows))
    return 1 if any(each["refused"].startswith(REFERENCE) for row in rows for each in row["compared"]) else 0


if __name__ == "__main__":
    sys.exit(main())
