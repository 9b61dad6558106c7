"""Texts that are hard on a tokenizer, drawn from a seed and from the snapshot itself.

Guarantee: the same seed, snapshot and rule give the same texts, whatever else ran before.
"""

# ruff: noqa: E501, C409 (sample texts)
from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ..core.boundaries import BoundaryRule
from ..core.classes import CODE_POINTS, byte_characters
from ..core.snapshot import Snapshot
from ..core.vocabulary import vocabulary_strings

NATURAL = (
    'def tokenize(self, text: str) -> list[int]:\n    """Return the ids of `text`; see RFC-2119, §4.2 (v0.23.3)."""\n'
    "    if not text.strip():\r\n\t\treturn []\n"
    "    return [self.vocab[t] for t in re.findall(r\"\\w+|[^\\w\\s]\", text)]  # don't, I'LL, we've, THEY'RE\n"
    '{"role": "tool", "content": "exit=0\\n\\t12:30:45,123 INFO http://127.0.0.1:8080/a/b?c=d&e=%20 0xdeadbeef 1e-10"}\n'
    '<div class="row">  <p>It\'s 1,234,567.89 € — “quoted” … ½ ¾ x² H₂O № ™</p>\n\n\n</div>\n'
    "Все люди рождаются свободными и равными в своём достоинстве. Όλοι οι άνθρωποι γεννιούνται ελεύθεροι.\n"
    "人人生而自由，在尊严和权利上一律平等。すべての人間は、生まれながらにして自由であり。\n"
    "모든 인간은 태어날 때부터 자유로우며 يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.\n"
    "כל בני אדם נולדו בני חורין. सभी मनुष्यों को गौरव और अधिकारों มนุษย์ทั้งหลายเกิดมามีอิสระ\n"
    "Tất cả mọi người sinh ra đều được tự do. Žmonės gimsta laisvi. İnsanlar özgür, ISTANBUL’da.\n"
    "e\u0301 n\u0303 o\u0308\u0304 A\u030a \u1100\u1161\u11a8 \U0001f469\u200d\U0001f469\u200d\U0001f467 "
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \U0001f44d\U0001f3fd ❤\ufe0f ☃ \u200b\u200d\ufeff\u00ad\u2028\u3000\u00a0 ﬁ ﬃ Ⅷ ㎏ ①\n"
    "===========  ----------  ////////  ......  ((((([[[[{{{{  \\\\\\\\  ______  ########   \t\t   \n \n  \n"
)
PIECES = tuple(
    [
        "'s",
        "'S",
        "'ll",
        "'LL",
        "'re",
        "'t",
        "’s",
        "ſ",
        "K",
        "İ",
        "a",
        "B",
        "é",
        "=",
        "<",
        "/",
        "_",
        "▁",
        "1",
        "12",
        "1234",
        "²",
        "½",
        "٣",
        "。",
        "，",
        "、",
        "中",
        "文字",
        "の",
        "カ",
        "한",
        "ß",
        "ﬀ",
        "ⅷ",
        "ⓐ",
        "()",
        "):",
        "({",
        '"',
        "\\",
        "#",
        "-",
        "--",
        "...",
        "$",
        "€",
        "|",
        "<|",
        "|>",
        "\\s",
        "s",
        "<0x41>",
        "##",
        "[",
        "]",
    ]
) + tuple(
    [
        " ",
        "  ",
        "   ",
        "\n",
        "\r\n",
        "\n\n",
        "\t",
        " \n",
        "\n ",
        "\xa0",
        "\u3000",
        "\u200b",
        "\u2028",
        "\x85",
        "\x0b",
        "\x1c",
        "\x00",
        "é",
        "́",
        "̸",
        "ᄀ",
        "ᅡ",
        "ᆨ",
        "😀",
        "👍🏽",
        "\u200d",
        "️",
        "🇩",
        "กำ",
        "ि",
        "�",
    ]
)


class Texts:
    """A seeded source of texts for one snapshot and rule."""

    def __init__(self, snapshot: Snapshot, rule: BoundaryRule, seed: int, corpus: Sequence[str] = ()) -> None:
        self.seed = seed
        self._random = random.Random(f"{seed}/{snapshot.fingerprint}")
        self.literals = [token.content for token in snapshot.added_tokens if token.content]
        self._literals = frozenset(self.literals)
        self.representatives = self._representatives(rule)
        self._entries = self._spelled(snapshot)
        self._corpus = [NATURAL, *corpus]

    def _representatives(self, rule: BoundaryRule) -> list[str]:
        """A few characters of every class combination the rule tells apart, and all of ASCII."""
        chosen = {chr(point) for point in range(128)}
        if rule.kind == "classes":
            left, right = np.frombuffer(rule.left, dtype=np.uint8), np.frombuffer(rule.right, dtype=np.uint8)
            combined = left.astype(np.uint32) << 8 | right
            for value in np.unique(combined):
                points = np.flatnonzero(combined == value)
                chosen.update(chr(points[self._random.randrange(len(points))]) for _ in range(6))
        chosen.update(chr(self._random.randrange(0x80, CODE_POINTS)) for _ in range(64))
        chosen.update(char for piece in PIECES for char in piece)
        return sorted(char for char in chosen if not 0xD800 <= ord(char) < 0xE000)

    def _spelled(self, snapshot: Snapshot) -> list[str]:
        """Vocabulary entries as text, ByteLevel's alphabet read back into bytes where the snapshot uses it."""
        entries = sorted(vocabulary_strings(snapshot.model))
        sample = self._random.sample(entries, min(4_000, len(entries)))
        pipeline = snapshot.pipeline
        if pipeline is None or not any(step.kind == "bytes" for step in pipeline.pre_tokenizer):
            return [entry.replace("▁", " ") for entry in sample if entry]
        byte_of = {chr(char): byte for byte, char in enumerate(byte_characters())}
        spelled = (bytes(byte_of.get(char, 63) for char in entry).decode("utf-8", "ignore") for entry in sample)
        return [entry for entry in spelled if entry]

    def short(self, length: int) -> str:
        """`length` characters over the representatives."""
        return "".join(self._random.choices(self.representatives, k=length))

    def adversarial(self, chars: int, *, literals: bool = True) -> str:
        """About `chars` characters of everything at once; with `literals`, added tokens whole and cut."""
        parts: list[str] = []
        size = 0
        while size < chars:
            part = self._part(literals)
            parts.append(part)
            size += len(part)
        return "".join(parts)

    def natural(self, chars: int) -> str:
        """`chars` characters of code, JSON and prose in many scripts."""
        text = self._random.choice(self._corpus)
        start = self._random.randrange(len(text))
        while len(text) - start < chars:
            text += self._random.choice(self._corpus)
        return text[start : start + chars]

    def words(self, chars: int) -> str:
        """`chars` characters of words with single spaces between: no added token cuts into it."""
        words = [word for word in self.natural(4 * chars).split() if word.isalpha() and not self._holds_literal(word)]
        self._random.shuffle(words)
        return " ".join(words)[:chars]

    def run(self, chars: int) -> str:
        """One piece of `chars` characters, as far as the pattern allows: a character repeated, or random letters."""
        draw = self._random
        if draw.random() < 0.3:
            return "".join(draw.choices("etaoinshrdlu", k=chars))
        return draw.choice(self.representatives) * chars

    def mixed(self, chars: int) -> str:
        """Natural text with adversarial stretches and added tokens strewn in."""
        parts: list[str] = []
        size = 0
        while size < chars:
            part = (
                self.natural(self._random.randrange(20, 400)) if self._random.random() < 0.6 else self.adversarial(60)
            )
            if self.literals and self._random.random() < 0.3:
                part += self._random.choice(self.literals)
            parts.append(part)
            size += len(part)
        return "".join(parts)[:chars]

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, options: Sequence[int]) -> int:
        return self._random.choice(options)

    def sample(self, options: Sequence[str], count: int) -> list[str]:
        return self._random.sample(options, count)

    def _holds_literal(self, word: str) -> bool:
        pieces = (word[start:stop] for start in range(len(word)) for stop in range(start + 1, len(word) + 1))
        return not self._literals.isdisjoint(pieces)

    def _part(self, literals: bool) -> str:
        draw = self._random
        kind = draw.random()
        if kind < 0.30:
            return draw.choice(self.representatives) * draw.choice((1, 1, 1, 2, 3, 7))
        if kind < 0.55:
            return draw.choice(PIECES) * draw.choice((1, 1, 1, 2, 4))
        if kind < 0.72 and self._entries:
            return draw.choice(self._entries)
        if kind < 0.80:
            point = draw.randrange(CODE_POINTS - 0x800)
            return chr(point if point < 0xD800 else point + 0x800)
        if kind < 0.90 and literals and self.literals:
            literal = draw.choice(self.literals)
            cut = draw.randint(0, len(literal))
            return draw.choice((literal, literal, literal[:cut], literal[cut:], literal * 2))
        return self.natural(draw.randrange(1, 12))
