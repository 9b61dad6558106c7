"""Boundaries: what a rule claims, the reference confirms; each condition of the derivation is needed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from toktier_tier.core import boundaries
from toktier_tier.core.added_tokens import exclusions
from toktier_tier.core.boundaries import NO_RULE, BoundaryRule, derive_class_rule, no_rule, seal
from toktier_tier.core.classes import CODE_POINTS, identity_alphabet
from toktier_tier.core.errors import TierError
from toktier_tier.core.follow import compute_follow
from toktier_tier.core.pattern import parse
from toktier_tier.core.pipeline import Position, parse_pipeline
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe, load_tokenizer
from workshop import (
    GENERAL,
    Json,
    Tier,
    bpe,
    build_tier,
    byte_level,
    byte_telltale,
    examples,
    exclusions_of,
    family_reference,
    family_rule,
    family_tier,
    metaspace,
    normalizers,
    pre_tokenizers,
    random_text,
    replace,
    sample_text,
    split,
    telltale,
    text_parts,
    texts,
    token,
    tokenizer_json,
    unigram,
    word_piece,
)

FAMILIES = (
    "gpt2-novelai",  # ByteLevel's own pattern, a normalized added token
    "deepseek-v4",  # several stages
    "mixtral-8x22b-v0.1",  # sentencepiece style, Prepend
    "mistral-7b-v0.3",  # Metaspace, first
    "qwen-3",  # NFC
    "llama-3.1",
    "olmo-3",  # Removed and inverted
    "pile-novelai",  # NFC before ByteLevel's own pattern
    "kimi_k3",  # class intersections
    "gpt-oss",  # o200k
)

# --- the conditions of design.md, section 3 -----------------------------------------------------------------------


def derive(reference: Reference, **changes: Any) -> BoundaryRule:
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    excluded = changes.get("excluded", exclusions_of(reference))
    return derive_class_rule(pipeline, excluded, ReferenceProbe(reference))


def without_look_ahead(reference: Reference) -> BoundaryRule:
    """Condition (i) left out: no atom counts as standing before a look-ahead."""
    real = boundaries.compute_follow

    def careless(pattern: Any) -> Any:
        return dataclasses.replace(real(pattern), tainted=frozenset())

    with mock.patch.object(boundaries, "compute_follow", careless):
        return derive(reference)


def without_coverage(reference: Reference) -> BoundaryRule:
    """Condition (ii) left out: every character counts as always inside a match."""
    real = boundaries._regex_stage

    def careless(*arguments: Any) -> Any:
        stage = real(*arguments)
        return dataclasses.replace(stage, covered=np.ones_like(stage.covered))

    with mock.patch.object(boundaries, "_regex_stage", careless):
        return derive(reference)


def without_literals(reference: Reference) -> BoundaryRule:
    """Condition (iii) left out: added tokens forbid nothing."""
    return derive(reference, excluded=exclusions([], str, position_matters=False))


def without_normalizer(reference: Reference) -> BoundaryRule:
    """Condition (iv) left out: every character is taken for what it is."""
    with mock.patch.object(boundaries, "normalized_alphabet", return_value=identity_alphabet()):
        return derive(reference)


Careless = Callable[[Reference], BoundaryRule]


@pytest.mark.parametrize(
    ("careless", "family", "left", "right"),
    [
        (without_look_ahead, "gpt2-novelai", "a\n\n", "x"),
        (without_look_ahead, "deepseek-v4", "\t\t", ";"),
        (without_look_ahead, "qwen-3", "\t\t", "'ll"),
        (without_coverage, "deepseek-v4", "\u200d", "\u200d"),
        (without_literals, "gpt2-novelai", "<|", "endoftext|>"),
        (without_literals, "deepseek-v4", "<｜", "action｜>"),
        (without_literals, "qwen-3", "<tool", "_call>"),
        (without_normalizer, "qwen-3", "e", "\u0301"),
        (without_normalizer, "pile-novelai", "e", "\u0301"),
    ],
)
def test_each_condition_is_needed(careless: Careless, family: str, left: str, right: str) -> None:
    tier = family_tier(family)
    rule = careless(tier.reference)
    assert rule.holds(left[-1], right[0])
    assert tier.ids(left) + tier.encoded(right, Position.CONTINUATION) != tier.ids(left + right)
    assert not tier.rule.holds(left[-1], right[0])


@pytest.mark.parametrize(
    ("careless", "normalizer", "pre_tokenizer", "left", "right"),
    [
        # The composed character is of another class than its first part: seen from the left, "<" may be "≮".
        (without_normalizer, {"type": "NFC"}, split("<|[^<]+"), "a", "<\u0338"),
        # ... and the part that composes to the left is no boundary, whatever its own class.
        (without_normalizer, {"type": "NFC"}, split("\u0338|[^\u0338]+"), "<", "\u0338"),
        (without_normalizer, {"type": "NFD"}, split("\u0316|[^\u0316]+"), "\u0301", "\u0316"),
        (without_normalizer, {"type": "NFKC"}, split("[ﬁ]|[^ﬁ]+"), "a", "ﬁ"),
        (without_normalizer, {"type": "Lowercase"}, split("[A-Z]|[^A-Z]+"), "a", "B"),
        (without_normalizer, replace("_", " "), split("_|[^_]+"), "a", "_"),
        (without_normalizer, replace("ab", "c"), split("b", regex=False), "a", "b"),
        (without_look_ahead, None, split(r"a+(?!b)|[^a]"), "aa", "b"),
        (without_look_ahead, None, split(r"a+(?=b)|."), "aa", "b"),
        (without_look_ahead, None, split(r"a+$|."), "aa", "b"),
        (without_coverage, None, split("[ab]x"), "a", "b"),
    ],
)
def test_each_condition_is_needed_on_small_tokenizers(
    careless: Careless, normalizer: Json, pre_tokenizer: Json, left: str, right: str
) -> None:
    data = tokenizer_json(telltale("abfi<_ \u0338\u0301\u0316≮cx"), normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    rule = careless(reference)
    assert rule.holds(left[-1], right[0])
    tier = build_tier(data, rule=rule)
    assert tier.ids(left) + tier.encoded(right, Position.CONTINUATION) != tier.ids(left + right)
    assert not derive(reference).holds(left[-1], right[0])


def test_a_character_that_may_compose_into_one_that_no_match_covers_is_no_boundary() -> None:
    data = tokenizer_json(telltale("a!<\u0338≮"), normalizer={"type": "NFC"}, pre_tokenizer=split("[<!]"))
    tier = build_tier(data)
    assert tier.ids("a") + tier.encoded("<\u0338", Position.CONTINUATION) != tier.ids("a<\u0338")
    assert tier.rule.holds("a", "!")
    assert not tier.rule.holds("a", "<")


# --- claims against the reference ---------------------------------------------------------------------------------


def representatives(rule: BoundaryRule) -> list[str]:
    """One character, or two, of every pair of a left and a right class."""
    kinds = np.frombuffer(rule.left, np.uint8).astype(int) << 8 | np.frombuffer(rule.right, np.uint8)
    kinds[0xD800:0xE000] = kinds[0]
    _, first = np.unique(kinds, return_index=True)
    _, last = np.unique(kinds[::-1], return_index=True)
    return [chr(point) for point in {*first.tolist(), *(CODE_POINTS - 1 - last).tolist()}]


class LibraryContinuation:
    """F_cont by the library alone: the tokenizer without what starts a text, up to the first added token."""

    def __init__(self, reference: Reference) -> None:
        snapshot = reference.snapshot
        pipeline = snapshot.pipeline
        assert pipeline is not None
        self.inner, self.after = (
            load_tokenizer(
                {
                    **snapshot.document(),
                    "normalizer": pipeline.normalizer_documents[position],
                    "pre_tokenizer": pipeline.pre_tokenizer_documents[position],
                }
            )
            for position in (Position.CONTINUATION, Position.AFTER_TOKEN)
        )
        self.added = {token.id for token in reference.added_tokens()}

    def __call__(self, text: str) -> list[int]:
        encoding = self.inner.encode(text, add_special_tokens=False)
        found = next((i for i, id in enumerate(encoding.ids) if id in self.added), None)
        if found is None:
            return list(encoding.ids)
        rest = text[encoding.offsets[found][1] :]
        return [*encoding.ids[: found + 1], *self.after.encode(rest, add_special_tokens=False).ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_claim_holds_in_every_context_tried(family: str) -> None:
    tier = family_tier(family)
    parts = [*text_parts(tier), *representatives(tier.rule)]
    continued = LibraryContinuation(tier.reference)

    @settings(max_examples=examples(250))
    @given(texts(parts, 10), st.randoms(use_true_random=False))
    def run(text: str, chooser: random.Random) -> None:
        whole = tier.ids(text)
        claimed = tier.boundaries(text)
        for p in chooser.sample(claimed, min(8, len(claimed))):
            left, right = tier.ids(text[:p]), continued(text[p:])
            assert left + right == whole, (text[:p], text[p:])
            assert tier.encoded(text[p:], Position.CONTINUATION) == right, (text[:p], text[p:])
        assert tier.encoded(text) == whole

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_of_classes_is_tried_in_a_few_frames(family: str) -> None:
    rule, reference = family_rule(family), family_reference(family)
    tier = family_tier(family)
    chosen = representatives(rule)
    chooser = random.Random(family)
    pairs = [(a, b) for a in chosen for b in chosen if rule.holds(a, b)]
    assert pairs
    for a, b in chooser.sample(pairs, min(len(pairs), examples(400))):
        for before, after in (("", ""), (a, b), (b, a), (chooser.choice(GENERAL), chooser.choice(GENERAL))):
            left, right = before + a, b + after
            whole = reference.encode_text(left + right).tolist()
            assert tier.ids(left) + tier.encoded(right, Position.CONTINUATION) == whole, (left, right)


@pytest.mark.parametrize("family", FAMILIES)
def test_rules_claim_enough_to_be_of_use(family: str) -> None:
    text = sample_text(4_000)
    rule = family_rule(family)
    gaps = np.diff([0, *(p for p in range(1, len(text)) if rule.holds(text[p - 1], text[p])), len(text)])
    assert gaps.mean() < 12
    assert gaps.max() < 200


# --- small tokenizers with what genuine files rarely have ----------------------------------------------------------

LOWER: Json = {"type": "Lowercase"}
DIGITS: Json = {"type": "Digits", "individual_digits": True}
WORDS_APART: Json = {"type": "WhitespaceSplit"}
BERT: Json = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

Case = tuple[bytes, list[str]]


def punctuation(behavior: str) -> Json:
    return {"type": "Punctuation", "behavior": behavior}


def bert(*tokens: str) -> Json:
    return word_piece([*"abc1.中e[]", *("##" + c for c in "abc1e"), "ab", "##bc", "bc", "##ab", *tokens])


SPACES = [" ", "\u00a0", "\n", "\u3000"]
SMALL: dict[str, Case] = {
    "added tokens with strip flags": (
        tokenizer_json(
            byte_telltale("ab1x ."),
            pre_tokenizer=byte_level(),
            added=[
                token(5000, "<l>", lstrip=True),
                token(5001, "<r>", rstrip=True),
                token(5002, "<w>", single_word=True),
                token(5003, "<lr>", lstrip=True, rstrip=True),
                token(5004, "tok", single_word=True, lstrip=True),
            ],
        ),
        ["a", "b", "1", ".", "<", "<l>", "<r>", "<w>", "<lr>", "tok", *SPACES],
    ),
    "the same after every piece gets a prefix": (
        tokenizer_json(
            byte_telltale("ab1x ."),
            pre_tokenizer=byte_level(add_prefix_space=True),
            added=[
                token(5000, "<l>", lstrip=True),
                token(5001, "<r>", rstrip=True),
                token(5002, "tok", single_word=True),
            ],
        ),
        ["a", "b", "1", ".", "<", "<l>", "<r>", "tok", *SPACES],
    ),
    "ByteLevel with a prefix": (
        tokenizer_json(
            byte_telltale("ab1 .'s"), pre_tokenizer=byte_level(add_prefix_space=True), added=[token(5000, "<s>")]
        ),
        ["a", "b", " ", "1", ".", "'", "s", "<s>"],
    ),
    "Digits, then ByteLevel with a prefix": (
        tokenizer_json(
            byte_telltale("ab1 .'s"),
            pre_tokenizer=pre_tokenizers(DIGITS, byte_level(add_prefix_space=True)),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", " ", "1", ".", "'", "s", "<s>"],
    ),
    "a Split, then a prefix for every piece": (
        tokenizer_json(
            byte_telltale("ab1 .'s"),
            pre_tokenizer=pre_tokenizers(split(r"\d| +|[^\d ]+"), byte_level(add_prefix_space=True, use_regex=False)),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", " ", "1", ".", "'", "s", "<s>"],
    ),
    "Falcon's chain, whose last stages see bytes as characters": (
        tokenizer_json(
            byte_telltale("ab1² .'é③"),
            pre_tokenizer=pre_tokenizers(
                punctuation("Contiguous"),
                byte_level(),
                {"type": "Digits", "individual_digits": False},
                split("[0-9][0-9][0-9]"),
            ),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "1", "²", "³", "¹", " ", ".", "'", "é", "Â", "③", "٣", "中", "<s>"],
    ),
    "BertPreTokenizer and WordPiece": (
        tokenizer_json(
            bert(), normalizer=BERT, pre_tokenizer={"type": "BertPreTokenizer"}, added=[token(500, "[CLS]")]
        ),
        [*"abABc1.中 eé", "\u0301", "\u0000", "\u200b", "İ", "[CLS]", "\n"],
    ),
    "Unigram over words with a mark": (
        tokenizer_json(
            unigram({"<unk>": 0, "▁": -1, "a": -2, "b": -2, "ab": -2.5, "▁a": -2.2, "ba": -3}),
            pre_tokenizer=pre_tokenizers(WORDS_APART, metaspace()),
            added=[token(500, "<s>")],
        ),
        ["a", "b", " ", "▁", "<s>", "\n"],
    ),
    "Replace of a two-character literal": (
        tokenizer_json(telltale("abcx1"), normalizer=replace("a1", "c"), pre_tokenizer=DIGITS),
        ["a", "b", "1", "x", "c"],
    ),
    "NFKC": (
        tokenizer_json(
            telltale("abfi1 .2"), normalizer={"type": "NFKC"}, pre_tokenizer=split(r"\s+|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
        ),
        ["a", "b", "ﬁ", "½", "1", " ", "\u3000", "\u0301", ".", "²", "＇", "…", "あ", "\u3099"],
    ),
    "Lowercase": (
        tokenizer_json(telltale("abi1 ."), normalizer=LOWER, pre_tokenizer=split(r"[a-z]+|\s+|[^a-z\s]+")),
        ["a", "A", "b", "B", "1", " ", "İ", "ß", "ẞ", "Σ", "K", "."],
    ),
    "NFC": (
        tokenizer_json(
            telltale("abe\u0301é<\u0338≮"),
            normalizer={"type": "NFC"},
            pre_tokenizer=split("<|[^<]+"),
            added=[
                token(500, "<e\u0301>", normalized=True),
                token(501, "b≮", normalized=True),
                token(502, "aé"),
            ],
        ),
        ["a", "b", "e", "\u0301", "é", "<", ">", "\u0338", "≮", "be\u0301", "\u1100", "\u1161", "\u11a8", "가"],
    ),
    "NFD": (
        tokenizer_json(telltale("abe\u0301\u0316"), normalizer={"type": "NFD"}, pre_tokenizer=split(r"\p{M}|\p{L}+")),
        ["a", "é", "e", "\u0316", "\u0301", "가", "\u0345", "ᾳ"],
    ),
    # Found here: normalized tokens were compared with raw characters.
    "a normalized single_word token behind Lowercase": (
        tokenizer_json(
            telltale("abq1x ."),
            normalizer=LOWER,
            pre_tokenizer=DIGITS,
            added=[
                token(500, "abq", normalized=True, single_word=True),
                token(501, "xab", normalized=True, single_word=True),
            ],
        ),
        ["a", "Q", "1", "x", " ", "ABQ", "abq", "XAB"],
    ),
    "a normalized lstrip token where a character becomes a space": (
        tokenizer_json(
            telltale("ab1x <>_"),
            normalizer=replace("_", " "),
            pre_tokenizer=split("<|[^<]+"),
            added=[token(500, "<x>", normalized=True, lstrip=True)],
        ),
        ["a", "b", "_", " ", "<", "<x>"],
    ),
    "a normalized rstrip token where a character becomes a space": (
        tokenizer_json(
            telltale("ab1x <>_"),
            normalizer=replace("_", " "),
            pre_tokenizer=split(">|[^>]+"),
            added=[token(500, "<x>", normalized=True, rstrip=True)],
        ),
        ["a", "b", "_", " ", ">", "<x>"],
    ),
    "a normalized token where a prefix follows it": (
        tokenizer_json(
            telltale("▁abq1x ."),
            normalizer=LOWER,
            pre_tokenizer=pre_tokenizers(metaspace("always"), DIGITS),
            added=[token(500, "abq", normalized=True)],
        ),
        ["a", "Q", "1", "x", " ", "ABQ", "abq"],
    ),
    "a normalized token whose literal gets the Prepend": (
        tokenizer_json(
            bpe("▁fobar ", [("f", "o"), ("o", "o")]),
            normalizer=normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
            added=[token(500, "foo", normalized=True)],
        ),
        ["f", "o", "foo", " ", "a", "b", " foo"],
    ),
    "a normalized token of which nothing is left": (
        tokenizer_json(
            bert(),
            normalizer=BERT,
            pre_tokenizer={"type": "BertPreTokenizer"},
            added=[token(500, "\u0000", normalized=True)],
        ),
        ["a", "b", " ", "\u0000"],
    ),
    "normalized tokens behind BertNormalizer": (
        tokenizer_json(
            bert(),
            normalizer=BERT,
            pre_tokenizer={"type": "BertPreTokenizer"},
            added=[token(500, "中ab", normalized=True), token(501, "[AB]", normalized=True, lstrip=True, rstrip=True)],
        ),
        ["a", "b", "B", " ", "中", "A", "\u0000", "[ab]", "[", "]", "é"],
    ),
    # Found here: steps that feed each other.
    "NFC, then Replace of a composed character": (
        tokenizer_json(
            telltale("abx<>=\u0338≮"),
            normalizer=normalizers({"type": "NFC"}, replace("≮", "x")),
            pre_tokenizer=split("[a-z]+|[^a-z]+"),
        ),
        ["a", "b", "x", "<", "=", "\u0338", "≮"],
    ),
    "Lowercase, then Replace of two characters": (
        tokenizer_json(
            telltale("abcx"), normalizer=normalizers(LOWER, replace("ab", "c")), pre_tokenizer=split("b", regex=False)
        ),
        ["a", "b", "A", "B", "x"],
    ),
    "NFKD, then Replace of two characters": (
        tokenizer_json(
            telltale("abcx'\""),
            normalizer=normalizers({"type": "NFKD"}, replace("''", '"')),
            pre_tokenizer=punctuation("Isolated"),
        ),
        ["a", "b", "'", "＇", "x"],
    ),
    "Replace by marks, then NFD": (
        tokenizer_json(
            telltale("abxy\u0301\u0316"),
            normalizer=normalizers(replace("x", "\u0301"), replace("y", "\u0316"), {"type": "NFD"}),
            pre_tokenizer=split("\u0316", regex=False),
        ),
        ["a", "b", "x", "y"],
    ),
    "NFC, then Lowercase": (
        tokenizer_json(
            telltale("abe\u0301éaå"),
            normalizer=normalizers({"type": "NFC"}, LOWER),
            pre_tokenizer=split("[a-z]+|[^a-z]+"),
        ),
        ["a", "É", "é", "\u0316", "\u0301", "E", "İ", "i", "A", "\u030a"],
    ),
    "marks that Replace writes, before BertNormalizer": (
        tokenizer_json(
            telltale("abxy\U0001d165\U0001d16d"),
            normalizer=normalizers(
                replace("x", "\U0001d165"),
                replace("y", "\U0001d16d"),
                {**BERT, "lowercase": False, "strip_accents": True},
            ),
            pre_tokenizer=split("[a-z]+|[^a-z]"),
        ),
        ["a", "b", "x", "y", "e\u0301"],
    ),
    "NFKD, which writes a mark for a character that stands still": (
        tokenizer_json(
            telltale("abeé\u0301\u3099"), normalizer={"type": "NFKD"}, pre_tokenizer=split("\u3099|[^\u3099]+")
        ),
        ["a", "b", "é", "\uff9e", "か"],
    ),
    "NFC, where a later mark comes before an earlier one": (
        tokenizer_json(
            telltale("abāạ\u0323\u0304"), normalizer={"type": "NFC"}, pre_tokenizer=split("ā|[^ā]+")
        ),
        ["a", "b", "ā", "ạ", "\u0323", "\u0304", "â"],
    ),
    "Replace of a literal that ends with a line feed": (
        tokenizer_json(telltale("abcx\n"), normalizer=replace("a\n", "b\nc"), pre_tokenizer=split("c|[^c]+")),
        ["a", "b", "c", "x", "\n", "a\n"],
    ),
    # Found here: steps that were taken to do nothing.
    "a Split on what the normalizer replaces and ByteLevel writes": (
        tokenizer_json(
            byte_telltale("ab zĠ"),
            normalizer=replace("Ġ", "z"),
            pre_tokenizer=pre_tokenizers(byte_level(), split("Ġzb", regex=False)),
        ),
        ["a", "b", " ", "z", "Ġ", " zb"],
    ),
    "a Split on what the normalizer replaces and ByteLevel prefixes": (
        tokenizer_json(
            byte_telltale("abz_ "),
            normalizer=replace("Ġ", "_"),
            pre_tokenizer=pre_tokenizers(byte_level(add_prefix_space=True), split("Ġ", regex=False)),
        ),
        ["a", "b", " ", "_", "z"],
    ),
    "a Split on what the normalizer replaces and Metaspace writes": (
        tokenizer_json(
            telltale("abz_▁ "),
            normalizer=replace("▁", "_"),
            pre_tokenizer=pre_tokenizers(metaspace("never", split=False), split("a|[^a]+"), split("▁z", regex=False)),
        ),
        ["a", "b", " ", "z", "▁", " z"],
    ),
    "an inverted Split on what the normalizer replaces": (
        tokenizer_json(
            telltale("ab▁."),
            normalizer=replace(" ", "▁"),
            pre_tokenizer=pre_tokenizers(split(" ", "Removed", regex=False, invert=True), split("[ab]+|[^ab]")),
        ),
        ["a", "b", " ", "."],
    ),
    "a first piece behind a normalizer that deletes": (
        tokenizer_json(
            telltale("ab▁x"),
            normalizer=replace("x", ""),
            pre_tokenizer=pre_tokenizers(metaspace("first", split=False), split("[ab]|[^ab]")),
        ),
        ["a", "b", " ", "x"],
    ),
    "look-aheads in a row, which match nothing": (
        tokenizer_json(telltale("abxy\u0301"), pre_tokenizer=split("(?=x)(?=[xy])|[xy]|[ab]+")),
        ["a", "b", "x", "y", "\u0301"],
    ),
    "byte_fallback, Prepend and Replace": (
        tokenizer_json(
            bpe([*BYTES, *"▁ab<0xA>"], [("▁", "a"), ("a", "b"), ("<", "0")], byte_fallback=True),
            normalizer=normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "<s>", " ", "é", "中", "<0x41>", "▁", "\u0301"],
    ),
    "an unknown token that fuses": (
        tokenizer_json(
            bpe("?▁ab", [("▁", "a"), ("a", "b"), ("b", "b")], unk_token="?", fuse_unk=True),
            normalizer=replace(" ", "▁"),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "<s>", " ", "é", "中", "?", "▁", "\u0301"],
    ),
    "no unknown token: such characters vanish": (
        tokenizer_json(
            bpe("?▁ab", [("▁", "a"), ("a", "b"), ("b", "b")]),
            normalizer=replace(" ", "▁"),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "<s>", " ", "é", "中", "?", "▁", "\u0301"],
    ),
    "replacements in a chain": (
        tokenizer_json(
            bpe("▁abc", [("▁", "a"), ("a", "b"), ("b", "b"), ("c", "▁")]),
            normalizer=normalizers(replace("x", "a"), replace("a", "c"), replace("y", "▁")),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "<s>", " ", "x", "y", "▁", "c"],
    ),
    "a Prepend that a later step rewrites": (
        tokenizer_json(
            bpe("▁abc", [("▁", "a"), ("a", "b"), ("b", "b"), ("c", "▁"), ("c", "a")]),
            normalizer=normalizers({"type": "Prepend", "prepend": "x"}, replace("x", "c")),
            added=[token(5000, "<s>")],
        ),
        ["a", "b", "<s>", "x", "▁", "c"],
    ),
    "CharDelimiterSplit": (
        tokenizer_json(
            telltale("ab., "), pre_tokenizer={"type": "CharDelimiterSplit", "delimiter": ","}, added=[token(500, "<s>")]
        ),
        ["a", "b", ".", ",", "<s>"],
    ),
    "a class under (?i) that holds ß": (
        tokenizer_json(telltale("sSßa"), pre_tokenizer=split(r"(?i:[\p{L}])")),
        ["s", "S", "ß", "a"],
    ),
    "a repeat under (?i) that ß could match": (
        tokenizer_json(telltale("sSßab"), pre_tokenizer=split(r"(?i:s{2})|a")),
        ["s", "S", "ß", "a", "b"],
    ),
    "a possessive neighbour": (
        tokenizer_json(telltale("ab1. "), pre_tokenizer=split(r"[^\d]?+[ab]+|\d|[. ]")),
        ["a", "b", "1", ".", " "],
    ),
    "a repeated repeat": (
        tokenizer_json(telltale("ab1."), pre_tokenizer=split(r"\d{1,3}+|[ab]{2}?|.")),
        ["a", "b", "1", "1", "."],
    ),
}  # fmt: skip
for _behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
    SMALL[f"Punctuation, {_behavior}"] = (
        tokenizer_json(telltale("ab., "), pre_tokenizer=punctuation(_behavior), added=[token(500, "<s>")]),
        ["a", "b", ".", ",", "<s>"],
    )
    SMALL[f"Split on a literal, {_behavior}"] = (
        tokenizer_json(telltale("ab. "), pre_tokenizer=split(".", _behavior, regex=False), added=[token(500, "<s>")]),
        ["a", "b", ".", "<s>"],
    )
    for _invert in (False, True):
        SMALL[f"Split, {_behavior}, inverted: {_invert}"] = (
            tokenizer_json(telltale("ab., "), pre_tokenizer=split("[ab]+|[.]", _behavior, invert=_invert)),
            ["a", "b", ".", ","],
        )
for _scheme in ("always", "first", "never"):
    for _cuts in (True, False):
        _steps = {
            "Metaspace": (None, metaspace(_scheme, split=_cuts)),
            "WhitespaceSplit, Metaspace": (None, pre_tokenizers(WORDS_APART, metaspace(_scheme, split=_cuts))),
            "Digits, Metaspace": (None, pre_tokenizers(DIGITS, metaspace(_scheme, split=_cuts))),
            "a Split that never fires, Metaspace": (
                replace(" ", "▁"),
                pre_tokenizers(split(" ", regex=False), metaspace(_scheme, split=_cuts)),
            ),
        }
        for _name, (_normalizer, _pre_tokenizer) in _steps.items():
            # Where nothing cuts, a pair that merges is never a boundary: then few should.
            SMALL[f"{_name} ({_scheme}, split={_cuts})"] = (
                tokenizer_json(
                    telltale("▁ab1") if _cuts else bpe("▁ab1", [("▁", "a"), ("a", "b")]),
                    normalizer=_normalizer,
                    pre_tokenizer=_pre_tokenizer,
                    added=[token(500, "<s>")],
                ),
                ["a", "b", " ", "1", "<s>", "▁", "\n"],
            )


@pytest.mark.parametrize("name", SMALL)
def test_small_tokenizers_are_exact_or_refused(name: str) -> None:
    data, parts = SMALL[name]
    tier = build_tier(data)
    if tier.rule.kind == "none":
        assert tier.rule.reason
        assert tier.tokenizer.text_encoder is None
        return
    chooser = random.Random(name)
    for _ in range(examples(600)):
        text = random_text(chooser, parts, 1, 9)
        assert tier.encoded(text) == tier.ids(text), text
        assert tier.contradiction(text) == ""


# --- any pattern, any order of steps ----------------------------------------------------------------------------------

PATTERN_CHARS = "ab1 .\nBéß\u0301"
ATOMS = (
    *("a", "b", "1", " ", r"\.", "B", "é", "."),
    *(r"\p{L}", r"\p{N}", r"\s", r"\S", r"\w", r"\d", r"\P{L}", r"\W"),
    *("[ab]", "[^a]", r"[^\s\p{L}]", r"[\p{L}&&[^a]]", "[a-z1]", r"[^\r\n\p{L}\p{N}]", "[[ab]1]", r"[^ab\s]"),
    *("(?i:a)", "(?i:ab)", "(?i:'s|'t)", "(?i:[ab])", "(?i:a|b1)"),
)
QUANTIFIERS = ("", "", "", "?", "*", "+", "+", "{1,3}", "{2}", "{2,}", "{,2}")
LOOKS = ("", "", "", r"(?!\S)", "(?=a)", "(?!b)", "$", r"(?!\s)", "(?=[ab1])", r"\z")


def alternatives(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantified = st.builds(
        lambda atom, quantifier, mode: atom + (quantifier and quantifier + mode),
        items,
        st.sampled_from(QUANTIFIERS),
        st.sampled_from(["", "", "", "?", "+"]),
    )
    sequence = st.builds(  # one atom stands without a quantifier: few patterns may match nothing
        lambda before, atom, after, look, at: "".join([*(parts := [*before, atom, *after])[:at], look, *parts[at:]]),
        st.lists(quantified, max_size=2),
        items,
        st.lists(quantified, max_size=1),
        st.sampled_from(LOOKS),
        st.integers(0, 3),
    )
    nothing = st.sampled_from(["(?=a)(?=[ab])", "(?:(?!b))", "(?:(?=é)|$)", "(?>(?=a))b?"])
    return st.lists(sequence | sequence | sequence | nothing, min_size=1, max_size=3).map("|".join)


patterns = st.builds(
    "{}{}".format,
    st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.builds("{}{})".format, st.sampled_from(["(?:", "(?>"]), alternatives(inner)),
        max_leaves=4,
    )
    .map(lambda atom: [atom, *ATOMS])
    .flatmap(lambda atoms: alternatives(st.sampled_from(atoms))),
    st.sampled_from(["", "|.", r"|\s+(?!\S)|\s+|."]),
)
other_steps = st.sampled_from(
    [
        DIGITS,
        {"type": "Digits", "individual_digits": False},
        punctuation("MergedWithPrevious"),
        punctuation("MergedWithNext"),
        punctuation("Contiguous"),
        WORDS_APART,
        metaspace("never", split=False),
        metaspace("first"),
        split("▁", "Removed", regex=False),
        split("▁", "Removed", regex=False, invert=True),
        split("Ġ", regex=False),
    ]
)
last_steps = st.none() | st.builds(
    lambda regex, prefix: byte_level(use_regex=regex, add_prefix_space=prefix), st.booleans(), st.booleans()
)
single_normalizers = st.sampled_from(
    [
        LOWER,
        BERT,
        replace(" ", "▁"),
        replace("▁", "a"),
        replace("B", ""),
        replace("1", "\u0316"),
        {"type": "NFC"},
        {"type": "NFKD"},
    ]
)
any_normalizers = st.none() | single_normalizers | st.builds(normalizers, single_normalizers, single_normalizers)
CHARACTERS, AS_BYTES = telltale(PATTERN_CHARS), byte_telltale(PATTERN_CHARS)


@settings(max_examples=examples(45))
@given(
    st.lists(patterns, min_size=1, max_size=2),
    st.none() | other_steps,
    last_steps,
    any_normalizers,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rules_of_any_patterns_hold(
    sources: list[str], other: Json, last: Json, normalizer: Json, removed: bool, chooser: random.Random
) -> None:
    steps = [split(source, "Removed" if removed else "Isolated") for source in sources]
    steps += [step for step in (other, last) if step is not None]
    model = CHARACTERS if last is None else AS_BYTES
    sections = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizers(*steps)}
    try:
        for source in sources:
            compute_follow(parse(source))
        tier = build_tier(tokenizer_json(model, added=[token(9_000, "<s>")], **sections))
    except TierError as error:
        event(error.code)
        return
    event(tier.rule.reason or tier.rule.kind)
    if tier.rule.kind == "none":
        return
    for _ in range(60):
        text = random_text(chooser, [*PATTERN_CHARS, "<s>", "ab", "  ", "'s"], 1, 9)
        assert tier.encoded(text) == tier.ids(text), text
        assert tier.contradiction(text) == ""


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "component", "code"),
    [
        ("pre_tokenizer", {"type": "UnicodeScripts"}, "pipeline.pre_tokenizer"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 5}, "pipeline.pre_tokenizer"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pipeline.pre_tokenizer"),
        ("pre_tokenizer", pre_tokenizers({"type": "UnicodeScripts"}, byte_level()), "pipeline.pre_tokenizer"),
        ("pre_tokenizer", split("a", "MergedWithNext", invert=True), "pipeline.split_inverted"),
        ("pre_tokenizer", split("", regex=False), "pipeline.split_empty"),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}, "pipeline.replace_regex"),
        ("normalizer", replace("", "x"), "pipeline.replace_empty"),
        ("normalizer", normalizers(LOWER, BERT), "pipeline.mixed_normalizer"),
        ("normalizer", normalizers(replace("a", "b"), {"type": "NFC"}), "pipeline.mixed_normalizer"),
        ("normalizer", normalizers(replace("ab", "b"), LOWER), "pipeline.mixed_normalizer"),
        ("normalizer", {"type": "StripAccents"}, "pipeline.normalizer"),
        ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": False}, "pipeline.normalizer"),
        ("normalizer", {"type": "Nmt"}, "pipeline.normalizer"),
        ("normalizer", {"type": "ByteLevel"}, "pipeline.normalizer"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, "pipeline.normalizer"),
    ],
)
def test_components_that_are_not_modelled_are_refused_by_name(section: str, component: Json, code: str) -> None:
    snapshot = parse_snapshot(tokenizer_json(bpe("ab"), **{section: component}), reference_version=REFERENCE_VERSION)
    assert snapshot.pipeline is None
    assert snapshot.unsupported is not None
    assert snapshot.unsupported.code == code


@pytest.mark.parametrize(
    ("pre_tokenizer", "reason"),
    [
        (split(r"(?<=a)b|."), "pattern.look_behind"),
        (split(r"(?<!a)b|."), "pattern.look_behind"),
        (split(r"^a|."), "pattern.look_behind"),
        (split(r"\ba|."), "pattern.unsupported"),
        (split(r"(a)\1|."), "pattern.unsupported"),
        (split(r"a*"), "pattern.matches_empty"),
        (split(r"(?=a)(?=[ab])|."), "pattern.matches_empty"),
        (split(r"a(?=bc)|."), "pattern.long_look_ahead"),
        (split(r"(?i:ss)|."), "pattern.case_folding"),
        (split("a+", "Contiguous"), "rule.merged_regex"),
        (split("a+", "MergedWithPrevious"), "rule.merged_regex"),
        (split("ab", regex=False), "rule.long_literal"),
        (split(r"abc|bcd|cde|dea|eab"), "rule.no_boundary_pair"),
        (None, "rule.no_cuts"),
        (metaspace(split=False), "rule.no_cuts"),
    ],
)
def test_pre_tokenizers_that_prove_nothing_say_why(pre_tokenizer: Json, reason: str) -> None:
    data = tokenizer_json(bpe("ab"), pre_tokenizer=pre_tokenizer)
    rule = derive(Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)))
    assert (rule.kind, rule.reason) == ("none", reason)
    assert rule.detail
    assert not rule.holds("a", "b")


def test_more_classes_than_a_byte_counts_are_refused() -> None:
    points = range(0x4E00, 0x4E00 + 512)
    sets = ["[" + "".join(chr(p) for p in points if p >> bit & 1) + "]" for bit in range(9)]
    pattern = "|".join(f"{members}{members}" for members in sets) + f"|[{chr(points[0])}-{chr(points[-1])}]"
    data = tokenizer_json(bpe("ab"), pre_tokenizer=split(pattern))
    rule = derive(Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)))
    assert (rule.kind, rule.reason) == ("none", "rule.too_many_classes")


@pytest.mark.parametrize("stages", [1, 8])
def test_patterns_of_too_many_classes_are_refused_at_once(stages: int) -> None:
    # Found here: with a bound for each stage alone, 8 stages of 90 classes took 84 s and 2.8 GB.
    count = 300 if stages == 1 else 45
    steps = [
        split("|".join(f"{chr(p)}[{chr(p + 300)}-{chr(p + 500 + p % 7)}]" for p in range(start, start + count)))
        for start in range(0x4E00, 0x4E00 + stages * 1_000, 1_000)
    ]
    data = tokenizer_json(bpe("ab"), pre_tokenizer=pre_tokenizers(*steps))
    rule = derive(Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)))
    assert (rule.kind, rule.reason) == ("none", "pattern.too_large")


# --- the table -------------------------------------------------------------------------------------------------------

RULES = ("gpt2-novelai", "qwen-3", "mixtral-8x22b-v0.1")


@pytest.mark.parametrize("family", RULES)
def test_last_and_first_equal_a_plain_search(family: str) -> None:
    tier = family_tier(family)
    rule = tier.rule
    parts = text_parts(tier)

    @settings(max_examples=examples(60))
    @given(texts(parts, 12), st.data())
    def run(text: str, data: st.DataObject) -> None:
        claimed = tier.boundaries(text)
        places = st.integers(-2, len(text) + 2)
        end, floor, start = data.draw(places), data.draw(places.filter(lambda n: n >= 0)), data.draw(places)
        ceiling = data.draw(st.none() | places)
        assert rule.last(text, end, floor) == max((p for p in claimed if floor < p <= end), default=-1)
        expected = [p for p in claimed if start <= p < (len(text) if ceiling is None else ceiling)]
        assert rule.first(text, start, ceiling) == min(expected, default=-1)

    run()


def test_a_rule_of_kind_none_claims_nothing() -> None:
    for rule in (NO_RULE, no_rule("some.reason", "because")):
        assert rule.last("a b c", 5) == rule.first("a b c", 0) == -1
        assert rule.pairs() == (0, 0)
    assert not no_rule("some.reason", "because").holds("a", " ")


def test_surrogates_are_never_part_of_a_boundary() -> None:
    for family in RULES:
        rule = family_rule(family)
        for other in "a \n▁":
            assert not rule.holds("\ud800", other)
            assert not rule.holds(other, "\udfff")


@pytest.mark.parametrize("family", RULES)
def test_deriving_twice_gives_the_same_digest(family: str) -> None:
    reference, rule = family_reference(family), family_rule(family)
    if rule.kind == "classes":
        assert derive(reference) == rule
    assert seal(dataclasses.replace(rule, digest="")).digest == rule.digest


@pytest.mark.parametrize("family", RULES)
def test_the_digest_covers_everything_that_holds_looks_at(family: str) -> None:
    rule = family_rule(family)
    digests = {rule.digest}
    changed: list[dict[str, Any]] = [
        {"left": b"\x01" + rule.left[1:] if rule.left[0] != 1 else b"\x00" + rule.left[1:]},
        {"right": rule.right[:-1] + bytes([rule.right[-1] ^ 1])},
        {"excluded": rule.excluded | {"\u0001\u0002"}},
        {"adjacent": rule.adjacent | {1}},
        {"images": {**rule.images, "\u0001": "\u0002"}},
        {"kind": "none"},
    ]
    if rule.table:
        changed.append({"table": (*rule.table[:-1], bytes(b ^ 1 for b in rule.table[-1]))})
        # Found here: the same bytes in rows of another length are another table, but weren't another digest.
        changed.append({"table": (b"".join(rule.table),)})
    for change in changed:
        digests.add(seal(dataclasses.replace(rule, **change)).digest)
    assert len(digests) == len(changed) + 1


def test_a_pipeline_without_normalizer_and_pre_tokenizer_is_empty() -> None:
    pipeline = parse_pipeline(None, None)
    assert pipeline.normalizer == pipeline.pre_tokenizer == ()
    assert not pipeline.position_matters


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_the_continuation_drops_what_only_starts_a_text(scheme: str) -> None:
    prepend = {"type": "Prepend", "prepend": "▁"} if scheme != "first" else None  # the two together are refused
    pipeline = parse_pipeline(prepend, metaspace(scheme))
    start, after, inner = (pipeline.pre_tokenizer_documents[position] for position in Position)
    assert [d["prepend_scheme"] for d in (start, after, inner)] == {
        "always": ["always", "always", "never"],
        "first": ["first", "never", "never"],
        "never": ["never", "never", "never"],
    }[scheme]
    if prepend is not None:
        assert [pipeline.normalizer_documents[position] is None for position in Position] == [False, False, True]
    assert pipeline.position_matters == (scheme != "first")


def test_tiers_of_refused_files_still_serve_by_the_reference() -> None:
    tier: Tier = build_tier(tokenizer_json(telltale("ab "), pre_tokenizer={"type": "UnicodeScripts"}))
    assert tier.tokenizer.text_encoder is None
    assert tier.tokenizer.encode("a b ab").tolist() == tier.ids("a b ab")
