"""Libraries that are no candidates, on the catalog's files: `python -m others opinions` and `python -m others faults`.

    opinions  kitoken and morpheme, of other code bases than the reference's, beside the reference on texts generated
              from each file: how many files each loads, and on how many it agrees on every text
    faults    tokie and iree-tokenizer, which are wrong on many files, as candidates of a whole admission: where one is
              admitted, what then serves is compared with the reference on texts that the campaign didn't choose

Each row is made in a process of its own, so that a library that crashes costs that row only, and kept under the cache.
Writes build/others-opinions.json or build/others-faults.json. Exit status 1 if an admitted library gave other IDs than
the reference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

import catalog
from others import libraries
from others.libraries import IREE, KITOKEN, LIBRARIES, MORPHEME, TOKIE, VERSIONS
from toktier_tier.admission import campaign, release_texts
from toktier_tier.admission.causes import outcome
from toktier_tier.admission.compiled import DERIVER_VERSION, Verdict
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders import candidates
from toktier_tier.encoders.reference import Reference, open_reference
from toktier_tier.ports import Ids
from toktier_tier.sources import default_cache_dir
from toktier_tier.tokenizer import TierTokenizer

TESTED = {"opinions": (KITOKEN, MORPHEME), "faults": (TOKIE, IREE)}
FAULT_FAMILIES = (
    *("qwen-3", "deepseek-v4", "llama-3.1", "gpt-oss", "gpt2-novelai", "pile-novelai", "mistral-7b-v0.3"),
    *("mixtral-8x22b-v0.1", "gemma-3", "bert-base-uncased", "jiutian-139moe-chat", "olmo-3"),
)
LIMIT_S = 1_800
SEED, BUDGET_S = 7, 1.0
BLOCK_TEXTS, BLOCKS_OF_A_KIND = 16, 250
MAX_EXAMPLES = 5


def compare(reference: Reference, encode: Callable[[str], Ids]) -> dict[str, Any]:
    """Blocks of texts of every kind that the file asks for, spread over all of them."""
    kinds: dict[str, list[str]] = {}
    for kind, text in release_texts.units_of(reference.snapshot.document()):
        kinds.setdefault(kind, []).append(text)
    checked = differing = 0
    examples: list[str] = []
    by_kind: dict[str, int] = {}
    for kind, texts in kinds.items():
        blocks = range(0, len(texts), BLOCK_TEXTS)
        for start in blocks[:: max(len(blocks) // BLOCKS_OF_A_KIND, 1)]:
            text = "".join(texts[start : start + BLOCK_TEXTS])
            checked += 1
            if outcome(reference.encode_text, text) != outcome(encode, text):
                differing += 1
                by_kind[kind] = by_kind.get(kind, 0) + 1
                examples += [text] if len(examples) < MAX_EXAMPLES else []
    return {"blocks": checked, "differing": differing, "kinds": by_kind, "examples": examples}


def as_it_is(reference: Reference) -> dict[str, Any]:
    """The tokenizer.json without what acts on special tokens or on text only: its normalizer is the library's."""
    return {**reference.snapshot.document(), "post_processor": None, "decoder": None}


def opinion(family: str, name: str) -> dict[str, Any]:
    reference = open_reference(catalog.path_of(family).read_bytes(), SpecialTokenPolicy.NONE)
    try:
        encode = LIBRARIES[name](as_it_is(reference)).encode
    except Exception as error:
        return {"loaded": False, "said": str(error)[:200]}
    return {"loaded": True, **compare(reference, encode)}


def fault(family: str, name: str) -> dict[str, Any]:
    """The verdict on a library as the only candidate, and what an admitted one does on texts of another choice.

    alone   the library on the file as it is, without guards: whether it is a fault at all
    served  what the tier would serve by it
    """
    reference = open_reference(catalog.path_of(family).read_bytes(), SpecialTokenPolicy.NONE)
    row: dict[str, Any] = {}
    try:
        alone = LIBRARIES[name](as_it_is(reference)).encode
        row["alone"] = {**compare(reference, alone), "examples": []}
    except Exception as error:
        row["refuses"] = str(error)[:200]
    with mock.patch.dict(candidates.CANDIDATES, {name: LIBRARIES[name]}):
        found = campaign.admit(reference, budget_s=BUDGET_S, seed=SEED, candidates=(name,))
        row["verdict"] = found.report.verdict.value
        row["encoders"] = {
            each.name: {"verdict": each.verdict.value, "reason": each.reason[:200], "unsafe": _points(each.unsafe)}
            for each in found.report.encoders.values()
        }
        if found.report.encoder == name:
            with mock.patch("toktier_tier.tokenizer.encoder_version", lambda given: f"{given}=={VERSIONS[given]}"):
                row["served"] = compare(reference, TierTokenizer(reference, found.compiled, workers=1).encode)
    return row


def _points(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def row_of(mode: str, family: str, name: str, fresh: bool) -> dict[str, Any]:
    """Made in a process of its own, unless it is kept."""
    code = Path(__file__).read_bytes() + Path(libraries.__file__).read_bytes()
    versions = (VERSIONS[name], DERIVER_VERSION, catalog.entry_of(family).sha256)
    key = hashlib.sha256(repr((mode, name, versions)).encode() + code).hexdigest()
    kept = default_cache_dir() / "others" / f"{key}.json"
    if not kept.exists() or fresh:
        command = [sys.executable, "-m", "others", "--one", mode, family, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"family": family, "library": name, "ended": f"after {LIMIT_S} s"}
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:]
            return {"family": family, "library": name, "ended": f"status {done.returncode}: {''.join(said)[:200]}"}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout.splitlines()[-1])
    return {"family": family, "library": name, **json.loads(kept.read_text())}


def _words(row: dict[str, Any]) -> str:
    if "ended" in row:
        return f"ended by {row['ended']}"
    if "loaded" in row:
        return f"{row['differing']} of {row['blocks']} blocks differ {row['kinds']}" if row["loaded"] else row["said"]
    verdicts = ", ".join(f"{name} {v['verdict']} {v['reason'][:60]}" for name, v in row["encoders"].items())
    served = f"; served: {row['served']['differing']} of {row['served']['blocks']} differ" if "served" in row else ""
    alone = f"; alone: {row['alone']['differing']} of {row['alone']['blocks']} differ" if "alone" in row else ""
    return f"{verdicts}{alone}{served}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=tuple(TESTED))
    parser.add_argument("families", nargs="*", help="default: the whole catalog, or twelve files for `faults`")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--fresh", action="store_true", help="don't use rows of an earlier run")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        family, name = arguments.families
        print(json.dumps({"opinions": opinion, "faults": fault}[arguments.mode](family, name)))
        return 0
    libraries.install()
    console = Console()
    default = FAULT_FAMILIES if arguments.mode == "faults" else [entry.family for entry in catalog.entries()]
    rows = []
    for family in arguments.families or default:
        for name in TESTED[arguments.mode]:
            row = row_of(arguments.mode, family, name, arguments.fresh)
            rows.append(row)
            console.print(f"{family:28} {name:15} {_words(row)}", highlight=False, soft_wrap=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"others-{arguments.mode}.json").write_text(json.dumps(rows, indent=1) + "\n")
    for name in TESTED[arguments.mode]:
        console.print(_summary(arguments.mode, [row for row in rows if row["library"] == name]))
    return 1 if any(row.get("served", {}).get("differing") for row in rows) else 0


def _summary(mode: str, rows: list[dict[str, Any]]) -> str:
    name = rows[0]["library"]
    if mode == "opinions":
        loaded = [row for row in rows if row.get("loaded")]
        equal = sum(not row["differing"] for row in loaded)
        return f"{name}: {len(loaded)} of {len(rows)} files loaded, {equal} without a difference"
    admitted = sum(row.get("encoders", {}).get(name, {}).get("verdict") == Verdict.ADMITTED.value for row in rows)
    wrong = sum(bool(row.get("alone", {}).get("differing")) for row in rows)
    bad = sum(bool(row.get("served", {}).get("differing")) for row in rows)
    found = f"wrong by itself on {wrong} of {len(rows)} files, admitted with guards on {admitted}"
    return f"{name}: {found}, and then wrong on {bad}"


if __name__ == "__main__":
    sys.exit(main())
