"""Split level: the automata of every byte-level tokenizer at hand, and their pieces beside the reference's.

What is expected is what the reference's own pre-tokenizer says; a piece that starts elsewhere is a divergence. Each
distinct pre-tokenizer gets as many characters as asked for, in texts of many shapes and lengths; the other tokenizers
of the same one share its result. Files that aren't in the cache are left out, none is fetched.

`python -m kernels_report.split_level` shows the table alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from catalog import CI_FAMILIES, Entry, entries
from kernels_report.columns import columns
from toktier_tier.admission.texts import Texts
from toktier_tier.core.boundaries import NO_RULE
from toktier_tier.core.classes import CODE_POINTS
from toktier_tier.core.errors import TierError
from toktier_tier.core.pipeline import Position
from toktier_tier.core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from toktier_tier.core.splitting import SplitAutomaton, compile_split
from toktier_tier.encoders.reference import (
    BLANK_MODEL,
    REFERENCE_VERSION,
    ReferenceProbe,
    load_tokenizer,
    open_reference,
)
from toktier_tier.sources import cached_tokenizer

SWEEP_CHARS = 4_096
EDGE_FRAME = "a{0}{0} {0}b'{0}1{0}\n{0}  {0}"


@dataclass(frozen=True)
class Row:
    """One tokenizer.

    pattern      the tokenizer that was checked in the place of all with this pre-tokenizer
    stages       (states, columns, whether it reads bytes) of each automaton; empty where `refused` says why
    texts, characters   compared under `pattern`
    divergences  texts with other pieces than the reference's; `difference` shows the shortest
    """

    family: str
    pattern: str
    stages: tuple[tuple[int, int, bool], ...] = ()
    refused: str = ""
    texts: int = 0
    characters: int = 0
    divergences: int = 0
    difference: str = ""

    @property
    def red(self) -> bool:
        return self.divergences > 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "red": self.red}


def run(budget_chars_per_family: int, seed: int) -> list[Row]:
    """A row for every byte-level tokenizer of the catalog that is in the cache, in the catalog's order."""
    groups: dict[str, list[Entry]] = {}
    order: list[str] = []
    for entry in entries():
        data = cached_tokenizer(entry.sha256)
        if data is None:
            continue
        key = _pre_tokenizer(parse_snapshot(data, reference_version=REFERENCE_VERSION))
        if key is not None:
            groups.setdefault(key, []).append(entry)
            order.append(entry.family)
    members = [sorted(found, key=lambda entry: entry.family not in CI_FAMILIES) for found in groups.values()]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(members) or 1)) as pool:
        check = partial(_check, chars=budget_chars_per_family, seed=seed)
        checked = list(pool.map(check, [found[0] for found in members]))
    rows = {
        entry.family: replace(row, family=entry.family)
        for row, found in zip(checked, members, strict=True)
        for entry in found
    }
    return [rows[family] for family in order]


def table(rows: Sequence[Row]) -> str:
    """One line for each pre-tokenizer, with how many tokenizers have it."""
    header = ["pattern of", "tokenizers", "states and columns", "texts", "characters", "divergences", ""]
    lines = [
        [
            row.pattern,
            sum(other.pattern == row.pattern for other in rows),
            " ".join(f"{states}x{width}" for states, width, _ in row.stages) or row.refused,
            row.texts,
            row.characters,
            row.divergences,
            "RED" if row.red else "",
        ]
        for row in rows
        if row.family == row.pattern
    ]
    wrong = [f"{row.family}: {row.difference}" for row in rows if row.red and row.family == row.pattern]
    return "\n".join(["Split automata, beside the reference's pre-tokenizer", columns(header, lines), *wrong])


def _pre_tokenizer(snapshot: Snapshot) -> str | None:
    """Its pre-tokenizer as a key; None where it isn't byte-level or the tier doesn't model it."""
    pipeline = snapshot.pipeline
    if pipeline is None or not any(step.kind == "bytes" for step in pipeline.pre_tokenizer):
        return None
    return json.dumps(pipeline.pre_tokenizer_documents[Position.TEXT_START], sort_keys=True)


def _check(entry: Entry, chars: int, seed: int) -> Row:
    data = cached_tokenizer(entry.sha256)
    assert data is not None
    reference = open_reference(data, SpecialTokenPolicy.NONE)
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    row = Row(entry.family, entry.family)
    try:
        split = compile_split(pipeline, ReferenceProbe(reference))
    except TierError as error:
        return replace(row, refused=str(error))
    stages = tuple((stage.automaton.states, stage.automaton.columns, stage.of_bytes) for stage in split.stages)
    step = pipeline.pre_tokenizer_documents[Position.TEXT_START]
    blank = {"version": "1.0", "added_tokens": [], "pre_tokenizer": step, "model": BLANK_MODEL}
    cut = load_tokenizer(blank).pre_tokenizer.pre_tokenize_str
    texts = characters = 0
    different: list[str] = []
    for text in _texts(reference.snapshot, split, seed, chars):
        lengths = [len(piece) for piece, _ in cut(text)]  # in ByteLevel's alphabet a character is a byte
        if split.pieces(text) != [0, *accumulate(lengths)][: len(lengths)]:
            different.append(text)
        texts += 1
        characters += len(text)
        if characters >= chars:
            break
    shown = repr(min(different, key=len))[:200] if different else ""
    return replace(row, stages=stages, texts=texts, characters=characters, divergences=len(different), difference=shown)


def _texts(snapshot: Snapshot, split: SplitAutomaton, seed: int, chars: int) -> Iterator[str]:
    """First code points at which classes change, then any code points (from 9 M `chars` on, all), then any shape."""
    draw = random.Random(f"{seed}/{snapshot.fingerprint}")
    edges, pool = _alphabet(split, draw)
    edges = draw.sample(edges, min(len(edges), chars // 4 // len(EDGE_FRAME)))
    for at in range(0, len(edges), SWEEP_CHARS // len(EDGE_FRAME)):
        yield "".join(EDGE_FRAME.format(char) for char in edges[at : at + SWEEP_CHARS // len(EDGE_FRAME)])
    scalars = CODE_POINTS - 0x800
    points = draw.sample(range(scalars), min(scalars, chars // 8))
    sweep = [chr(point if point < 0xD800 else point + 0x800) for point in points]
    for at in range(0, len(sweep), SWEEP_CHARS):
        few = sweep[at : at + SWEEP_CHARS]
        yield "".join(
            map("".join, zip(draw.choices(pool, k=len(few)), few, draw.choices(pool, k=len(few)), strict=True))
        )
    makers = _makers(Texts(snapshot, NO_RULE, seed), pool, draw)
    while True:
        yield draw.choice(makers)(draw.choice((draw.randint(1, 14), draw.randint(1, 14), 40, 200, 1_000, 4_000)))


def _alphabet(split: SplitAutomaton, draw: random.Random) -> tuple[list[str], list[str]]:
    """(the code points at either side of a change of class, the same number of characters of every class)."""
    together = np.zeros(CODE_POINTS, dtype=np.int64)
    for stage in split.stages:
        if not stage.of_bytes:
            together = np.unique(together * stage.automaton.columns + stage.automaton.column_of, return_inverse=True)[1]
    last = np.flatnonzero(np.diff(together))
    edges = {*last.tolist(), *(last + 1).tolist()} - set(range(0xD800, 0xE000))
    together[0xD800:0xE000] = -1
    pool: list[str] = []
    for value in range(int(together.max()) + 1):
        points = np.flatnonzero(together == value).tolist()
        familiar = [point for point in points if point < 0x80]
        pool += [chr(draw.choice(points)) for _ in range(60)]
        pool += [chr(draw.choice(familiar or points)) for _ in range(60)]
    return [chr(point) for point in sorted(edges)], pool


def _makers(texts: Texts, pool: list[str], draw: random.Random) -> list[Callable[[int], str]]:
    spaces = [*" \n\r\t", " ", " ", "\n", "\r\n", "\u00a0", "\u3000", "\u0085", "\u2028", "\v", "a", "1", ".", "'"]

    def any_class(chars: int) -> str:
        return "".join(draw.choices(pool, k=chars))

    def in_runs(chars: int) -> str:
        return "".join(char * draw.choice((1, 1, 2, 3, 9)) for char in draw.choices(pool, k=max(1, chars // 3)))

    def of_few(chars: int) -> str:
        return "".join(draw.choices(draw.choices(pool, k=draw.randint(2, 5)), k=chars))

    def of_spaces(chars: int) -> str:
        return "".join(draw.choices(spaces, k=chars))

    def of_contractions(chars: int) -> str:
        return "".join(draw.choices([*"'’sStTdDmMlLrReEvVſK aé中1", "\u0301"], k=chars))

    def one_run(chars: int) -> str:
        return draw.choice(pool) + texts.run(min(chars, 1_000)) + draw.choice(pool)

    own = [any_class, in_runs, of_few, of_spaces, of_contractions, one_run]
    return [*own, texts.adversarial, texts.short, texts.natural, texts.mixed]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_report.split_level")
    parser.add_argument("--chars", type=int, default=10_000_000, help="of each pre-tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = run(options.chars, options.seed)
    print(table(rows))
    return int(any(row.red for row in rows))


if __name__ == "__main__":
    sys.exit(main())
