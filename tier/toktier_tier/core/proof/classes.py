"""The complete set of boundary pairs that the split automata prove, and a class rule checked against it.

Guarantees: `Provable` holds a pair of characters only if it is a boundary in every context, under the assumptions of
docs/decisions/0010-proof-of-the-rule.md; `prove_classes` answers `proved` only if every pair of code points that the
rule claims is one of these. Nothing here is taken from the derivation: neither Glushkov sets nor the rule's classes.
Two code points stand for each other only if the rule has them in one class *and* every step sees their images alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..boundaries import BoundaryRule
from ..classes import CODE_POINTS, Bools, is_scalar
from .characters import Characters
from .contexts import context_of
from .result import Contradiction, Counts, Proof
from .stages import CONDITIONS, Stage

MAX_EXAMPLES = 8
Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Provable:
    """All pairs that are proved: `table[left[a], right[b]]`, unless the pair is inside a literal.

    left, right   class of each code point; of one class are those that every step sees alike
    table         [left classes, right classes]
    """

    stages: tuple[Stage, ...]
    characters: Characters
    left: Numbers
    right: Numbers
    table: Bools

    def holds(self, a: str, b: str) -> bool:
        """Whether a position between `a` and `b` is proved to be a boundary in every context."""
        allowed = self.characters.left[ord(a)] and self.characters.right[ord(b)]
        proved = self.table[self.left[ord(a)], self.right[ord(b)]]
        return bool(allowed and proved and (a + b) not in self.characters.inside)


def provable_pairs(stages: Iterable[Stage], characters: Characters) -> Provable:
    """The complete set: some step whose cuts count cuts there, and all steps before it are transparent.

    For a character that may be composed with what follows, this has to hold for everything it can become.
    """
    stages = tuple(stages)
    left_image, left_columns = _images([stage.left for stage in stages])
    right_image, right_columns = _images([stage.right for stage in stages])
    passed = np.ones((len(left_columns), len(right_columns)), dtype=bool)
    proven = np.zeros_like(passed)
    for index, stage in enumerate(stages):
        at = np.ix_(left_columns[:, index], right_columns[:, index])
        if stage.counts:
            proven |= passed & stage.decided.cuts[at]
        passed &= stage.decided.transparent[at]
    right, sets = _image_sets(right_image, characters)
    table = np.stack([proven[:, list(images)].all(axis=1) for images in sets], axis=1)
    return Provable(stages, characters, left_image[characters.last], right, table)


def _images(columns: list[Numbers]) -> tuple[Numbers, Numbers]:
    """A class for each normalized code point, and the columns [classes, stages] in which the steps see it."""
    classes = np.zeros(CODE_POINTS, dtype=np.intp)
    for column in columns:
        classes = _renumbered(classes * (int(column.max()) + 1) + column)
    lowest = _lowest_of(classes)
    return classes, np.stack([column[lowest] for column in columns], axis=1)


def _renumbered(keys: Numbers) -> Numbers:
    """The same classes, numbered from 0 without holes."""
    return (np.cumsum(np.bincount(keys) > 0) - 1)[keys]


def _lowest_of(classes: Numbers) -> Numbers:
    """The lowest code point of each class."""
    lowest = np.empty(int(classes.max()) + 1, dtype=np.intp)
    lowest[classes[::-1]] = np.arange(len(classes))[::-1]
    return lowest


def _image_sets(image: Numbers, characters: Characters) -> tuple[Numbers, list[tuple[int, ...]]]:
    """Right class of each code point, and the image classes that each right class can show."""
    sets: list[tuple[int, ...]] = [(number,) for number in range(int(image.max()) + 1)]
    right = image[characters.first].copy()
    numbers: dict[frozenset[int], int] = {}
    shown_by: dict[frozenset[int], frozenset[int]] = {}
    for point, later in characters.later.items():
        if later not in shown_by:
            shown_by[later] = frozenset(image[list(later)].tolist())
        shown = shown_by[later] | {int(right[point])}
        if len(shown) > 1:
            number = numbers.setdefault(shown, len(sets))
            if number == len(sets):
                sets.append(tuple(sorted(shown)))
            right[point] = number
    return right, sets


# --- a rule against it ----------------------------------------------------------------------------------------------


class _Side(NamedTuple):
    """Joint classes of one side: code points that neither the rule nor any step tells apart.

    class_of   per code point; members, lowest: how many code points a class has, and the lowest
    rule, own  the class in the rule, and in `Provable`; allowed: whether normalizer and added tokens allow it
    """

    class_of: Numbers
    members: NDArray[np.int64]
    lowest: Numbers
    rule: Numbers
    own: Numbers
    allowed: Bools


def _side(classes: bytes, own: Numbers, allowed: Bools) -> _Side:
    rule = np.frombuffer(classes, dtype=np.uint8).astype(np.intp)
    scalar = is_scalar()
    class_of = _renumbered(((rule * (int(own.max()) + 1) + own) * 2 + allowed) * 2 + scalar)
    lowest = _lowest_of(class_of)
    members = np.bincount(class_of).astype(np.int64) * scalar[lowest]  # no text holds a surrogate
    return _Side(class_of, members, lowest, rule[lowest], own[lowest], allowed[lowest])


def prove_classes(rule: BoundaryRule, provable: Provable) -> Proof:
    """The verdict on a rule of kind `classes`."""
    characters = provable.characters
    left = _side(rule.left, provable.left, characters.left)
    right = _side(rule.right, provable.right, characters.right)
    covered = provable.table[np.ix_(left.own, right.own)] & left.allowed[:, None] & right.allowed[None, :]
    claims = np.array([list(row) for row in rule.table], dtype=bool)[np.ix_(left.rule, right.rule)]
    size = left.members[:, None] * right.members[None, :]
    wrong = size * (claims & ~covered)
    for pair in rule.excluded:
        at = left.class_of[ord(pair[0])], right.class_of[ord(pair[1])]
        if wrong[at]:
            wrong[at] -= 1
    literal = sorted(pair for pair in characters.inside if rule.holds(*pair) and _holds(covered, pair, left, right))
    claimed = int((size * claims).sum()) - _count(rule.excluded, left, right, claims)
    complete = int((size * covered).sum()) - _count(characters.inside, left, right, covered)
    unproved = int(wrong.sum()) + len(literal)
    counts = Counts(claimed, unproved, complete, complete - (claimed - unproved))
    examples = _examples(covered & ~claims & (size > 0), left, right, characters.inside)
    if not unproved:
        return Proof("classes", "proved", counts=counts, examples=examples)
    if literal:
        found = Contradiction(literal[0][0], literal[0][1], "added_token")
    else:
        found = _contradiction(_lowest(wrong, left, right, rule.excluded), provable)
    detail = f"{unproved} of {claimed} claimed pairs are not shown to be boundaries in every context"
    return Proof("classes", "refuted", "rule.refuted", detail, counts, examples, found)


def _holds(table: Bools, pair: str, left: _Side, right: _Side) -> bool:
    return bool(table[left.class_of[ord(pair[0])], right.class_of[ord(pair[1])]])


def _count(pairs: Iterable[str], left: _Side, right: _Side, table: Bools) -> int:
    """How many of `pairs` the table of joint classes holds."""
    return sum(_holds(table, pair, left, right) for pair in pairs)


def _examples(missed: Bools, left: _Side, right: _Side, inside: frozenset[str]) -> tuple[str, ...]:
    """Pairs of the lowest members of class pairs, those of low characters first."""
    found = [(int(left.lowest[i]), int(right.lowest[j])) for i, j in np.argwhere(missed)]
    pairs = (chr(a) + chr(b) for a, b in sorted(found, key=lambda pair: (max(pair), pair)))
    return tuple([pair for pair in pairs if pair not in inside][:MAX_EXAMPLES])


def _lowest(wrong: NDArray[np.int64], left: _Side, right: _Side, excluded: frozenset[str]) -> str:
    """A wrong pair of low characters."""
    at = np.argwhere(wrong > 0)
    lefts, rights = left.lowest[at[:, 0]], right.lowest[at[:, 1]]
    i, j = at[np.lexsort((rights, lefts, np.maximum(lefts, rights)))[0]]
    for b in map(chr, np.flatnonzero(right.class_of == j).tolist()):
        for a in map(chr, np.flatnonzero(left.class_of == i).tolist()):
            if a + b not in excluded:
                return a + b
    raise AssertionError("a class pair is wrong, and the rule excludes all its pairs")


def _contradiction(pair: str, provable: Provable) -> Contradiction:
    """Why a pair isn't proved: a side, the first step that isn't transparent, or no step that cuts."""
    a, b = pair[0], pair[1]
    characters = provable.characters
    if not (characters.left[ord(a)] and characters.right[ord(b)]):
        return Contradiction(a, b, "right_character" if characters.left[ord(a)] else "left_character")
    for image in sorted(characters.rights_of(ord(b))):
        for stage in provable.stages:
            at = int(stage.left[characters.last[ord(a)]]), int(stage.right[image])
            if stage.counts and stage.decided.cuts[at]:
                break  # proved, if b shows this image
            if not stage.decided.transparent[at]:
                condition = next(name for name in CONDITIONS if getattr(stage.decided, name)[at])
                text, position = context_of(stage, a, b, chr(image), condition)
                return Contradiction(a, b, condition, f"{stage.name} {stage.source}"[:200], text, position)
        else:
            return Contradiction(a, b, "joins", "", a + b, 1)
    raise AssertionError("the pair is proved, whatever it shows")
