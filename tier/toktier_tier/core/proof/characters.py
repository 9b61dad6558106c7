"""What normalizer and added tokens allow at a boundary, found without the code that derives the rule.

Guarantees: for characters a, b with `left[a]` and `right[b]`, and (a, b) in no literal, the text u a b v is normalized
and searched for added tokens as u a and b v are apart, whatever u and v. The last character that the normalizer shows
left of the pair is then `last[a]`, and the first one right of it is `first[b]` or one of `rights_of(b)`.

Assumptions on the normalizers are A5 to A7 of docs/decisions/0010-proof-of-the-rule.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..added_tokens import AddedToken
from ..classes import CODE_POINTS, Bools, Points, Probe, is_scalar
from ..errors import UnsupportedTokenizer
from ..pipeline import Pipeline

HIGH_MARK, LOW_MARK = "\u0345", "\u0334"
"""Combining classes 240 and 1, the highest and the lowest: a mark between them changes places with one of them."""


@dataclass(frozen=True)
class Characters:
    """left, right: allowed on that side; first, last: what they show; later: further first characters, by character."""

    left: Bools
    right: Bools
    first: Points
    last: Points
    later: dict[int, frozenset[int]]
    inside: frozenset[str]

    def rights_of(self, point: int) -> frozenset[int]:
        return frozenset((int(self.first[point]),)) | self.later.get(point, frozenset())


def allowed_characters(
    pipeline: Pipeline,
    tokens: Iterable[AddedToken],
    normalize: Callable[[str], str],
    probe: Probe,
) -> Characters:
    """`normalize` is the whole normalizer, as it is applied to the literals of normalized added tokens.

    Raises `UnsupportedTokenizer` (`proof.normalizer`) for normalizers that the assumptions don't cover.
    """
    stable, first, last, later = _normalized(pipeline, probe)
    left, right = stable.copy(), stable.copy()
    inside: set[str] = set()
    spaces = [chr(point) for point in np.flatnonzero(probe.members(r"\s") | probe.predicate("white_space"))]
    in_raw, in_normalized = _AsItStands(), _Shown(first, last, later)
    followed = pipeline.position_matters
    for token in tokens:
        if not token.content:
            continue
        literal = normalize(token.content) if token.normalized else token.content
        text = in_normalized if token.normalized else in_raw
        for u, v in pairwise(literal):
            inside.update(a + b for a in text.lefts(u) for b in text.rights(v))
        forbidden_left = [literal[-1]] if token.single_word or followed else []
        forbidden_right = [literal[0]] if token.single_word else []
        forbidden_left += spaces if token.lstrip or (token.rstrip and followed) else []
        forbidden_right += spaces if token.rstrip else []
        left[[ord(a) for char in forbidden_left for a in text.lefts(char)]] = False
        right[[ord(b) for char in forbidden_right for b in text.rights(char)]] = False
    return Characters(left, right, first, last, later, frozenset(inside))


class _Shown:
    """Which characters can show themselves as a given one, at the end or at the start of a side."""

    def __init__(self, first: Points, last: Points, later: dict[int, frozenset[int]]) -> None:
        self._first, self._last = first, last
        self._found: dict[tuple[str, str], list[str]] = {}
        self._later: dict[int, set[int]] = defaultdict(set)
        for point, images in later.items():
            for image in images:
                self._later[image].add(point)

    def lefts(self, char: str) -> list[str]:
        """Characters whose last shown one is `char`."""
        return self._ask("left", char, self._last, set())

    def rights(self, char: str) -> list[str]:
        """Characters whose first shown one may be `char`."""
        return self._ask("right", char, self._first, self._later.get(ord(char), set()))

    def _ask(self, side: str, char: str, shown: Points, further: set[int]) -> list[str]:
        if (side, char) not in self._found:
            points = further.union(np.flatnonzero(shown == ord(char)).tolist())
            self._found[side, char] = [chr(point) for point in sorted(points) if not 0xD800 <= point < 0xE000]
        return self._found[side, char]


class _AsItStands:
    """The same for tokens that are searched in the text itself."""

    def lefts(self, char: str) -> list[str]:
        return [char]

    rights = lefts


def _normalized(pipeline: Pipeline, probe: Probe) -> tuple[Bools, Points, Points, dict[int, frozenset[int]]]:
    """Where the normalizer is local, and what each character shows."""
    stable = is_scalar()
    first = last = np.arange(CODE_POINTS, dtype=np.uint32)
    acting = [step for step in pipeline.normalizer if step.kind != "prepend"]
    if not acting:
        return stable, first, last, {}
    first, last = first.copy(), last.copy()
    later: dict[int, frozenset[int]] = {}
    unchanged = is_scalar()
    for point, image in enumerate(probe.images()):
        if image is None:
            continue
        unchanged[point] = False
        if image:
            first[point], last[point] = ord(image[0]), ord(image[-1])
        else:
            stable[point] = False  # deleted: its neighbours become neighbours of each other
    names = [step.name for step in acting]
    ordering = [name for name in names if name in ("NFC", "NFD", "NFKC", "NFKD", "BertNormalizer")]
    alone = len(names) == 1 or (ordering == ["BertNormalizer"] and names[0] == "BertNormalizer")
    if ordering and not alone:
        raise UnsupportedTokenizer("proof.normalizer", f"{ordering[-1]} and other normalizers work on one another")
    if ordering:
        decomposed = probe.decompositions()
        starters = _starters(decomposed, probe)
        stable &= starters & starters[first]  # NFKD writes U+3099, a mark, for U+FF9E, which is none
        if ordering[0] in ("NFC", "NFKC"):
            stable &= unchanged
            second, later = _compositions(decomposed, unchanged)
            stable[second] = False
    for step in acting:
        if step.kind == "replace" and len(step.literal) > 1:
            stable[[ord(char) for char in step.literal]] = False
    return stable, first, last, later


def _starters(decomposed: list[str | None], probe: Probe) -> Bools:
    """Characters whose decomposition begins with one of combining class 0: no mark ever changes places with them.

    Asked of the reference for every character that has no decomposition, between marks of the highest and the lowest
    class. A character of any other class stands elsewhere afterwards, or so does the mark.
    """
    whole = np.array([image is None for image in decomposed]) & is_scalar()
    points = np.flatnonzero(whole)
    frames = np.empty((len(points), 4), dtype=np.uint32)
    frames[:, 0], frames[:, 1], frames[:, 2], frames[:, 3] = ord("q"), ord(HIGH_MARK), points, ord(LOW_MARK)
    answer = probe.compose(frames.tobytes().decode("utf-32-le"))
    answers = np.frombuffer(answer.encode("utf-32-le"), dtype=np.uint32)
    if len(answers) != frames.size:
        raise UnsupportedTokenizer("proof.normalizer", "NFC joins a character with a mark that joins with nothing")
    starters = np.zeros(CODE_POINTS, dtype=bool)
    starters[points] = (answers.reshape(frames.shape) == frames).all(axis=1)
    for point, image in enumerate(decomposed):
        if image:
            starters[point] = starters[ord(image[0])]
    return starters


def _compositions(decomposed: list[str | None], unchanged: Bools) -> tuple[list[int], dict[int, frozenset[int]]]:
    """Characters that may be composed with one to their left, and what each may become with what follows.

    A character that composes with marks behind it becomes one whose decomposition begins with the same character.
    Which marks have to follow isn't looked at, so some of these can't be reached.
    """
    second: set[int] = set()
    by_base: dict[int, set[int]] = defaultdict(set)
    for point, image in enumerate(decomposed):
        if not image:
            continue
        second.update(map(ord, image[1:]))
        if unchanged[point]:
            by_base[ord(image[0])].add(point)
    later: dict[int, frozenset[int]] = {}
    for base, composed in by_base.items():
        shared = frozenset(composed)
        later.update((point, shared) for point in (base, *composed))
    return sorted(second), later
