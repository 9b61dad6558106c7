"""Vocabulary adjacency: what no entry contains is never inside a token; each condition is needed."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core import vocabulary
from toktier_tier.core.boundaries import BoundaryRule
from toktier_tier.core.pipeline import Position
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.core.vocabulary import (
    byte_token,
    derive_adjacency_rule,
    longest_entry_chars,
    vocabulary_strings,
)
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe
from workshop import (
    Json,
    bpe,
    build_tier,
    byte_level,
    examples,
    exclusions_of,
    family_reference,
    family_rule,
    metaspace,
    normalizers,
    pre_tokenizers,
    random_text,
    replace,
    split,
    telltale,
    token,
    tokenizer_json,
    unigram,
    word_piece,
)

SPACE_TO_MARK = replace(" ", "▁")
PREPEND: Json = {"type": "Prepend", "prepend": "▁"}
BYTES = [byte_token(byte) for byte in range(256)]


def reference_of(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


def derive(data: bytes) -> BoundaryRule:
    reference = reference_of(data)
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    return derive_adjacency_rule(
        pipeline, reference.snapshot.model, exclusions_of(reference), ReferenceProbe(reference)
    )


@pytest.mark.parametrize("family", ["mixtral-8x22b-v0.1", "mistral-7b-v0.3", "moonshine"])
def test_a_pair_is_claimed_exactly_if_no_entry_contains_it(family: str) -> None:
    reference, rule = family_reference(family), family_rule(family)
    assert rule.kind == "adjacency"
    inside = {token[i : i + 2] for token in vocabulary_strings(reference.snapshot.model) for i in range(len(token) - 1)}
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    last = {token.content[-1] for token in reference.added_tokens()} if pipeline.position_matters else set()
    literal = {token.content[i : i + 2] for token in reference.added_tokens() for i in range(len(token.content) - 1)}
    chooser = random.Random(family)
    chars = [
        *"abcXYZ019 .,;:!?'\"()[]<>▁\n\t",
        *"éßЖ中文あ한\u0301",
        *(chooser.choice(sorted(inside)) for _ in range(40)),
    ]
    pairs = {a[0] + b[-1] for a in chars for b in chars}
    for pair in sorted(pairs):
        shown = pair.replace(" ", "▁")
        expected = shown not in inside and pair not in literal and pair[0] not in last
        assert rule.holds(pair[0], pair[1]) == expected, pair


def test_a_space_counts_as_what_it_becomes() -> None:
    for sections in ({"normalizer": SPACE_TO_MARK}, {"pre_tokenizer": metaspace("never", split=False)}):
        rule = derive(tokenizer_json(bpe("▁ab", [("▁", "a"), ("b", "▁")]), **sections))
        assert rule.images == {" ": "▁"}
        assert [rule.holds(*pair) for pair in ("▁a", " a", "b▁", "b ", "a▁", "a ", "  ", "▁ ")] == [
            *(False,) * 4,
            *(True,) * 4,
        ]


def test_replacements_apply_one_after_the_other() -> None:
    chain = normalizers(replace("x", "a"), replace("a", "c"), replace("y", "▁"))
    rule = derive(tokenizer_json(bpe("▁abc", [("c", "▁")]), normalizer=chain))
    assert rule.images == {"x": "c", "a": "c", "y": "▁"}
    assert [rule.holds(*pair) for pair in ("xy", "ay", "cy", "c▁", "yx", "by", "yy")] == [
        *(False,) * 4,
        *(True,) * 3,
    ]


def test_characters_without_a_symbol_are_no_boundary() -> None:
    rule = derive(tokenizer_json(bpe("?ab", unk_token="?", fuse_unk=True)))
    assert rule.holds("a", "b")
    assert not rule.holds("a", "z")
    assert not rule.holds("z", "a")
    assert not rule.holds("z", "z")
    # ... also where a known character becomes one that isn't.
    rule = derive(tokenizer_json(bpe("ab"), normalizer=replace("a", "z")))
    assert not rule.holds("a", "b")
    assert rule.holds("b", "b")


def test_bytes_to_fall_back_on_are_symbols_if_all_of_them_are_there() -> None:
    assert derive(tokenizer_json(bpe([*BYTES, *"ab"], byte_fallback=True))).holds("é", "中")
    assert not derive(tokenizer_json(bpe([*BYTES[:-1], *"ab"], byte_fallback=True))).holds("é", "中")
    assert not derive(tokenizer_json(bpe([*BYTES, *"ab"], byte_fallback=False))).holds("é", "中")


# --- claims against the reference ----------------------------------------------------------------------------------

ALPHABET = "▁abcé"


@st.composite
def models(draw: st.DrawFn) -> Json:
    """A BPE whose merges build on each other."""
    symbols = list(ALPHABET[: draw(st.integers(3, len(ALPHABET)))])
    merges: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 8))):
        pair = draw(st.tuples(st.sampled_from(symbols), st.sampled_from(symbols)))
        if pair not in merges and len("".join(pair)) < 7:
            merges.append(pair)
            symbols += ["".join(pair)] if "".join(pair) not in symbols else []
    extra = draw(st.lists(st.text(ALPHABET, min_size=2, max_size=4), max_size=2))  # entries that no merge makes
    if draw(st.booleans()):
        return bpe([*BYTES, *symbols, *extra], merges, byte_fallback=True)
    options = draw(st.sampled_from([{}, {"unk_token": "c"}, {"unk_token": "c", "fuse_unk": True}]))
    return bpe([*ALPHABET[:4], *symbols, *extra], merges, **options)


SECTIONS: list[dict[str, Json]] = [
    {},
    {"normalizer": SPACE_TO_MARK},
    {"normalizer": normalizers(PREPEND, SPACE_TO_MARK)},
    {"normalizer": SPACE_TO_MARK, "pre_tokenizer": split(" ", "MergedWithPrevious", regex=False)},
    *({"pre_tokenizer": metaspace(scheme, split=False)} for scheme in ("always", "first", "never")),
]
TOKENS: list[list[Json]] = [
    [],
    [token(900, "<s>"), token(901, "ab")],
    [token(900, "<s>", lstrip=True), token(901, "a b", rstrip=True), token(902, "cc", single_word=True)],
    # Found here: normalized tokens under a Metaspace that doesn't cut were compared with the marks it writes.
    [token(900, "a b", normalized=True), token(901, "<s> ", normalized=True)],
    [token(900, "<s>", normalized=True, lstrip=True), token(901, "cc", normalized=True, single_word=True)],
    [token(900, "<s>", normalized=True, rstrip=True), token(901, "abc", normalized=True)],
]


@pytest.mark.parametrize("added", range(len(TOKENS)))
@settings(max_examples=examples(30))
@given(models(), st.sampled_from(SECTIONS), st.randoms(use_true_random=False))
def test_no_claim_is_contradicted_on_random_vocabularies(
    added: int, model: Json, sections: dict[str, Json], chooser: random.Random
) -> None:
    tier = build_tier(tokenizer_json(model, added=TOKENS[added], **sections))
    parts = [*ALPHABET, *" zé\u0301中", "<s>", "ab", "a b", "abc", "cc", "  "]
    for _ in range(40):
        text = random_text(chooser, parts, 1, 8)
        if tier.rule.kind != "none":
            assert tier.encoded(text) == tier.ids(text), text
            assert tier.contradiction(text) == ""


# --- refusals --------------------------------------------------------------------------------------------------------

PLAIN = bpe("▁ab", [("a", "b")])


@pytest.mark.parametrize(
    ("model", "sections", "reason"),
    [
        (unigram({"?": 0.0, "a": -1.0}), {}, "rule.unigram_whole_text"),
        (unigram({"?": 0.0, "▁a": -1.0}), {"pre_tokenizer": metaspace(split=False)}, "rule.unigram_whole_text"),
        (word_piece("ab"), {}, "rule.model"),
        ({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}, {}, "rule.model"),
        ({**PLAIN, "continuing_subword_prefix": "##"}, {}, "rule.affixed_symbols"),
        ({**PLAIN, "end_of_word_suffix": "</w>"}, {}, "rule.affixed_symbols"),
        ({**PLAIN, "ignore_merges": True}, {}, "rule.ignore_merges"),
        (PLAIN, {"normalizer": {"type": "NFC"}}, "rule.normalizer"),
        (PLAIN, {"normalizer": {"type": "Lowercase"}}, "rule.normalizer"),
        (PLAIN, {"normalizer": replace("ab", "c")}, "rule.normalizer"),
        (PLAIN, {"normalizer": replace("a", "")}, "rule.normalizer"),
        (PLAIN, {"normalizer": replace("a", "bb")}, "rule.normalizer"),
        (PLAIN, {"pre_tokenizer": metaspace(split=True)}, "rule.cutting_pre_tokenizer"),
        (PLAIN, {"pre_tokenizer": split(" ", regex=False)}, "rule.cutting_pre_tokenizer"),
        (PLAIN, {"pre_tokenizer": byte_level(use_regex=False)}, "rule.cutting_pre_tokenizer"),
        (
            PLAIN,
            {"pre_tokenizer": pre_tokenizers(metaspace(split=False), {"type": "WhitespaceSplit"})},
            "rule.cutting_pre_tokenizer",
        ),
        (bpe([*BYTES, "a"], [("<0xC3>", "<0xA9>")], byte_fallback=True), {}, "rule.merged_bytes"),
        (bpe("?ab", [("?", "a")], unk_token="?"), {}, "rule.merged_unknown"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused_by_name(model: Json, sections: dict[str, Json], reason: str) -> None:
    model = {**model, "vocab": {**model["vocab"], "##b": 90, "a##b": 91}} if "##" in str(model) else model
    rule = derive(tokenizer_json(_affixed(model), **sections))
    assert (rule.kind, rule.reason) == ("none", reason)
    assert rule.detail


def _affixed(model: Json) -> Json:
    """With an affix, merges name the symbols as the vocabulary spells them."""
    if model.get("continuing_subword_prefix") == "##" and model["type"] == "BPE":
        return {**model, "merges": [["a", "##b"]], "vocab": {"▁": 0, "a": 1, "b": 2, "##b": 3, "ab": 4}}
    if model.get("end_of_word_suffix"):
        return {**model, "merges": [["a", "b</w>"]], "vocab": {"a": 0, "b": 1, "a</w>": 2, "b</w>": 3, "ab</w>": 4}}
    return model


@pytest.mark.parametrize(
    ("model", "sections", "left", "right"),
    [
        # The text left of the boundary is an entry that no merge makes: by itself it is looked up whole.
        (bpe([*"abc", "ab"], ignore_merges=True), {}, "ab", "c"),
        # A character in the middle of a piece is another symbol than at its start.
        (
            {**bpe("ab"), "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1, "##a": 2, "##b": 3}},
            {},
            "a",
            "b",
        ),
        ({**bpe("ab"), "end_of_word_suffix": "</w>", "vocab": {"a": 0, "b": 1, "a</w>": 2, "b</w>": 3}}, {}, "a", "b"),
        # The last byte of é merges with a, which the spelling "<0xA9>a" doesn't show.
        (bpe([*BYTES, "a"], [("<0xA9>", "a")], byte_fallback=True), {}, "é", "a"),
        # A piece that is cut elsewhere: the suffix starts with a prefix of its own.
        (bpe("▁ab"), {"pre_tokenizer": pre_tokenizers(byte_level(), metaspace("always"))}, "a", "b"),
    ],
)
def test_each_condition_is_needed(model: Json, sections: dict[str, Json], left: str, right: str) -> None:
    data = tokenizer_json(model, **sections)
    with mock.patch.object(vocabulary, "_refusal", return_value=None):
        careless = derive(data)
    if not careless.holds(left[-1], right[0]):
        pytest.fail("the careless rule claims nothing here")
    reference = reference_of(data)
    tier = build_tier(data, rule=careless)
    apart = tier.ids(left) + tier.encoded(right, Position.CONTINUATION)
    assert apart != reference.encode_text(left + right).tolist()
    assert derive(data).kind == "none"


# --- the vocabulary itself -----------------------------------------------------------------------------------------


def test_the_longest_entry_is_counted_in_characters() -> None:
    assert longest_entry_chars(telltale("ab")) == 2
    assert longest_entry_chars(unigram({"ab": -1.0, "中文字": -2.0})) == 3
    assert longest_entry_chars({"vocab": {}}) == 1
    assert list(vocabulary_strings(unigram({"ab": -1.0, "c": -2.0}))) == ["ab", "c"]


def test_byte_tokens_are_spelled_as_sentencepiece_does() -> None:
    assert [byte_token(byte) for byte in (0, 10, 171, 255)] == ["<0x00>", "<0x0A>", "<0xAB>", "<0xFF>"]
