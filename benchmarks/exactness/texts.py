"""Hard texts, drawn from a seed. Nothing here knows the classes that a rule has derived.

The pool: every ASCII character, characters of every general category by Python's tables, what folds to ASCII, white
space and marks, the literals of the file's patterns, added tokens whole and cut, vocabulary entries, natural words in
many scripts, code points drawn anew for each batch, runs; and a window of all code points in turn, in a frame. Every
second batch has long pieces: words, entries, runs and mixtures of one general category.
"""

from __future__ import annotations

import json
import random
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

from toktier_tier.admission.texts import NATURAL, PIECES

SWEEP = 256
FRAME = "a{0}{0} {0}b'{0}1{0}\n{0}  {0}"
FOLDS = "ſKıİẞß\u0130\u1e9e\ufb00\ufb06\u0345"
SPACES = (
    " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2007\u2028\u2029\u202f\u205f\u3000\u180e\u200b\u2060\ufeff"
)
CONTRACTIONS = ("'s", "'S", "'ll", "'LL", "'Ll", "'re", "'Ve", "'m", "'d", "'t", "'T", "'ſ", "’s", "''", "'")
SCALARS = 0x110000 - 0x800
_WORDS = re.findall(r"\s+|\S+", NATURAL)


def scalar(number: int) -> str:
    """The `number`th code point that is no surrogate."""
    return chr(number if number < 0xD800 else number + 0x800)


class Texts:
    """A source of texts for one tokenizer.json. The same seed and number give the same texts."""

    def __init__(self, document: dict[str, Any], seed: str) -> None:
        self._seed = seed
        self._categories = _by_category()
        self._literals = [token["content"] for token in document.get("added_tokens") or () if token["content"]]
        vocab = document["model"]["vocab"]
        self._entries = list(vocab) if isinstance(vocab, dict) else [entry[0] for entry in vocab]
        self._fixed = _fixed_pool(document)

    def batch(self, number: int, texts: int, parts: float) -> list[str]:
        """About `texts` texts of `parts` parts on average, and a window of the code points."""
        draw = random.Random(f"{self._seed}/{number}")
        fresh = self._fresh(draw)
        pool = self._fixed + fresh if number % 2 == 0 else self._long_pieces(draw, fresh)
        sizes = [max(1, round(draw.expovariate(1 / parts))) for _ in range(texts)]
        chosen = draw.choices(pool, k=sum(sizes))
        found: list[str] = []
        at = 0
        for size in sizes:
            found.append("".join(chosen[at : at + size]))
            at += size
        first = number * SWEEP
        window = [scalar((first + step) % SCALARS) for step in range(SWEEP)]
        framed = [FRAME.format(char) for char in window]
        joined = max(1, round(parts / 8))
        found += ["".join(framed[at : at + joined]) for at in range(0, len(framed), joined)]
        return found

    def _long_pieces(self, draw: random.Random, fresh: list[str]) -> list[str]:
        """Words, vocabulary entries and runs of up to 200 characters, with a few hard parts between."""
        words = [part for part in _WORDS if len(part) > 2] * 2
        entries = [_spelled(entry) for entry in draw.sample(self._entries, min(400, len(self._entries)))]
        spaced = [" " + part for part in words + entries if part]
        runs = [draw.choice(fresh)[:1] * draw.choice((5, 20, 60, 200)) for _ in range(60)]
        mixed = ["".join(draw.choices(draw.choice(self._categories), k=draw.randint(5, 60))) for _ in range(200)]
        return spaced + words + entries + runs + mixed + draw.sample(fresh, min(150, len(fresh)))

    def _fresh(self, draw: random.Random) -> list[str]:
        chars = [draw.choice(draw.choice(self._categories)) for _ in range(600)]
        chars += [scalar(draw.randrange(SCALARS)) for _ in range(100)]
        runs = [draw.choice(chars) * draw.choice((2, 3, 4, 7)) for _ in range(60)]
        runs += [draw.choice(" \n\t=-#'a1é中\u0301") * draw.choice((2, 3, 5, 17, 60)) for _ in range(30)]
        literals: list[str] = []
        for literal in draw.sample(self._literals, min(40, len(self._literals))):
            cut = draw.randrange(len(literal)) + 1
            literals += [literal, literal, literal[:cut], literal[cut:], literal[:-1], literal + " ", " " + literal]
        entries = [_spelled(entry) for entry in draw.sample(self._entries, min(1_000, len(self._entries)))]
        return [part for part in chars + runs + literals + entries if part]


def _fixed_pool(document: dict[str, Any]) -> list[str]:
    ascii_ = [chr(point) for point in range(128)]
    pool = ascii_ * 2 + list("abcdstlmrvABSTLMRV0123456789 .,!?-_/\n") * 6 + [" "] * 60
    pool += [*FOLDS, *SPACES, *SPACES, *(CONTRACTIONS * 6), *PIECES, *PIECES]
    pool += _WORDS
    patterns = re.findall(r'"(?:Regex|String)": "((?:[^"\\]|\\.)*)"', json.dumps(document.get("pre_tokenizer")))
    for pattern in patterns:
        pool += [char for char in json.loads(f'"{pattern}"') if char.isprintable()]
    return [part for part in pool if part]


def _spelled(entry: str) -> str:
    return entry.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n").removeprefix("##")


@cache
def _by_category() -> list[Sequence[str]]:
    found: dict[str, list[str]] = {}
    for point in range(sys.maxunicode + 1):
        if not 0xD800 <= point < 0xE000:
            found.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    marks = [char for group in ("Mn", "Mc", "Me") for char in found[group] if unicodedata.combining(char)]
    return [*found.values(), marks, found["Mn"]]
