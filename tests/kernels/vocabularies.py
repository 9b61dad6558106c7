"""Vocabularies, made up and genuine, each beside the reference's own model over the same; pieces to try them on.

The reference gets ByteLevel's characters and no pre-tokenizer, so that any bytes are one piece to it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from catalog import path_of
from toktier_kernels.status import APART, NONE, PIECE
from toktier_kernels.vocabulary import Vocabulary, build_vocabulary
from toktier_tier.core.classes import byte_characters

FAMILIES = ("gpt2-novelai", "llama-3.1", "gpt-oss", "deepseek-v4", "qwen-3")
LIMITS = (31, 32, 33, 127, 128, 129, 511, 512, 513)

_CHARACTERS = [chr(point) for point in byte_characters()]
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}


def spelled(data: bytes) -> str:
    return "".join([_CHARACTERS[byte] for byte in data])


@dataclass(frozen=True, eq=False)
class Words:
    """What `build_vocabulary` takes, and what the reference makes of it."""

    tokens: dict[int, bytes]
    merges: list[tuple[int, int, int]]
    ignore_merges: bool = False

    @cached_property
    def byte_id(self) -> np.ndarray:
        ids = {token: id for id, token in self.tokens.items()}
        return np.array([ids.get(bytes([byte]), NONE) for byte in range(256)], np.uint32)

    def built(self, whole: Iterable[int] | None = None) -> Vocabulary:
        return build_vocabulary(self.byte_id, self.tokens, self.merges, whole)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return self.built(self.tokens if self.ignore_merges else None)

    @cached_property
    def reference(self) -> Tokenizer:
        model: dict[str, Any] = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": self.ignore_merges,
            "vocab": {spelled(token): id for id, token in self.tokens.items()},
            "merges": [[spelled(self.tokens[left]), spelled(self.tokens[right])] for left, right, _ in self.merges],
        }
        return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))

    def wanted(self, pieces: Sequence[bytes]) -> np.ndarray:
        """`token` of the pieces one behind the other, by the reference: u32[bytes]."""
        token = np.full(sum(map(len, pieces)), NONE, np.uint32)
        at = 0
        for piece, encoded in zip(pieces, self.reference.encode_batch([spelled(p) for p in pieces]), strict=True):
            starts = [start for start, _ in encoded.offsets]
            token[at + np.array(starts, np.int64)] = encoded.ids
            at += len(piece)
        return token


def made_up(
    seed: int, *, alphabet: bytes = b"ab\xc3", count: int = 40, shuffled: bool = True, ignore_merges: bool = False
) -> Words:
    """Random merges over few bytes: several for one token, some twice; `shuffled`: parts may come after their whole."""
    rng = random.Random(seed)
    ids = rng.sample(range(600), 256)
    tokens = {ids[byte]: bytes([byte]) for byte in range(256)}
    known = {token: id for id, token in tokens.items()}
    usable = [bytes([byte]) for byte in alphabet]
    merges: list[tuple[int, int, int]] = []
    for _ in range(count):
        left, right = rng.choice(usable), rng.choice(usable)
        if len(left + right) > 40:
            continue
        if left + right not in known:
            known[left + right] = 600 + len(known)
            tokens[known[left + right]] = left + right
            usable.append(left + right)
        merges.append((known[left], known[right], known[left + right]))
    if shuffled:
        rng.shuffle(merges)
    return Words(tokens, merges, ignore_merges)


def spelled_out(merges: Sequence[str]) -> Words:
    """All bytes, and merges given as "left right" by rank."""
    halves = [[part.encode() for part in pair.split(" ")] for pair in merges]
    made = dict.fromkeys(b"".join(pair) for pair in halves)
    known = {bytes([byte]): byte for byte in range(256)} | {token: 256 + index for index, token in enumerate(made)}
    tokens = {id: token for token, id in known.items()}
    return Words(tokens, [(known[left], known[right], known[left + right]) for left, right in halves])


@cache
def genuine(family: str) -> Words:
    model = json.loads(path_of(family).read_bytes())["model"]
    vocab: dict[str, int] = model["vocab"]
    tokens = {
        id: bytes([_BYTES[character] for character in token])
        for token, id in vocab.items()
        if all(character in _BYTES for character in token)
    }
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    merges = [(vocab[left], vocab[right], vocab[left + right]) for left, right in pairs]
    return Words(tokens, merges, bool(model.get("ignore_merges")))


def adversarial(words: Words, seed: int, longest: int = max(LIMITS)) -> list[bytes]:
    """Pieces around every limit: runs, random bytes, tokens in a row, tokens with a byte more, less or changed."""
    rng = random.Random(seed)
    tokens = list(words.tokens.values())
    result = [bytes([byte]) for byte in rng.sample(range(256), 8)]
    for length in (2, 7, *LIMITS):
        if length <= longest:
            run, pair = rng.choice([b" ", b"a", b"=", b"\xe4"]), bytes(rng.choices(b"ab ", k=2))
            row = b"".join(rng.choices(tokens, k=length))[:length]
            result += [run * length, (pair * length)[:length], rng.randbytes(length), row]
            result.append(bytes(rng.choices(b"aab", k=length)))
            result.append(("".join(rng.choices("中文字語国的", k=length))).encode()[:length])
    for token in rng.choices(tokens, k=40):
        at = rng.randrange(len(token))
        result += [token, token + b"x", token[:-1], token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]]
    rng.shuffle(result)
    return [piece for piece in result if piece]


@dataclass(frozen=True)
class Layout:
    """Pieces one behind the other; every third behind a stretch that stands apart; a segment each two entries."""

    text: np.ndarray
    pieces: np.ndarray
    piece: np.ndarray
    segments: np.ndarray


def layout(pieces: Sequence[bytes], *, apart: bool = False) -> Layout:
    parts: list[tuple[bytes, int]] = []
    for index, piece in enumerate(pieces):
        if apart and index % 3 == 0:
            parts.append((b"a" * (1 + index % 700), APART))
        parts.append((piece, PIECE))
    text = np.frombuffer(b"".join([part for part, _ in parts]), np.uint8)
    starts = np.cumsum([0, *[len(part) for part, _ in parts]]).astype(np.int32)
    piece = np.zeros(len(text), np.uint8)
    piece[starts[:-1]] = [kind for _, kind in parts]
    segments = np.append(starts[:-1:2], len(text)).astype(np.int32)
    return Layout(text, starts, piece, segments)
