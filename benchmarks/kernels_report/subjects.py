"""A real tokenizer on both sides: the reference's answers about texts, and what the kernels are given of it.

Guarantee: what is expected comes from the reference alone. Where its tokens end follows from the bytes that they spell,
and is checked here against the reference's own offsets, which count characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toktier_kernels.tables import Tables
from toktier_tier.admission.campaign import derive_rule
from toktier_tier.admission.texts import Texts
from toktier_tier.core.boundaries import BoundaryRule
from toktier_tier.core.classes import byte_characters
from toktier_tier.core.pipeline import Position
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.gpu import byte_spans, of_bytes
from toktier_tier.encoders.gpu_tables import build_tables
from toktier_tier.encoders.reference import Reference, core_document, load_tokenizer, open_reference

FAMILIES = {
    "gpt2-novelai": "GPT-2",
    "llama-3.1": "cl100k",
    "qwen-3": "cl100k, NFC",
    "gpt-oss": "o200k",
    "kimi_k3": "o200k, scripts",
    "deepseek-v4": "DeepSeek",
}
"""Tokenizers and the kind of their split pattern."""

Ids = NDArray[np.uint32]
Ends = NDArray[np.int64]
Spans = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Sample:
    """A text with what the reference makes of it.

    spans   (starts, ends, ids) of its added tokens, byte positions in the text
    ids     without the template's
    ends    where each token ends: byte positions in the normalized text
    """

    text: str
    data: bytes
    spans: Spans
    ids: Ids
    ends: Ends


class Subject:
    """One tokenizer. Building it takes some seconds: the boundary rule, the automata, the tables."""

    def __init__(self, family: str, data: bytes) -> None:
        self.family = family
        self.reference: Reference = open_reference(data, SpecialTokenPolicy.NONE)
        self.rule: BoundaryRule = derive_rule(self.reference)
        self.tables: Tables = build_tables(self.reference, self.rule, settled_points(self.reference))
        pipeline = self.reference.snapshot.pipeline
        assert pipeline is not None
        snapshot = self.reference.snapshot
        self._core = load_tokenizer(core_document(snapshot, pipeline.pre_tokenizer_documents[Position.TEXT_START]))
        # Offsets are trimmed by post-processors.
        self._whole = load_tokenizer({**snapshot.document(), "post_processor": None, "decoder": None})
        self._added = {token.id: len(token.content.encode()) for token in self.reference.added_tokens()}
        normalize = self.reference.normalizer(Position.TEXT_START)
        self._normalize = normalize
        self.normalize: Callable[[bytes], bytes] | None = of_bytes(normalize) if normalize is not None else None

    def texts(self, seed: int) -> Texts:
        return Texts(self.reference.snapshot, self.rule, seed)

    def encode_overlong(self, stretches: Sequence[bytes]) -> list[Ids]:
        """What an engine asks of the CPU: the reference's IDs of normalized stretches without added tokens."""
        encodings = self._core.encode_batch([stretch.decode() for stretch in stretches], add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def samples(self, texts: Sequence[str]) -> list[Sample]:
        """Raises ValueError where the reference's offsets and its tokens' bytes disagree: then nothing is known."""
        encodings = self._whole.encode_batch(texts, add_special_tokens=False)
        found = [self._added_of(encoding) for encoding in encodings]
        normalized = [self._normalized(text, spans) for text, spans in zip(texts, found, strict=True)]
        again = self._whole.encode_batch(normalized, add_special_tokens=False)
        return list(map(self._sample, texts, found, normalized, encodings, again))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """Bytes of the token of each ID: a character of ByteLevel's alphabet stands for one."""
        vocabulary = self._core.get_vocab()
        alphabet = {chr(point) for point in byte_characters()}
        lengths = np.zeros(max([*vocabulary.values(), *self._added]) + 1, dtype=np.int64)
        for token, id in vocabulary.items():
            if alphabet.issuperset(token):
                lengths[id] = len(token)
        for id, length in self._added.items():
            lengths[id] = length
        return lengths

    def _added_of(self, encoding: Any) -> list[tuple[int, int, int]]:
        """(id, start, stop) of the added tokens; positions in characters."""
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(id, start, stop) for id, (start, stop) in pairs if id in self._added]

    def _normalized(self, text: str, found: Sequence[tuple[int, int, int]]) -> str:
        """Each stretch between added tokens by itself, as the reference does it."""
        if self._normalize is None:
            return text
        parts: list[str] = []
        done = 0
        for _, start, stop in found:
            parts += (self._normalize(text[done:start]), text[start:stop])
            done = stop
        return "".join([*parts, self._normalize(text[done:])])

    def _sample(
        self, text: str, found: list[tuple[int, int, int]], normalized: str, encoding: Any, again: Any
    ) -> Sample:
        data = text.encode()
        spans = byte_spans(text, len(data), found) or (np.empty(0, np.int64),) * 3
        ids = np.array(encoding.ids, dtype=np.uint32)
        lengths = self._lengths[ids]
        if found:  # a token may take spaces at its sides along
            lengths[np.isin(ids, list(self._added))] = spans[1] - spans[0]
        ends = np.cumsum(lengths)
        leads = np.cumsum((np.frombuffer(normalized.encode(), dtype=np.uint8) & 0xC0) != 0x80)
        stops = np.array([stop for _, stop in again.offsets], dtype=np.int64)
        covered = len(leads) == (ends[-1] if len(ends) else 0)
        if again.ids != encoding.ids or not covered or (leads[ends - 1] != stops).any():
            raise ValueError(f"{self.family}: the reference's offsets aren't where its tokens' bytes end")
        return Sample(text, data, spans, ids, ends)
