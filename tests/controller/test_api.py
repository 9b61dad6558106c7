from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_operator.api.admission_spec import AdmissionSpec, OnRejected, Readmit
from toktier_operator.api.admission_status import (
    ActiveRun,
    AdmissionStatus,
    Bundle,
    DivergenceReport,
    EncoderResult,
    FinishedRun,
    HistoryEntry,
    Phase,
    Quarantine,
    ReportReference,
    Rule,
    Snapshot,
    Toolchain,
)
from toktier_operator.api.conditions import Condition
from toktier_operator.api.quantities import duration_s, quantity, quantity_bytes
from toktier_operator.api.structure import SpecError
from toktier_operator.api.toktier_spec import GpuMode, TokTierSpec, Unadmitted
from toktier_operator.api.toktier_status import ServedSnapshot, TokTierStatus

SOURCE: dict[str, Any] = {"configMap": {"name": "tokenizer", "key": "tokenizer.json"}}
AT = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("0s", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1 h", "1d", "1h ", "5µs", 30, None, "1e3s", "٣s"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration like"):
        duration_s(text)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, "0"),
        (3, "3"),
        ("500m", "0.5"),
        ("64Ki", "65536"),
        ("1.5Gi", "1610612736"),
        (".5k", "500"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("2E", "2000000000000000000"),
        ("1Ei", "1152921504606846976"),
        ("5u", "0.000005"),
        ("7.", "7"),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(value: object, number: str) -> None:
    assert quantity(value) == Decimal(number)


@pytest.mark.parametrize("value", ["", "Gi", "4GB", "-1", "1 Gi", "0x10", True, 1.5, None, "1e", "٣"])
def test_what_is_no_quantity(value: object) -> None:
    with pytest.raises(ValueError, match="quantity like"):
        quantity(value)


def test_bytes_are_rounded_up() -> None:
    assert quantity_bytes("1500m") == 2


@given(st.integers(0, 10**15), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G"]))
def test_whole_quantities_are_whole_bytes(number: int, unit: str) -> None:
    scale = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}[unit]
    assert quantity_bytes(f"{number}{unit}") == number * scale


def test_an_admission_is_read_with_its_units() -> None:
    spec = AdmissionSpec.of(
        {
            "spec": {
                "source": {"huggingFace": {"repo": "a/b", "revision": "main"}},
                "campaign": {"budget": "2m", "seed": 7, "corpora": [{"configMap": {"name": "texts"}}]},
                "quarantine": {"readmit": "Automatic", "delay": "90s"},
                "upgrade": {"onRejected": "ReferenceOnly"},
                "job": {"resources": {"limits": {"cpu": 2}}, "affinity": {"nodeAffinity": {}}},
            }
        }
    )
    assert (spec.source.kind, spec.source.remote) == ("huggingFace", True)
    assert (spec.campaign.budget_s, spec.campaign.seed) == (120.0, 7)
    assert (spec.quarantine.readmit, spec.quarantine.delay_s) == (Readmit.AUTOMATIC, 90.0)
    assert spec.upgrade.on_rejected is OnRejected.REFERENCE_ONLY
    assert spec.job.resources.limits == {"cpu": 2}


def test_a_toktier_is_read_with_its_units() -> None:
    spec = TokTierSpec.of(
        {
            "spec": {
                "tokenizers": [{"admission": "qwen3", "models": ["Qwen/Qwen3-8B"]}, {"admission": "b", "name": "c"}],
                "sessions": {"budget": "2Gi", "ttl": "90s"},
                "limits": {"bodyBytes": 1024},
                "gpu": {"mode": "Required"},
                "unadmitted": "Refuse",
                "networkPolicy": {"from": [{"podSelector": {}}]},
                "shadow": {"rate": 1},
                "maximum": "of a newer CRD",
            }
        }
    )
    assert [each.served_name for each in spec.tokenizers] == ["qwen3", "c"]
    assert (spec.sessions.budget_bytes, spec.sessions.ttl_s, spec.limits.body_bytes) == (2 << 30, 90.0, 1024)
    assert (spec.gpu.mode, spec.unadmitted, spec.shadow.rate) == (GpuMode.REQUIRED, Unadmitted.REFUSE, 1.0)
    assert spec.network_policy.peers == ({"podSelector": {}},)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "spec"),
        ({"spec": {}}, "spec.tokenizers"),
        ({"spec": {"tokenizers": []}}, "spec.tokenizers"),
        ({"spec": {"tokenizers": "a"}}, "spec.tokenizers"),
        ({"spec": {"tokenizers": [{"name": "a"}]}}, "spec.tokenizers[0].admission"),
        ({"spec": {"tokenizers": [{"admission": 3}]}}, "spec.tokenizers[0].admission"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "replicas": "2"}}, "spec.replicas"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "replicas": True}}, "spec.replicas"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "drain": {"linger": 5}}}, "spec.drain.linger"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "sessions": {"budget": "4GB"}}}, "spec.sessions.budget"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "unadmitted": "No"}}, "spec.unadmitted"),
        ({"spec": {"tokenizers": [{"admission": "a"}], "upstream": {}}}, "spec.upstream"),
    ],
)
def test_an_error_names_the_field(body: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        TokTierSpec.of(body)
    assert caught.value.path == path


@pytest.mark.parametrize("source", [{}, SOURCE | {"sglang": {"address": "a:1"}}])
def test_a_source_is_exactly_one(source: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="exactly one"):
        AdmissionSpec.of({"spec": {"source": source}})


def test_null_is_a_default() -> None:
    body = {"spec": {"tokenizers": [{"admission": "a", "models": None}], "upstream": None, "replicas": None}}
    assert TokTierSpec.of(body) == TokTierSpec.of({"spec": {"tokenizers": [{"admission": "a"}]}})


def test_a_status_that_was_written_is_read_back_equal() -> None:
    report = ReportReference("a-run-3")
    status = AdmissionStatus(
        phase=Phase.QUARANTINED,
        observed_generation=4,
        conditions=(Condition("Admitted", "False", "Quarantined", "x", AT, 4),),
        current=Snapshot(
            id="a-3",
            run=3,
            sha256="ab",
            fingerprint="cd",
            policy="none",
            verdict="Admitted",
            reason="admitted",
            encoder="fastokens",
            chat_template=True,
            rule=Rule("pairs", "ef", "word, then space"),
            encoders=(EncoderResult("fastokens", "0.3.5", "Admitted", "", 10, 0, 99),),
            checks=10,
            characters=20,
            toolchain=Toolchain("0.23.3", "1", {"fastokens": "0.3.5"}),
            image="toktier:1",
            bundle=Bundle("12", 1000, ("a-1212-0", "a-1212-1")),
            admitted_at=AT,
            report=report,
        ),
        run=ActiveRun(4, "a-4", "a-admit-4", "SourceChanged", AT),
        last_run=FinishedRun(3, "a-3", "Completed", diff={"summary": "2 of 100 texts"}, report=report),
        history=(HistoryEntry(2, "a-2", outcome="Completed", verdict="Rejected", report=report),),
        quarantine=Quarantine("a-3", AT, (DivergenceReport("tier-0", "tier", "shadow", "fastokens", AT, "34", 5, 6),)),
        divergences=1,
        readmitted="now",
        checked_at=AT,
        next_run=5,
    )
    written = status.to_dict()
    assert written["current"]["bundle"] == {
        "sha256": "12",
        "sizeBytes": 1000,
        "configMaps": ["a-1212-0", "a-1212-1"],
    }
    assert AdmissionStatus.of({"status": written}) == status


def test_nothing_yet_is_a_status() -> None:
    assert AdmissionStatus.of({}) == AdmissionStatus()
    assert TokTierStatus.of({"status": None}) == TokTierStatus()


def test_a_toktiers_status_that_was_written_is_read_back_equal() -> None:
    status = TokTierStatus(
        observed_generation=2,
        replicas=3,
        selector="a=b",
        conditions=(Condition("Available", "True", "PodsReady"),),
        snapshots=(ServedSnapshot("a", "qwen3", "a-1", state="Serving"),),
        rollout={"stage": "Steady", "inner": {"zero": 0}},
    )
    assert TokTierStatus.of({"status": status.to_dict()}) == status
