"""Prefetch catalog files: `python -m catalog [--ci | --all | FAMILY...]`.

One line a file: family, start of its sha256, bytes, ok. What fails is named and left out; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from catalog import CI_FAMILIES, entries, entry_of, path_of
from toktier_tier.core.errors import TierError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m catalog", description="Fetch and verify public tokenizer files.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ci", action="store_true", help="the families CI runs on, from small packages (default)")
    which.add_argument("--all", action="store_true", help="every family of the list")
    parser.add_argument("--cache-dir", type=Path, help="instead of ~/.cache/toktier")
    parser.add_argument("--offline", action="store_true", help="only look into the cache")
    parser.add_argument("family", nargs="*")
    options = parser.parse_args(arguments)
    if options.family and (options.ci or options.all):
        parser.error("name families, or give --ci or --all")
    families = options.family or ([entry.family for entry in entries()] if options.all else CI_FAMILIES)
    failed = 0
    for family in families:
        try:
            entry = entry_of(family)
            path_of(family, cache_dir=options.cache_dir, offline=options.offline)
        except TierError as error:
            failed += 1
            print(f"{family:32} FAILED {error}", flush=True)
        else:
            print(f"{family:32} {entry.sha256[:16]} {entry.size:>10} ok", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
