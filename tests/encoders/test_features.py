"""Candidates don't get files with features that they are known to read differently, whatever samples would say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.core.snapshot import Snapshot, parse_snapshot
from toktier_tier.encoders.features import check_features
from toktier_tier.encoders.reference import REFERENCE_VERSION
from workshop import bpe, byte_level, byte_telltale, family_reference, metaspace, split, telltale, token, tokenizer_json

WORDS = r" ?\p{L}+|\s+"
BYTES = byte_level(use_regex=False)


def snapshot_of(model: Any, **sections: Any) -> Snapshot:
    return parse_snapshot(tokenizer_json(model, **sections), reference_version=REFERENCE_VERSION)


def code(name: str, snapshot: Snapshot) -> str:
    try:
        check_features(name, snapshot)
    except EncoderUnavailable as error:
        return error.code
    return ""


def steps(*pre_tokenizers: Any) -> Any:
    return {"type": "Sequence", "pretokenizers": list(pre_tokenizers)}


@pytest.mark.parametrize("name", ["gigatoken", "fastokens"])
@pytest.mark.parametrize("family", ["qwen-3", "deepseek-v4", "llama-3.1", "gpt2-novelai"])
def test_genuine_files_may_be_given_to_both(name: str, family: str) -> None:
    check_features(name, family_reference(family).snapshot)


def test_a_dialect_that_only_some_engines_share_keeps_out_what_has_another_engine() -> None:
    for pattern in (r"zq\h+|" + WORDS, r"zq{1,2}+q|" + WORDS, r"[a&&[b]]|" + WORDS):
        snapshot = snapshot_of(byte_telltale("zq "), pre_tokenizer=steps(split(pattern), BYTES))
        assert code("fastokens", snapshot) == "encoder.dialect"
        assert code("gigatoken", snapshot) == ""  # it has no engine: it knows some patterns, and refuses the others


def test_the_end_of_a_line_counts_unless_an_earlier_step_sets_line_feeds_apart() -> None:
    ends = split(r"\s+$")
    assert code("fastokens", snapshot_of(byte_telltale("ab"), pre_tokenizer=steps(ends, BYTES))) == "encoder.dialect"
    apart = steps(split("[\r\n]"), ends, BYTES)
    assert code("fastokens", snapshot_of(byte_telltale("ab"), pre_tokenizer=apart)) == ""
    runs = steps(split("[\r\n]+"), ends, BYTES)  # a run of line feeds is one piece: a line ends inside it
    assert code("fastokens", snapshot_of(byte_telltale("ab"), pre_tokenizer=runs)) == "encoder.dialect"


@pytest.mark.parametrize("behavior", ["MergedWithPrevious", "MergedWithNext", "Contiguous", "Removed"])
def test_pieces_that_are_merged_or_dropped_are_for_the_reference(behavior: str) -> None:
    merged = {**split("z"), "behavior": behavior}
    for name in ("gigatoken", "fastokens"):
        snapshot = snapshot_of(byte_telltale("zq "), pre_tokenizer=steps(merged, BYTES))
        assert code(name, snapshot) == "encoder.split_behavior"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"end_of_word_suffix": "</w>"}, "encoder.model_option"),
        ({"continuing_subword_prefix": "##"}, "encoder.model_option"),
        ({"byte_fallback": True}, "encoder.model_option"),
    ],
)
def test_model_options_that_libraries_overlook(changes: dict[str, Any], expected: str) -> None:
    model = {**byte_telltale("ab"), **changes}
    for name in ("gigatoken", "fastokens"):
        assert code(name, snapshot_of(model, pre_tokenizer=byte_level())) == expected


def test_two_entries_under_one_id_and_missing_bytes() -> None:
    model = byte_telltale("ab")
    shared = {**model, "vocab": {**model["vocab"], "zzz": model["vocab"]["a"]}}
    assert code("gigatoken", snapshot_of(shared, pre_tokenizer=byte_level())) == "encoder.shared_id"
    lacking = {**model, "vocab": {k: v for k, v in model["vocab"].items() if k != "Ġ"}}
    lacking["merges"] = [pair for pair in lacking["merges"] if "Ġ" not in "".join(pair)]
    assert code("gigatoken", snapshot_of(lacking, pre_tokenizer=byte_level())) == "encoder.missing_bytes"


def test_characters_without_bytes() -> None:
    model = bpe("ab▁", itertools.product("ab", repeat=2))
    assert code("gigatoken", snapshot_of(model, pre_tokenizer=metaspace("never"))) == "encoder.model_option"


def test_a_model_that_is_not_bpe() -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    assert code("fastokens", snapshot_of(model)) == "encoder.model_option"


def test_a_step_that_never_fires_keeps_nobody_out() -> None:
    model = telltale("▁ab")
    never = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    written = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    found = code("gigatoken", snapshot_of(model, normalizer=written, pre_tokenizer=never, added=[token(9_000, "<x>")]))
    assert found != "encoder.split_behavior"
