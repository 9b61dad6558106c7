"""The probe finds exactly the code points on which a candidate errs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from toktier_tier.admission import probe
from toktier_tier.admission.probe import (
    BLOCK_POINTS,
    EMPTY_PLANE_FRAME,
    FRAME,
    MAX_UNSAFE_POINTS,
    UNASSIGNED_FRAME,
    ProbeResult,
    _Block,
    _blocks,
    _Probe,
    probe_encoders,
)
from toktier_tier.core.classes import CODE_POINTS, Bools, is_scalar, ranges_of
from toktier_tier.ports import Ids

Encode = Callable[[str], Ids]


def honest(text: str) -> Ids:
    """A cheap reference: the code points themselves."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def errs_on(*points: int) -> Encode:
    """Exact but for these code points, which it takes for the next one."""
    wrong = np.array(points, dtype=np.uint32)

    def encode(text: str) -> Ids:
        ids = honest(text)
        return np.where(np.isin(ids, wrong), ids + 1, ids).astype(np.uint32)

    return encode


def raises_on(*points: int) -> Encode:
    def encode(text: str) -> Ids:
        if any(chr(point) in text for point in points):
            raise ValueError("no")
        return honest(text)

    return encode


def assigned() -> Bools:
    found = np.zeros(CODE_POINTS, dtype=bool)
    found[:0x3000] = True
    found[0x1F000:0x1F800] = True
    return found


def probed(**candidates: Encode) -> dict[str, ProbeResult]:
    return probe_encoders(candidates, honest, assigned(), lambda done: None)


def test_an_exact_candidate_has_no_unsafe_code_points_and_every_one_was_checked() -> None:
    result = probed(exact=honest)["exact"]
    assert (result.unsafe, result.points, result.checks) == ((), 0, int(is_scalar().sum()))


def test_code_points_on_which_a_candidate_errs_are_found_exactly() -> None:
    points = (0xE9, 0xEA, 0xEB, 0x300, 0xD7FF, 0xE000, 0xFFFF, 0x1F600, 0x3FFFE, 0x40000, 0xE0001, 0x10FFFF)
    found = probed(wrong=errs_on(*points), raising=raises_on(0x4E2D, 0x1F602), exact=honest)
    ranges = ((0xE9, 0xEB), *((p, p) for p in points[3:]))
    assert found["wrong"].unsafe == ranges
    assert found["wrong"].points == len(points)
    assert found["raising"].unsafe == ((0x4E2D, 0x4E2D), (0x1F602, 0x1F602))
    assert found["exact"].unsafe == ()


def test_every_scalar_value_stands_in_exactly_one_block() -> None:
    blocks = _blocks(assigned())
    points = [point for block in blocks for point in block.points]
    assert sorted(points) == np.flatnonzero(is_scalar()).tolist()
    for block in blocks:
        assert 0 < len(block.points) <= BLOCK_POINTS[block.frame]
    frames = {point: block.frame for block in blocks for point in block.points}
    assert (frames[0x41], frames[0x3001], frames[0x50000]) == (FRAME, UNASSIGNED_FRAME, EMPTY_PLANE_FRAME)


def test_what_is_left_out_leaves_the_others_in_their_blocks() -> None:
    only = is_scalar()
    only[[0x41, 0x50000]] = False
    only[0x100:0x200] = False
    blocks = _blocks(assigned(), only)
    assert sorted(point for block in blocks for point in block.points) == np.flatnonzero(only).tolist()
    every = {block.text() for block in _blocks(assigned())}
    assert sum(block.text() not in every for block in blocks) == 2


@pytest.mark.parametrize("frame", [FRAME, UNASSIGNED_FRAME, EMPTY_PLANE_FRAME])
def test_each_character_of_a_block_is_framed(frame: str) -> None:
    block = _Block([0x41, 0xE9, 0x4E2D], frame)
    assert block.text() == "".join(frame.format(char) for char in "Aé中")
    left, right = block.halves()
    assert (*left.points, *right.points) == (0x41, 0xE9, 0x4E2D)
    assert left.text() + right.text() == block.text()


def check(candidate: Encode, points: list[int]) -> list[int]:
    one = _Probe(candidate, honest)
    block = _Block(points, FRAME)
    one.check(block, honest(block.text()).tobytes())
    return [point for first, last in one.result().unsafe for point in range(first, last + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 31, 32])
def test_a_block_is_taken_apart_down_to_the_characters(count: int) -> None:
    points = list(range(0x400, 0x400 + count))
    for wrong in ([], points[:1], points[-1:], points[::2], points):
        assert check(errs_on(*wrong), points) == wrong
        assert check(raises_on(*wrong), points) == wrong


def test_a_block_that_errs_as_a_whole_only_is_unsafe_as_a_whole() -> None:
    def history(text: str) -> Ids:
        """Wrong once a text holds both, as an encoder that confuses neighbours."""
        ids = honest(text)
        return ids + 1 if "Ѐ" in text and "Џ" in text else ids

    points = list(range(0x400, 0x410))
    assert check(history, points) == points


def test_an_answer_of_other_length_or_type_is_an_error() -> None:
    points = list(range(0x400, 0x404))
    assert check(lambda text: honest(text)[:-1], points) == points
    assert check(lambda text: honest(text).astype(np.uint64), points) == points


def test_a_candidate_that_errs_everywhere_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MAX_UNSAFE_POINTS", 100)
    calls = []

    def wrong(text: str) -> Ids:
        calls.append(1)
        return honest(text) + 1

    result = probed(wrong=wrong)["wrong"]
    assert 100 < result.points <= 100 + max(BLOCK_POINTS.values())
    assert len(calls) < 1_000
    assert MAX_UNSAFE_POINTS > 100


def test_ranges_join_neighbours_and_reach_both_ends() -> None:
    points = np.zeros(10, dtype=bool)
    assert ranges_of(points) == ()
    points[[0, 1, 4, 8, 9]] = True
    assert ranges_of(points) == ((0, 1), (4, 4), (8, 9))
    points[:] = True
    assert ranges_of(points) == ((0, 9),)


def test_progress_never_goes_back() -> None:
    told: list[float] = []
    probe_encoders({"exact": honest}, honest, assigned(), told.append)
    assert told == sorted(told)
    assert 0 <= told[0] <= told[-1] <= 1
