"""The table of releases says for each file and each cause what was found, and nothing that wasn't."""

from __future__ import annotations

from typing import Any

from versions.__main__ import OTHERS, markdown

Json = Any


def compared(**said: Json) -> Json:
    return {"before": "b", "after": "a", "refused": "", "units": 1_000, "texts": 0, "groups": [], **said}


def group(part: str, texts: int, *points: tuple[int, int]) -> Json:
    example = {"text": "\ua7d4|s", "before": [1, 2], "after": [3]}
    return {
        "part": part,
        "detail": "why",
        "texts": texts,
        "points": [list(each) for each in points],
        "examples": [example],
    }


def row(family: str, every: int, *others: Json) -> Json:
    assert len(others) == len(OTHERS)
    return {"family": family, "every": every, "compared": list(others), "summaries": [], "seconds": 1.0}


def test_files_are_counted_by_outcome_and_causes_over_all_files() -> None:
    rows = [
        row("one", 1, compared(), compared(texts=7, groups=[group("normalizer", 7, (0x300, 0x301))])),
        row("two", 16, compared(), compared(texts=3, groups=[group("normalizer", 3, (0x301, 0x302))])),
        row("three", 1, compared(), compared(refused="1.0.0rc3 refuses the file: no | such pattern", units=0)),
    ]
    lines = markdown(rows).splitlines()
    assert f"| {OTHERS[0]} | 3 | 0 | 0 | 3,000 | 0 |" in lines
    assert f"| {OTHERS[1]} | 0 | 2 | 1 | 2,000 | 10 |" in lines
    assert f"| {OTHERS[1]} | normalizer | why | 2 | 10 | 3 | `'\\ua7d4\\|s'` [1, 2] [3] |" in lines
    assert "| one | 1 in 1 | equal | 7 of 1,000 |" in lines
    assert "| two | 1 in 16 | equal | 3 of 1,000 |" in lines
    assert "| three | 1 in 1 | equal | refused: no \\| such pattern |" in lines
    assert not any(line.startswith(f"| {OTHERS[0]} | normalizer") for line in lines)
