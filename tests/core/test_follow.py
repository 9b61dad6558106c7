"""Glushkov's sets over-approximate what the real engines match, and `alone` promises no more than they keep."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from toktier_tier.core.errors import InvalidPattern
from toktier_tier.core.follow import Follow, compute_follow
from toktier_tier.core.pattern import MAX_ATOMS, Pattern, parse
from toktier_tier.core.pipeline import GPT2_PATTERN
from workshop import GENERAL, examples


def follow_of(source: str) -> Follow:
    return compute_follow(parse(source))


def literals(pattern: Pattern, pairs: frozenset[tuple[int, int]]) -> set[str]:
    return {f"{pattern.atoms[i].literal}{pattern.atoms[j].literal}" for i, j in pairs}


@pytest.mark.parametrize(
    ("source", "pairs"),
    [
        ("a", ""),
        ("abc", "ab bc"),
        ("a|bc", "bc"),
        ("a+", "aa"),
        ("a?b", "ab"),
        ("ab?c", "ab bc ac"),
        ("a*b*c", "aa bb ab bc ac"),
        ("(?:ab)+", "ab ba"),
        ("a{1}b", "ab"),
        ("a{1,3}b", "aa ab"),
        ("a{1,3}+", "aa"),
        ("(?>ab|c)d", "ab bd cd"),
        ("(?:a|b)(?:c|d)", "ac ad bc bd"),
        ("ab(?!c)d", "ab bd"),
        ("a(?!b)(?!c)d", "ad"),
        ("a(?:$|(?=b))c", "ac"),
        ("(?:a$)+", "aa"),
        ("(?:a|b$)+c", "aa ab ba bb ac bc"),
    ],
)
def test_pairs_are_the_neighbours_of_the_pattern(source: str, pairs: str) -> None:
    pattern = parse(source)
    assert literals(pattern, compute_follow(pattern).pairs) == set(pairs.split())


@pytest.mark.parametrize(
    ("source", "tainted"),
    [
        ("ab", ""),
        ("ab$", "b"),
        ("a(?!x)b", "a"),
        ("a?b?$c", "ab"),
        ("ab*(?=x)(?!y)c", "ab"),
        ("a|b(?!x)", "b"),
        ("(?:a|b$)+c", "b"),
        (r"(?:ab\z|c)d", "b"),
        ("(?>a$)b", "a"),
    ],
)
def test_tainted_atoms_stand_before_an_assertion(source: str, tainted: str) -> None:
    pattern = parse(source)
    assert {str(pattern.atoms[i].literal) for i in compute_follow(pattern).tainted} == set(tainted)


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ("a", {"a": ""}),
        ("ab", {}),
        ("a|bc", {"a": ""}),
        ("a?b", {"b": ""}),
        ("a?+b", {"b": "a"}),  # the possessive neighbour would have taken a `b` if it could
        ("a*+b?+c", {"c": "ab"}),
        ("(?>a?)b", {}),
        ("ab*", {"a": ""}),
        ("ab*+", {"a": ""}),
        ("a{2}", {}),
        ("a{2}|b", {"b": ""}),
        ("a{1,3}+", {"a": ""}),
        ("(?:a|bc)+", {"a": ""}),
        ("(?:a|b)++c?", {}),
        ("(?:a?b)++", {}),
        ("a$", {}),
        ("a(?!b)|c", {"c": ""}),
        ("$a|b", {"b": ""}),
        ("a|(?>b)", {"a": ""}),
    ],
)
def test_alone_names_atoms_that_suffice_and_what_spoils_them(source: str, alone: dict[str, str]) -> None:
    pattern = parse(source)
    found = {
        str(pattern.atoms[i].literal): "".join(sorted(str(pattern.atoms[j].literal) for j in excluded))
        for i, excluded in compute_follow(pattern).alone
    }
    assert found == alone


@pytest.mark.parametrize(
    "source",
    [
        *("", "a?", "a*", "a|", "a*b*", "(?:a?)+", "(?=a)", "$", "a|$", "(?>a?)", "a{,3}", "a?(?!b)"),
        *("(?=a)(?=[ab])", "(?=a)$", "b|(?=a)(?!b)", "(?:(?=a)|(?=b))(?!c)", "(?>(?=a)(?=b))+", "(?=a)b?(?!c)d*"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_refused(source: str) -> None:
    with pytest.raises(InvalidPattern) as caught:
        follow_of(source)
    assert caught.value.code == "pattern.matches_empty"


# --- against the engines ---------------------------------------------------------------------------------------

ALPHABET = "abc1 \n"
ATOMS = ["a", "b", "c", "1", " ", "[ab]", "[^a]", "[^\\s]", r"\s", r"\d", "."]
QUANTIFIERS = ["?", "*", "+", "??", "*?", "+?", "?+", "*+", "++", "{2}", "{1,2}", "{2,}", "{,2}", "{1,3}?"]
ASSERTIONS = ["(?!a)", "(?=b)", r"(?!\S)", "(?=[a1])", r"\z"]


@st.composite
def patterns(draw: st.DrawFn, depth: int = 3) -> str:
    """A pattern of the sub-dialect that Python's `re` and Oniguruma read alike (but for `$`)."""
    kind = draw(st.integers(0, 9 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from(ATOMS))
    inner = patterns(depth - 1)
    if kind <= 4:
        return draw(inner) + draw(inner)
    if kind == 5:
        return f"(?:{draw(inner)}|{draw(inner)})"
    if kind <= 7:
        return f"(?:{draw(inner)}){draw(st.sampled_from(QUANTIFIERS))}"
    if kind == 8:
        return f"(?>{draw(inner)})"
    return draw(inner) + draw(st.sampled_from(ASSERTIONS)) + draw(st.sampled_from(["", *ATOMS]))


@cache
def accepts(source: str, char: str) -> bool:
    """Whether the atom accepts the character, by the reference's engine."""
    return bool(normalizers.Replace(Regex(source), "").normalize_str(char) == "")


def python_matches(source: str, text: str) -> list[tuple[int, int]]:
    # In Python a `.` spares the line feed only, `\s` and `\d` differ outside of this alphabet; `{,2}` is 3.11's own.
    return [match.span() for match in re.finditer(source.replace(r"\z", r"\Z"), text)]


def reference_matches(source: str, text: str) -> list[tuple[int, int]]:
    splitter = pre_tokenizers.Split(Regex(source), "removed", invert=True)
    return [span for _, span in splitter.pre_tokenize_str(text)]


def unexplained(pattern: Pattern, follow: Follow, match: str) -> list[str]:
    """Neighbours in a match that no pair of atoms accounts for."""
    return [
        match[at : at + 2]
        for at in range(len(match) - 1)
        if not any(
            accepts(pattern.atoms[i].source, match[at]) and accepts(pattern.atoms[j].source, match[at + 1])
            for i, j in follow.pairs
        )
    ]


def check_pattern(source: str, text: str) -> None:
    pattern = parse(source)
    try:
        follow = compute_follow(pattern)
    except InvalidPattern:
        return
    found = reference_matches(source, text)
    for start, end in found:
        assert unexplained(pattern, follow, text[start:end]) == []
    suffice = [(pattern.atoms[i].source, [pattern.atoms[j].source for j in excluded]) for i, excluded in follow.alone]
    for start, char in enumerate(text):
        if any(accepts(atom, char) and not any(accepts(e, char) for e in spoiled) for atom, spoiled in suffice):
            assert reference_matches(source, text[start:])[:1] != []
            assert reference_matches(source, text[start:])[0][0] == 0, (source, text[start:])


@settings(max_examples=examples(300))
@given(patterns(), st.text(ALPHABET, max_size=14))
def test_every_neighbourhood_of_a_real_match_is_in_pairs(source: str, text: str) -> None:
    check_pattern(source, text)


@settings(max_examples=examples(200))
@given(patterns(), st.text(ALPHABET, max_size=14))
def test_python_finds_no_match_that_the_sets_do_not_allow(source: str, text: str) -> None:
    try:
        follow = follow_of(source)
        found = python_matches(source, text)
    except (InvalidPattern, re.error):
        return
    for start, end in found:
        assert unexplained(parse(source), follow, text[start:end]) == []


@settings(max_examples=examples(200))
@given(patterns(), st.text(ALPHABET, min_size=1, max_size=10), st.sampled_from(ALPHABET))
def test_only_a_tainted_atom_cares_what_follows_the_match(source: str, text: str, other: str) -> None:
    """A match that ends where no atom is tainted and none can go on is the same whatever comes next."""
    try:
        follow = follow_of(source)
    except InvalidPattern:
        return
    pattern = parse(source)
    spans = [span for span in reference_matches(source, text) if span[1] < len(text)]
    if not spans or spans[0][0] != 0:
        return
    end = spans[0][1]
    last = [i for i, atom in enumerate(pattern.atoms) if accepts(atom.source, text[end - 1])]
    if set(last) & follow.tainted:
        return
    following = {j for i, j in follow.pairs if i in last}
    for char in (text[end], other):
        if any(accepts(pattern.atoms[j].source, char) for j in following):
            return
    assert (0, end) in reference_matches(source, text[:end] + other + text[end + 1 :])[:1]


@pytest.mark.parametrize(
    "source",
    [GPT2_PATTERN, r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s+"],
)
def test_real_patterns_over_characters_of_every_class(source: str) -> None:
    pattern = parse(source)
    follow = compute_follow(pattern)
    for step in range(1, 30):
        text = (GENERAL * step)[::step]
        for start, end in reference_matches(source, text):
            assert unexplained(pattern, follow, text[start:end]) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a{2,2}?b|a", "b"),  # lazy, not optional: a lone b is no match
        ("(?:a|ab)*+b|a", "aab"),
        ("(?>a*)[ab]|b", "aaa"),
        ("a?+[ab]", "a"),
        ("(?:a?+b?+)c| ", "abc"),
        ("a{1,3}+b?", "aaaaaaab"),
    ],
)
def test_regressions(source: str, text: str) -> None:
    check_pattern(source, text)


def test_the_sets_of_the_largest_pattern_are_computed() -> None:
    repeated = MAX_ATOMS // 3
    follow = follow_of("(?:" + "|".join("ab?c*" for _ in range(repeated)) + ")+")
    assert len(follow.pairs) > repeated * repeated
