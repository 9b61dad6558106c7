"""The split automaton cuts as the reference's own pre-tokenizer does, or refuses the pattern by name."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from toktier_tier.core import automaton, instructions
from toktier_tier.core.automaton import DEAD, MATCH, START, Automaton
from toktier_tier.core.boundaries import derive_class_rule
from toktier_tier.core.errors import TierError, UnsupportedTokenizer
from toktier_tier.core.pipeline import GPT2_PATTERN, parse_pipeline
from toktier_tier.core.splitting import SplitAutomaton, compile_split
from toktier_tier.encoders.reference import ReferenceProbe, class_members, predicate_members
from workshop import build_tier, examples, exclusions_of, split, telltale, tokenizer_json


class CachedProbe:
    """The reference's answers, each asked for once a run."""

    members = staticmethod(cache(class_members))
    predicate = staticmethod(predicate_members)


PROBE: Any = CachedProbe()


def compiled(source: str) -> SplitAutomaton:
    return compile_split(parse_pipeline(None, split(source)), PROBE)


def table(source: str) -> Automaton:
    (stage,) = compiled(source).stages
    return stage.automaton


def expected(source: str, text: str) -> list[int]:
    starts, at = [], 0
    for piece, _ in pre_tokenizers.Split(Regex(source), "isolated").pre_tokenize_str(text):
        starts.append(at)
        at += len(piece.encode())
    return starts


def words(source: str, text: str) -> list[str]:
    data = text.encode()
    starts = compiled(source).pieces(text)
    assert starts == expected(source, text)
    return [data[start:stop].decode() for start, stop in pairwise([*starts, len(data)])]


# --- what each construct means -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text", "pieces"),
    [
        ("a", "aa", "a|a"),
        ("a", "xyaxxa", "xy|a|xx|a"),  # what no match covers is one piece
        ("é|中", "aé中中b", "a|é|中|中|b"),
        ("a+", "aaba", "aa|b|a"),
        ("a+?", "aa", "a|a"),
        ("a|ab", "ab", "a|b"),  # the first alternative wins, not the longest
        ("ab|a", "aba", "ab|a"),
        ("(?:a|ab)(?:c|bcd)", "abcd", "abcd"),
        ("(?:a|ab)(?:bc|c)d?", "abcd", "abcd"),
        ("a??b|a", "aab", "a|ab"),
        ("a*?b", "aab", "aab"),
        ("a{1,3}", "aaaaa", "aaa|aa"),
        ("a{1,3}?", "aaa", "a|a|a"),
        ("a{2}?b", "baabab", "b|aab|a|b"),
        ("a{2,2}?b", "baab", "b|aab"),
        ("a{,2}b", "aaab", "a|aab"),
        ("a{2,}", "abaaaa", "ab|aaaa"),
        ("(?:ab){2,3}", "abababab", "ababab|ab"),
        ("a{1,3}+b", "aaaaab", "aaaaab"),
        ("a++a|a", "aa", "a|a"),
        ("a++b|a", "aaba", "aab|a"),
        ("a++", "baa", "b|aa"),
        ("a?+a|b", "aab", "aa|b"),
        ("a?+ab", "aabab", "aab|ab"),
        ("a*+ab|a", "aab", "a|a|b"),
        ("(?:a|b)++c|.", "abcab", "abc|a|b"),
        ("(?>a|b)c|a", "aca", "ac|a"),
        ("(?>a{1,2})b|a", "aaabab", "a|aab|ab"),
        ("(?>a{2})a|b", "aaab", "aaa|b"),
        ("(?>a+)b", "aab", "aab"),
        (r"\s+(?!\S)|\s+", "  a   b ", " | |a|  | |b| "),
        (r"a+(?=b)", "aabaa", "aa|baa"),
        (r"a+(?!b)", "aab", "a|ab"),
        (r"(?!a)\w+|a", "aba", "a|ba"),
        ("(?=a|b).+", "cab", "c|ab"),
        ("a+$", "aa\naab", "aa|\naab"),
        (r"\s+$", "a  \n  ", "a|  \n  "),
        (r"\n$", "\n\n", "\n|\n"),
        (r"a\z", "aa\na", "aa\n|a"),
        ("(?i:'s|'LL)|[a-z]+", "it's'ſ'll'Ll", "it|'s|'ſ|'ll|'Ll"),
        ("(?i:k)a", "Kaka\u212aa", "Ka|ka|\u212aa"),
        ("(?i:a(?=k))", "aKa\u212aaka", "a|K|a|\u212a|a|ka"),
        (r"[\p{L}&&[^ab]]+", "abcdéa", "ab|cdé|a"),
        (".", "a\nb", "a|\n|b"),
    ],
)
def test_each_construct_cuts_as_the_reference_does(source: str, text: str, pieces: str) -> None:
    assert words(source, text) == pieces.split("|")


def test_an_empty_text_has_no_pieces() -> None:
    assert compiled("a").pieces("") == []


def test_a_piece_behind_a_match_is_found_by_going_back() -> None:
    """Both alternatives are alive for a while; the later end of the first one wins only if it comes."""
    assert words("ab+c|ab|b", "abbbcabbb") == ["abbbc", "ab", "b", "b"]


# --- the tables of docs/decisions/0009-kernels.md ------------------------------------------------------------------


@pytest.mark.parametrize("source", [GPT2_PATTERN, "a", r"a*b|\s+(?!\S)", "(?:ab)*ac", r"[^b]*b|c\z"])
def test_the_table_is_what_the_kernels_read(source: str) -> None:
    found = table(source)
    step = found.step
    assert step.dtype == np.uint16
    assert step.shape == (found.states, found.columns + 1)
    assert not step[DEAD].any()
    assert not (step[START] & MATCH).any()
    assert ((step & (MATCH - 1)) < found.states).all()
    assert not (step[:, found.columns] & (MATCH - 1)).any()  # after the end there is nothing
    assert found.column_of.dtype == np.uint8
    assert sorted(set(found.column_of.tolist())) == list(range(found.columns))


@pytest.mark.parametrize("source", [GPT2_PATTERN, r"a*b|\s+(?!\S)", "(?:ab)*ac"])
def test_no_two_states_and_no_two_columns_are_alike(source: str) -> None:
    step = table(source).step
    assert len(np.unique(step[:, :-1], axis=1).T) == step.shape[1] - 1
    rest = np.delete(step, START, axis=0)
    assert len(np.unique(rest, axis=0)) == len(rest)


def test_characters_that_the_pattern_tells_apart_have_columns_of_their_own() -> None:
    found = table("a|[b-d]|e(?=f)")
    groups = Counter(found.column_of[[ord(char) for char in "abcdefx"]].tolist())
    assert sorted(groups.values()) == [1, 1, 1, 4]  # e, f, x; any of a to d is a match by itself
    assert found.columns == 4


@pytest.mark.parametrize(
    ("source", "gaps"),
    [
        ("a", True),
        (r"[\s\S]", False),
        (".", True),
        (r".|\n", False),
        (r"[^b]*b", True),
        (r"[^b]*b|[^b]+", False),
        (r"\s+(?!\S)|\S+", True),
        (r"\s+(?!\S)|\s+|\S+", False),
        (r"a+(?!b)|[^a]", True),
        (r"ab|[^a]", True),
        (r"a$|a(?!\n)|[^a]", False),
        (r"a$|a(?!\n|b)|[^a]", True),
        (r"a$|a(?=[\s\S])|[^a]", False),
        (r"a\z|a(?=[\s\S])|[^a]", False),
        (r"a(?=[\s\S])|[^a]", True),
        (GPT2_PATTERN, False),
    ],
)
def test_gaps_are_foretold(source: str, gaps: bool) -> None:
    assert table(source).has_gaps is gaps


# --- any pattern on any text -----------------------------------------------------------------------------------------

ATOMS = (
    *("a", "b", "1", " ", r"\.", "B", "é", ".", "ß", "s", r"\n"),
    *(r"\p{L}", r"\p{N}", r"\s", r"\S", r"\w", r"\d", r"\P{L}", r"\W", "(?i:a)", "(?i:ba)", "(?i:'s|'t)", "(?i:[ab])"),
    *("[ab]", "[^a]", r"[^\s\p{L}]", r"[\p{L}&&[^a]]", "[a-z1]", r"[^\r\n\p{L}\p{N}]", "[[ab]1]", r"[^ab\s]"),
    *("(?>a|b)", "(?>a+)", r"(?>\s*)", "(?>[ab]{1,2})", "(?>ab|ba)", "(?>(?:a|1){2,})"),
)
QUANTIFIERS = (*("", "") * 5, "?", "*", "+", "+", "??", "*?", "+?", "{1,3}", "{2}", "{2,}", "{,2}", "{1,3}?", "{2}?")
POSSESSIVE = ("?+", "*+", "++", "{2}+", "{1,3}+", "{2,2}?", "+*")
LOOKS = (r"(?!\S)", "(?=a)", "(?!b)", "$", r"(?!\s)", "(?=[ab1])", r"\z", "(?i:(?=a))", "(?!a|b)", r"(?=\n)")
LETTERS = (*"ab1 .\nBéßsS'ſA", "  ", "ab", "'s", "aaa", "\r\n", "11")


def any_pattern(draw: random.Random, depth: int = 2) -> str:
    """Alternatives of sequences; one atom of each stands by itself, so that few patterns may match nothing."""
    return "|".join(any_sequence(draw, depth) for _ in range(draw.choice((1, 1, 2, 2, 3))))


def any_sequence(draw: random.Random, depth: int) -> str:
    parts = [any_item(draw, depth) for _ in range(draw.randint(0, 3))]
    parts.insert(draw.randint(0, len(parts)), draw.choice(ATOMS))
    if draw.random() < 0.3:
        parts.insert(draw.randint(0, len(parts)), draw.choice(LOOKS))
    return "".join(parts)


def any_item(draw: random.Random, depth: int) -> str:
    if depth > 0 and draw.random() < 0.3:
        return f"(?:{any_pattern(draw, depth - 1)}){draw.choice(QUANTIFIERS)}"
    return draw.choice(ATOMS) + draw.choice((*QUANTIFIERS, *POSSESSIVE))


@settings(max_examples=examples(150))
@given(st.randoms(use_true_random=False), st.sampled_from(["", "", "|.", r"|\s+(?!\S)|\s+|."]))
def test_any_pattern_cuts_any_text_as_the_reference_does(draw: random.Random, rest: str) -> None:
    source = any_pattern(draw) + rest
    try:
        found = compiled(source)
    except TierError as error:
        event(error.code)
        return
    event("compiled")
    twin = pre_tokenizers.Split(Regex(source), "removed", invert=True)
    gaps = found.stages[0].automaton.has_gaps
    for _ in range(25):
        text = "".join(draw.choices(LETTERS, k=draw.randint(1, 14)))
        try:
            starts = expected(source, text)
        except BaseException as error:  # a Rust panic isn't an Exception
            if "retry-limit" not in str(error):
                raise
            event("the reference gives up")
            continue
        assert found.pieces(text) == starts, (source, text)
        assert gaps or sum(len(piece) for piece, _ in twin.pre_tokenize_str(text)) == len(text), (source, text)


def test_most_patterns_of_that_kind_compile() -> None:
    """The property above isn't empty."""
    draw, compiles = random.Random(7), 0
    for _ in range(30):
        try:
            compiled(any_pattern(draw))
        except TierError:
            continue
        compiles += 1
    assert compiles >= 15


# --- refused by name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", "automaton.matches_empty"),
        ("a*", "automaton.matches_empty"),
        ("a|", "automaton.matches_empty"),
        ("a|(?=b)", "automaton.matches_empty"),
        ("$", "automaton.matches_empty"),
        ("a{,2}", "automaton.matches_empty"),
        ("a(?:b*)*", "automaton.empty_loop"),
        ("a(?:b?|c)+", "automaton.empty_loop"),
        ("a(?:(?=b)c?)+", "automaton.empty_loop"),
        ("a(?:b{,2})+", "automaton.empty_loop"),
        ("a(?:b?){2,3}", "automaton.empty_loop"),
        ("(?:ab)++", "automaton.atomic"),
        ("(?>a|ab)c", "automaton.atomic"),
        ("(?>a+b)", "automaton.atomic"),
        ("(?>a+?)b", "automaton.atomic"),
        ("(?>(?>a+)b?)c", "automaton.atomic"),
        ("a{1001}", "automaton.too_large"),
        ("(?:a{30}){40}", "automaton.too_large"),
        (r"(?:\w*a\w{12})", "automaton.too_many_states"),
        ("(?i:ss)", "pattern.case_folding"),
        (r"(?i:[[^a]&&[^b]])", "pattern.case_folding"),
        (r"a(?i:(?![[^a]&&[^b]]))", "pattern.case_folding"),
        (r"a(?=(?i:[[^a]&&[^b]]))", "pattern.case_folding"),
        (r"a(?<=b)", "pattern.look_behind"),
        (r"a(?=bc)", "pattern.long_look_ahead"),
    ],
)
def test_what_the_automaton_cannot_do_is_refused_by_name(source: str, code: str) -> None:
    with pytest.raises(TierError) as refused:
        compiled(source)
    assert refused.value.code == code


def test_a_class_under_case_folding_may_match_two_characters_to_the_reference() -> None:
    """Why such classes are refused: the class holds ß, so "ss" matches it; a negated class doesn't do that."""
    assert expected(r"(?i:[\p{L}])a", "xssa") == [0, 1]
    assert words(r"(?i:[^\d])a", "ssa ßa") == ["s", "sa", " ", "ßa"]


def test_no_rule_comes_of_a_class_that_two_characters_may_match() -> None:
    """ "s" alone is a piece, and yet "ssa" isn't cut between its first two characters."""
    tier = build_tier(tokenizer_json(telltale("sa"), pre_tokenizer=split(r"(?i:[\p{L}])a|.")))
    assert tier.ids("ssa") != tier.ids("s") + tier.ids("sa")
    assert not tier.rule.holds("s", "s")
    pipeline = tier.reference.snapshot.pipeline
    assert pipeline is not None
    rule = derive_class_rule(pipeline, exclusions_of(tier.reference), ReferenceProbe(tier.reference))
    assert rule.reason == "pattern.case_folding"


def test_limits_are_just_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "MAX_STATES", 4)
    assert table("ab").states == 4
    monkeypatch.setattr(automaton, "MAX_STATES", 3)
    with pytest.raises(UnsupportedTokenizer, match=r"automaton\.too_many_states"):
        table("ab")
    monkeypatch.setattr(instructions, "MAX_INSTRUCTIONS", 3)
    assert table("a+").states == 3
    with pytest.raises(UnsupportedTokenizer, match=r"automaton\.too_large"):
        table("a+b")
