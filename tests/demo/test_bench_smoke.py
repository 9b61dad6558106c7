"""The benchmark runs and checks itself; what it measures isn't judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import __main__ as program
from bench.engines import Engines
from toktier_tier.admission.compiled import save
from workshop import compile_with, family_reference, family_rule

WORKS = {"append", "edit", "cold_plain", "cold_chat"}
ENGINES = {"tier", "gigatoken", "reference"}
KEYS = {"work", "engine", "context_chars", "delta_chars", "p50_us", "p90_us", "n", "equal"}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A quick run without the peer, on a compiled snapshot made by hand: no campaign is waited for."""
    folder = tmp_path_factory.mktemp("bench")
    reference = family_reference(program.FAMILY)
    save(compile_with(reference, family_rule(program.FAMILY), "gigatoken"), folder)
    names = ",".join(sorted(ENGINES))
    return ["--quick", "--engines", names, "--compiled-dir", str(folder), "--out", str(folder)]


def test_a_quick_run_writes_every_work_of_every_engine(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(arguments) == 0
    rows: list[dict[str, Any]] = json.loads((Path(arguments[-1]) / "bench.json").read_text())
    timed = [row for row in rows if row["work"] in WORKS]
    assert {row["work"] for row in timed} == WORKS
    assert {row["engine"] for row in timed} == ENGINES
    for row in timed:
        assert row.keys() >= KEYS
        assert row["equal"] is True
        assert 0 < row["p50_us"] <= row["p90_us"]
        assert row["n"] >= 1
    states = [row for row in rows if row["work"] == "state_bytes_per_token"]
    assert {(row["text"], row["keep_text"]) for row in states} == {
        (text, keep) for text in ("agent", "chat") for keep in (True, False)
    }
    shown = capsys.readouterr().out
    assert "Sessions" in shown
    assert "tail edit of 200" in shown


def test_one_unequal_answer_and_no_time_is_shown_or_kept(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(arguments[-1]) / "bench.json"
    output.write_text("of an earlier run")
    right = Engines.reference_ids
    monkeypatch.setattr(Engines, "reference_ids", lambda self, text: np.append(right(self, text), np.uint32(0)))
    assert program.main(arguments) == 1
    assert not output.exists()
    shown = capsys.readouterr().out
    assert "other IDs than the reference" in shown
    assert "µs" not in shown
