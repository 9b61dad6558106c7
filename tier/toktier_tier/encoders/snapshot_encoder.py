"""The full encoding of a text, stage by stage, around any core encoder.

Guarantee: with core encoders that equal the reference on ordinary text, `encode` equals the reference's
`encode(text, add_special_tokens=False)` for a text at its start, and the continuation of that encoding for a
suffix that starts at a boundary of the rule.

Order, as in the reference: added tokens of the raw text; per stretch between them the normalizer; added tokens of
the normalized stretch; per piece between those the core (pre-tokenizer and model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..core.added_tokens import AddedToken, CharacterTests, LiteralSet
from ..core.boundaries import BoundaryRule
from ..core.classes import Bools, Settled
from ..core.pipeline import Pipeline, Position, PreTokenizerStep
from ..core.trust import NO_SPANS, Spans, clipped, trusted_stretches
from ..ports import Ids
from .guarded import Guarded

CHUNK_CHARS = 8_192
PARALLEL_CHARS = 65_536
EMPTY: Ids = np.empty(0, dtype=np.uint32)
EMPTY.setflags(write=False)

Normalize = Callable[[str], str]
Encode = Callable[[str], Ids]
Found = list[tuple[int, int, int]]
"""Added tokens as (id, start, end), in order; positions in characters."""


class SnapshotEncoder:
    """`ports.TextEncoder` for one snapshot. Thread-safe.

    cores       per position: what encodes a piece
    unsafe      code points that the cores leave to the reference, None: none
    normalize   per position: the normalizer, None where there is none
    settled     what the normalizer leaves as it is; None: always normalize
    rewrite     the Metaspace step when it never cuts (then it isn't left to the cores)
    pool        where chunks of large texts are encoded; None: in the calling thread
    check_cuts  given the pieces of a whole text that was cut, raises what is wrong with them
    """

    check_cuts: Callable[[Sequence[tuple[str, Ids]], Position], None] | None = None

    def __init__(
        self,
        *,
        rule: BoundaryRule,
        added_tokens: tuple[AddedToken, ...],
        tests: CharacterTests,
        cores: Mapping[Position, Guarded],
        unsafe: Bools | None,
        normalize: Mapping[Position, Normalize | None],
        settled: Settled | None,
        rewrite: PreTokenizerStep | None,
        rewrite_prefixes: Mapping[Position, bool],
        normalize_literal: Normalize,
        pool: ThreadPoolExecutor | None = None,
        workers: int = 1,
    ) -> None:
        self.rule = rule
        self._raw = LiteralSet([(t.content, t) for t in added_tokens if t.content and not t.normalized], tests)
        normalized = [(normalize_literal(t.content), t) for t in added_tokens if t.content and t.normalized]
        self._normalized = LiteralSet([(literal, t) for literal, t in normalized if literal], tests)
        self._has_normalized = bool(normalized)
        self._find = self._raw.find
        self._cores = [cores[position] for position in Position]
        self._normalize = [normalize[position] for position in Position]
        if settled is not None:  # then it is one Unicode form, asked about short runs: few distinct ones
            self._normalize = [_remembered(form) for form in self._normalize]
        self._marks = point_marks(settled, unsafe) if settled is not None else None
        self._rewrite, self._rewrite_prefixes = rewrite, [rewrite_prefixes[position] for position in Position]
        self._stretches = [self._shortest(position) for position in Position]
        self._pieces = [self._bare(position) for position in Position]
        self._plain = self._stretches if not self._has_normalized else self._pieces
        self._token_ids: dict[int, Ids] = {}
        for token in added_tokens:
            ids = np.array([token.id], dtype=np.uint32)
            ids.setflags(write=False)
            self._token_ids[token.id] = ids
        self._pool, self._workers = pool, workers

    @property
    def normalizes(self) -> bool:
        """Whether texts are normalized at all."""
        return any(self._normalize)

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Ids:
        """IDs of `text`, uint32, without the template's tokens."""
        found = self._find(text)
        if not found:
            return self._stretches[position](text) if text else EMPTY
        return _around(text, found, position, self._stretches, self._token_ids)

    def encode_full(self, text: str) -> Ids:
        """`encode` of a whole text; where the reference encodes, large ones use all workers, and are cut for that."""
        if not self._parallel(text, Position.TEXT_START):
            return self.encode(text)
        pieces = self.encode_chunks(text)
        if self.check_cuts is not None:
            self.check_cuts(pieces, Position.TEXT_START)
        return np.concatenate([ids for _, ids in pieces])

    def _parallel(self, text: str, position: Position) -> bool:
        return self._pool is not None and len(text) >= PARALLEL_CHARS and self._cores[position].is_reference

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Ids]]:
        """(chunk, ids) pairs whose chunks join to `text` and end at boundaries.

        Where the reference encodes, large texts use all workers. With a candidate they don't: it takes 40 µs a chunk,
        and threads that come back for the interpreter's lock that often cost more than they bring (measured).
        """
        chunks = self.cut(text)
        positions = [position] + [Position.CONTINUATION] * (len(chunks) - 1)
        if self._pool is None or not self._parallel(text, position):
            return [(chunk, self.encode(chunk, where)) for chunk, where in zip(chunks, positions, strict=True)]
        share = -(-len(chunks) // self._workers)
        shares = [range(start, min(start + share, len(chunks))) for start in range(0, len(chunks), share)]

        def encode_share(indexes: range) -> list[Ids]:
            return [self.encode(chunks[index], positions[index]) for index in indexes]

        others = [self._pool.submit(encode_share, indexes) for indexes in shares[1:]]
        results = encode_share(shares[0])
        for other in others:
            results += other.result()
        return list(zip(chunks, results, strict=True))

    def encode_untrusted(self, text: str, untrusted: Spans, position: Position = Position.TEXT_START) -> Ids:
        """`encode` with untrusted spans, as `encoders.trust` defines it; only where `trust_refusal` finds nothing."""
        found = self.recognized(text, untrusted)
        if found == self.recognized(text):
            return self.encode(text, position)
        return self.encode_recognized(text, found, position)

    def encode_untrusted_chunks(
        self, text: str, untrusted: Spans, position: Position = Position.TEXT_START
    ) -> list[tuple[str, Ids]]:
        """`encode_chunks` with untrusted spans."""
        return encode_cut(self.encode_untrusted, self.cut(text), untrusted, position)

    def recognized(self, text: str, untrusted: Spans = NO_SPANS) -> Found:
        """The added tokens of both sets, searched in each trusted stretch by itself. The normalizer leaves no trace:
        where it does anything no token is searched behind it (see `trust_refusal`)."""
        if not untrusted:
            return self._recognized(text, 0)
        return [
            token
            for start, stop in trusted_stretches(untrusted, len(text))
            for token in self._recognized(text[start:stop], start)
        ]

    def _recognized(self, text: str, offset: int) -> Found:
        raw = self._find(text)
        if not self._has_normalized:
            return [(token, start + offset, end + offset) for token, start, end in raw] if offset else raw
        found: Found = []
        at = 0
        for token, start, end in (*raw, (-1, len(text), len(text))):
            within = self._normalized.find(text[at:start])
            found += [(each, first + at + offset, last + at + offset) for each, first, last in within]
            if token >= 0:
                found.append((token, start + offset, end + offset))
            at = end
        return found

    def encode_recognized(self, text: str, found: Found, position: Position = Position.TEXT_START) -> Ids:
        """IDs of `text` with the added tokens `found` and no others."""
        return _around(text, found, position, self._plain, self._token_ids)

    def cut(self, text: str, chunk_chars: int = CHUNK_CHARS) -> list[str]:
        """`text` in chunks of about `chunk_chars` characters that end at boundaries (one chunk if none is found).

        Half as long towards the end: the last chunk becomes a session's tail, which every append copies.
        """
        chunks: list[str] = []
        at = 0
        while (left := len(text) - at) > chunk_chars:
            size = chunk_chars if left > 2 * chunk_chars else chunk_chars // 2
            position = self.rule.last(text, at + size, at)
            if position < 0:
                position = self.rule.first(text, at + size)
            if position < 0:
                break
            chunks.append(text[at:position])
            at = position
        chunks.append(text[at:])
        return chunks

    def _shortest(self, position: Position) -> Encode:
        """What encodes a nonempty stretch between raw added tokens, without the stages this snapshot lacks."""
        normalize, core, marks = self._normalize[position], self._cores[position], self._marks
        if self._has_normalized or self._rewrite is not None:
            return lambda text: self._stretch(text, position)
        if normalize is None:
            return core.encode
        encode = core.encode
        if marks is None:
            return lambda text: encode(text) if (text := normalize(text)) else EMPTY

        def stretch(text: str) -> Ids:
            if text.isascii():
                return core.encode(text, True)
            found = marks[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
            seen = int(np.bitwise_or.reduce(found))
            if not seen & ~ALONE and not _neighbours(found):
                return core.encode(text, True)
            text = normalize_around(text, found, normalize)
            return encode(text) if text else EMPTY

        return stretch

    def _stretch(self, text: str, position: Position) -> Ids:
        """A nonempty stretch between raw added tokens, by every stage."""
        normalize = self._normalize[position]
        if normalize is not None and self._marks is None:
            text = normalize(text)
        elif normalize is not None and self._marks is not None and not text.isascii():
            text = normalize_around(
                text, self._marks[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)], normalize
            )
        if not self._has_normalized:
            return self._piece(text, position)
        found = self._normalized.find(text)
        if not found:
            return self._piece(text, position)
        return _around(text, found, position, self._pieces, self._token_ids)

    def _bare(self, position: Position) -> Encode:
        return lambda text: self._piece(text, position)

    def _piece(self, text: str, position: Position) -> Ids:
        if not text:
            return EMPTY
        rewrite = self._rewrite
        if rewrite is not None:
            text = text.replace(" ", rewrite.source)
            if self._rewrite_prefixes[position] and not text.startswith(rewrite.source):
                text = rewrite.source + text
        return self._cores[position].encode(text)


def _around(
    text: str, found: Found, position: Position, between: Sequence[Encode], token_ids: Mapping[int, Ids]
) -> Ids:
    """The tokens `found` and, by position, what `between` makes of the text between them."""
    parts: list[Ids] = []
    at = 0
    for token, start, end in found:
        if at < start:
            parts.append(between[position](text[at:start]))
        parts.append(token_ids[token])
        at, position = end, Position.AFTER_TOKEN
    if at < len(text):
        parts.append(between[position](text[at:]))
    return np.concatenate(parts) if parts else EMPTY


def encode_cut(
    encode: Callable[[str, Spans, Position], Ids], chunks: Iterable[str], untrusted: Spans, position: Position
) -> list[tuple[str, Ids]]:
    """(chunk, ids) of `chunks`, whose borders are boundaries: no token, recognized or not, crosses one."""
    encoded: list[tuple[str, Ids]] = []
    at = 0
    for chunk in chunks:
        encoded.append((chunk, encode(chunk, clipped(untrusted, at, at + len(chunk)), position)))
        at, position = at + len(chunk), Position.CONTINUATION
    return encoded


UNSETTLED, ALONE, UNSAFE = 1, 2, 4
"""Marks of a character: the normalizer may act on it; only next to another such; unsafe for the core's encoder."""
REMEMBERED_RUNS = 16_384
REMEMBERED_CHARS = 8


def _remembered(normalize: Normalize | None) -> Normalize | None:
    if normalize is None:
        return None
    remember = lru_cache(maxsize=REMEMBERED_RUNS)(normalize)
    return lambda text: remember(text) if len(text) <= REMEMBERED_CHARS else normalize(text)


def point_marks(settled: Settled, unsafe: Bools | None) -> NDArray[np.uint8]:
    """The marks of every code point."""
    marks = np.where(settled.always, 0, np.where(settled.alone, ALONE, UNSETTLED)).astype(np.uint8)
    if unsafe is not None:
        marks[unsafe] |= UNSAFE
    return marks


def _neighbours(marks: NDArray[np.uint8]) -> bool:
    """Whether two characters stand side by side that aren't settled."""
    loose = (marks & (UNSETTLED | ALONE)) != 0
    return bool((loose[1:] & loose[:-1]).any())


def normalize_around(text: str, marks: NDArray[np.uint8], normalize: Normalize) -> str:
    """`normalize(text)`, asked only for the runs around characters that aren't settled.

    A text may be cut before every settled character; what follows one may join with it and stays in one run with
    it. A run of one character that is harmless alone is left as it is. `marks` are those of the text's characters.
    """
    loose = np.flatnonzero(marks & (UNSETTLED | ALONE))
    if not len(loose):
        return text
    if 8 * len(loose) > len(text):
        return normalize(text)
    return normalize_runs(text, marks, loose, normalize)


def normalize_runs(text: str, marks: NDArray[np.uint8], loose: NDArray[np.intp], normalize: Normalize) -> str:
    """`normalize(text)` run by run; `loose` are the positions, at least one, of characters that aren't settled."""
    starts = np.flatnonzero(np.diff(loose, prepend=-2) > 1)
    firsts, lasts = loose[starts], loose[[*(starts[1:] - 1), -1]]
    acting = (firsts != lasts) | (marks[firsts] & UNSETTLED != 0)
    parts: list[str] = []
    at = 0
    for first, last in zip(firsts[acting].tolist(), lasts[acting].tolist(), strict=True):
        begin = max(first - 1, at)
        parts.append(text[at:begin])
        at = last + 1
        parts.append(normalize(text[begin:at]))
    parts.append(text[at:])
    return "".join(parts)


def literal_normalizer(pipeline: Pipeline, position: Position) -> Normalize | None:
    """The normalizer as plain string operations, if it consists of `Prepend` and literal `Replace` steps only."""
    steps = [s for s in pipeline.normalizer if s.kind != "prepend" or position is not Position.CONTINUATION]
    if any(step.kind not in ("replace", "prepend") for step in steps):
        return None

    def normalize(text: str) -> str:
        for step in steps:
            if step.kind == "replace":
                text = text.replace(step.literal, str(step.document["content"]))
            elif text:
                text = str(step.document["prepend"]) + text
        return text

    return normalize
