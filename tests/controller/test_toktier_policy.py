"""Which snapshot is wanted: image gate, quarantine, what isn't there."""

from __future__ import annotations

import dataclasses

import pytest

from controller.tiers import IMAGE, admitted, composition, served, spec_of
from toktier_operator.api.admission_status import AdmissionStatus
from toktier_operator.api.conditions import Condition, TierReason
from toktier_operator.api.rollout import Composition, Rollout, Stage
from toktier_operator.policies.toktier import Choice, choose, quarantined_ids, reported_ids

NEWER = "registry.example/toktier:2"
TWO = [{"admission": "qwen"}, {"admission": "llama"}]


def steady(made_of: Composition) -> Rollout:
    return Rollout(Stage.STEADY, made_of, made_of)


def reasons(choice: Choice) -> list[TierReason]:
    return [each.reason for each in choice.problems]


def test_the_newest_admission_is_wanted() -> None:
    found = choose(spec_of(), {"qwen": admitted("qwen-2")}, frozenset(), steady(composition("qwen-1")), IMAGE)
    assert found == Choice(composition("qwen-2"))


def test_nothing_is_wanted_before_there_is_a_verdict() -> None:
    for admissions, reason in (
        ({}, TierReason.ADMISSION_MISSING),
        ({"qwen": AdmissionStatus()}, TierReason.ADMISSION_PENDING),
    ):
        found = choose(spec_of(), admissions, frozenset(), None, IMAGE)
        assert found.wanted is None
        assert found.held
        assert reasons(found) == [reason]


def test_what_serves_is_kept_whole_while_an_added_tokenizer_has_no_verdict() -> None:
    before = steady(Composition(IMAGE, (served("qwen-1", models=("old",)),)))
    found = choose(spec_of(tokenizers=TWO), {"qwen": admitted("qwen-2")}, frozenset(), before, IMAGE)
    assert found.wanted == before.stable
    assert found.held
    assert [each.admission for each in found.problems if each.waiting] == ["llama"]


def test_a_deleted_admission_leaves_what_serves() -> None:
    found = choose(spec_of(), {}, frozenset(), steady(composition("qwen-1")), IMAGE)
    assert found.wanted == composition("qwen-1")
    assert found.held


def test_a_quarantined_snapshot_replaces_no_other() -> None:
    before = Rollout(Stage.CANARY, composition("qwen-1"), composition("qwen-2"))
    found = choose(spec_of(), {"qwen": admitted("qwen-2")}, frozenset({"qwen-2"}), before, IMAGE)
    assert found.wanted == composition("qwen-1")
    assert reasons(found) == [TierReason.QUARANTINED]


def test_a_quarantined_snapshot_without_another_serves_by_the_reference() -> None:
    found = choose(spec_of(), {"qwen": admitted("qwen-1", quarantined=True)}, frozenset({"qwen-1"}), None, IMAGE)
    assert found.wanted == composition("qwen-1")
    again = choose(spec_of(), {"qwen": admitted("qwen-1")}, frozenset({"qwen-1"}), steady(composition("qwen-1")), IMAGE)
    assert again.wanted == composition("qwen-1")


def test_a_new_admission_lifts_a_quarantine() -> None:
    before = steady(composition("qwen-1"))
    found = choose(spec_of(), {"qwen": admitted("qwen-2")}, frozenset({"qwen-1"}), before, IMAGE)
    assert found == Choice(composition("qwen-2"))


def test_a_new_image_waits_for_every_admission() -> None:
    before = steady(composition("qwen-1", "llama-1"))
    half = {"qwen": admitted("qwen-2", image=NEWER), "llama": admitted("llama-1")}
    found = choose(spec_of(tokenizers=TWO), half, frozenset(), before, NEWER)
    assert found.wanted == composition("qwen-1", "llama-1")
    assert reasons(found) == [TierReason.WAITING_FOR_IMAGE]
    assert "llama-1" in found.problems[0].message
    whole = half | {"llama": admitted("llama-2", image=NEWER)}
    found = choose(spec_of(tokenizers=TWO), whole, frozenset(), before, NEWER)
    assert found == Choice(composition("qwen-2", "llama-2", image=NEWER))


def test_the_same_admission_found_good_under_a_new_image_moves_the_image_alone() -> None:
    found = choose(
        spec_of(), {"qwen": admitted("qwen-1", image=NEWER)}, frozenset(), steady(composition("qwen-1")), NEWER
    )
    assert found == Choice(composition("qwen-1", image=NEWER))


def test_a_first_tier_takes_the_image_that_its_snapshots_have() -> None:
    found = choose(spec_of(), {"qwen": admitted("qwen-1")}, frozenset(), None, NEWER)
    assert found.wanted == composition("qwen-1")
    split = {"qwen": admitted("qwen-1"), "llama": admitted("llama-1", image=NEWER)}
    found = choose(spec_of(tokenizers=TWO), split, frozenset(), None, NEWER)
    assert found.wanted is None
    assert reasons(found) == [TierReason.WAITING_FOR_IMAGE]


def test_an_image_of_the_specs_own_is_taken_at_its_word() -> None:
    found = choose(spec_of(image="mine:1"), {"qwen": admitted("qwen-1")}, frozenset(), None, NEWER)
    assert found == Choice(composition("qwen-1", image="mine:1"))


@pytest.mark.parametrize(("unadmitted", "serves"), [("ReferenceOnly", True), ("Refuse", False)])
def test_what_is_only_for_the_reference_serves_if_the_spec_lets_it(unadmitted: str, serves: bool) -> None:
    status = {"qwen": admitted("qwen-1", verdict="ReferenceOnly")}
    found = choose(spec_of(unadmitted=unadmitted), status, frozenset(), None, IMAGE)
    assert (found.wanted is not None) is serves
    assert reasons(found) == [TierReason.REFERENCE_ONLY if serves else TierReason.REFUSED]
    if found.wanted is not None:
        assert not found.wanted.tokenizers[0].accelerated


def test_an_admission_that_holds_its_snapshot_back_is_served_by_the_reference() -> None:
    word = Condition("Admitted", "False", "ReferenceOnly")
    status = dataclasses.replace(admitted("qwen-1"), conditions=(word,))
    found = choose(spec_of(), {"qwen": status}, frozenset(), steady(composition("qwen-1")), IMAGE)
    assert found.wanted == Composition(IMAGE, (served("qwen-1", accelerated=False),))
    assert found.wanted is not None
    assert not found.wanted.changes_ids_of(composition("qwen-1"))


def test_reports_are_told_by_their_keys() -> None:
    keys = ["chat-0.qwen-1", "chat-12.llama-3", "other-0.qwen-9", "chat-x.qwen-9", "chat.qwen-9", "chat-0."]
    assert reported_ids("chat", dict.fromkeys(keys, "not even JSON")) == {"qwen-1", "llama-3"}


def test_a_quarantine_lasts_as_long_as_pods_may_have_the_id() -> None:
    both = Rollout(Stage.CANARY, composition("qwen-1"), composition("qwen-2"))
    lifted = {"qwen": admitted("qwen-2")}
    assert quarantined_ids(lifted, frozenset(), '["qwen-1", "gone-7"]', both) == {"qwen-1"}
    assert quarantined_ids(lifted, frozenset(), '["qwen-1"]', steady(composition("qwen-2"))) == frozenset()
    assert quarantined_ids({"qwen": admitted("qwen-1", quarantined=True)}, frozenset(), "", None) == {"qwen-1"}
    assert quarantined_ids({}, frozenset({"qwen-2"}), "{}", both) == {"qwen-2"}
    assert quarantined_ids({}, frozenset(), "no JSON", both) == frozenset()


def test_what_was_rolled_out_is_read_back_as_it_was() -> None:
    special = Composition(IMAGE, (served("qwen-1", models=("a", "b"), accelerated=False, render=False),))
    for rollout in (steady(special), Rollout(Stage.CANARY, special, composition("qwen-2"))):
        assert Rollout.from_status(rollout.to_status()) == rollout
    for wrong in (
        None,
        {},
        {"stage": "Steady"},
        {"stage": "Odd", "stable": {"image": "x", "tokenizers": []}},
        "Steady",
    ):
        assert Rollout.from_status(wrong) is None
