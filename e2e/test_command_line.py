"""The built wheel, installed by itself: `toktierctl` admits, repeats itself byte for byte, and refuses with a code.

Slow and in need of a package index: `make e2e`, not part of `make test`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from catalog import path_of

ROOT = Path(__file__).parents[1]
FAMILY = "gpt2-novelai"
DEADLINE_S = 900

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def run(command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def toktierctl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed command, in an environment that knows nothing of this source tree."""
    place = tmp_path_factory.mktemp("installed")
    built = run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT], place)
    assert built.returncode == 0, built.stderr
    (wheel,) = place.glob("toktier_operator-*.whl")
    environment = place / "environment"
    assert run([sys.executable, "-m", "venv", environment], place).returncode == 0
    installed = run([environment / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[tier]"], place)
    assert installed.returncode == 0, installed.stderr
    return environment / "bin" / "toktierctl"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / "tokenizer.json"
    path.write_bytes(path_of(FAMILY).read_bytes())
    return path


def test_explain_tells_stages_and_rule(toktierctl: Path, tokenizer: Path, tmp_path: Path) -> None:
    done = run([toktierctl, "explain", tokenizer], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("fingerprint", "ByteLevel", "Rule by character classes", "rule digest"):
        assert part in done.stdout


def test_the_installed_package_is_the_wheels(toktierctl: Path, tmp_path: Path) -> None:
    program = "import toktier_tier, toktier_operator, toktier_kernels; print(toktier_tier.__file__)"
    done = run([toktierctl.parent / "python", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout


def admit(toktierctl: Path, tokenizer: Path, place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    report, compiled = place / "r.json", place / "compiled"
    common = ("--budget", "1s", "--report", report, "--compiled", compiled)
    return run([toktierctl, "admit", *common, *options, tokenizer], place)


def test_admit_twice_writes_the_same_report_and_compiled_snapshot(
    toktierctl: Path, tokenizer: Path, tmp_path: Path
) -> None:
    reports: list[bytes] = []
    names: list[list[str]] = []
    for turn in ("first", "second"):
        place = tmp_path / turn
        place.mkdir()
        done = admit(toktierctl, tokenizer, place, "--seed", "7")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Admitted" in done.stdout
        reports.append((place / "r.json").read_bytes())
        names.append(sorted(path.name for path in (place / "compiled").iterdir()))
        for path in (place / "compiled").glob("*.compiled.json"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name.partition(".")[0]
    assert reports[0] == reports[1]
    assert names[0] == names[1]
    document = json.loads(reports[0])
    assert document["verdict"] == "Admitted"
    assert f"{document['compiled']}.compiled.json" in names[0]


def test_a_tokenizer_without_a_rule_exits_with_1(toktierctl: Path, tokenizer: Path, tmp_path: Path) -> None:
    document = json.loads(tokenizer.read_bytes())
    document["normalizer"] = {"type": "StripAccents"}
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(document))
    done = admit(toktierctl, other, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ReferenceOnly" in done.stdout
    assert "pipeline.normalizer" in done.stdout


@pytest.mark.parametrize("command", ["explain", "admit"])
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "source.not_found"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "tokenizer.not_json"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0', "tokenizer.not_json"),
        (b"", "tokenizer.not_json"),
        (b"{}", "tokenizer.no_model"),
    ],
    ids=["missing", "html", "truncated", "empty", "no model"],
)
def test_a_bad_input_exits_with_2_and_its_code(
    toktierctl: Path, tmp_path: Path, command: str, content: bytes | None, code: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    done = run([toktierctl, command, path], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert code in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("unknown",), ("admit",), ("admit", "--budget", "soon", "x"), ("explain", "a", "b")]
)
def test_a_wrong_command_line_exits_with_2_and_the_usage(
    toktierctl: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = run([toktierctl, *arguments], tmp_path)
    assert done.returncode == 2
    assert "usage: toktierctl" in done.stderr


def test_an_unknown_encoder_exits_with_2_and_its_code(toktierctl: Path, tokenizer: Path, tmp_path: Path) -> None:
    done = admit(toktierctl, tokenizer, tmp_path, "--encoders", "magic")
    assert done.returncode == 2
    assert "encoder.unknown" in done.stderr
    assert list(tmp_path.iterdir()) == []
