"""Whether there's a device: torch never imported unasked, whatever is broken one error, thresholds by measurement."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gpu_twins import TwinBackend
from toktier_kernels.tables import Tables
from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.encoders import gpu_device
from toktier_tier.encoders.gpu import GpuEncoder
from toktier_tier.encoders.gpu_device import (
    TritonBackend,
    agrees,
    measure_threshold,
    open_gpu_encoder,
    tables_format,
    typical_texts,
    version_with,
)
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder
from workshop import Tier, build_tier, byte_level, byte_telltale, family_reference, sample_text, tokenizer_json

IMPORT_ALL = """
import importlib, pkgutil, sys
import toktier_tier
for module in pkgutil.walk_packages(toktier_tier.__path__, "toktier_tier."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from toktier_tier.gpu_service import open_gpu
assert open_gpu("off") is None
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "triton")))
"""


@cache
def tier() -> Tier:
    return build_tier(tokenizer_json(byte_telltale("abcdefgh é1."), pre_tokenizer=byte_level()))


def encoder_of(backend: TwinBackend) -> GpuEncoder:
    staged = tier().tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    return open_gpu_encoder(backend, tier().reference, tier().rule, None, staged, staged)


def library(folder: Path, name: str, source: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    return folder


def run_python(code: str, *paths: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout + done.stderr


def test_importing_the_tier_never_imports_torch_or_triton(tmp_path: Path) -> None:
    """Both can be imported there, so that nothing that tries to is saved by their absence."""
    here = library(tmp_path, "torch", "") and library(tmp_path, "triton", "")
    assert run_python("import torch, triton; print(torch.__file__)", here).startswith(str(tmp_path))
    assert run_python(IMPORT_ALL, here).strip() == "[]"


@pytest.mark.parametrize(
    ("torch", "code"),
    [
        ("raise ImportError('no such library')", "kernels.not_installed"),
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "kernels.not_installed"),
        ("raise AssertionError('halfway installed')", "kernels.not_installed"),
        ("", "kernels.not_installed"),  # without what the kernels need of it
    ],
)
def test_a_broken_installation_is_one_event_and_the_cpu_path(tmp_path: Path, torch: str, code: str) -> None:
    asked = "import logging; logging.basicConfig(format='%(levelname)s %(message)s')\n"
    asked += "from toktier_tier.gpu_service import open_gpu\nprint(open_gpu('preferred'))"
    lines = run_python(asked, library(tmp_path, "torch", torch)).splitlines()
    assert lines[0] == "None"
    assert [line for line in lines[1:] if line.startswith("WARNING")] == lines[1:2]
    assert f"[{code}]" in lines[1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_an_environment_without_torch_says_so() -> None:
    with pytest.raises(EncoderUnavailable) as caught:
        TritonBackend()
    assert caught.value.code == "kernels.not_installed"


def test_a_device_that_is_not_there_says_so() -> None:
    pytest.importorskip("triton")
    with pytest.raises(EncoderUnavailable) as caught:
        TritonBackend("cuda:97")
    assert caught.value.code == "kernels.no_device"


def test_the_kernels_themselves_behind_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter; the kernels' own tests have more."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET=1 has to be set before Triton is imported")
    backend = TritonBackend("cpu")
    staged = tier().tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    encoder = open_gpu_encoder(backend, tier().reference, tier().rule, None, staged, staged)
    for text in ("a", "abc é" * 40, sample_text(200)):
        found = encoder.on_device(text)
        assert found is not None
        assert found.tolist() == tier().ids(text)
    assert encoder.fallbacks == {}
    assert "torch==" in backend.version
    assert "triton==" in backend.version


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_names_the_libraries_and_the_format_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = version_with("numpy", "no-such-library")
    assert found.split()[0].startswith("toktier-kernels==")
    assert found.split()[1].startswith("numpy==")
    assert found.split()[2] == "no-such-library==none"
    assert found.split()[3] == f"tables=={tables_format()}"

    changed = dataclasses.make_dataclass("Tables", [(f.name, str(f.type)) for f in dataclasses.fields(Tables)][1:])
    monkeypatch.setattr(gpu_device, "Tables", changed)
    assert version_with("numpy", "no-such-library") != found


# --- thresholds -------------------------------------------------------------------------------------------------------


class Clock:
    """Advances by what `cost(device, chars)` says whenever a text was encoded; reads are pairs around a call."""

    def __init__(self, encoder: GpuEncoder, device_s: dict[int, float], cpu_s: dict[int, float]) -> None:
        self.now = 0.0
        on_device, on_cpu = encoder.on_device, encoder.inner.encode_full

        def device(text: str) -> object:
            self.now += device_s[len(text)]
            return on_device(text)

        def cpu(text: str) -> object:
            self.now += cpu_s[len(text)]
            return on_cpu(text)

        encoder.on_device = device  # type: ignore[assignment, method-assign]
        encoder.inner = type("Timed", (), {"encode_full": staticmethod(cpu)})()

    def __call__(self) -> float:
        return self.now


SIZES = (10, 20, 40, 80)


@pytest.mark.parametrize(
    ("device_s", "cpu_s", "expected"),
    [
        ((1, 1, 1, 1), (2, 4, 8, 16), 10),
        ((5, 5, 5, 5), (2, 4, 8, 16), 40),
        ((20, 20, 20, 20), (2, 4, 8, 16), None),
        ((1, 9, 5, 5), (2, 4, 8, 16), 40),  # faster at 10 by chance: not from there on
        ((1, 1, 1, 16), (2, 4, 8, 16), None),  # as fast is no faster
    ],
)
def test_the_threshold_is_the_least_size_from_which_the_device_is_faster(
    device_s: tuple[float, ...], cpu_s: tuple[float, ...], expected: int | None
) -> None:
    encoder = encoder_of(TwinBackend())
    clock = Clock(encoder, dict(zip(SIZES, device_s, strict=True)), dict(zip(SIZES, cpu_s, strict=True)))
    text_of = typical_texts(tier().reference.snapshot)
    assert measure_threshold(encoder, text_of, sizes_chars=SIZES, clock=clock) == expected


def test_a_size_that_the_device_does_not_answer_is_none_of_its() -> None:
    backend = TwinBackend()
    encoder = encoder_of(backend)
    backend.opened[0].failing = RuntimeError()
    assert measure_threshold(encoder, typical_texts(tier().reference.snapshot), sizes_chars=SIZES) is None
    assert not agrees(encoder, "abc")
    backend.opened[0].failing = None
    assert agrees(encoder, "abc")


@pytest.mark.parametrize("family", ["qwen-3", "llama-3.1"])
def test_measured_texts_are_of_the_length_that_was_asked_for_and_like_text(family: str) -> None:
    reference = family_reference(family)
    text_of = typical_texts(reference.snapshot)
    text = text_of(20_000)
    assert len(text) == 20_000
    assert 2 < len(text) / len(reference.encode_text(text)) < 6
    assert text_of(1) != ""
