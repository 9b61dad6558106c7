"""Which atom may follow which inside one match: Glushkov's construction.

Guarantees over-approximation: priorities, greediness and what an assertion demands are ignored, and `x{m,n}` is
read as `x+` (or `x*`), so every pair of neighbouring characters of every real match is in `follow`. Two facts are
exact the other way round: `tainted` atoms are *all* atoms after which an assertion may be tested, and an atom is
in `alone` only if a match of that one character is always possible.

Source: Glushkov 1961; the proof that these sets suffice is docs/decisions/0002-boundary-rule.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .errors import InvalidPattern
from .instructions import nullable
from .pattern import Alternation, Assertion, Atom, Atomic, Node, Pattern, Repeat, Sequence


@dataclass(frozen=True, slots=True)
class Follow:
    """For a pattern with atoms 0..n-1.

    pairs    (i, j): the character after one matched by atom i may be matched by atom j in the same match
    tainted  atoms directly before an assertion: whether the match may stop there depends on the next character
    alone    (i, excluded): atom i can be the whole match, unless the character is also accepted by an atom in
             `excluded` (a possessive neighbour would have swallowed it)
    """

    pairs: frozenset[tuple[int, int]]
    tainted: frozenset[int]
    alone: frozenset[tuple[int, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class _Span:
    nullable: bool
    first: frozenset[int]
    last: frozenset[int]


def compute_follow(pattern: Pattern) -> Follow:
    """Raises `InvalidPattern` (`pattern.matches_empty`) for a pattern that can match the empty string, be it only
    where an assertion holds: behind such a match the reference's engine goes on one character further.
    """
    if nullable(pattern.root):
        raise InvalidPattern("pattern.matches_empty", "the pattern can match the empty string")
    count = len(pattern.atoms)
    links: set[tuple[int, int]] = set()
    _span(pattern.root, count, links)
    # Assertions were positions count..; close over them, then drop them.
    tainted = {i for i, j in links if i < count <= j}
    assertions = {j for _, j in links if j >= count} | {i for i, _ in links if i >= count}
    for middle in assertions:
        before = [i for i, j in links if j == middle]
        after = [j for i, j in links if i == middle]
        links.update((i, j) for i in before for j in after)
        tainted.update(i for i in before if i < count and any(j >= count for j in after))
    tainted |= {i for i, j in links if i < count <= j}
    pairs = frozenset((i, j) for i, j in links if i < count and j < count)
    return Follow(pairs, frozenset(tainted), frozenset(_alone(pattern.root)))


def _span(node: Node, count: int, links: set[tuple[int, int]]) -> _Span:
    if isinstance(node, Atom):
        only = frozenset((node.index,))
        return _Span(False, only, only)
    if isinstance(node, Assertion):
        only = frozenset((count + node.index,))
        return _Span(False, only, only)
    if isinstance(node, Atomic):
        return _span(node.item, count, links)
    if isinstance(node, Repeat):
        inner = _span(node.item, count, links)
        if node.most is None or node.most > 1:
            links.update((i, j) for i in inner.last for j in inner.first)
        return _Span(inner.nullable or node.least == 0, inner.first, inner.last)
    spans = [_span(item, count, links) for item in node.items]
    if isinstance(node, Alternation):
        return _Span(
            any(span.nullable for span in spans),
            frozenset().union(*(span.first for span in spans)),
            frozenset().union(*(span.last for span in spans)),
        )
    nullable, first, last = True, frozenset[int](), frozenset[int]()
    for span in spans:
        links.update((i, j) for i in last for j in span.first)
        first = first | span.first if nullable else first
        last = last | span.last if span.nullable else span.last
        nullable = nullable and span.nullable
    return _Span(nullable, first, last)


def _alone(node: Node) -> Iterable[tuple[int, frozenset[int]]]:
    """Atoms that can match `node` by themselves, with no assertion on the way and no atomic group to spoil it."""
    if isinstance(node, Atom):
        return {(node.index, frozenset())}
    if isinstance(node, Assertion | Atomic):
        return set()
    if isinstance(node, Alternation):
        return {single for item in node.items for single in _alone(item)}
    if isinstance(node, Repeat):
        if node.least > 1 or (node.mode == "possessive" and not isinstance(node.item, Atom)):
            return set()
        return _alone(node.item)
    found: set[tuple[int, frozenset[int]]] = set()
    for position, item in enumerate(node.items):
        others = [other for at, other in enumerate(node.items) if at != position]
        if not all(_skippable(other) for other in others):
            continue
        swallowers = frozenset().union(*(_possessive_atoms(other) for other in node.items[:position]))
        found.update((index, excluded | swallowers) for index, excluded in _alone(item))
    return found


def _skippable(node: Node) -> bool:
    """Can match nothing, whatever comes next, without testing an assertion."""
    if isinstance(node, Repeat):
        return node.least == 0 or _skippable(node.item)
    if isinstance(node, Alternation):
        return any(_skippable(item) for item in node.items)
    if isinstance(node, Sequence):
        return all(_skippable(item) for item in node.items)
    return False


def _possessive_atoms(node: Node) -> frozenset[int]:
    """Atoms inside possessive or atomic parts of `node`: once they took a character they don't give it back."""
    if isinstance(node, Atomic) or (isinstance(node, Repeat) and node.mode == "possessive"):
        return _atoms(node)
    if isinstance(node, Repeat):
        return _possessive_atoms(node.item)
    if isinstance(node, Alternation | Sequence):
        return frozenset().union(*(_possessive_atoms(item) for item in node.items))
    return frozenset()


def _atoms(node: Node) -> frozenset[int]:
    if isinstance(node, Atom):
        return frozenset((node.index,))
    if isinstance(node, Repeat | Atomic):
        return _atoms(node.item)
    if isinstance(node, Alternation | Sequence):
        return frozenset().union(*(_atoms(item) for item in node.items))
    return frozenset()
