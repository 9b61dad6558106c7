"""Texts that exercise every element of a tokenizer.json, generated from the file itself.

Guarantees: `core_groups` and `token_groups` name each kind of element, how many of them the file has, and texts in
which each one takes part; what can't take part in any text is counted apart (`unreachable`). A campaign for a
candidate that doesn't exercise the rest is void (`Group.complete`).

Kinds of the core (pre-tokenizer and model): vocabulary entries; merges, each pair joined, doubled, and kept apart by a
neighbour that merges first; the literals of the split patterns among characters of every class; every string of up to
three character classes, at the end of a text and inside one; runs of each class of every length that a quantifier
tells apart. Code points are asked one by one elsewhere (`probe`). Kinds of the added tokens: each literal by itself,
every overlap of two, every two side by side.

Classes of characters are those of the patterns' own atoms, assertions and predicates, asked of the reference; never
those of the boundary rule, which joins what it needn't tell apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..core.boundaries import accepted
from ..core.classes import CODE_POINTS, Bools, Probe, byte_characters
from ..core.pattern import Alternation, Atom, Atomic, Node, Pattern, Repeat, parse
from ..core.pattern import Sequence as InOrder
from ..core.pipeline import Pipeline
from ..core.snapshot import Snapshot
from ..core.splitting import assertion_question
from ..core.vocabulary import byte_token, vocabulary_strings

MEMBERS_OF_CLASS = 3
MAX_TRIPLES = 150_000
MAX_RUN = 12
MAX_TOKEN_TEXTS = 400_000
RANDOM_STRINGS = 30_000
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
    return [*groups, *_patterns(pipeline, probe, random.Random(f"coverage/{seed}/{snapshot.fingerprint}"))]


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
    """Each pair joined, doubled, and beside a third symbol that merges with one of the two before they would."""
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}  # of a pair listed twice, the last
    before: dict[str, tuple[int, str]] = {}
    behind: dict[str, tuple[int, str]] = {}
    for (left, right), rank in ranks.items():
        before[right] = min(before.get(right, (rank, left)), (rank, left))
        behind[left] = min(behind.get(left, (rank, right)), (rank, right))
    texts: list[str] = []
    unreachable = 0
    for (left, right), rank in ranks.items():
        joined = spelling.text(left, right)
        if joined is None:
            unreachable += 1
            continue
        texts.append(joined)
        texts.append(spelling.text(left, right, left, right) or joined)
        first, third = behind.get(right, (rank, "")), before.get(left, (rank, ""))
        if first[0] < rank:
            texts.append(spelling.text(left, right, first[1]) or joined)
        if third[0] < rank:
            texts.append(spelling.text(third[1], left, right) or joined)
    return Group("merges", texts, len(ranks), len(ranks) - unreachable, unreachable)


# --- pre-tokenizer ----------------------------------------------------------------------------------------------------


def _patterns(pipeline: Pipeline, probe: Probe, draw: random.Random) -> list[Group]:
    """Strings over the classes of the patterns, runs, and literals among them."""
    patterns = [parse(step.source) for step in pipeline.pre_tokenizer if step.kind == "regex"]
    classes = _classes(pipeline, patterns, probe)
    members = [_members(points, draw) for points in classes]
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
    count = len(classes)
    return [
        Group("strings of character classes", triples, count, count, apart=True),
        Group("runs of character classes", runs, count, count),
        Group("pattern literals", around, len(literals), len(literals)),
        Group("pairs of characters", pairs, len(pairs), len(pairs)),
        Group("strings of characters", strings, len(strings), len(strings), apart=True),
    ]


def _classes(
    pipeline: Pipeline, patterns: Iterable[Pattern], probe: Probe
) -> list[np.ndarray[tuple[int], np.dtype[np.intp]]]:
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


def _members(points: np.ndarray[tuple[int], np.dtype[np.intp]], draw: random.Random) -> list[str]:
    """A few characters of a class: ASCII ones first, since they are what merges."""
    ascii_points = points[points < 0x80].tolist()
    draw.shuffle(ascii_points)
    chosen = ascii_points[: MEMBERS_OF_CLASS - 1]
    others = points[points >= 0x80]
    while len(others) and len(chosen) < MEMBERS_OF_CLASS:
        chosen.append(int(others[draw.randrange(len(others))]))
    return list(dict.fromkeys(map(chr, chosen)))


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


def check_complete(groups: Iterable[Group]) -> Mapping[str, Mapping[str, int]]:
    """Counts by group for the report."""
    return {
        group.name: {
            "elements": group.elements,
            "exercised": group.exercised,
            "unreachable": group.unreachable,
            "texts": len(group.texts),
        }
        for group in groups
    }
