"""The stages around a core give the reference's IDs, whole or in chunks, in one thread or many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from catalog import CI_FAMILIES, path_of
from toktier_tier.core.pipeline import Position
from toktier_tier.encoders import snapshot_encoder
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder, literal_normalizer
from workshop import (
    GENERAL,
    Json,
    Tier,
    build_tier,
    byte_level,
    byte_telltale,
    examples,
    family_reference,
    family_tier,
    metaspace,
    normalizers,
    pre_tokenizers,
    random_text,
    replace,
    same,
    sample_text,
    small_rope,
    split,
    telltale,
    text_parts,
    texts,
    token,
    tokenizer_json,
)

FEW = ("gpt2-novelai", "deepseek-v4", "mixtral-8x22b-v0.1", "mistral-7b-v0.3", "qwen-3")


def encoder_of(tier: Tier) -> SnapshotEncoder:
    encoder = tier.tokenizer.text_encoder
    assert isinstance(encoder, SnapshotEncoder)
    return encoder


def chat(chooser: random.Random, tier: Tier, turns: int) -> str:
    """Turns between added tokens, with white space of all sorts around them and tokens cut in two."""
    tokens = [token.content for token in tier.reference.added_tokens() if token.content] or ["<|none|>"]
    parts: list[str] = []
    for _ in range(turns):
        start = chooser.choice(tokens)
        parts += [start, chooser.choice(("", " ", "\n", "  \n")), "user", chooser.choice(("\n", " ", ""))]
        parts += [sample_text(chooser.randrange(1, 120), chooser.randrange(50)), chooser.choice(("", " ", "\n\n"))]
        parts += [chooser.choice(tokens)[: chooser.choice((3, 99))]]
    return "".join(parts)


@pytest.mark.parametrize("family", CI_FAMILIES)
def test_chat_like_text_gets_the_references_ids(family: str) -> None:
    # Only those that other tests use are kept in memory.
    tier = family_tier(family) if family in FEW else build_tier(path_of(family).read_bytes())
    chooser = random.Random(family)
    for turns in (0, 1, 1, 2, 3, 4, 8):
        text = chat(chooser, tier, turns)
        assert same(encoder_of(tier).encode(text), tier.reference.encode_text(text)), text


@pytest.mark.parametrize("family", FEW)
def test_any_text_gets_the_references_ids(family: str) -> None:
    tier = family_tier(family)

    @settings(max_examples=examples(80))
    @given(texts(text_parts(tier)))
    def check(text: str) -> None:
        assert tier.encoded(text) == tier.ids(text)

    check()


@pytest.mark.parametrize("family", FEW)
def test_every_character_class_alone_and_between_letters_gets_the_references_ids(family: str) -> None:
    tier = family_tier(family)
    for char in GENERAL:
        for text in (char, f"a{char}a", f" {char} ", char * 3):
            assert tier.encoded(text) == tier.ids(text), text


@pytest.mark.parametrize("family", FEW)
def test_chunks_join_to_the_text_and_to_its_ids(family: str) -> None:
    tier, chooser = family_tier(family), random.Random(family)
    encoder, parts = encoder_of(tier), text_parts(tier)
    with small_rope():
        for _ in range(30):
            text = random_text(chooser, parts, 1, 60)
            chunks = encoder.encode_chunks(text)
            assert "".join(chunk for chunk, _ in chunks) == text
            assert same(np.concatenate([ids for _, ids in chunks]), tier.reference.encode_text(text)), text
            at = 0
            for chunk, _ in chunks[:-1]:
                assert chunk
                at += len(chunk)
                assert tier.rule.holds(text[at - 1], text[at])


def test_a_text_without_boundaries_is_one_chunk_and_an_empty_one_too() -> None:
    encoder = encoder_of(family_tier("gpt2-novelai"))
    assert encoder.cut("") == [""]
    assert encoder.cut("a" * 50_000) == ["a" * 50_000]
    assert [chunk for chunk, _ in encoder.encode_chunks("")] == [""]
    assert len(encoder.encode("")) == 0


def test_chunks_are_about_as_long_as_asked() -> None:
    encoder = encoder_of(family_tier("gpt2-novelai"))
    text = sample_text(30_000, 3)
    chunks = encoder.cut(text, 500)
    assert "".join(chunks) == text
    assert max(map(len, chunks)) <= 1_000
    assert min(map(len, chunks[:-3])) > 250
    assert min(map(len, chunks)) > 100
    assert len(chunks[-1]) <= 500


@pytest.mark.parametrize("family", ["gpt2-novelai", "mixtral-8x22b-v0.1"])
@pytest.mark.parametrize("position", [Position.TEXT_START, Position.CONTINUATION])
def test_a_pool_of_threads_gives_what_one_thread_gives(
    family: str, position: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_encoder, "PARALLEL_CHARS", 2_000)
    serial = family_tier(family)
    with ThreadPoolExecutor(3) as pool:
        for workers in (2, 3, 5):
            parallel = type(serial.tokenizer)(serial.reference, serial.compiled, pool=pool, workers=workers)
            assert isinstance(parallel.text_encoder, SnapshotEncoder)
            for chars in (10, 1_999, 2_000, 20_000, 90_000):
                text = sample_text(chars, chars)
                found = parallel.text_encoder.encode_chunks(text, position)
                expected = encoder_of(serial).encode_chunks(text, position)
                assert [chunk for chunk, _ in found] == [chunk for chunk, _ in expected]
                assert all(same(a, b) for (_, a), (_, b) in zip(found, expected, strict=True))
            assert same(parallel.encode(text), serial.reference.encode_text(text))


def test_an_error_in_a_thread_of_the_pool_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_encoder, "PARALLEL_CHARS", 100)
    tier = family_tier("gpt2-novelai")
    with ThreadPoolExecutor(2) as pool:
        tokenizer = type(tier.tokenizer)(tier.reference, tier.compiled, pool=pool, workers=3)
        assert tokenizer.text_encoder is not None
        bad = sample_text(40_000, 1) + "\ud800"
        with pytest.raises(UnicodeEncodeError):
            tokenizer.text_encoder.encode_chunks(bad)
        text = sample_text(40_000, 2)
        assert tokenizer.encode(text).tolist() == tier.ids(text)


# --- added tokens ----------------------------------------------------------------------------------------------

ALPHABET = "abx<>| \n\té."


def synthetic(added: Sequence[Json], **sections: Any) -> Tier:
    return build_tier(tokenizer_json(byte_telltale(ALPHABET), added=added, pre_tokenizer=byte_level(), **sections))


FLAG_SETS: dict[str, dict[str, bool]] = {
    "none": {},
    "special": {"special": True},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "both strips": {"lstrip": True, "rstrip": True},
    "single word": {"single_word": True},
    "single word, strips": {"single_word": True, "lstrip": True, "rstrip": True},
    "normalized": {"normalized": True},
    "normalized strips": {"normalized": True, "lstrip": True, "rstrip": True},
    "normalized single word": {"normalized": True, "single_word": True},
}


@pytest.mark.parametrize("flags", FLAG_SETS.values(), ids=FLAG_SETS)
def test_flags_of_added_tokens_are_obeyed_as_by_the_reference(flags: dict[str, bool]) -> None:
    tier = synthetic(
        [token(2_000, "<x>", **flags), token(2_001, "<x>a"), token(2_002, "b|", **flags), token(2_003, "|")]
    )
    parts = [*ALPHABET, "<x>", "<x>a", "b|", " <x>", "<x> \n", "  ", "\u3000", "a"]

    @settings(max_examples=examples(120))
    @given(texts(parts, 10))
    def check(text: str) -> None:
        assert tier.encoded(text) == tier.ids(text)

    check()


def test_overlapping_literals_give_the_longest_that_starts_first() -> None:
    tier = synthetic([token(2_000 + n, text) for n, text in enumerate(("<|", "|>", "<|x|>", "<|x", "x|>a"))])
    contents = {token.id: token.content for token in tier.reference.added_tokens()}
    for text, expected in (("<|x|>", ["<|x|>"]), ("<|x|>a", ["<|x|>"]), ("<|x|", ["<|x"]), ("|>a", ["|>"])):
        ids = tier.encoded(text)
        assert ids == tier.ids(text)
        assert [contents[id] for id in ids if id in contents] == expected


def test_a_normalized_token_is_found_in_normalized_text_only() -> None:
    tier = build_tier(
        tokenizer_json(
            byte_telltale("abx<>ß "),
            added=[token(2_000, "<Ab>", normalized=True), token(2_001, "<Xx>")],
            normalizer={"type": "Lowercase"},
            pre_tokenizer=byte_level(),
        )
    )
    contents = {token.id: token.content for token in tier.reference.added_tokens()}
    for text, found in (
        ("<AB>", ["<Ab>"]),
        ("<ab>", ["<Ab>"]),
        ("<Xx>", ["<Xx>"]),
        ("<xx>", []),
        ("a<aB><Xx>", ["<Ab>", "<Xx>"]),
    ):
        ids = tier.encoded(text)
        assert ids == tier.ids(text)
        assert [contents[id] for id in ids if id in contents] == found


# --- stages ----------------------------------------------------------------------------------------------------

STAGES: dict[str, dict[str, Json]] = {
    "metaspace always": {"pre_tokenizer": metaspace("always")},
    "metaspace first": {"pre_tokenizer": metaspace("first")},
    "metaspace never": {"pre_tokenizer": metaspace("never")},
    "metaspace uncut": {"pre_tokenizer": metaspace("always", split=False)},
    "metaspace first uncut": {"pre_tokenizer": metaspace("first", split=False)},
    "prepend and replace": {"normalizer": normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))},
    "replace": {"normalizer": replace("a", "bb")},
    "replace by nothing": {"normalizer": replace("a", "")},
    "lowercase": {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": split("[a-z]+|[^a-z]")},
    "nfc": {"normalizer": {"type": "NFC"}, "pre_tokenizer": split("[a-z]+|[^a-z]")},
    "nothing": {},
}


@pytest.mark.parametrize("sections", STAGES.values(), ids=STAGES)
def test_each_stage_by_itself_gives_the_references_ids(sections: dict[str, Json]) -> None:
    data = tokenizer_json(
        telltale("abAé ▁.<"), added=[token(900, "<s>"), token(901, "<n>", normalized=True)], **sections
    )
    tier = build_tier(data)
    parts = ["a", "b", "A", "é", "e\u0301", " ", "  ", "▁", ".", "<", "<s>", "<n>", " <s>", "<s> ", "<N>"]

    @settings(max_examples=examples(100))
    @given(texts(parts, 8))
    def check(text: str) -> None:
        if tier.tokenizer.text_encoder is not None:
            assert tier.encoded(text) == tier.ids(text)
        assert tier.tokenizer.encode_text(text).tolist() == tier.ids(text)

    check()


def test_the_prefix_comes_where_the_reference_puts_it() -> None:
    """Before the text, after an added token or not at all, by scheme; never before a continuation."""
    for scheme in ("always", "first", "never"):
        tier = build_tier(
            tokenizer_json(telltale("ab ▁"), added=[token(900, "<s>")], pre_tokenizer=pre_tokenizers(metaspace(scheme)))
        )
        for text in ("a", "<s>a", "a<s>b", " a", "<s> a", "▁a", "<s>"):
            assert tier.encoded(text) == tier.ids(text), (scheme, text)
        assert (
            tier.encoded("a", Position.CONTINUATION)
            == tier.encoded("b<s>a" if scheme == "never" else "a", Position.CONTINUATION)[-1:]
        )


@pytest.mark.parametrize("family", ["mixtral-8x22b-v0.1", "moonshine"])
def test_plain_string_operations_are_the_normalizer(family: str) -> None:
    reference = family_reference(family)
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None

    @settings(max_examples=examples(60))
    @given(texts([*GENERAL, " ", "▁", "  "]))
    def check(text: str) -> None:
        for position in Position:
            plain, own = literal_normalizer(pipeline, position), reference.normalizer(position)
            if plain is not None and own is not None:
                assert plain(text) == own(text)

    check()


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalizing_only_around_unsettled_characters_is_normalizing(form: str) -> None:
    """Long stretches of settled characters with marks, jamo and compatibility characters strewn in."""
    tier = build_tier(
        tokenizer_json(byte_telltale("aeé <\u0301한"), normalizer={"type": form}, pre_tokenizer=byte_level())
    )
    hard = [
        "\u0301",
        "\u0327",
        "\u0338",
        "\u0345",
        "\u1100",
        "\u1161",
        "\u11a8",
        "\uac00",
        "\u212b",
        "\ufb01",
        "é",
        "e",
        "<",
    ]
    parts = [*hard, *hard, "a" * 40, "中" * 30, " ", "ಠ", "ि", "<s>", "\u0344", "\u3099", "か"]

    @settings(max_examples=examples(150))
    @given(texts(parts, 10))
    def check(text: str) -> None:
        assert tier.encoded(text) == tier.ids(text)

    check()


def test_text_of_settled_characters_is_left_alone_and_other_text_is_normalized() -> None:
    tier = family_tier("qwen-3")
    settled = settled_points(tier.reference)
    assert settled is not None
    assert settled.always[ord("中")]
    assert not settled.always[0x301]
    for text in ("中文", "e\u0301", "中e\u0301文", "<\u0338", "\u1100\u1161\u11a8", "Å", "\u212b", "\ufb01"):
        assert tier.encoded(text) == tier.ids(text), text
