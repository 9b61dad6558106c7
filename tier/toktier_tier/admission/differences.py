"""Where releases of the reference's library give other IDs for one tokenizer.json, each difference with its cause.

Guarantees: the same file and releases give the same answer; every text shown differs by itself, and nothing can be left
out of it. It is a sample, of all that is in the file (`release_texts`): no difference found isn't a proof.

Texts are compared in blocks, and blocks that differ are taken apart, so that files of 150,000 entries take some 10 s
a release on one core.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.classes import Ranges
from .causes import Cause, Causes, Encode, Outcome, Release, outcome
from .release_texts import units_of

BLOCK_UNITS = 32
MANY_UNITS = 10_000
MAX_MINIMIZED = 12_000
FIRST_TEXTS = ("a", "1", " ", ".", "\u4e2d")
MAX_EXAMPLES, MAX_EXAMPLE_CHARS = 4, 80
Differ = Callable[[str], bool]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Group:
    """Differences of one cause. `points`: the code points that are seen differently, as ranges (first, last)."""

    cause: Cause
    texts: int
    points: Ranges
    examples: tuple[tuple[str, Outcome, Outcome], ...]

    def to_document(self) -> dict[str, Any]:
        return {
            "part": self.cause.part,
            "detail": self.cause.detail,
            "texts": self.texts,
            "points": [list(each) for each in self.points],
            "examples": [
                {"text": text, "before": _listed(before), "after": _listed(after)}
                for text, before, after in self.examples
            ],
        }


@dataclass(frozen=True)
class Differences:
    """refused  what a release says that doesn't take the file, '' if both do; then nothing was compared
    units    texts compared, in blocks
    groups   by cause, the one with most texts first"""

    before: str
    after: str
    refused: str
    units: int
    groups: tuple[Group, ...]

    @property
    def texts(self) -> int:
        """How many minimal texts differ."""
        return sum(group.texts for group in self.groups)

    @property
    def summary(self) -> str:
        change = f"{self.before} to {self.after}"
        if self.refused:
            return f"{change}: {self.refused}"
        if not self.groups:
            return f"{change}: no difference on {self.units:,} texts"
        causes = "; ".join(f"{group.texts:,} by {group.cause.part} ({group.cause.detail})" for group in self.groups[:3])
        more = f" and {len(self.groups) - 3} more causes" if len(self.groups) > 3 else ""
        return f"{change}: {self.texts:,} texts get other IDs, {causes}{more}"

    def to_document(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "refused": self.refused,
            "units": self.units,
            "texts": self.texts,
            "groups": [group.to_document() for group in self.groups],
        }


def release_differences(
    document: Mapping[str, Any],
    before: Release,
    others: Sequence[Release],
    progress: Progress | None = None,
    *,
    every: int = 1,
) -> list[Differences]:
    """Of `before` and each of the others, on a parsed tokenizer.json.

    every   take one block in so many of the kinds that have more than `MANY_UNITS` texts

    Raises `ImportError` for a release that isn't there.
    """
    tell = progress or (lambda told: None)
    plain = {**document, "truncation": None, "padding": None}
    base, *built = [_build(release, plain) for release in (before, *others)]
    if isinstance(base, str):
        return [Differences(before.name, other.name, base, 0, ()) for other in others]
    if all(isinstance(encode, str) for encode in built):
        return [Differences(before.name, o.name, str(said), 0, ()) for o, said in zip(others, built, strict=True)]
    blocks = list(_blocks(plain, every))
    tell(f"{before.name}: {len(blocks):,} blocks")
    expected = [outcome(base, "".join(block)) for block in blocks]
    found = []
    for other, encode in zip(others, built, strict=True):
        tell(other.name)
        if isinstance(encode, str):
            found.append(Differences(before.name, other.name, encode, 0, ()))
            continue
        pair = _Pair(base, encode)
        causes = Causes(plain, before, other, (base, encode))
        groups = _grouped(pair, causes, _minimal_texts(pair, blocks, expected))
        found.append(Differences(before.name, other.name, "", sum(map(len, blocks)), groups))
    return found


def minimized(differ: Differ, text: str) -> str:
    """A part of `text` that still differs, and no longer does with any run of `step` characters less, at the last 1."""
    if differ(""):
        return ""
    step = max(len(text) // 2, 1)
    while True:
        at = 0
        while at < len(text) and len(text) > 1:
            shorter = text[:at] + text[at + step :]
            if shorter and differ(shorter):
                text = shorter
            else:
                at += step
        if step == 1:
            return text
        step = max(step // 2, 1)


def _build(release: Release, document: Mapping[str, Any]) -> Encode | str:
    """What the release says, if it doesn't take the file. 1.0 says so at the first text."""
    try:
        encode = release.build(document)
        if any(outcome(encode, text) is not None for text in FIRST_TEXTS):
            return encode
        encode(FIRST_TEXTS[0])
        raise AssertionError("refused before, and not now")
    except ImportError:
        raise
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        return f"{release.version} refuses the file: {error}"[:300]


def _blocks(document: Mapping[str, Any], every: int) -> Iterator[list[str]]:
    for _, units in itertools.groupby(units_of(document), key=lambda unit: unit[0]):
        texts = [text for _, text in units]
        step = BLOCK_UNITS * (every if len(texts) > MANY_UNITS else 1)
        yield from (texts[start : start + BLOCK_UNITS] for start in range(0, len(texts), step))


class _Pair:
    def __init__(self, before: Encode, after: Encode) -> None:
        self._before, self.after = before, after

    def outcomes(self, text: str) -> tuple[Outcome, Outcome]:
        return outcome(self._before, text), outcome(self.after, text)

    def differ(self, text: str) -> bool:
        before, after = self.outcomes(text)
        return before != after


def _minimal_texts(pair: _Pair, blocks: Sequence[list[str]], expected: Sequence[Outcome]) -> list[str]:
    """Of every unit that differs, and of every block that does though none of its units does, each text once."""
    found: dict[str, None] = {}
    for block, ids in zip(blocks, expected, strict=True):
        if outcome(pair.after, "".join(block)) != ids:
            for text in _taken_apart(pair, block):
                if len(found) >= MAX_MINIMIZED:
                    return list(found)
                found[minimized(pair.differ, text)] = None
    return list(found)


def _taken_apart(pair: _Pair, block: list[str]) -> list[str]:
    """Texts that differ by themselves."""
    if len(block) == 1:
        return block
    middle = len(block) // 2
    bad = [half for half in (block[:middle], block[middle:]) if pair.differ("".join(half))]
    return [text for half in bad for text in _taken_apart(pair, half)] if bad else ["".join(block)]


def _grouped(pair: _Pair, causes: Causes, texts: Sequence[str]) -> tuple[Group, ...]:
    by_cause: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for text in texts:
        cause = causes.of(text)
        by_cause.setdefault((cause.part, cause.detail), []).append((text, cause.chars))
    groups = []
    for (part, detail), members in by_cause.items():
        shown = sorted((text for text, _ in members if len(text) <= MAX_EXAMPLE_CHARS), key=lambda t: (len(t), t))
        points = sorted({ord(char) for _, chars in members for char in chars})
        examples = tuple((text, *pair.outcomes(text)) for text in shown[:MAX_EXAMPLES])
        groups.append(Group(Cause(part, detail), len(members), _ranges(points), examples))
    return tuple(sorted(groups, key=lambda group: (-group.texts, group.cause)))


def _ranges(points: Sequence[int]) -> Ranges:
    if not points:
        return ()
    array = np.array(points)
    runs = np.split(array, np.flatnonzero(np.diff(array) > 1) + 1)
    return tuple((int(run[0]), int(run[-1])) for run in runs)


def _listed(outcome: Outcome) -> list[int] | None:
    return None if outcome is None else list(outcome)
