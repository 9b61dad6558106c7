"""The full encoding of a text, stage by stage, around any core encoder.

Guarantee: with core encoders that equal the reference on ordinary text, `encode` equals the reference's
`encode(text, add_special_tokens=False)` for a text at its start, and the continuation of that encoding for a
suffix that starts at a boundary of the rule.

Order, as in the reference: added tokens of the raw text; per stretch between them the normalizer; added tokens of
the normalized stretch; per piece between those the core (pre-tokenizer and model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..core.added_tokens import AddedToken, CharacterTests, LiteralSet
from ..core.boundaries import BoundaryRule
from ..core.classes import Bools
from ..core.pipeline import Pipeline, Position, PreTokenizerStep
from ..ports import Ids

CHUNK_CHARS = 8_192
PARALLEL_CHARS = 65_536
EMPTY: Ids = np.empty(0, dtype=np.uint32)
EMPTY.setflags(write=False)

Normalize = Callable[[str], str]
Encode = Callable[[str], Ids]


class SnapshotEncoder:
    """`ports.TextEncoder` for one snapshot. Thread-safe.

    cores       per position: what encodes a piece
    normalize   per position: the normalizer, None where there is none
    settled     code points whose presence never makes the normalizer change a text; None: always normalize
    rewrite     the Metaspace step when it never cuts (then it isn't left to the cores)
    pool        where chunks of large texts are encoded; None: in the calling thread
    """

    def __init__(
        self,
        *,
        rule: BoundaryRule,
        added_tokens: tuple[AddedToken, ...],
        tests: CharacterTests,
        cores: Mapping[Position, Encode],
        normalize: Mapping[Position, Normalize | None],
        settled: Bools | None,
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
        self._settled = settled
        self._rewrite, self._rewrite_prefixes = rewrite, [rewrite_prefixes[position] for position in Position]
        self._stretches = [self._shortest(position) for position in Position]
        self._token_ids: dict[int, Ids] = {}
        for token in added_tokens:
            ids = np.array([token.id], dtype=np.uint32)
            ids.setflags(write=False)
            self._token_ids[token.id] = ids
        self._pool, self._workers = pool, workers

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Ids:
        """IDs of `text`, uint32, without the template's tokens."""
        found = self._find(text)
        if not found:
            return self._stretches[position](text) if text else EMPTY
        parts: list[Ids] = []
        at = 0
        for token, start, end in found:
            if at < start:
                parts.append(self._stretches[position](text[at:start]))
            parts.append(self._token_ids[token])
            at, position = end, Position.AFTER_TOKEN
        if at < len(text):
            parts.append(self._stretches[position](text[at:]))
        return np.concatenate(parts)

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Ids]]:
        """(chunk, ids) pairs whose chunks join to `text` and end at boundaries; large texts use all workers."""
        chunks = self.cut(text)
        positions = [position] + [Position.CONTINUATION] * (len(chunks) - 1)
        if self._pool is None or self._workers < 2 or len(text) < PARALLEL_CHARS:
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

    def cut(self, text: str, chunk_chars: int = CHUNK_CHARS) -> list[str]:
        """`text` in chunks of about `chunk_chars` characters that end at boundaries (one chunk if none is found)."""
        chunks: list[str] = []
        at = 0
        while len(text) - at > 2 * chunk_chars:
            position = self.rule.last(text, at + chunk_chars, at)
            if position < 0:
                position = self.rule.first(text, at + chunk_chars)
            if position < 0:
                break
            chunks.append(text[at:position])
            at = position
        chunks.append(text[at:])
        return chunks

    def _shortest(self, position: Position) -> Encode:
        """What encodes a nonempty stretch between raw added tokens, without the stages this snapshot lacks."""
        normalize, core, settled = self._normalize[position], self._cores[position], self._settled
        if self._has_normalized or self._rewrite is not None:
            return lambda text: self._stretch(text, position)
        if normalize is None:
            return core
        if settled is None:
            return lambda text: core(text) if (text := normalize(text)) else EMPTY

        def stretch(text: str) -> Ids:
            if not text.isascii():  # `settled` holds every ASCII character or is None
                text = normalize_around(text, settled, normalize)
            return core(text) if text else EMPTY

        return stretch

    def _stretch(self, text: str, position: Position) -> Ids:
        """A nonempty stretch between raw added tokens, by every stage."""
        normalize = self._normalize[position]
        if normalize is not None and self._settled is None:
            text = normalize(text)
        elif normalize is not None and self._settled is not None and not text.isascii():
            text = normalize_around(text, self._settled, normalize)
        if not self._has_normalized:
            return self._piece(text, position)
        found = self._normalized.find(text)
        if not found:
            return self._piece(text, position)
        parts: list[Ids] = []
        at = 0
        for token, start, end in found:
            if at < start:
                parts.append(self._piece(text[at:start], position))
            parts.append(self._token_ids[token])
            at, position = end, Position.AFTER_TOKEN
        if at < len(text):
            parts.append(self._piece(text[at:], position))
        return np.concatenate(parts)

    def _piece(self, text: str, position: Position) -> Ids:
        if not text:
            return EMPTY
        rewrite = self._rewrite
        if rewrite is not None:
            text = text.replace(" ", rewrite.source)
            if self._rewrite_prefixes[position] and not text.startswith(rewrite.source):
                text = rewrite.source + text
        return self._cores[position](text)


def normalize_around(text: str, settled: Bools, normalize: Normalize) -> str:
    """`normalize(text)`, asked only for the runs around characters that aren't settled.

    A settled character is a starter that its form leaves alone and that joins with nothing to its left, so the
    text may be cut before every settled one; what follows it may join with it and stays in one run with it.
    """
    unsettled = np.flatnonzero(~settled[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)])
    if not len(unsettled):
        return text
    if 8 * len(unsettled) > len(text):
        return normalize(text)
    starts = np.flatnonzero(np.diff(unsettled, prepend=-2) > 1)
    parts: list[str] = []
    at = 0
    for first, last in zip(unsettled[starts], unsettled[[*(starts[1:] - 1), -1]], strict=True):
        begin = max(int(first) - 1, at)
        parts.append(text[at:begin])
        at = int(last) + 1
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
