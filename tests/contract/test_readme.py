"""The README's code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from servers import grpc_tier

README = Path(__file__).parents[2] / "README.md"
PYTHON = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)


def test_the_readmes_lines_run_and_end_in_a_repair(capsys: object) -> None:
    namespace: dict[str, object] = {}
    exec(compile(PYTHON[0], str(README), "exec"), namespace)
    assert namespace["patch"].route.value == "repair"  # type: ignore[attr-defined]


def test_the_readmes_client_runs_against_a_tier(capsys: pytest.CaptureFixture[str]) -> None:
    with grpc_tier("qwen-3") as server:
        exec(compile(PYTHON[1].replace("localhost:50051", server.address), str(README), "exec"), {})
        expected = server.tier.ids("<|im_start|>user\nHello there<|im_end|>\n")
    ids, _, revision = capsys.readouterr().out.rpartition(" ")
    assert ids == str(np.array(expected, dtype=np.uint32))
    assert int(revision) > 0


def test_every_make_target_the_readme_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"`make ([\w-]+)`", README.read_text())):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_every_linked_file_exists_or_is_written_by_a_command() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
