"""Texts on which two tokenizers are compared: every plane of Unicode that is in use, and what tokenizers trip over.

Pure and deterministic. The code points are there because two versions of one library differ in their tables of
Unicode while the tokenizer.json is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

POINTS_PER_TEXT = 1_024
MAX_ADDED = 4_096
MAX_ALONE = 64

TEXTS = (
    "Hello, world!",
    " leading and trailing \n",
    "\n\n\t  \r\n \u00a0\u3000 indent\n        def f(x):\n\treturn x ** 2  # café\n",
    "I'll we've IT'S don'T 's 'S \u2019s \u2018quoted\u2019 \u201cdouble\u201d",
    "0 12 123 1234 12345 3.14159 1e-9 0x7f ½ ² Ⅷ ٣ १२",
    "naïve re\u0301sume\u0301 e\u0308 <\u0338 A\u030a ﬁ K ſ İ ı ß",
    "中文。日本語のテキスト、한국어 텍스트 ไทย العربية עברית हिन्दी",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067\U000e0062\U000e007f \U0001fae8 \ufe0f\u200b\ufeff",
    "a" * 300 + " " * 300 + "\n" * 300 + "=" * 300 + "7" * 300,
    'https://example.com/a_b?c=d&e=%20#f {\'k\': [1, 2, {"n": null}]} <div class="x">&amp;</div>\x00\x07\x1b[0m',
    "The quick brown fox jumps over the lazy dog. " * 40,
    "'S" * 201 + "aB",
)


def special_probes(added: Sequence[str]) -> list[str]:
    """Texts that show what is added around a text, an added token of the tokenizer's own at its edges included."""
    alone = [token for token in added[:MAX_ALONE] if token]
    edges = [edge for token in alone for edge in (f"{token}text", f"text{token}")]
    return ["text", "", "two words\n", " x", *TEXTS, *edges]


def added_probes(added: Sequence[str]) -> list[str]:
    """Every added token (the first `MAX_ADDED`) in several surroundings, and cut in two."""
    probes = []
    for start in range(0, min(len(added), MAX_ADDED), 256):
        some = [token for token in added[start : start + 256] if token]
        probes.append("".join(f"a{token}b {token} c\n{token}\n" for token in some))
        probes.append("".join(some))
        probes.append("".join(f"{token[: len(token) // 2]} {token[1:]}{token[:-1]}" for token in some))
    return probes


def code_points() -> Iterator[str]:
    """Texts that hold, each between letters, spaces and digits, the code points of the planes in use."""
    points = [
        *range(0xD800),
        *range(0xE000, 0x20000),
        *range(0x20000, 0x33480, 16),
        *range(0xE0000, 0xE01F0),
    ]
    for start in range(0, len(points), POINTS_PER_TEXT):
        yield "".join(f"a{chr(point)}b {chr(point)}1\n" for point in points[start : start + POINTS_PER_TEXT])


def comparison(added: Sequence[str]) -> Iterator[str]:
    yield ""
    yield from TEXTS
    yield from added_probes(added)
    yield from code_points()
