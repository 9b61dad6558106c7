"""The comparisons at scale: what they claim of a rule is the rule, wrong ones are found, and nothing is done twice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from exactness import splits, state
from exactness.splits import Claims, Splits
from exactness.state import Tally, load, minimized, run_for
from exactness.texts import SCALARS, Texts, scalar
from toktier_tier.core.boundaries import BoundaryRule, seal
from workshop import build_tier, byte_level, byte_telltale, random_text, token, tokenizer_json

DATA = tokenizer_json(byte_telltale("ab1 .'s"), pre_tokenizer=byte_level(), added=[token(5000, "<s>")])


def test_claims_of_a_whole_text_are_those_of_each_pair() -> None:
    rule = build_tier(DATA).rule
    chooser = random.Random(1)
    for _ in range(200):
        text = random_text(chooser, ["a", "b", "1", " ", ".", "'", "s", "<s>", "\n", "\u0301", "中"], 1, 12)
        assert Claims(rule).positions(text).tolist() == [
            p for p in range(1, len(text)) if rule.holds(text[p - 1], text[p])
        ]


def test_texts_are_the_same_for_one_number_and_others_for_another() -> None:
    document = json.loads(DATA)
    assert Texts(document, "x").batch(3, 20, 5) == Texts(document, "x").batch(3, 20, 5)
    assert Texts(document, "x").batch(3, 20, 5) != Texts(document, "x").batch(4, 20, 5)
    assert Texts(document, "x").batch(3, 20, 5) != Texts(document, "y").batch(3, 20, 5)


def test_every_code_point_has_its_turn_and_none_is_a_surrogate() -> None:
    assert [scalar(number) for number in (0, 0xD7FF, 0xD800, SCALARS - 1)] == ["\0", "\ud7ff", "\ue000", "\U0010ffff"]


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Splits:
    monkeypatch.setattr(splits, "file_text", lambda family: DATA.decode())
    monkeypatch.setattr(splits, "TEXTS", 20)
    monkeypatch.setattr(splits, "PARTS", 10)
    return Splits("small", Tally("splits", "small"))


def test_a_right_rule_and_automaton_come_through(checker: Splits) -> None:
    checker.batch(0)
    checker.batch(1)
    (counts,) = checker._tally.counts.values()
    assert min(counts["automaton"], counts["rule"], counts["apart"]) > 0
    assert checker._tally.divergent == 0


def test_a_rule_that_claims_one_pair_too_many_is_found_with_the_shortest_text(checker: Splits) -> None:
    rule = build_tier(DATA).rule
    table = np.array([list(row) for row in rule.table], dtype=np.uint8)
    table[rule.left[ord("a")], rule.right[ord("b")]] = 1
    wrong = {**rule.__dict__, "table": tuple(row.tobytes() for row in table), "digest": ""}
    checker._claims = Claims(seal(BoundaryRule(**wrong)))
    checker.batch(0)
    assert checker._tally.divergent > 0
    assert min(len(found["text"]) for found in checker._tally.divergences) == 2


def test_a_second_start_goes_on_behind_the_first(tmp_path: Path) -> None:
    done: list[int] = []
    for _ in range(3):
        tally = load(tmp_path, "ids", "small")
        tally.add("ids", 5)
        run_for(tmp_path, tally, 0.0, done.append)
    assert done == [0, 1, 2]
    assert sum(load(tmp_path, "ids", "small").counts[state.versions()["code"]].values()) == 15


def test_a_minimized_text_still_differs_and_no_character_of_it_can_go() -> None:
    assert minimized("xxaxxxbxx" * 7, lambda text: "a" in text and "b" in text[text.index("a") :]) == "ab"
