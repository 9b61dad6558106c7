"""The GPU path: admitted by a campaign of its own, kept in the compiled snapshot, never by what the CPU answered."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpu_twins import TwinBackend, TwinEngine
from toktier_kernels.errors import Busy
from toktier_tier.admission import comparisons, gpu
from toktier_tier.admission.campaign import Admission, admit, admit_gpu, derive_rule
from toktier_tier.admission.comparisons import Campaign
from toktier_tier.admission.compiled import Verdict, from_bytes, load, save
from toktier_tier.admission.gpu import FaultyEngine, try_gpu
from toktier_tier.admission.probe import ProbeResult
from toktier_tier.admission.texts import Texts
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.assemble import Cores, build_text_encoder, settled_points
from toktier_tier.encoders.candidates import GPU_NAME
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.ports import Ids
from workshop import byte_level, byte_telltale, metaspace, telltale, token, tokenizer_json

LETTERS = "abcdefghijklmnopqrstuvwxyz 1.é"
Encode = Callable[[str], Ids]


def file_of(**changes: Any) -> bytes:
    added = [token(5_000, "<|end|>", special=True), token(5_001, "<think>", normalized=False)]
    return tokenizer_json(byte_telltale(LETTERS), **{"added": added, "pre_tokenizer": byte_level(), **changes})


PLAIN, NORMALIZED = file_of(), file_of(normalizer={"type": "NFC"})


@cache
def reference(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


@pytest.fixture(autouse=True)
def short_campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins take 20 µs a character. Every code point is asked about in one test alone."""
    monkeypatch.setattr(gpu, "probe_encoders", lambda found, *_, **__: {n: ProbeResult((), 7) for n in found})
    monkeypatch.setattr(gpu, "LONG_TEXT_CHARS", 9_000)
    monkeypatch.setattr(comparisons, "LONG_TEXT_CHARS", 9_000)


def verdict_with(engine: Callable[[TwinEngine], Any], data: bytes = PLAIN, *, trusting: bool = False) -> Any:
    """(verdict, campaign) on what `engine` makes of the twins."""
    made = reference(data)
    rule, settled = derive_rule(made), settled_points(made)
    campaign = Campaign(made, rule, Texts(made.snapshot, rule, 3), 0.1, lambda phase, done: None, 8, settled=settled)
    staged = build_text_encoder(made, rule, Cores(made), settled=settled)
    return try_gpu(campaign, TwinBackend(engine), staged, staged, trusting=trusting), campaign


def lying(plant: Callable[[Encode], Encode], data: bytes = PLAIN) -> Callable[[TwinEngine], FaultyEngine]:
    return lambda engine: FaultyEngine(plant(reference(data).encode_text))


# --- the round trip ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admitted() -> Admission:
    with pytest.MonkeyPatch.context() as patch:
        short_campaigns.__wrapped__(patch)  # type: ignore[attr-defined]
        return admit(reference(NORMALIZED), budget_s=0.1, seed=7, candidates=(), gpu=TwinBackend())


def test_an_exact_device_is_admitted_and_the_cpu_path_stays_what_it_was(admitted: Admission) -> None:
    found = admitted.compiled.encoders[GPU_NAME]
    assert (found.verdict, found.reason, found.divergences) == (Verdict.ADMITTED, "", 0)
    assert found.version == TwinBackend().version
    assert admitted.compiled.encoder == "reference"
    phases = {phase.name: phase for phase in admitted.report.phases}
    own = [name for name in phases if name.startswith(GPU_NAME)]
    assert {name.removeprefix(f"{GPU_NAME}: ") for name in own} == {
        "combining sequences",
        "added tokens",
        "chunks",
        "ids",
        "sessions",
        "history",
        "untrusted texts",
        "untrusted sessions",
    }
    assert all(phases[name].checks > 0 and phases[name].divergences == 0 for name in own)
    planted = phases["planted faults: device"]
    assert planted.divergences == 0
    assert planted.checks == 8  # five of encoders, a moved border, unseen tokens, no normalizer


def test_the_compiled_snapshot_says_so_and_holds_for_these_libraries_only(admitted: Admission, tmp_path: Path) -> None:
    save(admitted.compiled, tmp_path)
    read = load(tmp_path, admitted.compiled.fingerprint)
    assert read == admitted.compiled
    assert read is not None
    assert read.gpu(TwinBackend().version) == admitted.compiled.encoders[GPU_NAME]
    assert read.gpu("toktier-kernels==0.1.0 torch==1.0 triton==1.0 tables==0") is None
    assert json.loads(admitted.report.to_json())["encoders"][GPU_NAME]["verdict"] == "Admitted"


def test_the_device_is_admitted_later_around_what_was_admitted_without_one() -> None:
    before = admit(reference(PLAIN), budget_s=0.1, seed=7, candidates=()).compiled
    assert before.encoders == {}
    assert before.gpu(TwinBackend().version) is None
    # The engine finds added tokens by itself, so that texts with untrusted spans are none of this test's.
    backend = TwinBackend(lying(lambda encode: encode))
    after = admit_gpu(reference(PLAIN), dataclasses.replace(before, trust=None), backend, budget_s=0.1, seed=7)
    assert after.encoders[GPU_NAME].verdict is Verdict.ADMITTED
    assert from_bytes(after.to_bytes()) == after
    assert dataclasses.replace(after, encoders={}, trust=before.trust) == before


# --- what isn't admitted ----------------------------------------------------------------------------------------------


def swapped(encode: Encode) -> Encode:
    def lie(text: str) -> Ids:
        ids = encode(text).copy()
        if len(ids) > 40:
            ids[[20, 21]] = ids[[21, 20]]
        return ids

    return lie


def unnormalized(encode: Encode) -> Encode:
    bare = reference(PLAIN).encode_text
    return lambda text: bare(text) if "\u0323" in text else encode(text)


def token_torn(encode: Encode) -> Encode:
    return lambda text: encode(text.replace("<think<think>", "<think>"))


@pytest.mark.parametrize(("plant", "data"), [(swapped, PLAIN), (token_torn, PLAIN), (unnormalized, NORMALIZED)])
def test_a_planted_fault_is_caught(plant: Callable[[Encode], Encode], data: bytes) -> None:
    verdict, campaign = verdict_with(lying(plant, data), data)
    assert (verdict.verdict, verdict.reason) == (Verdict.REJECTED, "encoder.divergence")
    assert verdict.divergences > 0
    assert any(phase.examples for phase in campaign.phases)


def test_chunks_that_are_right_in_sum_only_are_caught() -> None:
    verdict, campaign = verdict_with(lambda engine: FaultyEngine(reference(PLAIN).encode_text, shift=1))
    assert verdict.verdict is Verdict.REJECTED
    assert {phase.name for phase in campaign.phases if phase.divergences} >= {f"{GPU_NAME}: chunks"}


def test_spans_that_are_not_trusted_are_caught() -> None:
    """An engine that finds added tokens by itself is right about every text that is trusted."""
    honest = lying(lambda encode: encode)
    assert verdict_with(honest)[0].verdict is Verdict.ADMITTED
    verdict, _ = verdict_with(honest, trusting=True)
    assert (verdict.verdict, verdict.reason) == (Verdict.REJECTED, "encoder.divergence")


class Elsewhere:
    """An engine that is too busy for all but every `every`th call."""

    def __init__(self, engine: TwinEngine, every: int) -> None:
        self._honest, self._every, self._calls = FaultyEngine(reference(PLAIN).encode_text), every, 0

    def encode(self, documents: Any, *, spans: Any = None) -> Any:
        self._calls += 1
        if self._calls % self._every:
            raise Busy("kernels.busy", "others wait")
        return self._honest.encode(documents, spans=spans)

    def close(self) -> None:
        pass


def test_what_the_cpu_answered_admits_nothing() -> None:
    verdict, _ = verdict_with(lambda engine: Elsewhere(engine, 3))
    assert verdict.verdict is Verdict.REFERENCE_ONLY
    assert verdict.reason.startswith("kernels.left_to_cpu")
    assert "busy" in verdict.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (file_of(normalizer={"type": "Lowercase"}), "kernels.normalizer"),
        (tokenizer_json(telltale("▁ab"), pre_tokenizer=metaspace("first")), "kernels.not_byte_level"),
    ],
)
def test_what_the_device_cannot_do_is_said_by_name(data: bytes, reason: str) -> None:
    verdict, _ = verdict_with(lambda engine: engine, data)
    assert verdict.verdict is Verdict.REFERENCE_ONLY
    assert verdict.reason.startswith(f"{reason}: ")


def test_a_code_point_that_it_reads_otherwise_stays_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def probe(found: Any, reference: Any, assigned: Any, progress: Any) -> dict[str, ProbeResult]:
        ids = found[GPU_NAME]("\u2122 alone")
        asked.append(str(ids.tolist() == reference("\u2122 alone").tolist()))
        assert assigned[0x2122]
        return {GPU_NAME: ProbeResult(((0x2122, 0x2122),), 9)}

    monkeypatch.setattr(gpu, "probe_encoders", probe)
    verdict, _ = verdict_with(lying(lambda encode: lambda text: encode(text.replace("\u2122", "TM"))))
    assert asked == ["False"]
    assert (verdict.verdict, verdict.unsafe) == (Verdict.ADMITTED, ((0x2122, 0x2122),))


def test_a_device_that_differs_too_widely_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "probe_encoders", lambda found, *_, **__: {GPU_NAME: ProbeResult(((0x41, 0x41),), 9)})
    verdict, _ = verdict_with(lying(lambda encode: encode))
    assert (verdict.verdict, verdict.reason) == (Verdict.REJECTED, "encoder.too_many_unsafe")


def test_a_campaign_that_misses_a_planted_fault_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ENCODER_FAULTS", {"harmless": lambda encode: encode})
    verdict, _ = verdict_with(lying(lambda encode: encode))
    assert (verdict.verdict, verdict.reason) == (Verdict.REFERENCE_ONLY, "campaign.void")


class Closing(FaultyEngine):
    closed = threading.Event()

    def __init__(self, engine: TwinEngine) -> None:
        super().__init__(reference(PLAIN).encode_text)

    def close(self) -> None:
        self.closed.set()


def test_the_engine_is_given_back_after_the_campaign() -> None:
    verdict, _ = verdict_with(Closing)
    assert verdict.verdict is Verdict.ADMITTED
    assert Closing.closed.wait(10)  # in a thread of its own
