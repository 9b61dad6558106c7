"""Patches: what they can be, and what they fit."""

from __future__ import annotations

import numpy as np
import pytest

from toktier_tier.core.errors import InvalidRequest, StateCorrupt
from toktier_tier.core.values import Ids, Patch, Reason, Route


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.uint32)


def patch(keep: int, resume: int, total: int) -> Patch:
    return Patch(keep, ids(8, 9), resume, total, 1, Route.REPAIR, Reason.NONE)


def test_a_patch_replaces_what_lies_between_what_it_keeps() -> None:
    assert patch(1, 3, 4).apply(ids(1, 2, 3, 4)).tolist() == [1, 8, 9, 4]
    assert patch(4, 4, 6).apply(ids(1, 2, 3, 4)).tolist() == [1, 2, 3, 4, 8, 9]


@pytest.mark.parametrize("old", [(1, 2, 3), (1, 2, 3, 4, 5), ()])
def test_a_patch_of_other_ids_is_refused(old: tuple[int, ...]) -> None:
    with pytest.raises(StateCorrupt) as refused:
        patch(1, 3, 4).apply(ids(*old))
    assert refused.value.code == "patch.wrong_base"


def test_a_patch_that_resumes_behind_the_ids_is_refused_though_the_number_fits() -> None:
    with pytest.raises(StateCorrupt):
        patch(1, 3, 3).apply(ids(1, 2))


@pytest.mark.parametrize(("keep", "resume", "total"), [(2, 1, 9), (-1, 0, 9), (1, 1, 2)])
def test_a_patch_that_cannot_be_is_refused(keep: int, resume: int, total: int) -> None:
    with pytest.raises(InvalidRequest):
        patch(keep, resume, total)
