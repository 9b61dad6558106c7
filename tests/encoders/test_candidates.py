"""Candidates are built from what they can hold, and refuse by a code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.encoders import candidates
from toktier_tier.encoders.candidates import SPARSE_FACTOR, SPARSE_SPARE, build_candidate
from workshop import byte_level, byte_telltale, token, tokenizer_json, unigram


def document(largest: int | None = None, *added: int) -> Any:
    model = byte_telltale("ab")
    if largest is not None:
        model["vocab"]["aa"] = largest
    tokens = [token(id, f"<{id}>") for id in added]
    return json.loads(tokenizer_json(model, pre_tokenizer=byte_level(), added=tokens))


def bound(entries: int) -> int:
    return SPARSE_FACTOR * entries + SPARSE_SPARE


ENTRIES = len(document()["model"]["vocab"])


@pytest.mark.parametrize("name", list(candidates.CANDIDATES))
@pytest.mark.parametrize(
    "sparse", [document(2**32 - 2), document(None, 2**32 - 2), document(bound(ENTRIES) + 1), document(None, 5, 10**6)]
)
def test_no_candidate_is_asked_for_tables_up_to_an_id_that_is_far_off(name: str, sparse: Any) -> None:
    with pytest.raises(EncoderUnavailable) as caught:
        build_candidate(name, sparse)
    assert caught.value.code == "encoder.sparse_ids"


def test_gaps_that_real_files_have_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built:
        def __init__(self, given: Any) -> None:
            self.given = given

    monkeypatch.setattr(candidates, "CANDIDATES", {"any": Built})
    unigrams = json.loads(tokenizer_json(unigram({"<unk>": 0.0, "a": -1.0})))
    for fine in (document(), document(bound(ENTRIES)), document(None, 60_000), unigrams):
        assert build_candidate("any", fine).given == fine  # type: ignore[attr-defined]
