"""Added tokens: found where the reference finds them, whatever their flags, neighbours and normalizer."""

from __future__ import annotations

import itertools
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.added_tokens import AddedToken, CharacterTests, LiteralSet, exclusions, found_by_one_search
from toktier_tier.core.boundaries import NO_RULE
from toktier_tier.core.classes import CODE_POINTS
from toktier_tier.core.errors import UnsupportedTokenizer
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.assemble import Cores, build_text_encoder
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, character_tests
from workshop import (
    GENERAL,
    Json,
    bpe,
    build_tier,
    byte_level,
    byte_telltale,
    examples,
    family_reference,
    family_tier,
    metaspace,
    normalizers,
    random_text,
    replace,
    snippets,
    split,
    telltale,
    texts,
    token,
    tokenizer_json,
)

CHARS = "ab_<> 1"
FLAGS = ("lstrip", "rstrip", "single_word", "special")
Span = tuple[int, int, int]


@cache
def charset() -> CharacterTests:
    return character_tests()


def reference_of(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


def set_of(tokens: list[AddedToken]) -> LiteralSet:
    return LiteralSet([(token.content, token) for token in tokens], charset())


def raw_set(reference: Reference) -> LiteralSet:
    return LiteralSet([(t.content, t) for t in reference.added_tokens() if t.content and not t.normalized], charset())


def spans(reference: Reference, text: str) -> list[Span]:
    """The slow twin: added tokens of a whole encode, with the characters that they swallowed."""
    encoding = reference.tokenizer.encode(text, add_special_tokens=False)
    added = {t.id for t in reference.added_tokens()}
    return [(id, *span) for id, span in zip(encoding.ids, encoding.offsets, strict=True) if id in added]


contents = st.text(st.sampled_from(CHARS), min_size=1, max_size=4)
flags = st.fixed_dictionaries(dict.fromkeys(FLAGS, st.booleans()))


@st.composite
def added(draw: st.DrawFn, *, normalized: bool = False) -> list[Json]:
    """Up to six tokens that overlap, contain and repeat each other."""
    some = st.booleans() if normalized else st.just(False)
    drawn = draw(st.lists(st.tuples(contents, flags, some), min_size=1, max_size=6))
    tokens = []
    for number, (content, options, is_normalized) in enumerate(drawn):
        if not content.strip(" _") and options["lstrip"]:  # on such tokens the reference itself may panic
            options = {**options, "lstrip": False}
        tokens.append(token(1_000 + number, content, **options, normalized=is_normalized))
    return tokens


@settings(max_examples=examples(400))
@given(added(), st.data())
def test_raw_tokens_are_found_where_the_reference_finds_them(tokens: list[Json], data: st.DataObject) -> None:
    # Characters are single tokens of this model: every ID that isn't one of them is an added token.
    reference = reference_of(tokenizer_json(bpe("éß中\u0301"), added=tokens))
    found = raw_set(reference)
    parts = [t["content"] for t in tokens]
    for _ in range(5):
        text = data.draw(texts([*CHARS, "é", "\u3000", "\u0301", *parts], 10))
        assert found.find(text) == spans(reference, text)


@cache
def small_encoder(data: bytes) -> tuple[Reference, Any]:
    reference = reference_of(data)
    return reference, build_text_encoder(reference, NO_RULE, Cores(reference))


PIPELINES: dict[str, dict[str, Json]] = {
    "none": {},
    "Lowercase": {"normalizer": {"type": "Lowercase"}},
    "Replace": {"normalizer": replace("_", " ")},
    "Replace of two": {"normalizer": replace("ab", ">")},
    "Prepend": {"normalizer": normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))},
    "NFC": {"normalizer": {"type": "NFC"}},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "Metaspace first": {"pre_tokenizer": metaspace("first")},
    "Metaspace always": {"pre_tokenizer": metaspace("always", split=False)},
    "ByteLevel": {"pre_tokenizer": byte_level(add_prefix_space=True)},
}
PIPELINE_CHARS = [*CHARS, "A", "B", "é", "e\u0301", "\u0301", "ﬁ", "\u3000", "▁"]


@pytest.mark.parametrize("name", PIPELINES)
def test_raw_and_normalized_tokens_together_give_the_reference_ids(name: str) -> None:
    sections = PIPELINES[name]
    alphabet = "abAB_<> 1▁éefi\u0301"
    model = byte_telltale("ab_<> 1é") if "Byte" in name else telltale(alphabet)

    @settings(max_examples=examples(200))
    @given(added(normalized=True), st.data())
    def run(tokens: list[Json], data: st.DataObject) -> None:
        reference = reference_of(tokenizer_json(model, added=tokens, **sections))
        try:
            encoder = build_text_encoder(reference, NO_RULE, Cores(reference), settled=None)
        except UnsupportedTokenizer as error:
            refused = error.code
        else:
            refused = ""
        if refused:
            # Two different tokens that the normalizer makes the same: which one wins isn't modelled.
            assert refused in ("added_tokens.duplicate", "added_tokens.empty_literal")
            return
        parts = [t["content"] for t in tokens]
        for _ in range(4):
            text = data.draw(texts([*PIPELINE_CHARS, *parts, *(part.upper() for part in parts)], 8))
            assert encoder.encode(text).tolist() == reference.encode_text(text).tolist(), text

    run()


RULES: dict[str, tuple[Json, dict[str, Json]]] = {
    "words": (telltale("abAB_<> 1"), {"pre_tokenizer": split(r"\w+|\s+|[^\w\s]")}),
    "words behind Lowercase": (
        telltale("abAB_<> 1"),
        {"pre_tokenizer": split(r"\w+|\s+|[^\w\s]"), "normalizer": {"type": "Lowercase"}},
    ),
    "characters": (telltale("abAB_<> 1"), {"pre_tokenizer": split(".|\n"), "normalizer": replace("_", " ")}),
    "a prefix for every stretch": (byte_telltale("ab_<> 1é"), {"pre_tokenizer": byte_level(add_prefix_space=True)}),
    "Metaspace": (telltale("abAB_<> 1▁"), {"pre_tokenizer": metaspace("always")}),
    "adjacency": (
        bpe("abAB_<>1▁", [("a", "b"), ("▁", "a")]),
        {"normalizer": normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))},
    ),
    "adjacency under Metaspace": (
        bpe("abAB_<>1▁", [("a", "b"), ("▁", "a")]),
        {"pre_tokenizer": metaspace("first", split=False), "normalizer": replace("_", " ")},
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_no_boundary_is_claimed_that_an_added_token_reaches_across(name: str) -> None:
    model, sections = RULES[name]

    @settings(max_examples=examples(12))
    @given(added(normalized=True), st.randoms(use_true_random=False))
    def run(tokens: list[Json], chooser: random.Random) -> None:
        tier = build_tier(tokenizer_json(model, added=tokens, **sections))
        if tier.rule.kind == "none":
            return
        parts = [t["content"] for t in tokens]
        for _ in range(30):
            text = random_text(chooser, [*CHARS, "A", "é", "\n", *parts, *(part.upper() for part in parts)], 1, 8)
            assert tier.encoded(text) == tier.ids(text), text
            assert tier.contradiction(text) == ""

    run()


# --- by example -----------------------------------------------------------------------------------------------------


def find(text: str, *tokens: Json) -> list[Span]:
    """By both ways, which agree."""
    reference = reference_of(tokenizer_json(bpe("é"), added=tokens))
    found = raw_set(reference).find(text)
    assert found == spans(reference, text)
    names = {t.id: t.content for t in reference.added_tokens()}
    return [(names[id], start, end) for id, start, end in found]  # type: ignore[misc]


def test_of_overlapping_literals_the_leftmost_longest_wins() -> None:
    nested = [token(10, "〈|EOS|〉"), token(11, "〈|"), token(12, "|〉")]
    assert find("a〈|EOS|〉b", *nested) == [("〈|EOS|〉", 1, 8)]
    assert find("〈|EOS|〈|EOS|〉", *nested) == [("〈|", 0, 2), ("〈|EOS|〉", 6, 13)]
    assert find("〈|〉", *nested) == [("〈|", 0, 2)]
    assert find("|〉|〉", *reversed(nested)) == [("|〉", 0, 2), ("|〉", 2, 4)]


def test_the_longest_wins_in_whatever_order_the_tokens_stand() -> None:
    assert find("<<s>>", token(10, "<s>"), token(11, "<<s>>"), token(12, "<")) == [("<<s>>", 0, 5)]
    assert find("<<s>", token(12, "<"), token(11, "<<s>>"), token(10, "<s>")) == [("<", 0, 1), ("<s>", 1, 4)]


def test_strip_flags_swallow_every_kind_of_white_space() -> None:
    spaces = " \t\n\u00a0\u2003\u3000\u0085"
    assert find(f"x{spaces}<l>{spaces}x", token(10, "<l>", lstrip=True)) == [("<l>", 1, 11)]
    assert find(f"x{spaces}<r>{spaces}x", token(10, "<r>", rstrip=True)) == [("<r>", 8, 18)]
    assert find("x\u200b<l>", token(10, "<l>", lstrip=True)) == [("<l>", 2, 5)]


def test_a_left_strip_stops_at_the_token_before_it() -> None:
    assert find("<r> <l>", token(10, "<r>"), token(11, "<l>", lstrip=True)) == [("<r>", 0, 3), ("<l>", 3, 7)]
    both = [token(10, "<r>", rstrip=True), token(11, "<l>", lstrip=True)]
    assert find("<r>  <l>", *both) == [("<r>", 0, 5), ("<l>", 5, 8)]
    spaced = [token(10, "<r>", rstrip=True), token(11, " <l>", lstrip=True)]
    assert find("<r>  <l>y", *spaced) == [("<r>", 0, 5), (" <l>", 5, 8)]


def test_a_token_that_starts_with_a_swallowed_space_is_found_all_the_same() -> None:
    tokens = [token(10, "<r>", rstrip=True), token(11, " x")]
    assert find("<r> xy", *tokens) == [("<r>", 0, 4), (" x", 3, 5)]


def test_white_space_that_is_a_token_and_stripped_is_exact_or_refused() -> None:
    # Found here: a match of which an earlier one's strip leaves nothing was given as a token.
    model = telltale("ab ")
    data = tokenizer_json(
        model, pre_tokenizer=split(".", "Isolated"), added=[token(500, "  ", lstrip=True, rstrip=True)]
    )
    tier = build_tier(data)
    if tier.tokenizer.text_encoder is not None:
        for text in ("a    ", "a     b", "    "):
            assert tier.encoded(text) == tier.ids(text)


def test_a_single_word_stands_alone() -> None:
    word = token(10, "ab", single_word=True)
    assert find("ab", word) == find("ab", word) == [("ab", 0, 2)]
    assert find(" ab.", word) == [("ab", 1, 3)]
    for text in ("xab", "abx", "ab1", "_ab", "éab", "ab\u0301", "中ab"):
        assert find(text, word) == []


def test_the_search_goes_on_behind_a_word_that_did_not_stand_alone() -> None:
    assert find("xab ab", token(10, "ab", single_word=True), token(11, "b")) == [("ab", 4, 6)]


@pytest.mark.parametrize("text", ["", " ", "nothing here", "<|EO", "\ud7ff\ue000\U0010ffff"])
def test_text_without_tokens_has_none(text: str) -> None:
    assert find(text, token(10, "<|EOS|>"), token(11, "ab")) == []


def test_tokens_beside_each_other_and_at_the_ends() -> None:
    assert find("<s><s>é<s>", token(10, "<s>")) == [("<s>", 0, 3), ("<s>", 3, 6), ("<s>", 7, 10)]
    assert find("\U0001f600<s>\U0001f600", token(10, "<s>")) == [("<s>", 1, 4)]  # characters, not UTF-16 units


def test_an_empty_set_finds_nothing() -> None:
    assert LiteralSet([], charset()).find("anything") == []


def test_two_tokens_with_one_literal_are_refused() -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        LiteralSet([("a", AddedToken(1, "a")), ("a", AddedToken(2, "A"))], charset())
    assert caught.value.code == "added_tokens.duplicate"


def test_a_normalized_token_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        exclusions([AddedToken(1, "a", normalized=True)], lambda text: "", position_matters=False)
    assert caught.value.code == "added_tokens.empty_literal"


def test_word_and_space_characters_are_those_of_the_flags_themselves() -> None:
    """Every code point, asked of the flags in one text a kind; a line feed is no word and a letter no space."""
    points = [p for p in range(CODE_POINTS) if not 0xD800 <= p < 0xE000 and chr(p) not in "\nX"]
    single = reference_of(tokenizer_json(bpe("é"), added=[token(10, "X", single_word=True)]))
    text = "".join(f"X{chr(p)}\n" for p in points)
    alone = {start // 3 for _, start, _ in spans(single, text)}
    strip = reference_of(tokenizer_json(bpe("é"), added=[token(10, "X", rstrip=True)]))
    text = "".join(f"X{chr(p)}é" for p in points)
    swallowed = {start // 3 for _, start, end in spans(strip, text) if end - start > 1}
    is_word, is_space = charset().is_word, charset().is_space
    assert [p for n, p in enumerate(points) if is_word(chr(p)) == (n in alone)] == []
    assert [p for n, p in enumerate(points) if is_space(chr(p)) != (n in swallowed)] == []


# --- genuine files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2-novelai", "moonshine", "deepseek-v4", "pile-novelai"])
def test_tokens_of_genuine_files_are_found_in_hostile_company(family: str) -> None:
    tier = family_tier(family)
    reference = family_reference(family)
    contents = [t.content for t in reference.added_tokens()]
    parts = [*snippets(reference, 60), *(" " + content for content in contents[:20]), *"<|> \n", *GENERAL[:40]]
    raw = raw_set(reference)
    plain = reference.snapshot.normalizer in (None, {"type": "Sequence", "normalizers": []})

    @settings(max_examples=examples(150))
    @given(texts(parts, 10))
    def run(text: str) -> None:
        assert tier.encoded(text) == tier.ids(text)
        if plain and not any(t.normalized for t in reference.added_tokens()):
            assert raw.find(text) == spans(reference, text)

    run()


@pytest.mark.parametrize("family", ["moonshine", "deepseek-v4", "mistral-7b-v0.3"])
def test_every_added_token_is_found_by_itself_and_between_words(family: str) -> None:
    tier, reference = family_tier(family), family_reference(family)
    for added_token in reference.added_tokens():
        for text in (added_token.content, f"a {added_token.content}b", added_token.content * 2):
            assert tier.encoded(text) == tier.ids(text), text
        assert tier.encoded(added_token.content) == [added_token.id]


def test_exclusions_cover_every_pair_inside_a_literal() -> None:
    for family in ("moonshine", "deepseek-v4"):
        tier = family_tier(family)
        for added_token in tier.reference.added_tokens():
            content = added_token.content
            for at in range(1, len(content)):
                assert not tier.rule.holds(content[at - 1], content[at]), content
    assert isinstance(tier.rule.left, bytes)
    assert np.frombuffer(tier.rule.left, np.uint8).any()


@pytest.mark.parametrize(
    ("raw", "normalized", "expected"),
    [
        (["<zqj>"], ["<zq"], True),  # starts with it and is shorter: the raw one is longer, so it wins either way
        (["<zq"], ["<zqj>"], False),  # longer than the raw one that the reference finds first
        (["qj>"], ["<zq"], False),  # starts before the raw one and overlaps it
        (["qj"], ["<zqj>"], False),  # holds it
        (["<zq"], ["qj>"], True),  # starts behind it: the raw one is first either way
        (["<a>"], ["<b>"], True),
        (["ab"], ["ab"], False),
        ([], ["a", "aa"], True),
    ],
)
def test_one_search_finds_what_two_find(raw: list[str], normalized: list[str], expected: bool) -> None:
    tokens = [AddedToken(at, content) for at, content in enumerate(raw)]
    tokens += [AddedToken(100 + at, content, normalized=True) for at, content in enumerate(normalized)]
    assert found_by_one_search(tokens) is expected
    one = LiteralSet([(t.content, t) for t in tokens], charset()) if raw != normalized else None
    first, second = (
        LiteralSet([(t.content, t) for t in tokens if t.normalized is on], charset()) for on in (False, True)
    )
    differing = False
    for text in map("".join, itertools.product("<zqj>ab", repeat=5)):
        found = first.find(text)
        at, both = 0, list(found)
        for _, start, stop in [*found, (-1, len(text), len(text))]:
            both += [(id, at + begin, at + end) for id, begin, end in second.find(text[at:start])]
            at = stop
        differing |= one is None or one.find(text) != sorted(both, key=lambda token: token[1])
    assert differing is not expected
