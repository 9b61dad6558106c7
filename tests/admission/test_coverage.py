"""Coverage texts meet every element of a file: a candidate that is wrong about one of them is caught by them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from toktier_tier.admission.coverage import completed, core_groups, token_groups
from toktier_tier.admission.exam import Asked, ask, check_asked
from toktier_tier.admission.groups import Group
from toktier_tier.core.classes import byte_characters
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe, encode_of, load_tokenizer
from toktier_tier.ports import Ids
from workshop import bpe, byte_level, byte_telltale, pre_tokenizers, split, token, tokenizer_json

LETTERS = "abstzq 'S1é"
PATTERN = r"'s|[sS]t+z| ?\p{L}{1,3}|\p{N}{1,4}|\s+(?!\S)|\s+"


def reference_of(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


@cache
def byte_file() -> bytes:
    steps = pre_tokenizers(split(PATTERN), byte_level(use_regex=False))
    return tokenizer_json(byte_telltale(LETTERS), pre_tokenizer=steps)


@cache
def groups(data: bytes) -> tuple[Group, ...]:
    reference = reference_of(data)
    return tuple(core_groups(reference.snapshot, ReferenceProbe(reference), 1))


@cache
def asked_about(data: bytes) -> tuple[Reference, tuple[Asked, ...]]:
    reference = reference_of(data)
    return reference, tuple(ask(groups(data), reference.encode_text))


def divergences(data: bytes, encode: Callable[[str], Ids], only: str = "") -> dict[str, int]:
    reference, asked = asked_about(data)
    chosen = [each for each in asked if only in each.group.name]
    return {each.group.name: check_asked(each, encode, reference.encode_text, "").divergences for each in chosen}


def changed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> Callable[[str], Ids]:
    document = json.loads(data)
    change(document)
    return encode_of(load_tokenizer(document))


def test_an_exact_encoder_passes_every_group_and_every_group_is_complete() -> None:
    assert not any(divergences(byte_file(), reference_of(byte_file()).encode_text).values())
    assert all(group.complete and group.texts for group in groups(byte_file()))


@cache
def competing_file() -> bytes:
    """Every pair of symbols may meet, so that the order of all merges matters."""
    model = byte_telltale("abc")
    longer = [["ab", "c"], ["a", "bc"], ["cc", "a"], ["b", "ba"]]
    for left, right in longer:
        model["vocab"][left + right] = len(model["vocab"])
    return tokenizer_json({**model, "merges": model["merges"] + longer}, pre_tokenizer=byte_level(use_regex=False))


def test_each_merge_that_is_missing_or_out_of_order_is_met() -> None:
    merges = json.loads(competing_file())["model"]["merges"]
    strings = ["".join(chars) for length in (2, 3, 4) for chars in itertools.product("abc", repeat=length)]
    honest = [reference_of(competing_file()).encode_text(text).tolist() for text in strings]
    for at in range(len(merges)):
        for to in (None, *range(len(merges))):

            def move(document: dict[str, Any], at: int = at, to: int | None = to) -> None:
                moved = document["model"]["merges"].pop(at)
                document["model"]["merges"][to or 0 : to or 0] = [] if to is None else [moved]

            encode = changed(competing_file(), move)
            if [encode(text).tolist() for text in strings] != honest:
                assert divergences(competing_file(), encode, "merges")["merges"], (merges[at], to)


def test_of_a_merge_listed_twice_the_last_rank_counts() -> None:
    model = byte_telltale("zqj")
    model["merges"].append(model["merges"][0])
    data = tokenizer_json(model, pre_tokenizer=byte_level())
    first = changed(data, lambda d: d["model"]["merges"].pop())
    assert divergences(data, first, "merges")["merges"]


@pytest.mark.parametrize(
    "other",
    [
        PATTERN.replace("'s|", ""),  # a literal
        PATTERN.replace("'s", "'S"),
        PATTERN.replace("{1,3}", "{1,4}"),  # the number in a quantifier
        PATTERN.replace("{1,4}", "{1,5}"),
        PATTERN.replace("[sS]", "s"),  # one character of a class
        PATTERN.replace("t+z", "t*z"),
        PATTERN.replace(r"\s+(?!\S)|", ""),  # the assertion
        PATTERN.replace(r" ?\p", r"\p"),
    ],
)
def test_each_part_of_a_pattern_is_met(other: str) -> None:
    encode = changed(byte_file(), lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(split(other)))
    assert sum(divergences(byte_file(), encode).values()) > 0


def test_entries_that_are_parts_of_characters_are_met_inside_whole_ones() -> None:
    for data in (
        b"\xa9",
        b"\xc3",
        b"\xe4\xb8",
        b"\xb8\xad\xe4",
        b"\x9f\x98\x80",
        b"\xed",
        b"\xf4\x8f",
        b"\xe0",
        b"a\xf0\x9f",
    ):
        text = completed(data)
        assert text is not None
        assert data in text.encode()
    for impossible in (b"\xff", b"\xc0\xaf", b"\x80\x80\x80\x80", b"\xed\xa0"):
        assert completed(impossible) is None


def spelled(entry: str) -> bytes:
    byte_of = {chr(char): byte for byte, char in enumerate(byte_characters())}
    return bytes(byte_of[char] for char in entry)


def test_what_no_text_can_hold_is_counted_and_the_rest_is_complete() -> None:
    (vocabulary, *_) = groups(byte_file())
    assert vocabulary.name == "vocabulary entries"
    impossible = [entry for entry in json.loads(byte_file())["model"]["vocab"] if completed(spelled(entry)) is None]
    assert len(impossible) == vocabulary.unreachable > 0
    assert not Group("some", ["a"], elements=3, exercised=1, unreachable=1).complete


def test_every_overlap_and_every_neighbourhood_of_added_tokens_is_there() -> None:
    literals = ["<a>", ">b", "b<", "<a>b", "a", "<<"]
    overlaps, neighbours = token_groups(literals, 1)
    for text in ("<a>b", ">b<", "b<a>", "<<a>", "b<<"):
        assert text in overlaps.texts
    assert set(neighbours.texts) == {a + b for a, b in itertools.product(literals, repeat=2)}
    assert overlaps.complete


def test_added_tokens_that_are_searched_in_another_order_are_caught() -> None:
    model = bpe("<ab>", itertools.product("<ab>", repeat=2))
    names = ["<a", "<ab>", "b>", ">a<"]
    data = tokenizer_json(model, added=[token(900 + at, name) for at, name in enumerate(names)])
    reference = reference_of(data)
    shortest = encode_of(load_tokenizer({**json.loads(data), "added_tokens": [token(900, "<a"), token(902, "b>")]}))
    asked = ask(token_groups(names, 1), reference.encode_text)
    assert sum(check_asked(each, shortest, reference.encode_text, "").divergences for each in asked) > 0


def test_a_block_that_differs_is_taken_apart_to_the_texts_that_show_it() -> None:
    reference = reference_of(byte_file())

    def lie(text: str) -> Ids:
        ids = reference.encode_text(text).copy()
        ids[: text.count("zqj")] += 1
        return ids

    group = Group("some", ["ab", "a zqj", *["filler"] * 50, "zqj"], 53, 53)
    (asked,) = ask([group], reference.encode_text)
    phase = check_asked(asked, lie, reference.encode_text, "taken apart")
    assert (phase.checks, phase.divergences) == (53, 2)
    assert {example["text"] for example in phase.examples} == {"a zqj", "zqj"}


def test_the_same_seed_gives_the_same_texts() -> None:
    reference = reference_of(byte_file())
    again = core_groups(reference.snapshot, ReferenceProbe(reference), 1)
    assert [group.texts for group in again] == [group.texts for group in groups(byte_file())]
