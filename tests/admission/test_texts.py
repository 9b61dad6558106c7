"""The campaign's texts: the same seed gives the same texts, and they hold what is hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from toktier_tier.admission.texts import Texts
from toktier_tier.core.boundaries import no_rule
from workshop import Tier, build_tier, byte_level, byte_telltale, family_tier, token, tokenizer_json


def tiny() -> Tier:
    added = [token(900, "<|im_end|>", special=True), token(901, "<x>")]
    return build_tier(tokenizer_json(byte_telltale("abé <"), added=added, pre_tokenizer=byte_level()))


TINY = tiny()


def source(seed: int = 1, tier: Tier = TINY, **options: list[str]) -> Texts:
    return Texts(tier.reference.snapshot, tier.rule, seed, **options)


KINDS = ("short", "adversarial", "natural", "mixed", "words")


def drawn(texts: Texts) -> list[str]:
    return [getattr(texts, kind)(chars) for chars in (1, 8, 100, 1_000) for kind in KINDS]


def test_the_same_seed_snapshot_and_rule_give_the_same_texts() -> None:
    first = drawn(source())
    assert first == drawn(source())
    assert first == drawn(source(tier=tiny()))
    assert source().representatives == source().representatives


def test_another_seed_or_snapshot_gives_other_texts() -> None:
    other = build_tier(tokenizer_json(byte_telltale("abé <"), pre_tokenizer=byte_level()))
    assert drawn(source(2)) != drawn(source())
    assert drawn(source(tier=other)) != drawn(source())


def test_two_sources_side_by_side_do_not_disturb_each_other() -> None:
    alone = drawn(source())
    first, second = source(), source(2)
    mixed = []
    for chars in (1, 8, 100, 1_000):
        for make in KINDS:
            mixed.append(getattr(first, make)(chars))
            getattr(second, make)(chars)
    assert mixed == alone


@pytest.mark.parametrize("family", ["gpt2-novelai", "mixtral-8x22b-v0.1"])
def test_texts_of_a_genuine_file_are_the_same_again(family: str) -> None:
    assert drawn(source(tier=family_tier(family))) == drawn(source(tier=family_tier(family)))


def test_texts_hold_no_surrogates_and_are_about_as_long_as_asked() -> None:
    texts = source()
    for text in drawn(texts):
        text.encode("utf-8")
    for chars in (1, 10, 500, 5_000):
        assert len(texts.short(chars)) == len(texts.natural(chars)) == len(texts.mixed(chars)) == chars
        assert len(texts.adversarial(chars)) >= chars
        assert len(texts.words(chars)) <= chars


def holds(make: Callable[[int], str], part: str) -> bool:
    return any(part in make(400) for _ in range(60))


def test_added_tokens_occur_whole_and_cut() -> None:
    texts = source()
    assert holds(texts.adversarial, "<|im_end|>")
    assert holds(texts.mixed, "<|im_end|>")
    assert any("<|im" in text and "<|im_end|>" not in text for text in (texts.adversarial(120) for _ in range(200)))
    assert not any("<|im_end|>" in texts.adversarial(400, literals=False) for _ in range(60))


def test_words_are_words_with_single_spaces() -> None:
    text = source().words(3_000)
    assert len(text) == 3_000
    assert "  " not in text
    assert all(word.isalpha() for word in text.split(" "))


def test_a_corpus_is_drawn_from() -> None:
    assert holds(source(corpus=["xyzzy plugh " * 50]).natural, "xyzzy plugh")


def test_representatives_cover_ascii_and_every_class_of_the_rule() -> None:
    texts, rule = source(), TINY.rule
    chosen = set(texts.representatives)
    assert {chr(point) for point in range(128)} <= chosen
    classes = {(rule.left[point], rule.right[point]) for point in range(0xD800)}
    assert {(rule.left[ord(char)], rule.right[ord(char)]) for char in chosen} >= classes


def test_texts_do_without_added_tokens_and_without_a_rule() -> None:
    tier = build_tier(tokenizer_json(byte_telltale("ab"), pre_tokenizer=byte_level()))
    bare = replace(tier, rule=no_rule("rule.not_derived", ""))
    assert all(isinstance(text, str) for text in drawn(source(tier=bare)))
