"""Tables for the kernels: each array held to what it was made of, and what doesn't fit refused by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from toktier_kernels.status import MATCH, NONE
from toktier_kernels.tables import Tables
from toktier_tier.core.classes import CODE_POINTS, is_scalar
from toktier_tier.core.errors import UnsupportedTokenizer
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.core.splitting import compile_split
from toktier_tier.encoders import gpu_tables, gpu_vocabulary
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.gpu_tables import build_tables, tables_bytes
from toktier_tier.encoders.gpu_vocabulary import kernel_vocabulary
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe
from workshop import (
    bpe,
    byte_level,
    byte_telltale,
    derive_rule,
    family_reference,
    family_rule,
    metaspace,
    normalizers,
    pre_tokenizers,
    replace,
    split,
    telltale,
    token,
    tokenizer_json,
    unigram,
)

FAMILIES = ("pile-like", "deepseek-v4", "genji-novelai")
NFC = {"type": "NFC"}
LETTERS = "abcdefghijklmnopqrstuvwxyz 1.é"
Json = Any


def reference_of(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


def pile_like() -> bytes:
    """NFC before ByteLevel's own pattern, and no IDs for bytes that aren't in UTF-8, as in NeoX's file."""
    model = byte_telltale(LETTERS)
    bare = bytes(range(0xF5, 0x100)).decode("latin-1")
    model["vocab"] = {entry: id for entry, id in model["vocab"].items() if entry not in {*bare, "À", "Á"}}
    return tokenizer_json(model, normalizer=NFC, pre_tokenizer=byte_level(), added=[token(5_000, "<|end|>")])


@cache
def reference(family: str) -> Reference:
    return reference_of(pile_like()) if family == "pile-like" else family_reference(family)


@cache
def tables(family: str) -> Tables:
    return tables_of(reference(family))


def tables_of(made: Reference) -> Tables:
    rule = derive_rule(made)
    return build_tables(made, rule, settled_points(made) if rule.kind != "none" else None)


def joint(found: Tables) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The joint class of every code point."""
    return found.class_of[found.page_of].ravel()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_joint_class_says_all_that_was_joined(family: str) -> None:
    found, made = tables(family), reference(family)
    rule = family_rule(family) if family != "pile-like" else derive_rule(made)
    pipeline = made.snapshot.pipeline
    assert pipeline is not None
    classes = joint(found)
    assert len(classes) == CODE_POINTS
    left, right = (np.frombuffer(side, dtype=np.uint8) for side in (rule.left, rule.right))
    table = np.array([list(row) for row in rule.table]) != 0
    firsts = np.unique(classes, return_index=True)[1]
    for first, other in ((classes[firsts], left), (classes[firsts], right)):  # equal class, equal side
        of_class = np.zeros(256, dtype=np.uint8)
        of_class[first] = other[firsts]
        assert (of_class[classes] == other).all()
    shown = classes[firsts]
    assert (found.cuts[np.ix_(shown, shown)] != 0).tolist() == table[np.ix_(left[firsts], right[firsts])].tolist()
    stages = compile_split(pipeline, ReferenceProbe(made)).stages
    assert len(stages) == len(found.stages)
    for stage, compiled in zip(stages, found.stages, strict=True):
        columns = np.arange(256) if stage.of_bytes else classes
        assert (compiled.column[columns] == stage.automaton.column_of).all()
        assert (compiled.step == stage.automaton.step).all()
    settled = settled_points(made)
    if settled is None:
        assert not found.normalizes
    else:
        expected = np.where(settled.always, 0, np.where(settled.alone, 1, 2))
        assert (found.settled[classes] == expected)[is_scalar()].all()
    assert tables_bytes(found) > found.class_of.nbytes


def test_a_pair_inside_an_added_token_may_be_cut_on_the_device() -> None:
    """Added tokens are cut out beforehand: what else reads like a part of one is ordinary text."""
    made = reference_of(tokenizer_json(byte_telltale(LETTERS), pre_tokenizer=byte_level(), added=[token(5_000, "a b")]))
    rule = derive_rule(made)
    classes = joint(tables_of(made))
    assert "a " in rule.excluded
    assert not rule.holds("a", " ")
    assert tables_of(made).cuts[classes[ord("a")], classes[ord(" ")]] == 1


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_pieces_are_those_that_the_merges_make(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the reference's model, and computed from the merges."""
    made = reference(family)
    asked = kernel_vocabulary(made)
    monkeypatch.setattr(gpu_vocabulary, "_whole", lambda *_: None)
    computed = kernel_vocabulary(made)
    whole = [set(found.whole_id[found.whole_length > 0].tolist()) for found in (asked, computed)]
    assert whole[0] == whole[1]
    assert len(whole[0]) > 256 - 13


def test_a_byte_that_no_text_holds_needs_no_id() -> None:
    byte_id = kernel_vocabulary(reference("pile-like")).byte_id
    assert np.flatnonzero(byte_id == NONE).tolist() == [0xC0, 0xC1, *range(0xF5, 0x100)]


def test_of_a_merge_that_is_listed_twice_the_later_rank_counts() -> None:
    model = bpe(byte_telltale("")["vocab"], [("a", "b"), ("b", "c"), ("a", "b")])
    made = reference_of(tokenizer_json(model, pre_tokenizer=byte_level()))
    vocab = model["vocab"]
    assert made.encode_text("abc").tolist() == [vocab["a"], vocab["bc"]]
    found = tables_of(made).vocabulary
    rank = {pair: int(found.find(np.uint32([vocab[pair[0]]]), np.uint32([vocab[pair[1]]]))[0]) for pair in ("ab", "bc")}
    assert rank["bc"] < rank["ab"]


# --- what is refused --------------------------------------------------------------------------------------------------


def file_of(model: Json | None = None, **sections: Json) -> bytes:
    return tokenizer_json(model or byte_telltale(LETTERS), **{"pre_tokenizer": byte_level(), **sections})


def without_a_byte() -> Json:
    model = byte_telltale("")
    model["vocab"] = {entry: id for entry, id in model["vocab"].items() if entry != "z"}
    return model


def twice_one_id() -> Json:
    model = byte_telltale("")
    model["vocab"] = {**model["vocab"], "zz": model["vocab"]["z"]}
    return model


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (tokenizer_json(telltale("ab▁"), normalizer=replace(" ", "▁")), "kernels.no_class_rule"),
        (tokenizer_json(telltale("ab▁"), normalizer={"type": "StripAccents"}), "kernels.no_class_rule"),
        (tokenizer_json(unigram({"a": 1.0}), pre_tokenizer=split("a|b")), "kernels.not_byte_level"),
        (tokenizer_json(telltale("ab▁"), pre_tokenizer=metaspace()), "kernels.not_byte_level"),
        (tokenizer_json(unigram({"a": 1.0}), pre_tokenizer=byte_level()), "kernels.model"),
        (file_of(pre_tokenizer=byte_level(add_prefix_space=True)), "kernels.position_matters"),
        (
            file_of(pre_tokenizer=pre_tokenizers(split("a|b"), byte_level(add_prefix_space=True, use_regex=False))),
            "kernels.position_matters",
        ),
        (file_of(normalizer={"type": "Lowercase"}), "kernels.normalizer"),
        (file_of(normalizer=normalizers(replace("a", "b"))), "kernels.normalizer"),
        (file_of(normalizer=NFC, added=[token(5_000, "<x>", normalized=True)]), "kernels.normalized_tokens"),
        (file_of(byte_telltale("", continuing_subword_prefix="##")), "kernels.subword_prefix"),
        (file_of(byte_telltale("", end_of_word_suffix="</w>")), "kernels.word_suffix"),
        (file_of(byte_telltale("", byte_fallback=True)), "kernels.byte_fallback"),
        (file_of(without_a_byte()), "kernels.missing_bytes"),
        (file_of(twice_one_id()), "kernels.duplicate_id"),
        (file_of(pre_tokenizer=pre_tokenizers(split("a|b", "Removed"), byte_level())), "automaton.removes"),
    ],
)
def test_what_the_device_cannot_do_is_refused_by_name(data: bytes, code: str) -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        tables_of(reference_of(data))
    assert caught.value.code == code


def test_more_classes_than_a_byte_tells_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tables, "MAX_CLASSES", 5)
    with pytest.raises(UnsupportedTokenizer) as caught:
        tables_of(reference_of(file_of()))
    assert caught.value.code == "kernels.too_many_classes"


def test_no_pattern_matches_nothing() -> None:
    for family in FAMILIES:
        assert all((stage.step[1] < MATCH).all() for stage in tables(family).stages)
