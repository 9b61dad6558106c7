"""Facts about every code point, all asked of the reference; the arithmetic on them is here.

Guarantees: nothing in this module consults Python's own Unicode tables. Arrays are indexed by code point and have
length `CODE_POINTS`; surrogates are members of nothing and stable nowhere.

Python's, `regex`'s and each Rust library's tables differ from the reference's (9,224 code points between two
releases of the reference itself, for one file), so a class is what the reference says it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .pipeline import NormalizerStep

CODE_POINTS = 0x110000
Bools = NDArray[np.bool_]
Points = NDArray[np.uint32]


class Probe(Protocol):
    """Questions to the reference."""

    def members(self, source: str) -> Bools:
        """Code points that the one-character regex `source` matches."""

    def predicate(self, name: str) -> Bools:
        """Code points for which a pre-tokenizer's predicate holds (`numeric`, `punctuation`, `white_space`, ...)."""

    def images(self) -> list[str | None]:
        """What the normalizer makes of each code point by itself, inside a text; None: the character itself."""

    def decompositions(self) -> list[str | None]:
        """The canonical decomposition (NFD) of each code point; None: the character itself."""

    def reorders(self) -> Bools:
        """Code points that canonical ordering may move (a combining class other than 0)."""

    def compose(self, text: str) -> str:
        """NFC of `text`."""

    def normalize(self, text: str) -> str:
        """What the snapshot's normalizer makes of `text` inside a text (as a continuation)."""


Ranges = tuple[tuple[int, int], ...]
"""Code points as ranges (first, last)."""


def ranges_of(points: Bools) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], points, [False]]).astype(np.int8)))
    return tuple((int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))


def points_of(ranges: Ranges) -> Bools:
    points = np.zeros(CODE_POINTS, dtype=bool)
    for first, last in ranges:
        points[first : last + 1] = True
    return points


def is_scalar() -> Bools:
    valid = np.ones(CODE_POINTS, dtype=bool)
    valid[0xD800:0xE000] = False
    return valid


@dataclass(frozen=True)
class Alphabet:
    """How each character looks to a pre-tokenizer step.

    stable         normalizing left and right of this character apart gives the same as normalizing whole, and
                   its own image can be told without looking at its left neighbour
    first, last    first and last code point of its image
    right_sources, right_images   further images that a character can show to its *left*, because what follows
                   may be composed with it: `right_sources[k]` may begin with code point `right_images[k]`
    """

    stable: Bools
    first: Points
    last: Points
    right_sources: Points
    right_images: Points


@dataclass(frozen=True)
class Settled:
    """What a Unicode normalization form provably leaves as it is.

    always   starters that the form leaves alone and that join with nothing to their left: a text of these is normal,
             and any text may be cut before each of them
    alone    characters that canonical ordering may move but nothing else touches: harmless between two `always`
    """

    always: Bools
    alone: Bools


def identity_alphabet() -> Alphabet:
    points = np.arange(CODE_POINTS, dtype=np.uint32)
    empty = np.empty(0, dtype=np.uint32)
    return Alphabet(is_scalar(), points, points, empty, empty)


def normalized_alphabet(steps: tuple[NormalizerStep, ...], probe: Probe) -> Alphabet:
    """The alphabet behind the normalizer. Source of the conditions: docs/decisions/0002-boundary-rule.md."""
    base = identity_alphabet()
    if not any(step.kind != "prepend" for step in steps):
        return base
    stable, first, last = base.stable.copy(), base.first.copy(), base.last.copy()
    changed = np.zeros(CODE_POINTS, dtype=bool)
    for point, image in enumerate(probe.images()):
        if image is None:
            continue
        changed[point] = True
        if image:
            first[point], last[point] = ord(image[0]), ord(image[-1])
        else:
            stable[point] = False  # deleted: its neighbours become neighbours of each other
    forms = {step.name for step in steps if step.kind == "unicode"}
    if forms or any(step.name == "BertNormalizer" for step in steps):
        moves = probe.reorders()
        stable &= ~moves & ~moves[first]  # U+FF9E stands still, but NFKD writes U+3099 for it, which moves
    sources, images = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.uint32)
    if forms & {"NFC", "NFKC"}:
        stable &= ~changed
        for decomposed in probe.decompositions():
            for other in (decomposed or "")[1:]:
                stable[ord(other)] = False  # may be composed with what stands to its left
        sources, images = _compositions(changed, probe)
    for step in steps:
        if step.kind == "replace" and len(step.literal) > 1:
            for char in step.literal:
                stable[ord(char)] = False
    return Alphabet(stable, first, last, sources, images)


def _compositions(changed: Bools, probe: Probe) -> tuple[Points, Points]:
    """What a character may turn into with what follows it: (the character, what it turns into), side by side.

    A mark that comes later may be ordered before one that a character is composed of already: "â" + U+0323 is "ậ",
    "ā" + U+0323 is "ạ" + U+0304. So whatever shares its starter with a composition that has marks may turn into it;
    where all that joins stands still (Hangul), only what is made of the first few characters.
    """
    moves = probe.reorders()
    decompositions = probe.decompositions()
    composed = [point for point, found in enumerate(decompositions) if found and not changed[point]]
    by_starter: dict[str, list[int]] = {}
    for point in composed:
        by_starter.setdefault((decompositions[point] or "")[0], []).append(point)
    found: list[tuple[int, int]] = []
    for point in composed:
        decomposed = decompositions[point] or ""
        starter = decomposed[0]
        if any(moves[ord(char)] for char in decomposed[1:]):
            found += [(source, point) for source in (ord(starter), *by_starter[starter]) if source != point]
            continue
        for length in range(1, len(decomposed)):
            start = probe.compose(decomposed[:length])
            if len(start) == 1:
                found.append((ord(start), point))
    sources, images = np.array(found, dtype=np.uint32).reshape(-1, 2).T
    return sources, images


def byte_characters() -> Points:
    """ByteLevel's alphabet: the code point that stands for each of the 256 bytes. Source: GPT-2's encoder."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = np.zeros(256, dtype=np.uint32)
    table[plain] = plain
    others = [byte for byte in range(256) if byte not in set(plain)]
    table[others] = np.arange(256, 256 + len(others))
    return table


def byte_alphabet(alphabet: Alphabet) -> Alphabet:
    """The same characters after ByteLevel: each is seen through its first and last UTF-8 byte."""
    table = byte_characters()
    points = np.arange(CODE_POINTS, dtype=np.uint32)
    lead = np.where(
        points < 0x80,
        points,
        np.where(
            points < 0x800,
            0xC0 | (points >> 6),
            np.where(points < 0x10000, 0xE0 | (points >> 12), 0xF0 | (points >> 18)),
        ),
    )
    trail = np.where(points < 0x80, points, 0x80 | (points & 0x3F))
    lead_chars, trail_chars = table[lead], table[trail]
    return Alphabet(
        alphabet.stable,
        lead_chars[alphabet.first],
        trail_chars[alphabet.last],
        alphabet.right_sources,
        lead_chars[alphabet.right_images],
    )


def replaced_alphabet(alphabet: Alphabet, old: str, new: str) -> Alphabet:
    """The same characters after one character is replaced by another."""
    swap = np.arange(CODE_POINTS, dtype=np.uint32)
    swap[ord(old)] = ord(new)
    return Alphabet(
        alphabet.stable,
        swap[alphabet.first],
        swap[alphabet.last],
        alphabet.right_sources,
        swap[alphabet.right_images],
    )
