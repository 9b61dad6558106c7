"""Genuine tokenizers as tables, and what the reference makes of documents: IDs, ends and counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from toktier_kernels.tables import Tables
from toktier_tier.core.pipeline import Position
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.gpu_tables import build_tables
from toktier_tier.ports import Ids
from workshop import GENERAL, WORDS, Tier, family_tier, random_text, sample_text, snippets

FAMILIES = ("qwen-3", "deepseek-v4", "gpt2-novelai")
"""The first one normalizes, the second one has several stages."""
MORE_FAMILIES = (*FAMILIES, "gpt-oss", "llama-3.1", "kimi_k3")

ByteSpans = tuple[list[int], list[int], list[int]]


@dataclass(frozen=True)
class Genuine:
    tier: Tier
    tables: Tables
    normalize: Callable[[bytes], bytes] | None

    def encode_overlong(self, stretches: Sequence[bytes]) -> list[Ids]:
        return [self.tier.reference.encode_text(stretch.decode()) for stretch in stretches]

    def spans(self, documents: Sequence[str]) -> ByteSpans:
        """The added tokens of all documents, in bytes of their concatenation."""
        encoder = self.tier.tokenizer.text_encoder
        assert encoder is not None
        starts: list[int] = []
        ends: list[int] = []
        ids: list[int] = []
        at = 0
        for document in documents:
            for id, start, end in encoder.recognized(document):
                starts.append(at + len(document[:start].encode()))
                ends.append(at + len(document[:end].encode()))
                ids.append(id)
            at += len(document.encode())
        return starts, ends, ids

    def expected(self, documents: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
        """(ids, ends, tokens of each document) by the reference.

        The ends are sums of the tokens' lengths: bytes of an added token as it stands in the text, else characters of
        the vocabulary's entry, each of which stands for a byte.
        """
        tokenizer = self.tier.reference.tokenizer
        encoder = self.tier.tokenizer.text_encoder
        assert encoder is not None
        ids, lengths, counts = [], [], []
        for document in documents:
            own = self.tier.ids(document)
            added = [(id, len(document[a:b].encode())) for id, a, b in encoder.recognized(document)]
            for id in own:
                if added and added[0][0] == id:
                    lengths.append(added.pop(0)[1])
                else:
                    lengths.append(len(tokenizer.model.id_to_token(id)))
            assert not added
            ids += own
            counts.append(len(own))
        return ids, np.cumsum(lengths, dtype=np.int64).tolist(), counts

    def texts(self, count: int, most: int, seed: int) -> list[str]:
        """Texts of up to about `most` characters: the alphabet of the rules, words, halves of added tokens, prose."""
        chooser = random.Random(seed)
        parts = [*GENERAL, *WORDS, *snippets(self.tier.reference, 12)]
        found = []
        for _ in range(count):
            size = chooser.randint(0, most)
            if chooser.random() < 0.3:
                found.append(sample_text(size, chooser.randrange(10**6)))
            else:
                found.append(random_text(chooser, parts, 0, 1 + size // 3)[:size])
        return found


@cache
def genuine(family: str) -> Genuine:
    tier = family_tier(family)
    normalizer = tier.reference.normalizer(Position.CONTINUATION)
    return Genuine(
        tier,
        build_tables(tier.reference, tier.rule, settled_points(tier.reference) if normalizer else None),
        None if normalizer is None else lambda data: normalizer(data.decode()).encode(),
    )
