"""Texts for the split patterns of a pre-tokenizer, part of `coverage`.

Guarantees: classes of characters are those that some atom, assertion or predicate of the patterns tells apart, asked of
the reference. A group that leaves something out for its size says so (`Group.complete`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..core.boundaries import accepted
from ..core.classes import CODE_POINTS, Bools, Probe
from ..core.pattern import Alternation, Atom, Atomic, Node, Pattern, Repeat, parse
from ..core.pattern import Sequence as InOrder
from ..core.pipeline import Pipeline
from ..core.splitting import assertion_question
from .groups import Group

Points = NDArray[np.intp]
MEMBERS_OF_CLASS = 3
MAX_TRIPLES = 150_000
MAX_RUN = 64
RANDOM_STRINGS = 10_000
WALKS = 200


def pattern_groups(pipeline: Pipeline, probe: Probe, weights: Mapping[str, int], draw: random.Random) -> list[Group]:
    """Strings over the classes of the patterns, runs, literals among them, and what is nearly a match."""
    patterns = [parse(step.source) for step in pipeline.pre_tokenizer if step.kind == "regex"]
    classes = _classes(pipeline, patterns, probe)
    members = [_members(points, weights, draw) for points in classes]
    letters = [char for chars in members for char in chars]
    while len(letters) ** 3 > MAX_TRIPLES:  # fewer members each, never fewer classes
        widest = max(len(chars) for chars in members)
        if widest == 1:
            break
        members = [chars[: widest - 1] for chars in members]
        letters = [char for chars in members for char in chars]
    lengths = (1, 2, 3) if len(letters) ** 3 <= MAX_TRIPLES else (1, 2)
    triples = ["".join(chars) for length in lengths for chars in product(letters, repeat=length)]
    longest = min(_longest_count(patterns) + 2, MAX_RUN)
    firsts = [chars[0] for chars in members]
    runs = [a * length + b for a in firsts for b in firsts for length in range(2, longest + 1)]
    literals = sorted({literal for pattern in patterns for literal in _literals(pattern.root)})
    around = [
        f"{a}{form}{b}"
        for literal in literals
        for form in dict.fromkeys((literal, literal.upper(), literal.lower(), literal.swapcase()))
        for a in firsts
        for b in firsts
    ]
    every = sorted({*letters, *map(chr, range(128))})
    pairs = [a + b for a in every for b in every]
    strings = ["".join(draw.choices(every, k=draw.randint(4, 9))) for _ in range(RANDOM_STRINGS)]
    sampler = _Sampler(probe, weights, draw)
    branches = [(pattern, branch) for pattern in patterns for branch in _branches(pattern.root)]
    walks = [text for pattern, branch in branches for text in sampler.near(pattern, branch, letters)]
    count = len(classes)
    return [
        Group("strings of character classes", triples, count, count if 3 in lengths else 0, apart=True),
        Group("runs of character classes", runs, count, count if longest < MAX_RUN else 0),
        Group("pattern literals", around, len(literals), len(literals)),
        Group("matches of alternatives", walks, len(branches), len(branches), apart=True),
        Group("pairs of characters", pairs, len(pairs), len(pairs)),
        Group("strings of characters", strings, len(strings), len(strings), apart=True),
    ]


def _classes(pipeline: Pipeline, patterns: Iterable[Pattern], probe: Probe) -> list[Points]:
    """The code points of each class that some atom, assertion or predicate tells from the others."""
    sets: list[Bools] = []
    for pattern in patterns:
        sets += [accepted(atom, probe) for atom in pattern.atoms]
        sets += [assertion_question(assertion, probe).members for assertion in pattern.assertions]
    sets += [probe.predicate(step.source) for step in pipeline.pre_tokenizer if step.kind == "predicate"]
    for step in pipeline.pre_tokenizer:
        if step.kind in ("literal", "metaspace"):
            sets += [np.isin(np.arange(CODE_POINTS), [ord(char)]) for char in {*step.source, " "}]
    distinct = {members.tobytes(): members for members in sets}
    scalar = np.ones(CODE_POINTS, dtype=bool)
    scalar[0xD800:0xE000] = False
    signature = np.zeros(CODE_POINTS, dtype=np.int64)
    for members in distinct.values():
        signature = np.unique(2 * signature + members, return_inverse=True)[1].astype(np.int64)
    return [np.flatnonzero((signature == value) & scalar) for value in np.unique(signature[scalar])]


def _members(points: Points, weights: Mapping[str, int], draw: random.Random) -> list[str]:
    """A few characters of a class: those first that take part in most merges, since a cut beside them shows in IDs."""
    chosen = _heaviest(points, weights, draw)[: MEMBERS_OF_CLASS - 1]
    others = points[points >= 0x80]
    while len(others) and len(chosen) < MEMBERS_OF_CLASS:
        chosen.append(int(others[draw.randrange(len(others))]))
    return list(dict.fromkeys(map(chr, chosen)))


def _heaviest(points: Points, weights: Mapping[str, int], draw: random.Random) -> list[int]:
    """The ASCII code points of a class, those that take part in most merges first."""
    found: list[int] = points[points < 0x80].tolist()
    draw.shuffle(found)
    return sorted(found, key=lambda point: -weights.get(chr(point), 0))


def _branches(node: Node) -> list[Node]:
    return [branch for item in node.items for branch in _branches(item)] if isinstance(node, Alternation) else [node]


class _Sampler:
    """Draws strings that an alternative of a pattern matches, and strings that differ from one in one character."""

    def __init__(self, probe: Probe, weights: Mapping[str, int], draw: random.Random) -> None:
        self._probe, self._weights, self._draw = probe, weights, draw
        self._accepted: dict[str, list[str]] = {}

    def near(self, pattern: Pattern, branch: Node, letters: Sequence[str]) -> Iterator[str]:
        """Matches of `branch`, each also with a character exchanged, left out, put in, and with one before it."""
        draw = self._draw
        for _ in range(WALKS):
            text = self._match(branch)
            if not text:
                continue
            at, char = draw.randrange(len(text)), draw.choice(letters)
            head, tail = text[:at], text[at + 1 :]
            other = self._match(draw.choice(_branches(pattern.root)))
            yield from (text, head + char + tail, head + tail, head + char + text[at:])
            yield from (char + text, text + draw.choice(letters), text + other)

    def _match(self, node: Node) -> str:
        if isinstance(node, Atom):
            return self._draw.choice(self._characters(node))
        if isinstance(node, Repeat):
            most = node.most if node.most is not None else node.least + 3
            counts = {node.least, min(node.least + 1, most), min(most, MAX_RUN), min(most + 1, MAX_RUN)}
            return "".join(self._match(node.item) for _ in range(self._draw.choice(sorted(counts))))
        if isinstance(node, Atomic):
            return self._match(node.item)
        if isinstance(node, Alternation):
            return self._match(self._draw.choice(node.items))
        return "".join(map(self._match, node.items)) if isinstance(node, InOrder) else ""

    def _characters(self, atom: Atom) -> list[str]:
        found = self._accepted.get(atom.source)
        if found is None:
            points = np.flatnonzero(accepted(atom, self._probe))
            chosen = _heaviest(points, self._weights, self._draw)[:6]
            chosen += [int(points[self._draw.randrange(len(points))]) for _ in range(2) if len(points)]
            found = self._accepted[atom.source] = [chr(p) for p in chosen if not 0xD800 <= p < 0xE000] or [""]
        return found


def _longest_count(patterns: Iterable[Pattern]) -> int:
    """The largest number in a quantifier of the patterns."""

    def largest(node: Node) -> int:
        if isinstance(node, Repeat):
            return max(node.least, node.most or 0, largest(node.item))
        if isinstance(node, Atomic):
            return largest(node.item)
        if isinstance(node, InOrder | Alternation):
            return max(map(largest, node.items), default=0)
        return 0

    return max((largest(pattern.root) for pattern in patterns), default=0)


def _literals(node: Node) -> Iterator[str]:
    """Maximal strings of literal characters that stand in a row in the pattern."""
    if isinstance(node, Repeat | Atomic):
        yield from _literals(node.item)
        return
    if isinstance(node, Atom):
        if node.literal is not None:
            yield node.literal
        return
    if not isinstance(node, InOrder | Alternation):
        return
    row = ""
    for item in node.items:
        if isinstance(node, InOrder) and isinstance(item, Atom) and item.literal is not None:
            row += item.literal
            continue
        if row:
            yield row
            row = ""
        inner = list(_literals(item))
        yield from inner
    if row:
        yield row
