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
from itertools import product

from ..core.classes import Probe, byte_characters
from ..core.pipeline import Pipeline
from ..core.snapshot import Snapshot
from ..core.vocabulary import byte_token, vocabulary_strings
from .groups import Group
from .pattern_texts import pattern_groups

MAX_TOKEN_TEXTS = 400_000
MAX_ADJACENT = 300
"""Up to so many added tokens every two are put side by side; of more, each beside `SOME_NEIGHBOURS` others."""
SOME_NEIGHBOURS = 24


def core_groups(snapshot: Snapshot, probe: Probe, seed: int) -> list[Group]:
    """Groups for what encodes ordinary, already normalized text. The same seed gives the same texts."""
    pipeline = snapshot.pipeline
    assert pipeline is not None
    spelling = _Spelling(snapshot, pipeline)
    groups = [_vocabulary(snapshot, spelling)]
    if snapshot.model["type"] == "BPE":
        groups.append(_merges(snapshot.model["merges"], spelling))
    draw = random.Random(f"coverage/{seed}/{snapshot.fingerprint}")
    return [*groups, *pattern_groups(pipeline, probe, _weights(snapshot, spelling), draw)]


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


def _weights(snapshot: Snapshot, spelling: _Spelling) -> Mapping[str, int]:
    """In how many vocabulary entries each character stands beside another."""
    texts = (spelling.text(entry) or "" for entry in vocabulary_strings(snapshot.model) if len(entry) > 1)
    return Counter(char for text in texts if len(text) > 1 for char in text)


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
