"""IDs on their way out: every bad one is refused, every good one is written as any JSON parser reads it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.engine.ids import MAX_ID_LIMIT, check_ids, ids_json, ids_json_plain
from workshop import examples

LIMITS = st.sampled_from([1, 2, 10, 11, 256, 151_936, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 10**7, MAX_ID_LIMIT])


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], int]:
    limit = draw(LIMITS)
    return draw(st.lists(st.integers(0, limit - 1) | st.just(limit - 1) | st.just(0), min_size=1, max_size=40)), limit


@settings(max_examples=examples(300))
@given(prompts())
def test_ids_are_written_as_their_numbers(prompt: tuple[list[int], int]) -> None:
    ids, limit = prompt
    checked = check_ids(ids, limit)
    assert checked.array.tolist() == ids
    assert json.loads(ids_json(checked)) == json.loads(ids_json_plain(checked)) == ids


@pytest.mark.parametrize("top", [0, 9, 10, 99_999, (1 << 17) - 1, 1 << 17, (1 << 20) - 1, 1 << 20])
def test_the_ends_of_the_tables_are_right(top: int) -> None:
    ids = [0, top, top // 2, max(0, top - 1), top]
    assert json.loads(ids_json(check_ids(ids, top + 1))) == ids


@settings(max_examples=examples(200))
@given(prompts(), st.data())
def test_one_bad_id_is_found_wherever_it_stands(prompt: tuple[list[int], int], data: st.DataObject) -> None:
    ids, limit = prompt
    at = data.draw(st.integers(0, len(ids)))
    bad = data.draw(st.sampled_from([-1, limit, limit + 1, -(1 << 40), 1 << 40]))
    with pytest.raises(InvalidRequest) as caught:
        check_ids([*ids[:at], bad, *ids[at:]], limit)
    assert (caught.value.code, caught.value.details["position"]) == ("ids.out_of_range", at)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_every_integer_type_is_taken(dtype: Any) -> None:
    array = np.array([3, 0, 255], dtype=np.uint8).astype(dtype)
    assert check_ids(array, 256).array.tolist() == [3, 0, 255]


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "ids.empty"),
        (np.zeros(0, dtype=np.uint32), "ids.empty"),
        ([0] * 9, "ids.too_many"),
        ([1.0], "ids.not_integers"),
        (["1"], "ids.not_integers"),
        ([True], "ids.not_integers"),
        ([None], "ids.not_integers"),
        ([[1], [2]], "ids.not_integers"),
        ([[1], [2, 3]], "ids.not_integers"),
        ([1 << 70], "ids.not_integers"),
        (np.array([1 << 63], dtype=np.uint64), "ids.out_of_range"),
    ],
)
def test_what_is_no_prompt_is_refused_by_code(ids: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(ids, 100, max_ids=8)
    assert caught.value.code == code


@pytest.mark.parametrize("limit", [0, -1, MAX_ID_LIMIT + 1])
def test_a_vocabulary_that_cant_be_is_refused(limit: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids([0], limit)
    assert caught.value.code == "ids.limit"


def test_checked_ids_dont_change_when_the_session_goes_on() -> None:
    ids = np.array([1, 2, 3], dtype=np.uint32)
    checked = check_ids(ids, 10)
    ids[:] = 9_999
    assert checked.array.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        checked.array[0] = 5
