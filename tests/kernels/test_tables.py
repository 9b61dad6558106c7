"""Tables validate themselves: what the kernels can't walk can't be made."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import samples

from toktier_kernels.errors import InvalidTables
from toktier_kernels.status import MATCH
from toktier_kernels.tables import END, Stage, Tables


def test_tables_are_frozen_and_theirs_alone() -> None:
    column, step = np.zeros(256, np.uint8), np.zeros((2, 2), np.uint16)
    stage = Stage(False, column, 1, step)
    column[0] = 9
    assert stage.column[0] == 0
    for array in (stage.column, stage.step, stage.dense, samples.tables().cuts, samples.tables().class_of):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        stage.columns = 2  # type: ignore[misc]


def test_dense_steps_are_the_steps_by_symbol_and_255_is_the_end() -> None:
    stage = samples.words()
    assert stage.dense.shape == (len(stage.step), 256)
    for state in range(len(stage.step)):
        for symbol in range(255):
            assert stage.dense[state, symbol] == stage.step[state, stage.column[symbol]]
        assert stage.dense[state, END] == stage.step[state, stage.columns]


@pytest.mark.parametrize(
    "change",
    [
        {"column": np.zeros(255, np.uint8)},
        {"column": np.zeros(256, np.int64)},
        {"column": np.full(256, 2, np.uint8)},
        {"columns": 0},
        {"step": np.zeros((2, 4), np.uint16)},
        {"step": np.zeros((1, 3), np.uint16)},
        {"step": np.zeros(6, np.uint16)},
        {"step": np.full((2, 3), 2, np.uint16)},
        {"step": np.array([[0, 0, 0], [1, 0, MATCH]], np.uint16)},
    ],
)
def test_a_stage_that_cannot_be_walked_is_refused(change: dict[str, Any]) -> None:
    whole = {"of_bytes": False, "column": np.zeros(256, np.uint8), "columns": 2, "step": np.zeros((2, 3), np.uint16)}
    Stage(**whole)
    with pytest.raises(InvalidTables) as caught:
        Stage(**{**whole, **change})
    assert caught.value.code == "kernels.invalid_tables"


@pytest.mark.parametrize(
    "change",
    [
        {"page_of": np.zeros(4351, np.uint16)},
        {"page_of": np.full(4352, 999, np.uint16)},
        {"class_of": np.zeros((99, 256), np.uint8)},
        {"class_of": np.full((99, 256), 255, np.uint8)},
        {"class_of": np.ones((99, 255), np.uint8)},
        {"cuts": np.zeros((255, 256), np.uint8)},
        {"cuts": np.full((256, 256), 2, np.uint8)},
        {"settled": np.full(256, 3, np.uint8)},
        {"settled": np.zeros(256, np.int8)},
        {"stages": ()},
        {"stages": (samples.high_bytes(), samples.words())},
    ],
)
def test_tables_that_kernels_cannot_index_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTables) as caught:
        dataclasses.replace(samples.tables(), **change)
    assert caught.value.code == "kernels.invalid_tables"


def test_only_tables_with_something_to_settle_normalize() -> None:
    whole: Tables = samples.tables()
    assert whole.normalizes
    assert not dataclasses.replace(whole, settled=np.zeros(256, np.uint8)).normalizes
