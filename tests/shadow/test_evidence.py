"""What is kept of a divergence: enough to find it again, no text unless the policy says so, and never a disturbance."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toktier_tier.core.values import Ids, Route
from toktier_tier.shadow import evidence
from toktier_tier.shadow.evidence import AROUND_TOKENS, Divergence, EvidenceFolder, describe, first_difference
from toktier_tier.shadow.sample import sample_encoding

TEXT = "a very secret text: é"


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.uint32)


def divergence(time_s: float = 7.5, text: str = TEXT, **change: Any) -> Divergence:
    expected = np.arange(1_000, 1_050, dtype=np.uint32)
    answered = expected.copy()
    answered[20] = 7
    sample = sample_encoding(text, answered, Route.ENCODE)
    arguments: Any = {"time_s": time_s, "fingerprint": "f" * 64, "quarantined_now": True, **change}
    return describe(sample, text, expected, answered, **arguments)


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0), ((1, 2), (1, 2), 2), ((9,), (1,), 0)],
)
def test_the_first_difference(left: tuple[int, ...], right: tuple[int, ...], index: int) -> None:
    assert first_difference(ids(*left), ids(*right)) == first_difference(ids(*right), ids(*left)) == index


def test_a_report_names_the_place_and_the_ids_around_it() -> None:
    found = divergence()
    assert (found.first_difference, found.around_from) == (20, 20 - AROUND_TOKENS)
    assert found.expected_around == tuple(range(1_012, 1_029))
    assert found.answered_around == tuple(7 if id == 1_020 else id for id in range(1_012, 1_029))
    assert (found.expected_tokens, found.answered_tokens) == (50, 50)
    assert found.text_sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    assert (found.text_chars, found.text_bytes) == (21, 22)


def test_a_text_that_the_reference_refuses_has_no_expected_ids() -> None:
    sample = sample_encoding("x", ids(1, 2), Route.ENCODE)
    found = describe(sample, "x", None, ids(1, 2), time_s=0.0, fingerprint="f", quarantined_now=False)
    assert (found.expected_tokens, found.first_difference, found.expected_around) == (None, 0, ())
    assert found.answered_around == (1, 2)


def test_what_ends_up_in_logs_decodes_to_no_words() -> None:
    told = repr(divergence())
    assert "secret" not in told
    assert "1012" not in told
    assert "around" not in told.replace("around_from", "")


@pytest.mark.parametrize("redact", [True, False])
def test_the_text_is_written_by_policy_only(tmp_path: Path, redact: bool) -> None:
    found = divergence()
    path = EvidenceFolder(tmp_path / "made" / "here", redact=redact).write(found, TEXT)
    assert path is not None
    document = json.loads(path.read_bytes())
    assert document.pop("text", None) == (None if redact else TEXT)
    assert document == {
        "time_s": 7.5,
        "fingerprint": "f" * 64,
        "route": "encode",
        "reason": "none",
        "revision": None,
        "text_sha256": found.text_sha256,
        "text_chars": 21,
        "text_bytes": 22,
        "expected_tokens": 50,
        "answered_tokens": 50,
        "first_difference": 20,
        "around_from": 12,
        "expected_around": list(found.expected_around),
        "answered_around": list(found.answered_around),
        "quarantined_now": True,
        "untrusted": [],
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    if redact:
        assert b"secret" not in path.read_bytes()


def test_files_are_bounded_across_restarts(tmp_path: Path) -> None:
    written = [
        EvidenceFolder(tmp_path, max_files=3).write(divergence(float(time_s)), TEXT) is not None for time_s in range(5)
    ]
    assert written == [True, True, True, False, False]
    assert len(list(tmp_path.iterdir())) == 3


def test_without_a_place_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert EvidenceFolder(None).write(divergence(), TEXT) is None
    assert EvidenceFolder(tmp_path / "file").write(divergence(), TEXT) is None
    assert EvidenceFolder(tmp_path / "file" / "below").write(divergence(), TEXT) is None
    assert EvidenceFolder(tmp_path, max_files=0).write(divergence(), TEXT) is None


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evidence, "_write_private", full)
    assert EvidenceFolder(tmp_path).write(divergence(), TEXT) is None
    assert list(tmp_path.iterdir()) == []
