"""What two texts share: the comparison against a plain search, and its use for repair."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.full_text import Difference, common_prefix, common_suffix, compare
from toktier_tier.core.session import SessionState
from workshop import GENERAL, check_rope, examples, family_tier, repairer_of, sample_text, small_rope, text_parts, texts

letters = st.text(st.sampled_from("ab"), max_size=12)
PARTS = ["aé", "中b", "a", "b", " ", "\U0001f600", "aaaa", "word "]


def prefix_chars(a: str, b: str) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def suffix_chars(a: str, b: str) -> int:
    return prefix_chars(a[::-1], b[::-1])


@settings(max_examples=examples(300))
@given(letters, letters, letters, letters)
def test_common_prefix_and_suffix_equal_a_plain_search(a: str, b: str, x: str, y: str) -> None:
    assert common_prefix(a + x, a + y) == prefix_chars(a + x, a + y)
    assert common_suffix(x + b, y + b) == suffix_chars(x + b, y + b)


@settings(max_examples=examples(200))
@given(st.text(st.sampled_from(GENERAL)), st.text(st.sampled_from(GENERAL)))
def test_common_prefix_and_suffix_of_unrelated_texts_too(a: str, b: str) -> None:
    assert common_prefix(a, b) == prefix_chars(a, b)
    assert common_suffix(a, b) == suffix_chars(a, b)


def plain_difference(old: str, new: str) -> Difference:
    """The slow twin: longest common prefix, then the longest common suffix of what is left."""
    start = prefix_chars(old, new)
    shared = suffix_chars(old[start:], new[start:])
    return Difference(start, len(old) - shared, new[start : len(new) - shared])


def edited(text: str, low: int, high: int, replacement: str) -> str:
    start, stop = sorted((low * len(text) // 100, high * len(text) // 100))
    return text[:start] + replacement + text[stop:]


edit = st.tuples(st.integers(0, 100), st.integers(0, 100), texts(PARTS, 6))


def open_state(text: str, *, keep_text: bool = True) -> SessionState:
    return repairer_of(family_tier("gpt2-novelai"), 3).open(text, keep_text=keep_text)


@settings(max_examples=examples(150))
@given(texts(PARTS, 80), st.lists(edit, max_size=2), st.none() | texts(PARTS, 80))
def test_the_difference_is_the_smallest_one(old: str, edits: list[tuple[int, int, str]], other: str | None) -> None:
    new = old if other is None else other
    for low, high, replacement in edits:
        new = edited(new, low, high, replacement)
    with small_rope():
        assert compare(open_state(old), new) == plain_difference(old, new)


@settings(max_examples=examples(150))
@given(texts(PARTS, 80), st.lists(edit, max_size=2))
def test_with_digests_only_a_difference_is_right_or_refused(old: str, edits: list[tuple[int, int, str]]) -> None:
    new = old
    for low, high, replacement in edits:
        new = edited(new, low, high, replacement)
    with small_rope():
        state = open_state(old, keep_text=False)
        found = compare(state, new)
    start = plain_difference(old, new).start
    if found is None:
        assert start < state.chars_before[-1]  # it reached into a sealed segment
        return
    assert found.start == start
    assert 0 <= found.start <= found.stop <= len(old)
    assert old[: found.start] + found.replacement + old[found.stop :] == new
    assert start >= state.chars_before[-1]


@pytest.mark.parametrize("keep_text", [True, False])
def test_the_same_text_and_a_longer_one_are_appends(keep_text: bool) -> None:
    old = sample_text(500)
    with small_rope():
        state = open_state(old, keep_text=keep_text)
        assert compare(state, old) == Difference(500, 500, "")
        assert compare(state, old + "é more") == Difference(500, 500, "é more")


def test_a_tail_that_repeats_its_neighbour_is_not_counted_twice() -> None:
    for old, new in (("ab" * 60, "ab" * 61), ("ab" * 61, "ab" * 60), ("a" * 100, "a" * 7), ("a", "aa"), ("", "a")):
        with small_rope():
            assert compare(open_state(old), new) == plain_difference(old, new)


@pytest.mark.parametrize("family", ["gpt2-novelai", "mixtral-8x22b-v0.1"])
def test_repairing_the_difference_gives_the_new_text(family: str) -> None:
    tier = family_tier(family)
    repairer = repairer_of(tier, 3)
    parts = text_parts(tier)

    @settings(max_examples=examples(60))
    @given(texts(parts, 40), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), texts(parts, 6)), max_size=3))
    def run(text: str, edits: list[tuple[int, int, str]]) -> None:
        with small_rope():
            state = repairer.open(text)
            for low, high, replacement in edits:
                text = edited(text, low, high, replacement)
                difference = compare(state, text)
                assert difference is not None
                repairer.replace(state, difference.start, difference.stop, difference.replacement)
                check_rope(state, tier, text)

    run()
