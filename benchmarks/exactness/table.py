"""The table of docs/exactness.md, made from the state files."""

from __future__ import annotations

from pathlib import Path

from catalog import entries

from .plan import FAMILIES, code_digest
from .state import Tally, load

START, END = "<!-- counts: start -->", "<!-- counts: end -->"
NO_COMPARISONS = ("sessions", "histories")
"""Sorts that count sessions, not comparisons."""


def write(out: Path, document: Path) -> int:
    """Put the table into `document`; the number of divergences with the code as it is."""
    tallies = [[load(out, kind, family) for kind in ("splits", "ids", "sessions", "history")] for family in FAMILIES]
    before, rest = document.read_text().split(START)
    after = rest.split(END)[1]
    document.write_text(f"{before}{START}\n{_table(out, tallies)}{END}{after}")
    return sum(tally.divergent for row in tallies for tally in row)


def _table(out: Path, tallies: list[list[Tally]]) -> str:
    header = (
        "tokenizer",
        "encoder",
        "automaton",
        "rule",
        "apart",
        "texts",
        "session steps (sessions)",
        "histories' texts (histories)",
        "differ",
    )
    lines = ["| " + " | ".join(header) + " |", "| --- | --- |" + " ---: |" * 7]
    totals = [0] * 8
    split_level = id_level = 0
    for splits, ids, sessions, history in tallies:
        counts = [
            _count(splits, "automaton"),
            _count(splits, "rule"),
            _count(splits, "apart"),
            _count(ids, "ids"),
            _count(sessions),
            _count(sessions, "sessions"),
            _count(history),
            _count(history, "histories"),
        ]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        split_level += sum(counts[:3])
        id_level += counts[3] + counts[4] + counts[6]
        divergent = sum(sum(tally.differing.values()) for tally in (splits, ids, sessions, history))
        encoder = ids.notes.get("encoder", "")
        if encoder == "reference":
            encoder += f" ({ids.notes.get('verdict', '')})"
        lines.append(_line(splits.family, encoder, counts, divergent))
    found = sum(sum(tally.differing.values()) for row in tallies for tally in row)
    lines.append(_line("**all**", "", totals, found))
    codes = sorted({code for row in tallies for tally in row for code in tally.counts})
    summary = (
        f"\n**{split_level:,} comparisons at split level, {id_level:,} at ID level.** "
        f"{_by_code(tallies, codes)} The code at this commit is `{code_digest()}`.\n"
    )
    return "\n".join(lines) + "\n" + summary + _marks([load(out, "marks", entry.family) for entry in entries()])


def _marks(tallies: list[Tally]) -> str:
    """What was compared of pairs of combining characters, by version of the code."""
    parts = []
    for code in sorted({code for tally in tallies for code in tally.counts}):
        done = [tally for tally in tallies if code in tally.counts]
        pairs = sum(tally.counts[code].get("marks", 0) for tally in done)
        differing = sum(tally.differing.get(code, 0) for tally in done)
        parts.append(f"`{code}`: {pairs:,} on {len(done)} files, {differing:,} texts differed")
    return f"\nPairs of combining characters of Unicode 17 in three frames: {'; '.join(parts) or 'none yet'}.\n"


def _line(name: str, encoder: str, counts: list[int], divergent: int) -> str:
    automaton, rule, apart, texts, steps, sessions, parts, histories = counts
    cells = [f"{number:,}" for number in (automaton, rule, apart, texts)]
    cells += [f"{steps:,} ({sessions:,})", f"{parts:,} ({histories:,})", str(divergent)]
    return f"| {name} | {encoder} | " + " | ".join(cells) + " |"


def _count(tally: Tally, sort: str | None = None) -> int:
    """Comparisons of one sort, or of all sorts that are comparisons."""
    if sort is not None:
        return sum(counts.get(sort, 0) for counts in tally.counts.values())
    return sum(
        number for counts in tally.counts.values() for name, number in counts.items() if name not in NO_COMPARISONS
    )


def _by_code(tallies: list[list[Tally]], codes: list[str]) -> str:
    """How many were made with which version of the files that decide IDs."""
    parts = []
    for code in codes:
        split_level = sum(sum(row[0].counts.get(code, {}).values()) for row in tallies)
        others = [tally.counts.get(code, {}) for row in tallies for tally in row[1:]]
        id_level = sum(n for counts in others for name, n in counts.items() if name not in NO_COMPARISONS)
        differing = sum(tally.differing.get(code, 0) for row in tallies for tally in row)
        parts.append(f"`{code}`: {split_level:,} and {id_level:,}, of which {differing:,} differed")
    return "By the digest of the files that decide IDs: " + "; ".join(parts) + "."
