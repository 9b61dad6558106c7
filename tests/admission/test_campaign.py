"""Admission admits what is right, refuses what is wrong, and says the same thing every time."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from typing import Any

import pytest

from toktier_tier.admission import campaign
from toktier_tier.admission.campaign import Admission, admit, derive_rule
from toktier_tier.admission.compiled import Verdict, from_bytes
from toktier_tier.admission.faults import ENCODER_FAULTS, plant_rule_fault
from toktier_tier.core.proof import unavailable
from toktier_tier.core.snapshot import SpecialTokenPolicy, parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    bpe,
    byte_level,
    byte_telltale,
    family_reference,
    replace,
    sample_text,
    split,
    telltale,
    token,
    tokenizer_json,
)

BUDGET_S = 0.3
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def reference_of(data: bytes, policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))


@cache
def tiny(kind: str = "classes") -> Reference:
    if kind == "classes":
        added = [token(5_000, "<|end|>", special=True), token(5_001, "<x>", rstrip=True)]
        return reference_of(tokenizer_json(byte_telltale(LETTERS + "1 é"), added=added, pre_tokenizer=byte_level()))
    joining = bpe(LETTERS + "▁.,1", itertools.product(LETTERS, repeat=2))
    return reference_of(tokenizer_json(joining, normalizer=replace(" ", "▁")))


def run(reference: Reference, **options: Any) -> Admission:
    return admit(reference, **{"budget_s": BUDGET_S, "seed": 7, "candidates": (), **options})


@cache
def admitted(kind: str = "classes") -> Admission:
    return run(tiny(kind))


@pytest.mark.parametrize("kind", ["classes", "adjacency"])
def test_a_tokenizer_with_a_right_rule_is_admitted_with_every_planted_fault_caught(kind: str) -> None:
    found = admitted(kind)
    assert (found.report.verdict, found.report.reason) == (Verdict.ADMITTED, "")
    assert found.compiled.rule.kind == kind
    phases = {phase.name: phase for phase in found.report.phases}
    own = {"rule: splits", "rule: contexts", "pipeline", "sessions: reference", "planted faults"}
    own |= {"normalizer: sequences"} if kind == "adjacency" else set()  # the other has no normalizer
    assert set(phases) == own | {"trust: texts", "trust: sessions", "trust: planted faults"}
    assert all(phase.checks > 0 and phase.divergences == 0 for phase in phases.values())
    assert phases["planted faults"].checks == len(ENCODER_FAULTS) + 2


def test_a_genuine_file_is_admitted_and_serves() -> None:
    reference = family_reference("gpt2-novelai")
    found = run(reference, budget_s=0.1)
    assert found.report.verdict is Verdict.ADMITTED
    tokenizer = TierTokenizer(reference, from_bytes(found.compiled.to_bytes()), workers=1)
    text = sample_text(2_000)
    assert tokenizer.encode(text).tolist() == reference.encode(text).tolist()


def test_the_same_seed_gives_the_same_report_and_compiled_snapshot() -> None:
    again = run(tiny())
    assert again.report.to_json() == admitted().report.to_json()
    assert again.compiled.to_bytes() == admitted().compiled.to_bytes()


def test_another_seed_gives_another_report_and_the_same_rule() -> None:
    other = run(tiny(), seed=8)
    assert other.report.to_json() != admitted().report.to_json()
    assert other.report.verdict is Verdict.ADMITTED
    assert other.compiled.rule.digest == admitted().compiled.rule.digest


def test_the_report_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(admitted().report.to_json())
    keys = set(re.findall(r'"(\w+)":', admitted().report.to_json()))
    assert not {key for key in keys if re.search(r"time|date|elapsed|seconds|duration|started|host|path", key)}
    assert document["verdict"] == "Admitted"
    assert document["compiled"] == admitted().compiled.digest
    for clock in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{clock}", lambda: pytest.fail("a clock was read"))
    assert run(tiny()).report.to_json() == admitted().report.to_json()


@pytest.mark.parametrize("kind", ["classes", "adjacency"])
def test_a_planted_wrong_rule_is_rejected_by_the_proof(kind: str) -> None:
    found = run(tiny(kind), rule=plant_rule_fault(derive_rule(tiny(kind))))
    assert (found.report.verdict, found.report.reason) == (Verdict.REJECTED, "rule.refuted")
    assert found.compiled.rule.kind == "none"
    assert not found.report.phases
    proof = json.loads(found.report.to_json())["proof"]
    assert proof["status"] == "refuted"
    contradiction = proof["contradiction"]
    assert contradiction["a"] + contradiction["b"] in contradiction["text"]
    assert contradiction["confirmed"] is True


def test_an_admitted_rule_is_proved_and_the_report_says_of_how_many_pairs() -> None:
    proof = json.loads(admitted().report.to_json())["proof"]
    assert (proof["kind"], proof["status"], proof["counts"]["unproved"]) == ("classes", "proved", 0)
    assert proof["counts"]["claimed"] + proof["counts"]["missed"] == proof["counts"]["complete"] > 0


@pytest.mark.parametrize("kind", ["classes", "adjacency"])
def test_a_planted_wrong_rule_is_rejected_by_the_campaign_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "prove", lambda reference, rule: unavailable(rule.kind, "automaton.atomic", ""))
    found = run(tiny(kind), rule=plant_rule_fault(derive_rule(tiny(kind))))
    assert json.loads(found.report.to_json())["proof"]["reason"] == "automaton.atomic"
    assert (found.report.verdict, found.report.reason) == (Verdict.REJECTED, "campaign.divergence")
    assert found.compiled.rule.kind == "none"
    assert found.compiled.encoder == "reference"
    examples = [example for phase in found.report.phases for example in phase.examples]
    assert examples
    assert not any(phase.name == "planted faults" for phase in found.report.phases)
    tokenizer = TierTokenizer(tiny(kind), found.compiled, workers=1)
    assert tokenizer.repairer is None
    assert tokenizer.encode("ab ba").tolist() == tiny(kind).encode("ab ba").tolist()


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"normalizer": {"type": "StripAccents"}}, "pipeline.normalizer"),
        ({"pre_tokenizer": split("^a")}, "pattern.look_behind"),
        ({"pre_tokenizer": split("a(?=bc)|.")}, "pattern.long_look_ahead"),
        ({"pre_tokenizer": split("(?i:ss)|.")}, "pattern.case_folding"),
    ],
)
def test_a_tokenizer_without_a_rule_is_left_to_the_reference_with_the_reason(
    sections: dict[str, Any], reason: str
) -> None:
    reference = reference_of(tokenizer_json(telltale("abs"), **sections))
    found = run(reference)
    assert (found.report.verdict, found.report.reason) == (Verdict.REFERENCE_ONLY, reason)
    assert found.compiled.verdict is Verdict.REFERENCE_ONLY
    assert found.compiled.rule.reason == reason
    assert found.report.to_json() == run(reference).report.to_json()
    tokenizer = TierTokenizer(reference, found.compiled, workers=1)
    assert tokenizer.encode("abs").tolist() == reference.encode("abs").tolist()


def test_a_campaign_that_misses_a_planted_fault_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = {"harmless": lambda encode: encode}
    monkeypatch.setattr(campaign, "ENCODER_FAULTS", harmless)
    found = run(tiny())
    assert (found.report.verdict, found.report.reason) == (Verdict.REFERENCE_ONLY, "campaign.void")
    assert found.compiled.rule.kind == "none"


def test_a_candidate_that_cannot_be_built_is_listed_with_its_reason() -> None:
    found = run(tiny(), candidates=("no-such-encoder",))
    assert found.report.verdict is Verdict.ADMITTED
    verdict = found.report.encoders["no-such-encoder"]
    assert verdict.verdict is Verdict.REFERENCE_ONLY
    assert verdict.reason.startswith("encoder.unknown")
    assert found.compiled.encoder == "reference"


def test_progress_is_told_by_phase_and_ends() -> None:
    told: list[tuple[str, float]] = []
    run(tiny(), progress=lambda phase, done: told.append((phase, done)))
    assert told[0] == ("rule: derive", 0.0)
    assert told[-1] == ("done", 1.0)
    assert all(0 <= done <= 1 for _, done in told)
