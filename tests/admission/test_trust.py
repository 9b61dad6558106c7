"""The campaign for untrusted spans: admitted where the fast paths are right, and no wrong one comes through."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from toktier_tier.admission import trust
from toktier_tier.admission.campaign import Admission, admit
from toktier_tier.admission.compiled import CompiledSnapshot, TrustVerdict, Verdict, from_bytes
from toktier_tier.core.errors import StateCorrupt
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder
from toktier_tier.tokenizer import TierTokenizer
from workshop import byte_level, byte_telltale, family_reference, telltale, token, tokenizer_json

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tiny(**sections: Any) -> Reference:
    added = [
        token(5_000, "<|end|>", special=True),
        token(5_001, "<x>", rstrip=True),
        token(5_002, "<y>", lstrip=True),
        token(5_003, "word", single_word=True),
        token(5_004, "end"),
    ]
    parts = {"added": added, "pre_tokenizer": byte_level(), **sections}
    data = tokenizer_json(byte_telltale(LETTERS + "1 é<|>"), **parts)
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


def run(reference: Reference, **options: Any) -> Admission:
    return admit(reference, **{"budget_s": 0.5, "seed": 7, "candidates": (), **options})


@pytest.fixture(scope="module")
def admitted() -> Admission:
    return run(tiny())


def test_right_fast_paths_are_admitted_and_every_fault_is_caught(admitted: Admission) -> None:
    verdict = admitted.compiled.trust
    assert verdict is not None
    assert (verdict.verdict, verdict.reason, verdict.divergences) == (Verdict.ADMITTED, "", 0)
    phases = {phase.name: phase for phase in admitted.report.phases}
    assert phases["trust: planted faults"].checks == 6
    assert phases["trust: planted faults"].divergences == 0
    assert verdict.checks == phases["trust: texts"].checks + phases["trust: sessions"].checks > 0
    tokenizer = TierTokenizer(tiny(), admitted.compiled, workers=1)
    assert tokenizer.trust_admitted


def test_a_genuine_file_with_a_candidate_in_its_whole_file_form_is_admitted() -> None:
    found = run(family_reference("gpt2-novelai"), budget_s=0.2, candidates=("gigatoken",))
    assert found.compiled.whole is not None
    assert found.compiled.trust_admitted
    assert from_bytes(found.compiled.to_bytes()) == found.compiled


def test_the_report_says_what_was_found(admitted: Admission) -> None:
    document = json.loads(admitted.report.to_json())
    assert document["trust"]["verdict"] == "Admitted"
    assert admitted.report.checks > document["trust"]["checks"]


def test_fast_paths_that_are_wrong_are_rejected_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrong reading, in the stages themselves, with faults that are still caught."""
    honest = SnapshotEncoder.recognized

    def touching(self: SnapshotEncoder, text: str, untrusted: Any = ()) -> Any:
        """Those of the whole text that touch nothing untrusted."""
        return [
            found
            for found in honest(self, text)
            if not any(start < found[2] and found[1] < stop for start, stop in untrusted)
        ]

    def ending(self: SnapshotEncoder, text: str, untrusted: Any = ()) -> Any:
        """Only the end of a token decides."""
        return [found for found in honest(self, text) if not any(start < found[2] <= stop for start, stop in untrusted)]

    for wrong in (touching, ending):
        monkeypatch.setattr(SnapshotEncoder, "recognized", wrong)
        found = run(tiny(), budget_s=4.0)
        assert found.report.verdict is Verdict.ADMITTED
        assert found.report.divergences == 0
        assert found.compiled.trust is not None
        assert (found.compiled.trust.verdict, found.compiled.trust.reason) == (Verdict.REJECTED, "trust.divergence")
        tokenizer = TierTokenizer(tiny(), found.compiled, workers=1)
        assert not tokenizer.trust_admitted
        text = "aword <|end|>"
        assert tokenizer.encode(text, [(0, 1)]).tolist() == tokenizer.trust.encode(text, ((0, 1),)).tolist()


def test_a_campaign_that_misses_a_fault_admits_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_faults", lambda campaign, encoder: {"none": encoder.encode_untrusted})
    found = run(tiny())
    assert found.report.verdict is Verdict.ADMITTED
    assert found.compiled.trust is not None
    assert (found.compiled.trust.verdict, found.compiled.trust.reason) == (Verdict.REFERENCE_ONLY, "campaign.void")


def test_a_snapshot_without_a_definition_says_so() -> None:
    added = [token(5_000, "<x>", normalized=True)]
    found = run(tiny(added=added, normalizer={"type": "NFC"}))
    assert found.report.verdict is Verdict.ADMITTED
    assert found.compiled.trust == TrustVerdict(Verdict.REFERENCE_ONLY, "trust.unsupported")


def test_a_snapshot_that_the_reference_serves_says_why() -> None:
    data = tokenizer_json(telltale("abs"), normalizer={"type": "StripAccents"})
    found = run(Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION)))
    assert found.compiled.trust == TrustVerdict(Verdict.REFERENCE_ONLY, "pipeline.normalizer")


def test_a_file_from_before_is_read_and_written_as_it_was(admitted: Admission) -> None:
    old = dataclasses.replace(admitted.compiled, trust=None)
    assert b'"trust"' not in old.to_bytes()
    read = from_bytes(old.to_bytes())
    assert read == old
    assert read.digest == old.digest
    assert not read.trust_admitted
    tokenizer = TierTokenizer(tiny(), read, workers=1)
    assert tokenizer.repairer is not None
    text = "a<|end|>"
    assert tokenizer.encode(text, [(1, 2)]).tolist() == tokenizer.trust.encode(text, ((1, 2),)).tolist()


@pytest.mark.parametrize(
    "change",
    [{"verdict": "Sure"}, {"verdict": None}, {"reason": 3}, {"checks": "4"}, {"divergences": None}],
)
def test_a_verdict_that_can_not_be_is_refused(admitted: Admission, change: dict[str, Any]) -> None:
    document = json.loads(admitted.compiled.to_bytes())
    document["trust"].update(change)
    with pytest.raises(StateCorrupt) as caught:
        from_bytes(json.dumps(document).encode())
    assert caught.value.code == "compiled.malformed"


def test_a_rejected_snapshot_never_serves_spans_fast(admitted: Admission) -> None:
    rejected: CompiledSnapshot = dataclasses.replace(admitted.compiled, verdict=Verdict.REJECTED)
    assert not rejected.trust_admitted
