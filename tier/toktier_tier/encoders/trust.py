"""The encoding of a text with untrusted spans, by the reference alone: slow, obvious, and the definition.

 1. The text is divided into untrusted spans and the trusted stretches between them.
 2. The added tokens of the text are those that the reference finds in each trusted stretch by itself.
 3. The text between two of them, across the borders of spans, is what the reference makes of it where no added token
    is known: at the start of a text if it stands there, else behind an added token.

Guarantees: without untrusted spans this is the reference's own encoding; a snapshot for which 3 can't be had is
refused (`trust.unsupported`). Why it is defined so: docs/decisions/0007-untrusted-spans.md.

The pieces are the reference's own: its model, normalizer and pre-tokenizer without its added tokens. What stands
behind an added token is encoded behind a token that this module adds, a character that the text doesn't hold.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers

from ..core.errors import InvalidText, UnsupportedTokenizer
from ..core.post_processor import check_post_processor
from ..core.trust import Spans
from ..ports import Ids
from .reference import Reference, encode_text_of, offsets_of

STAND_INS = range(0xF0000, 0x10FFFE)
"""Private use, planes 15 and 16: characters that stand for an added token."""


def trust_refusal(reference: Reference) -> str:
    """Why untrusted spans aren't defined for a snapshot; empty if they are."""
    tokenizer = reference.tokenizer
    rewrites = tokenizer.normalizer is not None and not _is_empty(reference.snapshot.normalizer)
    if rewrites and any(token.normalized for token in reference.added_tokens()):
        return "added tokens are searched in normalized text, whose characters aren't those of the spans"
    try:
        check_post_processor(reference.snapshot.post_processor)
    except UnsupportedTokenizer as error:
        return error.message  # the IDs of parts wouldn't join to those of the text
    return ""


def _is_empty(normalizer: Any) -> bool:
    """Whether a normalizer is a Sequence of nothing."""
    return normalizer is None or (
        normalizer["type"] == "Sequence" and all(_is_empty(step) for step in normalizer["normalizers"])
    )


class TrustReference:
    """`encode` for one snapshot. Thread-safe. Raises `UnsupportedTokenizer` (`trust.unsupported`)."""

    def __init__(self, reference: Reference) -> None:
        refusal = trust_refusal(reference)
        if refusal:
            raise UnsupportedTokenizer("trust.unsupported", f"this tokenizer has no untrusted spans: {refusal}")
        self._tokenizer = reference.tokenizer
        self._finder = tokenizers.Tokenizer(tokenizers.models.BPE())  # knows the added tokens, and nothing else
        self._finder.add_tokens([token for _, token in sorted(self._tokenizer.get_added_tokens_decoder().items())])
        found = {token.content: token.id for token in reference.added_tokens()}
        self._ids = {id: found[token.content] for id, token in self._finder.get_added_tokens_decoder().items()}
        self._twin = lru_cache(maxsize=4)(self._make_twin)

    def encode(self, text: str, untrusted: Spans) -> Ids:
        """IDs of `text` without the template's tokens; raises `InvalidText` where the reference can't encode."""
        parts: list[Ids] = []
        at = 0
        for id, start, stop in self.recognized(text, untrusted):
            parts += [self._between(text[at:start], behind_token=at > 0), np.array([id], dtype=np.uint32)]
            at = stop
        parts.append(self._between(text[at:], behind_token=at > 0))
        return np.concatenate(parts)

    def recognized(self, text: str, untrusted: Spans) -> list[tuple[int, int, int]]:
        """(id, start, stop) of every added token, in order."""
        found: list[tuple[int, int, int]] = []
        at = 0
        for start, stop in (*untrusted, (len(text), len(text))):
            for id, (first, last) in offsets_of(self._finder, text[at:start]):
                found.append((self._ids[id], at + first, at + last))
            at = stop
        return found

    def _between(self, text: str, *, behind_token: bool) -> Ids:
        if not text:
            return np.empty(0, dtype=np.uint32)
        stand_in = self._stand_in(text)
        if behind_token:
            return encode_text_of(self._twin(stand_in), stand_in + text)[1:]
        return encode_text_of(self._twin(stand_in), text)

    def _stand_in(self, text: str) -> str:
        for point in STAND_INS:
            if chr(point) not in text and self._tokenizer.model.token_to_id(chr(point)) is None:
                return chr(point)
        raise InvalidText("trust.no_stand_in", "the text holds every character of the planes for private use")

    def _make_twin(self, stand_in: str) -> Any:
        """The reference with `stand_in` as its only added token; shares the model, so it costs next to nothing."""
        twin = tokenizers.Tokenizer(self._tokenizer.model)
        if self._tokenizer.normalizer is not None:
            twin.normalizer = self._tokenizer.normalizer
        if self._tokenizer.pre_tokenizer is not None:
            twin.pre_tokenizer = self._tokenizer.pre_tokenizer
        twin.add_tokens([tokenizers.AddedToken(stand_in, normalized=False)])
        return twin
