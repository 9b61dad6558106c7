"""The comparison that reports and GPU checks rest on: one wrong ID, end or count is red; and red means no times."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from gpu_check import __main__ as gpu_check
from gpu_check import plan
from gpu_check.report import bars
from gpu_check.timing import Bulk, Cell, Latency
from kernels_report.exactness import Answer, Encode, compare
from kernels_report.subjects import Sample, Spans
from toktier_kernels import merge


def sample(text: str) -> Sample:
    """As a tokenizer of one token a byte has it."""
    data = text.encode()
    no_spans = (np.empty(0, np.int64),) * 3
    return Sample(text, data, no_spans, np.frombuffer(data, np.uint8).astype(np.uint32), np.arange(len(data)) + 1)


SAMPLES = [sample(text) for text in ("one", "", "ä two", "three")]


def by_bytes(ids: int = 0, ends: int = 0, counts: int = 0) -> Encode:
    """The same tokenizer, with something added to the last ID, end or count of tokens."""

    def encode(documents: Sequence[bytes], spans: Spans) -> Answer:
        data = np.frombuffer(b"".join(documents), np.uint8)
        answer = Answer(data.astype(np.uint32), np.arange(len(data)) + 1, np.array(list(map(len, documents))))
        answer.ids[-1:] += ids
        answer.ends[-1:] += ends
        if counts:
            answer.document_tokens[-2:] += (-counts, counts)
        return answer

    return encode


def test_equal_answers_are_green_text_by_text_or_at_once() -> None:
    for batches in ([SAMPLES], [[one] for one in SAMPLES]):
        outcome = compare(by_bytes(), batches)
        assert not outcome.red
        assert (outcome.texts, outcome.equal_ids, outcome.equal_ends, outcome.characters) == (4, 4, 4, 13)


def test_one_other_id_end_or_count_is_red() -> None:
    wrong_id = compare(by_bytes(ids=1), [SAMPLES])
    assert wrong_id.red
    assert (wrong_id.equal_ids, wrong_id.equal_ends) == (3, 4)
    assert "'three'" in wrong_id.difference
    wrong_end = compare(by_bytes(ends=1), [SAMPLES])
    assert wrong_end.red
    assert (wrong_end.equal_ids, wrong_end.equal_ends) == (4, 3)
    assert compare(by_bytes(counts=1), [SAMPLES]).equal_ids == 2


def test_a_missing_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="each document"):
        compare(lambda documents, spans: by_bytes()(documents[:-1], spans), [SAMPLES])


@pytest.mark.timeout(600)
def test_a_fault_in_a_kernel_is_red_and_no_time_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = dataclasses.replace(
        plan.REHEARSAL, families=("gpt2-novelai",), sizes=(20,), other_sizes=(20,), texts=1, twin_texts=1, broken=1
    )
    monkeypatch.setattr(plan, "REHEARSAL", tiny)
    monkeypatch.setattr(merge, "merge", lambda *arguments, **options: None)
    assert gpu_check.main(["--rehearse", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu-check-rehearsal.json").read_text())
    assert found["red"]
    assert not {"latency", "steps", "bulk", "bars"} & found.keys()
    printed = capsys.readouterr().out
    assert "token, ids, starts" in printed
    assert "P50" not in printed


def test_bars_are_of_the_main_tokenizers_graph_to_an_array() -> None:
    def row(text: str, chars: int, ms: float, mode: str = "graph") -> Latency:
        cell = Cell(plan.MAIN, text, chars, mode, "array", ends=False)
        return Latency(cell, chars, chars // 4, 100, ms, ms, ms, 0.5, 1, 0, 0)

    rows = [row("nfc", 1_000_000, 0.5), row("nfc", 1_000_000, 0.1, "eager"), row("decomposed", 1_000_000, 1.5)]
    found = {(bar.name, bar.required): bar for bar in bars(rows, [Bulk(plan.MAIN, 1, 1, 1, 1.0, 4.0)])}
    assert [bar.measured for bar in found.values()] == [0.5, 1.0, None, None, 3.0, 4.0]
    assert [bar.passed for bar in found.values()] == [True, False, None, None, False, True]
