"""A whole pre-tokenizer as automata: the reference's own pieces, on genuine files and on any row of steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import CI_FAMILIES
from toktier_tier.admission.texts import Texts
from toktier_tier.core.boundaries import NO_RULE
from toktier_tier.core.errors import TierError
from toktier_tier.core.pipeline import GPT2_PATTERN, Position, parse_pipeline
from toktier_tier.core.splitting import SplitAutomaton, compile_split
from toktier_tier.encoders.reference import (
    BLANK_MODEL,
    ReferenceProbe,
    class_members,
    load_tokenizer,
    pieces_of,
    predicate_members,
)
from workshop import (
    GENERAL,
    WORDS,
    Json,
    byte_level,
    examples,
    family_data,
    family_reference,
    metaspace,
    pre_tokenizers,
    random_text,
    sample_text,
    split,
)


class CachedProbe:
    """The reference's answers, each asked for once a run."""

    members = staticmethod(cache(class_members))
    predicate = staticmethod(predicate_members)


PROBE: Any = CachedProbe()


def kinds() -> dict[str, str]:
    """A family for each byte-level pre-tokenizer."""
    found: dict[str, str] = {}
    for family in CI_FAMILIES:
        step = json.dumps(json.loads(family_data(family))["pre_tokenizer"], sort_keys=True)
        if "ByteLevel" in step:
            found.setdefault(step, family)
    return found


BYTE_LEVEL = tuple(kinds().values())


def starts_of(pieces: list[str], *, as_bytes: bool) -> list[int]:
    """Byte positions; behind ByteLevel each character of a piece stands for a byte."""
    lengths = [len(piece if as_bytes else piece.encode()) for piece in pieces]
    return np.cumsum([0, *lengths])[:-1].tolist()


# --- genuine files ---------------------------------------------------------------------------------------------------


@cache
def family_split(family: str) -> SplitAutomaton:
    reference = family_reference(family)
    assert reference.snapshot.pipeline is not None
    return compile_split(reference.snapshot.pipeline, ReferenceProbe(reference))


@cache
def family_pieces(family: str) -> Callable[[str, Position], list[str]]:
    return pieces_of(family_reference(family))


def check_family(family: str, text: str) -> None:
    normalize = family_reference(family).normalizer(Position.TEXT_START)
    text = normalize(text) if normalize else text
    expected = starts_of(family_pieces(family)(text, Position.TEXT_START), as_bytes=True)
    found = family_split(family).pieces(text)
    if found != expected:
        wrong = min(set(found) ^ set(expected))
        shown = text.encode()[max(0, wrong - 30) : wrong + 30]
        raise AssertionError(f"{family}: {wrong} is a start of only one side: {shown!r}")


def test_genuine_files_write_bytes_behind_many_patterns() -> None:
    assert len(BYTE_LEVEL) >= 8


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_the_automata_of_genuine_files_are_small(family: str) -> None:
    for stage in family_split(family).stages:
        assert stage.automaton.states <= 24
        assert stage.automaton.columns <= 24
        assert not stage.of_bytes
    assert family_split(family).stages[-1].automaton.has_gaps is (family == "deepseek-v4")


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_genuine_files_cut_natural_and_adversarial_texts_as_the_reference_does(family: str) -> None:
    texts = Texts(family_reference(family).snapshot, NO_RULE, 5)
    check_family(family, sample_text(20_000, 5))
    for _ in range(examples(12)):
        check_family(family, texts.adversarial(300))
        check_family(family, texts.short(200))
        check_family(family, texts.mixed(300))


RUNS = (
    *(" ", "\n", "\r\n", "\t ", "'", "'s", "\u0301", "1", "²3", "A", "aA", "Aa", "ǅ"),
    *("中", "中a", "é", "_", "/\n", "\0"),
)


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_runs_and_what_follows_them_are_cut_as_the_reference_does(family: str) -> None:
    """Every run before and after every short frame, so that each look-ahead is decided by each kind of character."""
    frames = ("", " ", "a", "1", "\n", ".", "'", "中", "\u0301")
    for run in RUNS:
        check_family(family, "".join(f"{left}{run * n}{right}" for left in frames for right in frames for n in (1, 4)))
        for frame in frames:
            check_family(family, f"{frame}{run * 40}{frame}")
            check_family(family, f"{frame}{run * 3}")


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_code_points_at_the_edges_of_classes_are_cut_as_the_reference_does(family: str) -> None:
    edges: set[int] = set()
    for stage in family_split(family).stages:
        last = np.flatnonzero(np.diff(stage.automaton.column_of.astype(np.int32)))
        edges.update(last.tolist(), (last + 1).tolist())
    chars = [chr(point) for point in sorted(edges) if not 0xD800 <= point < 0xE000]
    assert len(chars) > 1_000
    check_family(family, "".join(chars))
    check_family(family, "".join(f"a{char} {char}b1{char}{char}\n" for char in chars))


# --- any row of steps ------------------------------------------------------------------------------------------------


def built(pre_tokenizer: Json) -> tuple[SplitAutomaton, Callable[[str], list[int]]]:
    """The automata, and what the reference says."""
    pipeline = parse_pipeline(None, pre_tokenizer)
    found = compile_split(pipeline, PROBE)
    blank = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": BLANK_MODEL}
    cut = load_tokenizer(blank).pre_tokenizer.pre_tokenize_str
    as_bytes = any(step.kind == "bytes" for step in pipeline.pre_tokenizer)
    return found, lambda text: starts_of([piece for piece, _ in cut(text)], as_bytes=as_bytes)


def digits(*, individual: bool) -> Json:
    return {"type": "Digits", "individual_digits": individual}


def punctuation(behavior: str) -> Json:
    return {"type": "Punctuation", "behavior": behavior}


BYTES, GPT2 = byte_level(use_regex=False), byte_level()
JOINS = ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
STEPS: tuple[Json, ...] = (
    digits(individual=True),
    digits(individual=False),
    *(punctuation(behavior) for behavior in JOINS),
    *(split(literal, behavior, regex=False) for literal in (" ", "é") for behavior in JOINS),
    *(split(literal, behavior, regex=False) for literal in ("aa", "ab ") for behavior in ("Isolated", "Contiguous")),
    split("a+", "Isolated", invert=True),
    split(r"[\s\S]{1,2}", "Removed", invert=True),
    split(r"\s*\w|\W", "Isolated"),
    split("a|aa", "Contiguous"),
    split("a(?=b)|b", "Contiguous"),
    split("[ab]{1,2}(?!a)", "Contiguous"),
    split("Ã[\u0080-\u00ff]|Ġ+", "Isolated"),  # bytes as ByteLevel writes them
    split("\u0120?[^\u0120]", "Isolated"),
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: json.dumps(step)[:60])
@pytest.mark.parametrize("place", ["alone", "before bytes", "behind bytes"])
def test_each_step_cuts_as_the_reference_does(step: Json, place: str) -> None:
    row = {"alone": [step], "before bytes": [step, GPT2], "behind bytes": [BYTES, step]}[place]
    found, expected = built(pre_tokenizers(*row))
    assert [stage.of_bytes for stage in found.stages] == [place == "behind bytes", *[False] * (place == "before bytes")]
    chooser = random.Random(3)
    for text in ("", "a", "..", "a..b.", ".1.12", "aab ab é é", *(random_text(chooser, PARTS) for _ in range(60))):
        assert found.pieces(text) == expected(text), text


PARTS = (*"ab 1.é\n中'2-", "aa", "ab ", "  ", "12", "..", "'s", "e\u0301", "\U0001f600")


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from(STEPS), max_size=3),
    st.sampled_from([[], [GPT2], [BYTES]]),
    st.lists(st.sampled_from(STEPS), max_size=2),
    st.randoms(use_true_random=False),
)
def test_any_row_of_steps_cuts_as_the_reference_does(
    before: list[Json], middle: list[Json], behind: list[Json], chooser: random.Random
) -> None:
    found, expected = built(pre_tokenizers(*before, *middle, *behind))
    for _ in range(20):
        text = random_text(chooser, PARTS)
        assert found.pieces(text) == expected(text), text


def test_pieces_are_byte_positions_and_later_steps_see_only_their_piece() -> None:
    found, _ = built(pre_tokenizers(split("b"), split(r"é+$|a\z|x(?!b)"), BYTES))
    assert found.pieces("éxéb" + "xbaé" + "a") == [0, 2, 3, 5, 6, 7, 8, 11]


def test_a_step_behind_byte_level_may_cut_inside_a_character() -> None:
    found, expected = built(pre_tokenizers(BYTES, split("Ã")))
    assert found.pieces("aéa") == expected("aéa") == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "a b", *WORDS, GENERAL])
def test_without_a_cutting_step_the_text_is_one_piece(text: str) -> None:
    found, expected = built(BYTES)
    assert found.stages == ()
    assert found.pieces(text) == expected(text) == ([0] if text else [])


def test_a_removing_split_that_has_no_gaps_removes_nothing() -> None:
    found, expected = built(pre_tokenizers(split(GPT2_PATTERN, "Removed", invert=True), BYTES))
    text = sample_text(3_000)
    assert found.pieces(text) == expected(text)


# --- refused by name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([byte_level(add_prefix_space=True)], "automaton.prefix"),
        ([byte_level(add_prefix_space=True, use_regex=False)], "automaton.prefix"),
        ([metaspace()], "automaton.prefix"),
        ([metaspace("never")], "automaton.metaspace"),
        ([split("a", "Removed")], "automaton.removes"),
        ([split("a", "Removed", regex=False), BYTES], "automaton.removes"),
        ([split("a", "Removed", invert=True)], "automaton.removes"),
        ([split(".", "Removed", invert=True)], "automaton.removes"),  # no line feed
        ([split("a", "Removed", regex=False, invert=True)], "automaton.removes"),
        ([split(GPT2_PATTERN, "Removed", invert=True), split("a", "Removed", invert=True)], "automaton.removes"),
        ([punctuation("Removed")], "automaton.removes"),
        ([{"type": "WhitespaceSplit"}], "automaton.removes"),
        ([{"type": "BertPreTokenizer"}], "automaton.removes"),
        ([{"type": "CharDelimiterSplit", "delimiter": "x"}], "automaton.removes"),
        ([split("a", "MergedWithPrevious")], "automaton.joins"),
        ([split("a", "MergedWithNext")], "automaton.joins"),
        ([split("ab", "MergedWithNext", regex=False)], "automaton.joins"),
        ([BYTES, GPT2], "automaton.bytes_twice"),
        ([split("(?:ab)++"), BYTES], "automaton.atomic"),
        ([split("a*"), BYTES], "automaton.matches_empty"),
        ([split("(?<=a)b"), BYTES], "pattern.look_behind"),
    ],
)
def test_what_the_automata_cannot_do_is_refused_by_name(steps: list[Json], code: str) -> None:
    with pytest.raises(TierError) as refused:
        built(pre_tokenizers(*steps))
    assert refused.value.code == code


def test_what_is_removed_depends_on_what_can_be_there() -> None:
    """ByteLevel writes no line feed, so behind it `.` matches every character and nothing is removed."""
    found, expected = built(pre_tokenizers(BYTES, split(".", "Removed", invert=True)))
    assert found.pieces("a\né") == expected("a\né") == [0, 1, 2, 3]


def test_surrogates_are_in_no_column_of_their_own() -> None:
    found, _ = built(split(r"[\s\S]"))
    assert found.stages[0].automaton.columns == 1


def test_pieces_tile_the_text() -> None:
    text = sample_text(2_000)
    starts = family_split("deepseek-v4").pieces(text)
    assert starts[0] == 0
    assert all(left < right for left, right in pairwise([*starts, len(text.encode())]))
