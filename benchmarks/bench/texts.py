"""The texts that are measured: contexts, and deltas of which no engine has seen the words before.

Guarantee: the same seed gives the same texts; no text of `Texts` but the chat holds a special-token literal.
"""

from __future__ import annotations

import random
from functools import cached_property
from string import ascii_lowercase
from unicodedata import normalize

from agent_session import chat_text, plain_text

CONTEXT_SEED, POOL_SEED, CHAT_SEED = 11, 12, 13
NEW_WORD_EVERY_CHARS = 160


def long_text(chars: int, seed: int, *, ascii_only: bool) -> str:
    """Agent text of exactly `chars` characters in NFC; with `ascii_only` the others are left out."""
    text = ""
    while len(text) < chars:
        more = normalize("NFC", plain_text(chars, seed))
        text += more.encode("ascii", "ignore").decode() if ascii_only else more
        seed += 1_000
    return text[:chars]


class Texts:
    """Contexts and deltas of one alphabet.

    All of it is in NFC, as nearly all text is: where it isn't, the peer leaves its fast path for the whole text.
    Deltas are successive slices of a pool, cut wherever they fall, with a random word planted every
    `NEW_WORD_EVERY_CHARS` characters: a delta never comes again, nor is it made of words seen before only.
    """

    def __init__(self, max_context_chars: int, pool_chars: int, *, ascii_only: bool) -> None:
        self._longest = long_text(max_context_chars, CONTEXT_SEED, ascii_only=ascii_only)
        self._pool = long_text(pool_chars, POOL_SEED, ascii_only=ascii_only)
        self._at = 0
        self._random = random.Random(POOL_SEED)

    def context(self, chars: int) -> str:
        return self._longest[:chars]

    def deltas(self, count: int, chars: int) -> list[str]:
        """`count` deltas of exactly `chars` characters."""
        return [self._delta(chars) for _ in range(count)]

    def _delta(self, chars: int) -> str:
        if self._at + chars > len(self._pool):
            self._at = self._random.randrange(NEW_WORD_EVERY_CHARS)
        text = self._pool[self._at : self._at + chars]
        self._at += chars
        parts = [text[start : start + NEW_WORD_EVERY_CHARS] for start in range(0, chars, NEW_WORD_EVERY_CHARS)]
        delta = normalize("NFC", "".join(self._with_new_word(part) for part in parts))
        return delta + "." * (chars - len(delta))

    def _with_new_word(self, part: str) -> str:
        word = " " + "".join(self._random.choices(ascii_lowercase, k=9))
        return word + part[len(word) :] if len(part) > len(word) else part


class Chat:
    """A chat transcript with its special tokens, and the same text with their literals removed."""

    def __init__(self, chars: int, literals: tuple[str, ...]) -> None:
        self.text = chat_text(chars, CHAT_SEED)
        self._literals = literals

    @cached_property
    def without_literals(self) -> str:
        text = self.text
        for literal in self._literals:
            text = text.replace(literal, "")
        return text
