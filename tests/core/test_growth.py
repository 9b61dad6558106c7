"""What a tokenizer's own steps may make of a text's length, and that real files stay far below it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tokenizers import Regex
from tokenizers import normalizers as library

from toktier_tier.core.errors import UnsupportedTokenizer
from toktier_tier.core.growth import MAX_GROWTH, growth_of
from toktier_tier.core.snapshot import parse_snapshot
from workshop import bpe, byte_level, metaspace, normalizers, pre_tokenizers, replace, tokenizer_json

TENFOLD = replace("a", "a" * 10)


def by_regex(source: str, content: str) -> Any:
    return {"type": "Replace", "pattern": {"Regex": source}, "content": content}


def charsmap(*texts: str) -> Any:
    data = (8).to_bytes(4, "little") + bytes(8) + b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "growth"),
    [
        (None, byte_level(), 1),
        (None, byte_level(add_prefix_space=True), 2),
        (normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), None, 2),
        ({"type": "BertNormalizer"}, {"type": "BertPreTokenizer"}, 3),
        (replace("``", '"'), metaspace(), 2),
        (TENFOLD, None, 10),
        (normalizers(replace("a", "bbb"), normalizers(TENFOLD, replace("ab", "ccc"))), None, 45),
        (by_regex("a", "bbb"), None, 3),
        (by_regex("a{2,}|bcd", "bbb"), None, 1.5),
        (by_regex(r"(?:\s|a)+", "bbb"), None, 3),
        (by_regex("a*", "b"), None, 2),
        (by_regex("(?=a)", "bb"), None, 3),
        (by_regex(r"\bx", "b"), None, 2),  # isn't parsed: it may match the empty string
        (replace("", "b"), None, 2),
        (replace(" ", "\ufdfa"), None, 18),  # with a compatibility form behind it
        (charsmap("a", "abc" * 5), metaspace(), 30),
        (None, pre_tokenizers(byte_level(), byte_level(use_regex=False), byte_level()), 16),
        (normalizers({"type": "NFKD"}, {"type": "NFKD"}, {"type": "Lowercase"}), None, 1),
    ],
)
def test_steps_multiply_by_the_most_that_each_can_write(normalizer: Any, pre_tokenizer: Any, growth: float) -> None:
    assert growth_of(normalizer, pre_tokenizer) == growth


@pytest.mark.parametrize("source", ["a*", "(?=a)", "a{2,}|bcd", r"(?:\s|a)+", ""])
def test_no_regex_writes_more_than_it_counts_for(source: str) -> None:
    step = by_regex(source, "bbb")
    really = library.Replace(Regex(source), "bbb")
    for text in ("a", "aaaa", "bcd a  aa", "xyz" * 10):
        assert len(really.normalize_str(text)) <= growth_of(step, None) * (len(text) + 1)


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        (normalizers(*[TENFOLD] * 8), byte_level()),
        (normalizers(*[by_regex("a", "aa")] * 1_000), None),
        (normalizers(*[{"type": "Prepend", "prepend": "a"}] * 20), None),
        (None, pre_tokenizers(*[byte_level()] * 12)),
        (normalizers(*[charsmap("a" * 18)] * 3), None),
    ],
)
def test_a_file_that_makes_much_of_little_is_refused_by_name(normalizer: Any, pre_tokenizer: Any) -> None:
    data = tokenizer_json(bpe("ab"), normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    with pytest.raises(UnsupportedTokenizer) as caught:
        parse_snapshot(data, reference_version="x")
    assert caught.value.code == "tokenizer.text_growth"
    assert caught.value.details == {"limit": MAX_GROWTH}


@pytest.mark.parametrize(
    "broken",
    [{"type": "Replace"}, {"type": "Precompiled", "precompiled_charsmap": 3}, {"type": "Prepend", "prepend": None}],
)
def test_steps_that_lack_their_fields_are_left_to_the_reference(broken: Any) -> None:
    assert growth_of(broken, None) == 1
