"""The client's buffer follows every patch, and refuses one that was made for other IDs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_tier.client import IdBuffer
from toktier_tier.core.errors import StateCorrupt
from toktier_tier.core.values import Patch, Reason, Route


def patch(keep: int, ids: list[int], resume: int, total: int, revision: int = 1) -> Patch:
    return Patch(keep, np.array(ids, dtype=np.uint32), resume, total, revision, Route.REPAIR, Reason.NONE)


@given(st.data())
def test_the_buffer_holds_what_applying_to_an_array_gives(data: st.DataObject) -> None:
    buffer = IdBuffer()
    ids = np.empty(0, dtype=np.uint32)
    for revision in range(data.draw(st.integers(1, 12))):
        keep = data.draw(st.integers(0, len(ids)))
        resume = data.draw(st.integers(keep, len(ids)))
        fresh = data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=data.draw(st.sampled_from([3, 40, 6_000]))))
        change = patch(keep, fresh, resume, keep + len(fresh) + len(ids) - resume, revision)
        ids = change.apply(ids)
        buffer.apply(change)
        assert buffer.ids.tobytes() == ids.tobytes()
        assert (len(buffer), buffer.revision) == (len(ids), revision)


def test_a_patch_for_other_ids_is_refused_and_changes_nothing() -> None:
    buffer = IdBuffer()
    buffer.apply(patch(0, [1, 2, 3], 0, 3, 0))
    for wrong in (patch(3, [4], 4, 5), patch(4, [4], 4, 5), patch(1, [9], 2, 9)):
        with pytest.raises(StateCorrupt) as caught:
            buffer.apply(wrong)
        assert caught.value.code == "patch.wrong_base"
        assert (buffer.ids.tolist(), buffer.revision) == ([1, 2, 3], 0)


def test_a_whole_answer_replaces_whatever_is_there() -> None:
    buffer = IdBuffer()
    buffer.apply(patch(0, [1, 2, 3], 0, 3, 0))
    buffer.apply(patch(0, [7, 8], 99, 2, 5))
    assert (buffer.ids.tolist(), buffer.revision) == ([7, 8], 5)


def test_the_ids_are_read_only() -> None:
    buffer = IdBuffer()
    buffer.apply(patch(0, [1], 0, 1, 0))
    with pytest.raises(ValueError, match="read-only"):
        buffer.ids[0] = 2
