"""The proof holds exactly the pairs that every text bears out, and rejects each rule that claims one more."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace as with_fields
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from toktier_tier.core.automaton import Automaton
from toktier_tier.core.boundaries import BoundaryRule
from toktier_tier.core.classes import CODE_POINTS
from toktier_tier.core.errors import TierError
from toktier_tier.core.pipeline import GPT2_PATTERN, Position, PreTokenizerStep, parse_pipeline
from toktier_tier.core.proof import Proof, prove_rule
from toktier_tier.core.proof.characters import allowed_characters
from toktier_tier.core.proof.classes import Provable, provable_pairs, prove_classes
from toktier_tier.core.proof.contexts import columns_around
from toktier_tier.core.proof.stages import CONDITIONS, Decided, build_stages, decide
from toktier_tier.core.splitting import step_automaton
from toktier_tier.encoders.reference import (
    BLANK_MODEL,
    Reference,
    ReferenceProbe,
    class_members,
    load_tokenizer,
    pieces_of,
    predicate_members,
)
from workshop import (
    bpe,
    build_tier,
    byte_level,
    byte_telltale,
    derive_rule,
    examples,
    family_reference,
    metaspace,
    split,
    telltale,
    token,
    tokenizer_json,
)
from workshop import pre_tokenizers as in_turn
from workshop import replace as replaced

NFC = {"type": "NFC"}


class CachedProbe:
    """The reference's answers, each asked for once a run."""

    members = staticmethod(cache(class_members))
    predicate = staticmethod(predicate_members)


PROBE: Any = CachedProbe()


# --- one step: the conditions are exact ------------------------------------------------------------------------------


def automaton_of(source: str, letters: str) -> Automaton:
    """Over an alphabet of those letters only."""
    alphabet = np.array([ord(letter) for letter in letters], dtype=np.uint32)
    return step_automaton(PreTokenizerStep("regex", "Split", source), PROBE, alphabet)


def starts_of(automaton: Automaton, columns: list[int]) -> list[int]:
    starts: list[int] = []
    automaton.cut(columns, 0, len(columns), starts)
    return starts


def reference_starts(source: str, text: str) -> list[int]:
    return [start for _, (start, _) in pre_tokenizers.Split(Regex(source), "isolated").pre_tokenize_str(text)]


def is_apart(starts: Callable[[Any, Any], list[int]], splitter: Any, whole: Any, position: int) -> bool:
    """Whether the pieces are those of the two sides."""
    left, right = starts(splitter, whole[:position]), starts(splitter, whole[position:])
    return starts(splitter, whole) == left + [position + at for at in right]


def broken_pairs(automaton: Automaton, longest: int) -> set[tuple[int, int]]:
    """Pairs of columns at which some text of up to `longest` characters isn't cut into what its sides give."""
    known = {
        text: starts_of(automaton, list(text))
        for length in range(longest + 1)
        for text in itertools.product(range(automaton.columns), repeat=length)
    }
    return {
        (text[at - 1], text[at])
        for text in known
        for at in range(1, len(text))
        if known[text] != known[text[:at]] + [at + start for start in known[text[at:]]]
    }


def failing(decided: Decided, pair: tuple[int, int]) -> list[str]:
    return [name for name in CONDITIONS if getattr(decided, name)[pair]]


ATOMS = ("a", "b", r"\s", r"\S", "[ab]", "[^a]", ".", "1", r"\p{L}", r"[^\s\p{L}]")
QUANTIFIERS = ("", "", "", "?", "*", "+", "+?", "*?", "{2}", "{1,2}", "{2,}", "?+", "*+", "++")
LOOKS = (r"(?!\S)", "(?=a)", "(?!b)", "$", r"(?!\s)", r"\z")
RESTS = ("", "", r"|[\s\S]", r"|\s+(?!\S)|\s+|\S", r"|[^a]+|a")


def any_pattern(draw: random.Random) -> str:
    alternatives = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        parts = [draw.choice(ATOMS) + draw.choice(QUANTIFIERS) for _ in range(draw.randint(1, 3))]
        if draw.random() < 0.4:
            parts.insert(draw.randint(0, len(parts)), draw.choice(LOOKS))
        if draw.random() < 0.2:
            parts.append(f"(?:{draw.choice(ATOMS)}{draw.choice(ATOMS)}){draw.choice(('', '?', '+', '*'))}")
        alternatives.append("".join(parts))
    return "|".join(alternatives) + draw.choice(RESTS)


def compiled_patterns(seed: int, count: int, letters: str) -> Iterator[tuple[str, Automaton]]:
    draw = random.Random(seed)
    while count:
        source = any_pattern(draw)
        try:
            automaton = automaton_of(source, letters)
        except TierError:
            continue
        if automaton.columns > 1:
            count -= 1
            yield source, automaton


@pytest.mark.parametrize("letters", ["ab ", "a1 \n"])
def test_a_step_cuts_exactly_where_every_text_is_cut_into_what_its_sides_give(letters: str) -> None:
    """Both directions, for any pattern. Claimed pairs: no text of up to 6 characters is against it. Others: a text
    shows why, to the automaton and to the reference, unless only `sees` fails and gaps may hide it."""
    proved = refuted = hidden = 0
    for source, automaton in compiled_patterns(5, examples(60), letters):
        decided = decide(automaton)
        broken = broken_pairs(automaton, 6 if automaton.columns < 4 else 5)
        letter_of = {int(automaton.column_of[at]): letter for at, letter in enumerate(letters)}
        for pair in itertools.product(range(automaton.columns), repeat=2):
            if decided.cuts[pair]:
                assert pair not in broken, (source, pair)
                proved += 1
                continue
            condition = failing(decided, pair)[0]
            before, after = columns_around(automaton, *pair, condition)
            columns = [*before, *pair, *after]
            text, at = "".join(letter_of[column] for column in columns), len(before) + 1
            shown = not is_apart(starts_of, automaton, columns, at)
            if condition == "sees" and automaton.has_gaps:
                hidden += pair not in broken
            else:
                assert shown, (source, text, condition)
                refuted += 1
            assert is_apart(reference_starts, source, text, at) is not shown, (source, text)
    assert min(proved, refuted) > 20 > hidden


@pytest.mark.parametrize(
    ("source", "pair", "condition", "text"),
    [
        (r"ab|[\s\S]", "ab", "straddles", "ab"),  # one match over the pair
        (r"a.*c|[\s\S]", "ax", "straddles", "axc"),  # one match, if a "c" comes later
        (r"\s+(?!\S)|\s+|\S+", " a", "sees", "  a"),  # how many spaces match depends on what follows them
        (r"aa$|[\s\S]", "ab", "sees", "aab"),
        (r"[0-9]", "ab", "joins", "ab"),  # no match covers either: one piece
    ],
)
def test_each_condition_is_needed(source: str, pair: str, condition: str, text: str) -> None:
    automaton = automaton_of(source, "ab cx1")
    columns = {letter: int(automaton.column_of[at]) for at, letter in enumerate("ab cx1")}
    assert failing(decide(automaton), (columns[pair[0]], columns[pair[1]])) == [condition]
    assert not is_apart(reference_starts, source, text, text.index(pair) + 1)


# --- steps in turn, bytes and rewriting steps ------------------------------------------------------------------------


def provable(pre_tokenizer: Any) -> Provable:
    pipeline = parse_pipeline(None, pre_tokenizer)
    return provable_pairs(build_stages(pipeline, PROBE), allowed_characters(pipeline, (), str, PROBE))


def reference_pieces(pre_tokenizer: Any) -> Callable[[str, Position], list[str]]:
    documents = parse_pipeline(None, pre_tokenizer).pre_tokenizer_documents
    blank = {"version": "1.0", "added_tokens": [], "model": BLANK_MODEL}
    built = {at: load_tokenizer({**blank, "pre_tokenizer": documents[at]}).pre_tokenizer for at in Position}
    return lambda text, at: [piece for piece, _ in built[at].pre_tokenize_str(text)]


MERGED = [split(" ", behavior, regex=False) for behavior in ("MergedWithPrevious", "MergedWithNext", "Contiguous")]
WORDS = r" ?\p{L}+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("steps", "least"),
    [
        ([split(r"\p{N}{1,2}"), split(r"[é中]+"), split(WORDS)], 20),
        ([split(r"\p{N}"), split(r"a[\s\S]?")], 5),  # the second step sees what the first leaves in one piece
        ([{"type": "Digits", "individual_digits": False}, byte_level()], 10),
        ([{"type": "Punctuation", "behavior": "MergedWithNext"}, split(r"\s+|\S")], 5),
        ([{"type": "WhitespaceSplit"}, split(r"a+")], 10),
        ([{"type": "BertPreTokenizer"}], 10),
        ([split(WORDS, "Removed", invert=True)], 5),
        ([split(r"\s|1", "Removed"), split("a")], 10),
        ([MERGED[0], split("a+")], 5),
        ([MERGED[1], split("a+")], 5),
        ([MERGED[2]], 5),
        ([metaspace()], 5),
        ([metaspace("first"), split("a+")], 5),
        ([split("1"), metaspace()], 5),  # what the second step prefixes must be cut by the first
        ([split("1"), byte_level(add_prefix_space=True)], 5),
        ([byte_level(use_regex=False), split("a|Ġ")], 5),
        ([byte_level(use_regex=False), {"type": "Digits", "individual_digits": True}], 5),  # the byte 0xB2 is "²"
    ],
)
def test_steps_in_turn_cut_every_text_as_proved(steps: list[Any], least: int) -> None:
    document = in_turn(*steps)
    found, pieces = provable(document), reference_pieces(document)
    letters = "ab1 .é中▁"
    draw = random.Random(3)
    texts = ["".join(text) for text in itertools.product(letters, repeat=2)]
    texts += ["".join(draw.choices(letters, k=draw.randint(3, 7))) for _ in range(examples(600))]
    proved = {a + b for a in letters for b in letters if found.holds(a, b)}
    assert len(proved) >= least
    for text in texts:
        whole = pieces(text, Position.TEXT_START)
        for at in range(1, len(text)):
            if text[at - 1 : at + 1] in proved:
                apart = pieces(text[:at], Position.TEXT_START) + pieces(text[at:], Position.CONTINUATION)
                assert apart == whole, (text, at)


def test_a_cut_counts_only_if_no_earlier_step_mixes_the_sides() -> None:
    behind = provable(in_turn(split(r"ab|[\s\S]"), split(r"[\s\S]")))
    assert not behind.holds("a", "b")
    assert behind.holds("b", "a")
    assert not provable(in_turn(split("1"), byte_level(add_prefix_space=True))).holds("a", ".")
    assert provable(in_turn(split("1"), byte_level())).holds("a", ".")


# --- normalizer and added tokens -------------------------------------------------------------------------------------


def proof_of(reference: Reference, rule: BoundaryRule | None = None) -> Proof:
    snapshot = reference.snapshot
    assert snapshot.pipeline is not None
    normalize = reference.normalizer(Position.TEXT_START) or str
    tokens, probe = reference.added_tokens(), ReferenceProbe(reference)
    return prove_rule(rule or derive_rule(reference), snapshot.pipeline, snapshot.model, tokens, normalize, probe)


@cache
def provable_of(reference: Reference) -> Provable:
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    probe, normalize = ReferenceProbe(reference), reference.normalizer(Position.TEXT_START) or str
    characters = allowed_characters(pipeline, reference.added_tokens(), normalize, probe)
    return provable_pairs(build_stages(pipeline, probe), characters)


def judged(reference: Reference, pair: str) -> Proof:
    """The verdict on a rule of that pair alone."""
    return prove_classes(claiming(pair), provable_of(reference))


def claiming(*pairs: str) -> BoundaryRule:
    """A rule of those pairs, and of all others of their characters that come with them."""
    left, right = bytearray(CODE_POINTS), bytearray(CODE_POINTS)
    for number, (a, b) in enumerate(pairs, 1):
        left[ord(a)], right[ord(b)] = number, number
    table = [bytes(len(pairs) + 1)]
    table += [bytes(int(i == j > 0) for j in range(len(pairs) + 1)) for i in range(1, len(pairs) + 1)]
    return BoundaryRule("classes", left=bytes(left), right=bytes(right), table=tuple(table))


@cache
def composing() -> Reference:
    model = telltale("xaạậấ\u0301\u0323\u0302")
    return build_tier(tokenizer_json(model, normalizer=NFC, pre_tokenizer=split(r"[xậ]+|[\s\S]"))).reference


def test_the_right_character_is_judged_by_all_that_it_may_be_composed_to() -> None:
    """ "ấ" and a dot below, which goes before its acute accent, begin with "ậ"."""
    reference = composing()
    pieces = pieces_of(reference)
    text = "xấ\u0323"
    assert pieces(text, Position.TEXT_START) == ["xậ", "\u0301"]
    for pair in ("xấ", "xa", "xạ"):
        found = judged(reference, pair)
        assert (found.status, found.counts.claimed, found.counts.unproved) == ("refuted", 1, 1)
    assert judged(reference, "ấx").status == "proved"
    assert proof_of(reference).status == "proved"


@pytest.mark.parametrize("pair", ["x\u0301", "\u0301x", "\u1161x", "x\u1161", "\u212bx", "x\u212b", "\u0345x"])
def test_no_character_that_the_normalizer_moves_joins_or_changes_stands_at_a_boundary(pair: str) -> None:
    found = judged(composing(), pair)
    assert found.status == "refuted"
    assert found.contradiction is not None
    assert found.contradiction.condition in ("left_character", "right_character")


@pytest.mark.parametrize(("pair", "status"), [("x\uff9e", "refuted"), ("x\u00c5", "proved"), ("\u00c5x", "proved")])
def test_what_a_decomposing_normalizer_writes_must_stand_still(pair: str, status: str) -> None:
    data = tokenizer_json(telltale("xa"), normalizer={"type": "NFKD"}, pre_tokenizer=split(r"[\s\S]"))
    assert judged(build_tier(data).reference, pair).status == status


def test_what_a_normalizer_deletes_or_replaces_as_a_whole_stands_at_no_boundary() -> None:
    for literal, content, pair, status in (
        ("-", "", "-x", "refuted"),
        ("yz", "q", "zx", "refuted"),
        ("y", "qx", "zy", "proved"),
    ):
        data = tokenizer_json(telltale("-xyzq"), normalizer=replaced(literal, content), pre_tokenizer=split(r"[\s\S]"))
        reference = build_tier(data).reference
        assert judged(reference, pair).status == status


@cache
def marked(**flags: bool) -> Reference:
    added = [token(900, "<t>", **flags), token(901, "Ab", normalized=True)]
    data = tokenizer_json(
        telltale("<t>abx1 "), added=added, normalizer={"type": "Lowercase"}, pre_tokenizer=split(r"[\s\S]")
    )
    return build_tier(data).reference


@pytest.mark.parametrize(
    ("flags", "pair"),
    [
        ({}, "<t"),
        ({}, "t>"),
        ({}, "ab"),  # a normalized token, as the normalizer shows it
        ({}, "AB"),  # what shows itself like that
        ({"lstrip": True}, " x"),
        ({"rstrip": True}, "x "),
        ({"rstrip": True}, "x\u3000"),
        ({"single_word": True}, ">x"),
        ({"single_word": True}, "x<"),
    ],
)
def test_no_pair_that_an_added_token_may_hang_on_is_proved(flags: dict[str, bool], pair: str) -> None:
    reference = marked(**flags)
    found = judged(reference, pair)
    assert (found.status, found.counts.unproved) == ("refuted", 1)
    assert judged(reference, "x1").status == "proved"


@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_the_rule_that_is_derived_heeds_added_tokens(flags: dict[str, bool]) -> None:
    assert prove_classes(derive_rule(marked(**flags)), provable_of(marked(**flags))).status == "proved"


def test_a_normalizer_outside_the_assumptions_makes_the_proof_unavailable() -> None:
    pipeline = parse_pipeline(None, split("a"))
    mixed = with_fields(pipeline, normalizer=parse_pipeline(NFC, None).normalizer * 2)
    reference = composing()
    found = prove_rule(claiming("ax"), mixed, reference.snapshot.model, (), str, ReferenceProbe(reference))
    assert (found.status, found.reason) == ("unavailable", "proof.normalizer")


def test_what_the_automaton_refuses_makes_the_proof_unavailable() -> None:
    pipeline = parse_pipeline(None, split(r"(?:ab)++|[\s\S]"))
    found = prove_rule(claiming("ax"), pipeline, composing().snapshot.model, (), str, PROBE)
    assert (found.status, found.reason) == ("unavailable", "automaton.atomic")
    twice = parse_pipeline(None, in_turn(byte_level(), byte_level()))
    assert prove_rule(claiming("ax"), twice, {}, (), str, PROBE).reason == "proof.bytes_twice"


# --- rules -----------------------------------------------------------------------------------------------------------


def complete_rule(found: Provable, letters: str) -> BoundaryRule:
    """All provable pairs of those letters, each letter a class by itself."""
    left, right = bytearray(CODE_POINTS), bytearray(CODE_POINTS)
    for number, letter in enumerate(letters, 1):
        left[ord(letter)] = right[ord(letter)] = number
    rows = [bytes([0, *(found.holds(a, b) for b in letters)]) for a in letters]
    return BoundaryRule("classes", left=bytes(left), right=bytes(right), table=(bytes(len(letters) + 1), *rows))


def test_claimed_unproved_complete_and_missed_are_counted_exactly() -> None:
    found = provable(split(WORDS))
    letters = "abé1 .中\n\t"
    rule = complete_rule(found, letters)
    proof = prove_classes(rule, found)
    pairs = sum(found.holds(a, b) for a in letters for b in letters)
    assert (proof.status, proof.counts.claimed, proof.counts.unproved) == ("proved", pairs, 0)
    assert proof.counts.missed == proof.counts.complete - pairs
    assert all(found.holds(*pair) and not rule.holds(*pair) for pair in proof.examples)
    everything = with_fields(rule, table=(rule.table[0], *[b"\0" + b"\1" * len(letters)] * len(letters)))
    counts = prove_classes(everything, found).counts
    assert (counts.claimed, counts.unproved) == (len(letters) ** 2, len(letters) ** 2 - pairs)
    assert counts.complete == proof.counts.complete
    without = with_fields(
        everything, excluded=frozenset(a + b for a in letters for b in letters if not found.holds(a, b))
    )
    assert prove_classes(without, found).counts == proof.counts


def plant(rule: BoundaryRule, pair: str) -> BoundaryRule:
    """The same rule with one pair of code points more."""
    a, b = pair
    left, right = bytearray(rule.left), bytearray(rule.right)
    rows = [bytearray(row) + row[right[ord(b)] : right[ord(b)] + 1] for row in rule.table]
    rows.append(bytearray(rows[left[ord(a)]]))
    rows[-1][-1] = 1
    left[ord(a)], right[ord(b)] = len(rows) - 1, len(rows[0]) - 1
    excluded = rule.excluded - {pair}
    return with_fields(rule, left=bytes(left), right=bytes(right), table=tuple(map(bytes, rows)), excluded=excluded)


def wrong_pairs(reference: Reference, letters: str, count: int) -> Iterator[str]:
    """Pairs of which the reference itself shows, on some text, that they are no boundaries."""
    pieces, draw = pieces_of(reference), random.Random(11)
    found: set[str] = set()
    while len(found) < count:
        text = "".join(draw.choices(letters, k=draw.randint(2, 5)))
        at = draw.randint(1, len(text) - 1)
        pair = text[at - 1 : at + 1]
        apart = pieces(text[:at], Position.TEXT_START) + pieces(text[at:], Position.CONTINUATION)
        if pair not in found and apart != pieces(text, Position.TEXT_START):
            found.add(pair)
            yield pair


def check_planted(reference: Reference, count: int) -> None:
    rule, found = derive_rule(reference), provable_of(reference)
    assert prove_classes(rule, found).status == "proved"
    letters = "aBé中12 .,'-\n\t\u3000ا߀𝒜🙂" + "".join(map(chr, range(0x61, 0x7B)))
    for pair in wrong_pairs(reference, letters, count):
        planted = plant(rule, pair)
        assert planted.holds(*pair)
        proof = prove_classes(planted, found)
        assert (proof.status, proof.counts.unproved) == ("refuted", 1), pair
        assert proof.contradiction is not None
        assert proof.contradiction.a + proof.contradiction.b == pair


def test_one_wrong_pair_among_all_is_found_100_times_of_100() -> None:
    data = tokenizer_json(
        byte_telltale("ab1 é"), pre_tokenizer=in_turn(split(GPT2_PATTERN), byte_level(use_regex=False))
    )
    check_planted(build_tier(data).reference, 100)


def test_one_wrong_pair_in_the_rule_of_a_genuine_file_is_found() -> None:
    check_planted(family_reference("gpt2-novelai"), 10)


# --- adjacency -------------------------------------------------------------------------------------------------------


@cache
def joining(**options: Any) -> Reference:
    model = bpe("ab▁.,1x", [("a", "b"), ("▁", "a"), ("ab", "▁")], **options)
    data = tokenizer_json(model, added=[token(900, "<1>")], normalizer=replaced(" ", "▁"))
    return build_tier(data).reference


def test_an_adjacency_rule_is_proved_over_the_whole_vocabulary() -> None:
    found = proof_of(joining())
    assert (found.kind, found.status, found.counts.missed) == ("adjacency", "proved", 0)
    assert found.counts.claimed == found.counts.complete > 0


@pytest.mark.parametrize("pair", ["ab", "▁a", "b▁"])
def test_an_adjacency_rule_that_overlooks_one_neighbouring_pair_is_refuted(pair: str) -> None:
    rule = derive_rule(joining())
    key = ord(pair[0]) << 21 | ord(pair[1])
    found = proof_of(joining(), with_fields(rule, adjacent=rule.adjacent - {key}))
    shown = [pair, pair.replace("▁", " ")]
    assert found.status == "refuted"
    assert found.contradiction is not None
    assert found.contradiction.condition == "adjacent"
    assert found.contradiction.a + found.contradiction.b in shown
    assert found.counts.unproved == len(set(shown))


def test_an_adjacency_rule_that_takes_other_images_or_characters_is_refuted() -> None:
    rule = derive_rule(joining())
    for wrong in (with_fields(rule, images={}), with_fields(rule, left=b"\1" * CODE_POINTS)):
        assert proof_of(joining(), wrong).status == "refuted"
    for literal in ("<1", "1>"):
        found = proof_of(joining(), with_fields(rule, excluded=rule.excluded - {literal}))
        assert found.status == ("refuted" if rule.left[ord(literal[0])] and rule.right[ord(literal[1])] else "proved")


@pytest.mark.parametrize(
    "option", [{"ignore_merges": True}, {"end_of_word_suffix": "x"}, {"merges": [["<0x41>", "a"]]}]
)
def test_an_adjacency_rule_for_a_model_that_it_does_not_fit_is_refuted(option: dict[str, Any]) -> None:
    reference = joining()
    model, pipeline = {**reference.snapshot.model, **option}, reference.snapshot.pipeline
    assert pipeline is not None
    found = prove_rule(derive_rule(reference), pipeline, model, (), str, ReferenceProbe(reference))
    assert found.status == "refuted"
    assert found.detail


def test_an_adjacency_rule_behind_a_step_that_cuts_is_refuted() -> None:
    reference = joining()
    pipeline = parse_pipeline(replaced(" ", "▁"), split("a"))
    model = reference.snapshot.model
    assert prove_rule(derive_rule(reference), pipeline, model, (), str, ReferenceProbe(reference)).status == "refuted"


def test_a_proof_is_plain_values_for_the_report() -> None:
    for proof in (
        proof_of(joining()),
        proof_of(composing(), claiming("xa")),
        prove_rule(BoundaryRule("none"), None, {}, (), str, PROBE),
    ):
        assert json.loads(json.dumps(proof.to_document()))["status"] == proof.status
