"""A device in service: off, preferred and required; one event where the CPU serves; the compiled snapshot decides."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpu_twins import TwinBackend, TwinEngine
from toktier_kernels.errors import OutOfMemory
from toktier_tier import app, gpu_service
from toktier_tier.admission.compiled import CompiledSnapshot, EncoderVerdict, Verdict, load, save
from toktier_tier.admission.gpu import FaultyEngine
from toktier_tier.app import open_snapshot
from toktier_tier.core.errors import EncoderUnavailable, InvalidRequest
from toktier_tier.encoders.candidates import GPU_NAME, encoder_version
from toktier_tier.encoders.gpu_device import typical_texts
from toktier_tier.gpu_service import Gpu, open_gpu
from toktier_tier.loading import Tokenizers
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import GpuSettings, TierSettings, TokenizerSettings, parse_settings
from toktier_tier.shadow.faults import plant_wrong_ids
from toktier_tier.tokenizer import TierTokenizer
from workshop import Tier, build_tier, byte_level, byte_telltale, replace, sample_text, telltale, token, tokenizer_json

LETTERS = "abcdefghijklmnopqrstuvwxyz 1.é"
TEXT = sample_text(400)


def data() -> bytes:
    return tokenizer_json(byte_telltale(LETTERS), pre_tokenizer=byte_level(), added=[token(5_000, "<|end|>")])


@cache
def tier() -> Tier:
    return build_tier(data())


def compiled_with(verdict: EncoderVerdict | None, encoder: str = "reference") -> CompiledSnapshot:
    encoders = {} if verdict is None else {GPU_NAME: verdict}
    if encoder != "reference":
        encoders[encoder] = EncoderVerdict(encoder, encoder_version(encoder), Verdict.ADMITTED)
    return dataclasses.replace(tier().compiled, encoder=encoder, encoders=encoders)


def admitted(version: str | None = None) -> EncoderVerdict:
    return EncoderVerdict(GPU_NAME, version or TwinBackend().version, Verdict.ADMITTED)


def opened(gpu: Gpu | None, compiled: CompiledSnapshot, folder: Path, **more: Any) -> TierTokenizer:
    save(compiled, folder)
    return open_snapshot(tier().reference.snapshot, compiled_dir=folder, workers=1, gpu=gpu, name="m", **more)


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "PROBE_CHARS", 300)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- what serves ------------------------------------------------------------------------------------------------


def test_an_admitted_device_serves_long_texts_around_the_cpus_candidate(tmp_path: Path) -> None:
    backend = TwinBackend()
    found = opened(Gpu(backend, threshold_chars=200), compiled_with(admitted(), "gigatoken"), tmp_path)
    assert found.text_encoder is found.gpu is not None
    assert not any(core.is_reference for core in found.cores.by_position.values())  # type: ignore[union-attr]
    assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    assert found.encode(TEXT[:150]).tolist() == tier().ids(TEXT[:150])
    assert found.fallbacks() == {"gpu.encoded": 1}


def test_a_pod_without_a_device_serves_the_same_snapshot_by_the_cpus_candidate(tmp_path: Path) -> None:
    found = opened(None, compiled_with(admitted(), "gigatoken"), tmp_path)
    assert found.gpu is None
    assert found.cores is not None
    assert found.cores.by_position[next(iter(found.cores.by_position))].name == "gigatoken"
    assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    assert found.fallbacks() == {}


def test_what_the_device_answered_and_left_is_among_the_session_services_counts(tmp_path: Path) -> None:
    backend = TwinBackend()
    found = opened(Gpu(backend, threshold_chars=200), compiled_with(admitted()), tmp_path)
    service = SessionService(found)
    service.open("tenant", "one", TEXT)
    backend.opened[0].failing = OutOfMemory("kernels.out_of_memory", "no room")
    service.open("tenant", "two", TEXT)
    counts = service.counts()
    assert (counts["encoder.gpu.encoded"], counts["encoder.gpu.out_of_memory"]) == (1, 1)


def test_a_quarantine_and_planted_faults_reach_the_device(tmp_path: Path) -> None:
    found = opened(Gpu(TwinBackend(), threshold_chars=200), compiled_with(admitted()), tmp_path)
    planted = plant_wrong_ids(found, rate=1.0, seed=1, allow=True)
    assert found.encode(TEXT).tolist() != tier().ids(TEXT)
    assert planted.lies > 0
    found.quarantine()
    assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    assert found.fallbacks()["gpu.quarantined"] == 1


# --- why the CPU serves ------------------------------------------------------------------------------------------


def elsewhere(**changes: Any) -> CompiledSnapshot:
    return compiled_with(dataclasses.replace(admitted(), **changes))


@pytest.mark.parametrize(
    ("compiled", "code"),
    [
        (compiled_with(None), "kernels.not_admitted"),
        (elsewhere(version="toktier-kernels==0 torch==0 triton==0 tables==0"), "kernels.not_admitted"),
        (elsewhere(verdict=Verdict.REJECTED, reason="encoder.divergence"), "kernels.not_admitted"),
        (elsewhere(verdict=Verdict.REFERENCE_ONLY, reason="campaign.void"), "kernels.not_admitted"),
    ],
)
@pytest.mark.parametrize("required", [False, True])
def test_without_an_admission_the_cpu_serves_and_one_event_says_so(
    compiled: CompiledSnapshot, code: str, required: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = Gpu(TwinBackend(), required=required, admission_s=0)
    found = opened(gpu, compiled, tmp_path)
    assert found.gpu is None
    assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    (event,) = events(caplog)
    assert f"[{code}]" in event


def test_a_tokenizer_that_is_none_for_the_device_is_served_by_the_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = build_tier(tokenizer_json(telltale("ab▁ "), normalizer=replace(" ", "▁")))
    save(other.compiled, tmp_path)
    gpu = Gpu(TwinBackend(), required=True)
    found = open_snapshot(other.reference.snapshot, compiled_dir=tmp_path, workers=1, gpu=gpu)
    assert found.gpu is None
    assert found.encode("ab ba").tolist() == other.ids("ab ba")
    (event,) = events(caplog)
    assert "[kernels.no_class_rule]" in event


class Broken(TwinBackend):
    def open(self, *arguments: Any) -> Any:
        raise EncoderUnavailable("kernels.out_of_memory", "the tables don't fit")


def wrong_ids(engine: TwinEngine) -> FaultyEngine:
    return FaultyEngine(lambda text: tier().reference.encode_text(text)[::-1])


@pytest.mark.parametrize(
    ("backend", "code"),
    [
        (Broken(), "kernels.out_of_memory"),
        (TwinBackend(wrong_ids), "kernels.probe"),
        (TwinBackend(lambda engine: FaultyEngine(lambda text: [][0])), "kernels.probe"),
    ],
)
def test_a_device_that_fails_at_the_start_is_an_error_only_where_it_is_required(
    backend: TwinBackend, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EncoderUnavailable) as caught:
        opened(Gpu(backend, required=True, threshold_chars=200), compiled_with(admitted()), tmp_path)
    assert caught.value.code == code
    assert events(caplog) == []
    found = opened(Gpu(backend, threshold_chars=200), compiled_with(admitted()), tmp_path)
    assert found.gpu is None
    assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    (event,) = events(caplog)
    assert f"[{code}]" in event


def test_a_device_that_is_never_faster_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_service, "measure_threshold", lambda *_: None)
    backend = TwinBackend()
    found = opened(Gpu(backend, required=True), compiled_with(admitted()), tmp_path)
    assert found.gpu is None
    (event,) = events(caplog)
    assert "[kernels.slower]" in event


def test_a_measured_threshold_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "measure_threshold", lambda encoder, text_of: len(text_of(333)))
    found = opened(Gpu(TwinBackend()), compiled_with(admitted()), tmp_path)
    assert found.gpu is not None
    assert found.gpu.threshold_chars == 333
    assert found.fallbacks() == {"gpu.encoded": 0}  # what was measured isn't counted


# --- admitted on the spot ------------------------------------------------------------------------------------------


@pytest.fixture
def campaigns(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The budgets of campaigns on the GPU path; each admits it."""
    run: list[float] = []

    def admit_gpu(reference: Any, compiled: CompiledSnapshot, backend: Any, *, budget_s: float, seed: int) -> Any:
        run.append(budget_s)
        return dataclasses.replace(compiled, encoders={**compiled.encoders, GPU_NAME: admitted(backend.version)})

    monkeypatch.setattr(gpu_service, "admit_gpu", admit_gpu)
    return run


def test_a_device_without_a_verdict_is_examined_once_and_that_is_kept(tmp_path: Path, campaigns: list[float]) -> None:
    save(compiled_with(None), tmp_path)
    for _ in range(2):
        gpu = Gpu(TwinBackend(), threshold_chars=200, admission_s=3)
        found = open_snapshot(tier().reference.snapshot, compiled_dir=tmp_path, workers=1, gpu=gpu)
        assert found.gpu is not None
        assert found.encode(TEXT).tolist() == tier().ids(TEXT)
    assert campaigns == [3]
    kept = load(tmp_path, tier().reference.snapshot.fingerprint)
    assert kept is not None
    assert kept.gpu(TwinBackend().version) is not None


def test_where_compiled_snapshots_are_given_nothing_is_written(tmp_path: Path, campaigns: list[float]) -> None:
    for _ in range(2):
        found = opened(Gpu(TwinBackend(), threshold_chars=200), compiled_with(None), tmp_path, unadmitted="refuse")
        assert found.gpu is not None
    assert campaigns == [10, 10]
    assert load(tmp_path, tier().reference.snapshot.fingerprint) == compiled_with(None)


def test_a_folder_that_cannot_be_written_costs_a_campaign_and_no_start(
    tmp_path: Path, campaigns: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(compiled_with(None), tmp_path)

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(app, "save", refuse)
    gpu = Gpu(TwinBackend(), threshold_chars=200)
    assert open_snapshot(tier().reference.snapshot, compiled_dir=tmp_path, workers=1, gpu=gpu).gpu is not None
    assert len(events(caplog)) == 1


def test_a_rejected_device_is_not_examined_again(tmp_path: Path, campaigns: list[float]) -> None:
    found = opened(Gpu(TwinBackend()), elsewhere(verdict=Verdict.REJECTED), tmp_path)
    assert found.gpu is None
    assert campaigns == []


# --- settings ------------------------------------------------------------------------------------------------------


def settings_of(folder: Path, **gpu: Any) -> TierSettings:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data())
    save(compiled_with(admitted()), folder)
    tokenizer = TokenizerSettings("m", str(folder / "tokenizer.json"))
    return TierSettings((tokenizer,), compiled_dir=str(folder), gpu=GpuSettings(**gpu))


def test_the_settings_reach_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gpu_service, "MAKE_BACKEND", lambda *given: asked.append(given) or TwinBackend())
    settings = settings_of(
        tmp_path, mode="required", device="cuda:3", threshold_chars=77, memory_bytes=1 << 30, admission_s=2.0
    )
    found = Tokenizers(settings).open(settings.tokenizers[0])
    assert asked == [("cuda:3", 1 << 30)]
    assert found.gpu is not None
    assert found.gpu.threshold_chars == 77
    default = settings_of(tmp_path, mode="preferred")
    Tokenizers(default)
    assert asked[1:] == [("cuda:0", 0)]


def test_off_asks_for_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "MAKE_BACKEND", lambda *_: pytest.fail("a device was asked for"))
    assert open_gpu("off") is None
    assert Tokenizers(settings_of(tmp_path)).open(settings_of(tmp_path).tokenizers[0]).gpu is None


def none_works(*_: Any) -> Any:
    raise EncoderUnavailable("kernels.no_device", "no CUDA-capable device is detected", device="cuda:0")


def test_without_a_device_preferred_is_one_event_and_required_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_service, "MAKE_BACKEND", none_works)
    preferred = settings_of(tmp_path, mode="preferred")
    other = TokenizerSettings("n", preferred.tokenizers[0].source, policy="template")
    twice = dataclasses.replace(preferred, tokenizers=(*preferred.tokenizers, other), unadmitted="reference")
    tokenizers = Tokenizers(twice)
    for each in twice.tokenizers:
        assert tokenizers.open(each).gpu is None
    (event,) = (event for event in events(caplog) if "compiled snapshot" not in event)
    assert "[kernels.no_device]" in event
    with pytest.raises(EncoderUnavailable) as caught:
        Tokenizers(settings_of(tmp_path, mode="required"))
    assert caught.value.code == "kernels.no_device"
    assert "required" in caught.value.message


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (b"", "off"),
        (b"gpu: {mode: off}", "off"),
        (b'gpu: {mode: "off"}', "off"),
        (b"gpu: {mode: required}", "required"),
    ],
)
def test_the_mode_is_read_however_off_is_written(given: bytes, mode: str) -> None:
    assert parse_settings(b"tokenizers: [{name: a, source: b}]\n" + given).gpu.mode == mode


@pytest.mark.parametrize("wrong", [b"on", b"true", b"Required", b"1", b"[off]", b"", b"{}"])
def test_any_other_mode_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_settings(b"tokenizers: [{name: a, source: b}]\ngpu: {mode: " + wrong + b"}")
    assert caught.value.code == "settings.value"
    assert "gpu.mode is one of off, preferred, required" in caught.value.message


def test_typical_texts_do_for_a_tiny_vocabulary() -> None:
    assert len(typical_texts(tier().reference.snapshot)(50)) == 50
