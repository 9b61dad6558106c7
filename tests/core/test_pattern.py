"""The split-pattern dialect: what is accepted reads as Oniguruma reads it, everything else is refused by name."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from catalog import CI_FAMILIES
from toktier_tier.core.boundaries import derive_class_rule
from toktier_tier.core.errors import InvalidPattern
from toktier_tier.core.pattern import (
    MAX_ATOMS,
    MAX_DEPTH,
    MAX_PATTERN_CHARS,
    Alternation,
    Assertion,
    Atom,
    Atomic,
    Node,
    Repeat,
    parse,
)
from toktier_tier.core.pipeline import GPT2_PATTERN
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe
from workshop import examples, exclusions_of, family_data, split, telltale, tokenizer_json

# --- refused by name -------------------------------------------------------------------------------------------

REFUSED = [
    # pattern, code, position of the complaint
    (r"(?<=a)b", "pattern.look_behind", 1),
    (r"a(?<!b)", "pattern.look_behind", 2),
    (r"^a", "pattern.look_behind", 0),
    (r"a|^b", "pattern.look_behind", 2),
    (r"(?=ab)c", "pattern.long_look_ahead", 6),
    (r"a(?!b*)", "pattern.long_look_ahead", 7),
    (r"a(?=b|cd)", "pattern.long_look_ahead", 9),
    (r"a(?!(?=b))", "pattern.long_look_ahead", 10),
    (r"a(?=)", "pattern.long_look_ahead", 5),
    (r"(?<name>a)", "pattern.unsupported", 1),
    (r"(?'name'a)", "pattern.unsupported", 1),
    (r"(a)(?(1)b)", "pattern.unsupported", 4),
    (r"(?~a)", "pattern.unsupported", 1),
    (r"(?#note)a", "pattern.unsupported", 1),
    (r"(?i)a", "pattern.unsupported", 1),
    (r"(?x:a)", "pattern.unsupported", 1),
    (r"(?m:.)", "pattern.unsupported", 1),
    (r"(?-i:a)", "pattern.unsupported", 1),
    (r"(?", "pattern.unsupported", 1),
    (r"(a)\1", "pattern.unsupported", 4),
    (r"\bword", "pattern.unsupported", 1),
    (r"\Aa", "pattern.unsupported", 1),
    (r"a\Z", "pattern.unsupported", 2),
    (r"\R", "pattern.unsupported", 1),
    (r"\X", "pattern.unsupported", 1),
    (r"\k<a>", "pattern.unsupported", 1),
    (r"\g<a>", "pattern.unsupported", 1),
    (r"\K", "pattern.unsupported", 1),
    (r"\N", "pattern.unsupported", 1),
    (r"\O", "pattern.unsupported", 1),
    (r"\cA", "pattern.unsupported", 1),
    (r"\M-a", "pattern.unsupported", 1),
    (r"\0", "pattern.unsupported", 1),
    (r"\é", "pattern.unsupported", 1),
    (r"[]a]", "pattern.unsupported", 1),
    (r"[^]a]", "pattern.unsupported", 2),
    (r"[a[]b]", "pattern.unsupported", 3),
    (r"a{", "pattern.bad_quantifier", 1),
    (r"a{}", "pattern.bad_quantifier", 1),
    (r"a{,}", "pattern.bad_quantifier", 1),
    (r"a{x}", "pattern.bad_quantifier", 1),
    (r"a{3,2}", "pattern.bad_quantifier", 1),
    (r"a{0}", "pattern.bad_quantifier", 1),
    (r"a{0,0}", "pattern.bad_quantifier", 1),
    (r"a{100001}", "pattern.bad_quantifier", 1),
    (r"a{٣}", "pattern.bad_quantifier", 1),
    (r"a{-1}", "pattern.bad_quantifier", 1),
    (r"a{1,2,3}", "pattern.bad_quantifier", 1),
    (r"*a", "pattern.bad_quantifier", 0),
    (r"a|+b", "pattern.bad_quantifier", 2),
    (r"(?:?)", "pattern.bad_quantifier", 3),
    (r"{2}a", "pattern.bad_quantifier", 0),
    (r"a(?=b)*", "pattern.quantified_assertion", 7),
    (r"a$+", "pattern.quantified_assertion", 3),
    (r"(a", "pattern.unbalanced", 2),
    (r"a)", "pattern.unbalanced", 1),
    (r"(?:a|b", "pattern.unbalanced", 6),
    (r"[a", "pattern.unbalanced", 2),
    (r"[a\]", "pattern.unbalanced", 4),
    (r"[[a]", "pattern.unbalanced", 4),
    ("a\\", "pattern.bad_escape", 2),
    (r"\p", "pattern.bad_escape", 1),
    (r"\pL", "pattern.bad_escape", 1),
    (r"\p{L", "pattern.bad_escape", 1),
    (r"\p{}", "pattern.bad_escape", 1),
    (r"\p{a b}", "pattern.bad_escape", 1),
    (r"\x", "pattern.bad_escape", 1),
    (r"\x4", "pattern.bad_escape", 1),
    (r"\x{}", "pattern.bad_escape", 1),
    (r"\x{110000}", "pattern.bad_escape", 1),
    (r"\x{d800}", "pattern.bad_escape", 1),
    (r"\x{41", "pattern.bad_escape", 1),
    (r"\xe9", "pattern.bad_escape", 1),  # a byte of UTF-8, not a character, to Oniguruma
    (r"\u00e", "pattern.bad_escape", 1),
    (r"\u{e9}", "pattern.bad_escape", 1),
    (r"\ud83d", "pattern.bad_escape", 1),
    (r"(?i:é)", "pattern.case_folding", 5),
    (r"(?i:[é])", "pattern.case_folding", 7),
    (r"(?i:[\x{e9}])", "pattern.case_folding", 12),
    (r"(?i:\x{e9})", "pattern.case_folding", 10),
    (r"(?i:ß)", "pattern.case_folding", 5),
]


@pytest.mark.parametrize(("source", "code", "position"), REFUSED, ids=[source for source, _, _ in REFUSED])
def test_what_is_outside_the_dialect_is_refused_by_name_and_place(source: str, code: str, position: int) -> None:
    with pytest.raises(InvalidPattern) as caught:
        parse(source)
    assert (caught.value.code, caught.value.details["position"]) == (code, position)


def test_a_pattern_that_is_too_long_is_refused() -> None:
    assert len(parse("a" * MAX_ATOMS).atoms) == MAX_ATOMS
    for source, code in (
        ("a" * (MAX_PATTERN_CHARS + 1), "pattern.too_long"),
        ("a" * (MAX_ATOMS + 1), "pattern.too_large"),
    ):
        with pytest.raises(InvalidPattern) as caught:
            parse(source)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("opening", "closing"), [("(", ")"), ("(?:", ")"), ("(?>", ")"), ("(?i:", ")"), ("[", "]"), ("[^", "]")]
)
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    deepest = MAX_DEPTH - (opening[0] == "(")
    parse(opening * deepest + "a" + closing * deepest)
    for depth in (MAX_DEPTH + 1, 3_000):
        with pytest.raises(InvalidPattern) as caught:
            parse(opening * depth + "a" + closing * depth)
        assert caught.value.code == "pattern.too_deep"


def test_look_aheads_nested_deeply_are_refused_too() -> None:
    with pytest.raises(InvalidPattern):
        parse("a" + "(?=" * 3_000 + "b" + ")" * 3_000)


def test_groups_side_by_side_are_not_nested() -> None:
    assert len(parse("(a)" * 200).atoms) == 200


# --- accepted, and read as Oniguruma reads it --------------------------------------------------------------------


def shape(node: Node) -> object:
    """The tree as plain tuples: literals as themselves, other atoms and assertions by source."""
    if isinstance(node, Atom):
        return node.literal if node.literal is not None else node.source
    if isinstance(node, Assertion):
        return ("assert", node.source)
    if isinstance(node, Atomic):
        return ("atomic", shape(node.item))
    if isinstance(node, Repeat):
        return (node.mode, node.least, node.most, shape(node.item))
    kind = "or" if isinstance(node, Alternation) else "then"
    return (kind, *map(shape, node.items))


SHAPES = [
    ("", ("then",)),
    ("a", "a"),
    ("ab", ("then", "a", "b")),
    ("a|b", ("or", "a", "b")),
    ("a|", ("or", "a", ("then",))),
    ("a?", ("greedy", 0, 1, "a")),
    ("a*?", ("lazy", 0, None, "a")),
    ("a++", ("possessive", 1, None, "a")),
    ("a?+", ("possessive", 0, 1, "a")),
    ("a{2}", ("greedy", 2, 2, "a")),
    ("a{2,}", ("greedy", 2, None, "a")),
    ("a{,3}", ("greedy", 0, 3, "a")),
    ("a{1,3}?", ("lazy", 1, 3, "a")),
    ("a{1,3}+", ("greedy", 1, None, ("greedy", 1, 3, "a"))),  # Ruby syntax: a repeat of a repeat
    ("a{2}+", ("greedy", 1, None, ("greedy", 2, 2, "a"))),
    ("a{2}?", ("greedy", 0, 1, ("greedy", 2, 2, "a"))),  # Ruby syntax: optional, not lazy
    ("a+*", ("greedy", 0, None, ("greedy", 1, None, "a"))),
    ("(?>a|b)", ("atomic", ("or", "a", "b"))),
    ("(a)(?:b)", ("then", "a", "b")),
    ("a$", ("then", "a", ("assert", "$"))),
    (r"a\z", ("then", "a", ("assert", r"\z"))),
    (r"\s+(?!\S)", ("then", ("greedy", 1, None, r"\s"), ("assert", r"(?!\S)"))),
    ("a(?=b|c)", ("then", "a", ("assert", "(?=b|c)"))),
    (r"\p{L}\P{^Nd}", ("then", r"\p{L}", r"\P{^Nd}")),
    (r"[a-z&&[^b]]", r"[a-z&&[^b]]"),
    (r"[\p{L}&&[^\p{Han}]]", r"[\p{L}&&[^\p{Han}]]"),
    (r"[[a-c][^\[\]]]+", ("greedy", 1, None, r"[[a-c][^\[\]]]")),
    (r"[a\]b]", r"[a\]b]"),
    (r"[[:alpha:]_]", r"[[:alpha:]_]"),
    (r"\n\r\t\f\v\a\e", ("then", "\n", "\r", "\t", "\f", "\v", "\a", "\x1b")),
    (r"\x41\x{e9}\u4e2d", ("then", "A", "é", "中")),
    (r"\.\*\\\/\-\ ", ("then", ".", "*", "\\", "/", "-", " ")),
    ("]", "]"),
    ("}", "}"),
    (".", "."),
    (r"\h\H\d\D\w\W\s\S", ("then", r"\h", r"\H", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S")),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), SHAPES, ids=[source or "empty" for source, _ in SHAPES])
def test_the_dialect_is_read_as_oniguruma_reads_it(source: str, expected: object) -> None:
    assert shape(parse(source).root) == expected


def test_atoms_under_ignore_case_carry_the_flag_in_their_source() -> None:
    pattern = parse(r"(?i:'s|[a-c]\d)x")
    assert [(atom.source, atom.ignore_case) for atom in pattern.atoms] == [
        (r"(?i:\x{27})", True),
        (r"(?i:\x{73})", True),
        (r"(?i:[a-c])", True),
        (r"(?i:\d)", True),
        (r"\x{78}", False),
    ]


def test_what_a_look_ahead_reads_is_no_atom_of_the_match() -> None:
    pattern = parse(r"a(?=[bc])d(?!e|f)$")
    assert [atom.literal for atom in pattern.atoms] == ["a", "d"]
    assert [assertion.source for assertion in pattern.assertions] == ["(?=[bc])", "(?!e|f)", "$"]


def matches(source: str, text: str) -> list[str]:
    """What the reference's engine matches in `text`."""
    splitter = pre_tokenizers.Split(Regex(source), "removed", invert=True)
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("source", "twin", "text"),
    [
        ("a{1,3}+", "(?:(?:a{1,3})+)", "aaaaaaa"),
        ("a{2}?b", "(?:a{2})?b", "b ab aab"),
        ("a{,2}b", "a{0,2}b", "b ab aab aaab"),
        ("a$", "a(?=\n|\\z)", "a\na b a"),
        (r"\x{61}\u0062", "ab", "ab"),
        ("[a-f&&[^c]]+", "[abdef]+", "abcdef"),
        ("[[a-c][x]]+", "[abcx]+", "abxcd"),
    ],
)
def test_the_readings_that_differ_between_engines_are_the_references(source: str, twin: str, text: str) -> None:
    assert matches(source, text) == matches(twin, text)


def test_a_fixed_interval_written_with_a_comma_is_lazy_not_optional() -> None:
    """Oniguruma: `x{2}?` is optional, `x{2,2}?` is not, so a lone `b` is no match of the second."""
    assert matches("a{2}?b", "b") == ["b"]
    assert matches("a{2,2}?b", "b") == []
    assert shape(parse("a{2,2}?").root) == ("lazy", 2, 2, "a")


@pytest.mark.parametrize(
    ("source", "folded"),
    [("(?i:ss)", "ß"), ("(?i:s(?:t))", "ﬆ"), ("(?i:xfi)", "xﬁ"), ("(?i:ffl)", "ﬄ"), ("(?i:'st)", "'ﬆ")],
)
def test_no_rule_comes_of_a_pattern_in_which_one_character_folds_to_two(source: str, folded: str) -> None:
    """The reference matches ß against two atoms at once: they no longer consume one character each."""
    assert matches(source, folded) == [folded]
    data = tokenizer_json(telltale("abßsﬆﬁﬄx"), pre_tokenizer=split(f"{source}|[a-z]|ß| "))
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    rule = derive_class_rule(pipeline, exclusions_of(reference), ReferenceProbe(reference))
    assert (rule.kind, rule.reason) == ("none", "pattern.case_folding")


# --- real patterns ---------------------------------------------------------------------------------------------


def regexes(document: object) -> list[str]:
    if isinstance(document, dict):
        own = [document["Regex"]] if isinstance(document.get("Regex"), str) else []
        return own + [found for value in document.values() for found in regexes(value)]
    return [found for value in document for found in regexes(value)] if isinstance(document, list) else []


@cache
def real_patterns() -> tuple[str, ...]:
    found = dict.fromkeys([GPT2_PATTERN])
    for family in CI_FAMILIES:
        found.update(dict.fromkeys(regexes(json.loads(family_data(family))["pre_tokenizer"])))
    return tuple(found)


@pytest.mark.parametrize("family", CI_FAMILIES)
def test_every_pattern_of_a_genuine_file_parses(family: str) -> None:
    for source in regexes(json.loads(family_data(family))["pre_tokenizer"]):
        pattern = parse(source)
        assert [atom.index for atom in pattern.atoms] == list(range(len(pattern.atoms)))
        assert [assertion.index for assertion in pattern.assertions] == list(range(len(pattern.assertions)))
        for part in {*(a.source for a in pattern.atoms), *(a.source for a in pattern.assertions)}:
            Regex(part)  # each is complete by itself to the reference


# --- anything at all -------------------------------------------------------------------------------------------

FRAGMENTS = [
    "a", "b", "Z", "'", " ", "é", "|", "(", ")", "(?:", "(?>", "(?i:", "(?=", "(?!", "(?<=", "[", "[^", "]", "[]", "&&",
    "-", "*", "+", "?", "{", "}", "{1,3}", "{2}", "{,4}", ",", "1", "99999999999", "\\", r"\s", r"\p{L}", r"\P{^N}",
    r"\x{", r"\x41", r"\u00e9", r"\z", "$", "^", ".", "\n", "\x00", "[:alpha:]", "\U0001f600", "\ud800",
]  # fmt: skip


def parse_or_refuse(source: str) -> None:
    try:
        pattern = parse(source)
    except InvalidPattern as error:
        code = error.code
    else:
        assert pattern.source == source
        assert [atom.index for atom in pattern.atoms] == list(range(len(pattern.atoms)))
        return
    assert code.startswith("pattern.")


@settings(max_examples=examples(400))
@given(st.text(max_size=60) | st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_any_text_parses_or_is_refused(source: str) -> None:
    parse_or_refuse(source)


@settings(max_examples=examples(200))
@given(st.data())
def test_a_damaged_real_pattern_parses_or_is_refused(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(real_patterns()))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(source)))
        stop = min(start + data.draw(st.integers(0, 6)), len(source))
        source = source[:start] + data.draw(st.sampled_from(["", *FRAGMENTS])) + source[stop:]
    parse_or_refuse(source)


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(FRAGMENTS[:-1]), max_size=12).map("".join))
def test_what_parses_is_made_of_atoms_that_the_reference_reads_the_same_way(source: str) -> None:
    """If the reference takes the whole pattern, it takes every atom by itself: none was cut in the wrong place."""
    try:
        pattern = parse(source)
        Regex(source)
    except Exception:
        return
    for atom in pattern.atoms:
        Regex(atom.source)
        if atom.literal is not None and not atom.ignore_case:
            assert matches(atom.source, atom.literal) == [atom.literal]


def test_python_and_the_reference_agree_on_plain_patterns() -> None:
    """The twin that tests/core/test_follow.py compares with is the same language."""
    text = "ab1 aab  b\n1a1b "
    for source in ("a+b?", "[ab]+|1", "(?>a|ab)b", "a++b", r"\s+(?!\S)|\s", "b*?1"):
        assert matches(source, text) == [m.group() for m in re.finditer(source, text)]
