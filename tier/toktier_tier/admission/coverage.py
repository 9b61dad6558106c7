"""Texts that exercise every element of a tokenizer.json, generated from the file itself.

Guarantees: `core_groups` and `token_groups` name each kind of element, how many of them the file has, and texts in
which each one takes part; what can't take part in any text is counted apart (`unreachable`). A campaign for a
candidate that doesn't exercise the rest is void (`Group.complete`).

Kinds of the core (pre-tokenizer and model): vocabulary entries; merges, each pair joined, doubled, and beside symbols
that compete with it; the literals of the split patterns among characters of every class; strings that an alternative
of a pattern matches, and what differs from one in a character; every string of up to three character classes, at the
end of a text and inside one; runs of each class of every length that a quantifier tells apart. Code points are asked
one by one elsewhere (`probe`). Kinds of the added tokens: every overlap of two, every two side by side.

Classes of characters are those of the patterns' own atoms, assertions and predicates, asked of the reference; never
those of the boundary rule, which joins what it needn't tell apart.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..core.boundaries import accepted
from ..core.classes import CODE_POINTS, Bools, Probe, byte_characters
from ..core.pattern import Alternation, Atom, Atomic, Node, Pattern, Repeat, parse
from ..core.pattern import Sequence as InOrder
from ..core.pipeline import Pipeline
from ..core.snapshot import Snapshot
from ..core.splitting import assertion_question
from ..core.vocabulary import byte_token, vocabulary_strings

Points = NDArray[np.intp]
MEMBERS_OF_CLASS = 3
MAX_TRIPLES = 150_000
MAX_RUN = 12
MAX_TOKEN_TEXTS = 400_000
RANDOM_STRINGS = 10_000
WALKS = 200
MAX_ADJACENT = 300
"""Up to so many added tokens every two are put side by side; of more, each beside `SOME_NEIGHBOURS` others."""
SOME_NEIGHBOURS = 24


@dataclass(frozen=True)
class Group:
    """Texts for one kind of element.

    elements      how many the file has; `exercised` and `unreachable` add up to it if the group is complete
    unreachable   elements that no text can contain: spellings that are no part of any UTF-8 text
    apart         each text is to be encoded by itself: its end matters; otherwise texts may be joined by line feeds
    """

    name: str
    texts: Sequence[str]
    elements: int
    exercised: int
    unreachable: int = 0
    apart: bool = False

    @property
    def complete(self) -> bool:
        return self.exercised + self.unreachable == self.elements


def core_groups(snapshot: Snapshot, probe: Probe, seed: int) -> list[Group]:
    """Groups for what encodes ordinary, already normalized text. The same seed gives the same texts."""
    pipeline = snapshot.pipeline
    assert pipeline is not None
    spelling = _Spelling(snapshot, pipeline)
    groups = [_vocabulary(snapshot, spelling)]
    if snapshot.model["type"] == "BPE":
        groups.append(_merges(snapshot.model["merges"], spelling))
    draw = random.Random(f"coverage/{seed}/{snapshot.fingerprint}")
    return [*groups, *_patterns(pipeline, probe, _weights(snapshot, spelling), draw)]


def token_groups(literals: Sequence[str], seed: int) -> list[Group]:
    """Groups for added tokens by their literals: overlaps and neighbours."""
    distinct = list(dict.fromkeys(literals))
    overlaps = list(dict.fromkeys(_overlaps(distinct)))
    kept = overlaps[:MAX_TOKEN_TEXTS]
    groups = [Group("overlapping added tokens", kept, len(overlaps), len(kept), apart=True)]
    draw = random.Random(f"neighbours/{seed}")
    if len(distinct) <= MAX_ADJACENT:
        neighbours = [first + second for first in distinct for second in distinct]
    else:
        neighbours = [
            first + second for first in distinct for second in (first, *draw.choices(distinct, k=SOME_NEIGHBOURS))
        ]
    return [*groups, Group("added tokens side by side", neighbours, len(neighbours), len(neighbours))]


# --- model ------------------------------------------------------------------------------------------------------------


class _Spelling:
    """How vocabulary entries are written as text."""

    def __init__(self, snapshot: Snapshot, pipeline: Pipeline) -> None:
        self._bytes_of: dict[str, int] | None = None
        if any(step.kind == "bytes" for step in pipeline.pre_tokenizer):
            self._bytes_of = {chr(char): byte for byte, char in enumerate(byte_characters())}
        self._spaced = any(step.kind == "metaspace" and step.cuts for step in pipeline.pre_tokenizer)
        self._prefix = str(snapshot.model.get("continuing_subword_prefix") or "")
        self._byte_tokens = (
            {byte_token(byte): byte for byte in range(256)} if snapshot.model.get("byte_fallback") else {}
        )

    def text(self, *entries: str) -> str | None:
        """The entries one after the other, completed to whole characters at both ends; None if no text holds them."""
        if self._bytes_of is not None:
            codes = [self._bytes_of.get(char, -1) for entry in entries for char in entry]
            return completed(bytes(codes)) if min(codes, default=0) >= 0 else None
        if any(entry in self._byte_tokens for entry in entries):
            data = b"".join(
                bytes([self._byte_tokens[e]]) if e in self._byte_tokens else e.encode("utf-8", "replace")
                for e in entries
            )
            return completed(data)
        text = "".join(self._plain(entry, first=index == 0) for index, entry in enumerate(entries))
        return text.replace("▁", " ") if self._spaced else text

    def _plain(self, entry: str, *, first: bool) -> str:
        if self._prefix and entry.startswith(self._prefix):
            return ("a" if first else "") + entry[len(self._prefix) :]
        return entry


_TAILS = tuple(bytes(tail) for length in range(4) for tail in product((0x80, 0x90, 0xA0, 0xBF), repeat=length))


def completed(data: bytes) -> str | None:
    """`data` as text, with the bytes before and behind it that make its first and last character whole, or None."""
    loose = next((at for at, byte in enumerate(data) if not 0x80 <= byte < 0xC0), len(data))
    heads: tuple[bytes, ...] = ((b"",), (b"\xc3",), (b"\xe4", b"\xed"), (b"\xf1", b"\xf0"))[loose] if loose < 4 else ()
    for head in heads:
        for tail in _TAILS:
            try:
                return (head + data + tail).decode("utf-8")
            except UnicodeDecodeError:
                continue
    return None


def _vocabulary(snapshot: Snapshot, spelling: _Spelling) -> Group:
    entries = [entry for entry in vocabulary_strings(snapshot.model) if entry]
    texts = [spelling.text(entry) for entry in entries]
    kept = [text for text in texts if text]
    return Group("vocabulary entries", kept, len(entries), len(kept), len(entries) - len(kept))


def _merges(merges: Iterable[Sequence[str]], spelling: _Spelling) -> Group:
    """Each pair joined, doubled, and between symbols that compete for one of the two.

    Competitors on each side are the merge that comes next before this one and the one that comes next after it. So of
    all merges that compete for a symbol, every two neighbours in rank meet: exchanging any two shows in some text.
    """
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}  # of a pair listed twice, the last
    starting: dict[str, list[tuple[int, str]]] = {}
    ending: dict[str, list[tuple[int, str]]] = {}
    for (left, right), rank in sorted(ranks.items(), key=lambda item: item[1]):
        starting.setdefault(left, []).append((rank, right))
        ending.setdefault(right, []).append((rank, left))
    texts: list[str] = []
    unreachable = 0
    for (left, right), rank in ranks.items():
        joined = spelling.text(left, right)
        if joined is None:
            unreachable += 1
            continue
        competing = [(left, right, third) for third in _next_to(rank, starting.get(right, ()))]
        competing += [(first, left, right) for first in _next_to(rank, ending.get(left, ()))]
        texts.append(joined)
        texts += filter(None, (spelling.text(*symbols) for symbols in [(left, right, left, right), *competing]))
    return Group("merges", texts, len(ranks), len(ranks) - unreachable, unreachable)


def _next_to(rank: int, others: Sequence[tuple[int, str]]) -> list[str]:
    """The symbols of the last of `others` before `rank` and of the first behind it; `others` are in order."""
    at = bisect_left(others, (rank, ""))
    behind = at + 1 if at < len(others) and others[at][0] == rank else at
    return [other[1] for other in (*others[max(at - 1, 0) : at], *others[behind : behind + 1])]


# --- pre-tokenizer ----------------------------------------------------------------------------------------------------


def _weights(snapshot: Snapshot, spelling: _Spelling) -> Mapping[str, int]:
    """In how many vocabulary entries each character stands beside another."""
    texts = (spelling.text(entry) or "" for entry in vocabulary_strings(snapshot.model) if len(entry) > 1)
    return Counter(char for text in texts if len(text) > 1 for char in text)


def _patterns(pipeline: Pipeline, probe: Probe, weights: Mapping[str, int], draw: random.Random) -> list[Group]:
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
    triples = ["".join(chars) for length in (1, 2, 3) for chars in product(letters, repeat=length)]
    if len(triples) > 2 * MAX_TRIPLES:
        triples = [text for text in triples if len(text) < 3]
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
        Group("strings of character classes", triples, count, count, apart=True),
        Group("runs of character classes", runs, count, count),
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


# --- added tokens -----------------------------------------------------------------------------------------------------


def _overlaps(literals: Sequence[str]) -> Iterator[str]:
    """Two literals laid over each other where the end of one is the start of the other; one inside another; cut."""
    starting: dict[str, list[str]] = {}
    for literal in literals:
        for stop in range(1, len(literal)):
            starting.setdefault(literal[:stop], []).append(literal)
    known = frozenset(literals)
    for literal in literals:
        for at in range(1, len(literal)):
            for other in starting.get(literal[at:], ()):
                yield literal + other[len(literal) - at :]
        for start in range(len(literal)):
            for stop in range(start + 1, len(literal) + 1):
                inside = literal[start:stop]
                if inside in known and inside != literal:
                    yield literal
                    yield literal[:stop]
                    yield literal[start:]
                    yield inside + literal
                    yield literal + inside
