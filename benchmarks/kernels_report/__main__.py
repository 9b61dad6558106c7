"""`python -m kernels_report`: all that can be shown of the kernels without a GPU; writes build/kernels.json.

Twins and interpreted kernels beside the reference, the split automata beside its pre-tokenizer, and machine code for
every target with its registers. Exit status 1 if anything is red: another ID or end, a diverging piece, a kernel that
doesn't compile, or a hot one that spills.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path

from kernels_report import machine_code, split_level, tokenizers
from kernels_report.subjects import FAMILIES

TEXTS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_report")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--split-chars", type=int, default=10_000_000, help="a pattern family, at split level")
    parser.add_argument("--texts", type=int, default=TEXTS, help="a tokenizer, through the interpreter")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    output = options.out / "kernels.json"
    output.unlink(missing_ok=True)
    os.environ["TRITON_INTERPRET"] = "1"  # for the workers, before they import Triton
    compiling = machine_code.start_compiling()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(FAMILIES))) as pool:
        checked = list(pool.map(partial(tokenizers.check, texts=options.texts, seed=options.seed), FAMILIES))
    split = split_level.run(options.split_chars, options.seed)
    rows = machine_code.compiled_rows(compiling)
    tables = [tokenizers.table(checked), split_level.table(split), machine_code.table(rows)]
    print("\n\n".join(tables))
    red = [
        *(f"{row.family}: other IDs or ends than the reference's" for row in checked if row.red),
        *(f"{row.family}: other pieces than the reference's" for row in split if row.red),
        *(f"{row['kernel']} on {row['target']}: {_why(row)}" for row in rows if row["red"]),
    ]
    document = {
        "versions": {name: metadata.version(name) for name in ("torch", "triton", "tokenizers", "numpy")},
        "kernels": rows,
        "tokenizers": [row.as_json() for row in checked],
        "split_level": [row.as_json() for row in split],
        "red": red,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    print("\n" + "\n".join(f"RED: {line}" for line in red) if red else f"\nAll green: {output}")
    return int(bool(red))


def _why(row: machine_code.Row) -> str:
    return row["error"] or f"{row['spills']} spills, {row['local_bytes']} bytes of local memory a thread"


if __name__ == "__main__":
    sys.exit(main())
