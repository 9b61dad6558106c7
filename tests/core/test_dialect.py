"""A pattern passes as portable only if every engine reads it alike; what doesn't is named."""

from __future__ import annotations

import pytest

from toktier_tier.core.dialect import unportable

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""


@pytest.mark.parametrize(
    "pattern",
    [
        CL100K,
        DEEPSEEK,
        r"a++b*?c{2}d{2,}e{2,3}?",
        r"(?>a|bc)",
        r"(a|b)",
        r"\x{41}\x41\.",
        r"[\p{Lu}\p{Lt}]*",
        r"[a-\d]",
        ".",
    ],
)
def test_what_all_engines_read_alike_passes(pattern: str) -> None:
    assert unportable(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"zq\h+", r"\h"),
        (r"a\v", r"\v"),
        (r"[a\h]", r"\h"),
        (r"\u0041", r"\u"),
        (r"zq{1,2}+q", "{1,2}+"),
        (r"zq{2}?", "{2}?"),
        (r"a{,2}", "{,2}"),
        (r"a*+?", "?"),
        (r"a{2}{3}", "{3}"),
        (r"[a-z&&[^m]]", "&& in a class"),
        (r"[a[b]]", "a class inside a class"),
        (r"[[:punct:]]", "a class inside a class"),
        (r"[a--b]", "-- in a class"),
        (r"[a~~b]", "~~ in a class"),
        (r"\p{Alpha}", r"\p{Alpha}"),
        (r"\p{^L}", r"\p{^L}"),
        (r"[\p{Greek}]", r"\p{Greek}"),
        (r"\s+$", "$"),
        (r"a\z", r"\z"),
        (r"(?m:a)", "(?m:"),
    ],
)
def test_what_engines_read_differently_is_named(pattern: str, named: str) -> None:
    assert unportable(pattern) == named


def test_the_end_of_a_line_is_the_end_of_the_text_where_line_feeds_stand_alone() -> None:
    assert unportable(r"\s+$", lines=False) is None
    assert unportable(r"\s+$|\h", lines=False) == r"\h"
