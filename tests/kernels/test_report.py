"""`report` and `overlong` on the device: equal to their twins, over poisoned outputs, at sizes around a block."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import samples

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from toktier_kernels import overlong, report  # noqa: E402
from toktier_kernels.status import NONE, OVERLONG, SEGMENTS, SIZE_DOCUMENTS, SIZE_SLOTS, STATUS_SLOTS, TOKENS  # noqa: E402
from toktier_kernels.stretches import TILE, tiles  # noqa: E402
from toktier_kernels.twins import overlong as overlong_twin  # noqa: E402
from toktier_kernels.twins import report as report_twin  # noqa: E402

POISON = -559038737


def there(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def status_of(**slots: int) -> torch.Tensor:
    status = np.full(STATUS_SLOTS, POISON, np.int32)
    for name, value in slots.items():
        status[{"segments": SEGMENTS, "overlong": OVERLONG, "tokens": TOKENS}[name]] = value
    return there(status)


@pytest.mark.parametrize("count", [size for size in samples.sizes(report.BLOCK) if size <= 600])
def test_bounds_of_the_listed_segments(count: int) -> None:
    random = np.random.default_rng(count)
    segments = np.concatenate([[0], np.cumsum(random.integers(1, 9, 700))]).astype(np.int32)
    listed = random.integers(0, 700, 600).astype(np.int32)
    found = np.full(2 * 600, POISON, np.int32)
    out = there(found)
    report.bounds(there(segments), there(listed), out, status_of(segments=700, overlong=count))
    found[:count], found[600 : 600 + count] = report_twin.bounds(segments, listed[:count])
    assert out.tolist() == found.tolist()


def test_bounds_past_the_report_are_left_out() -> None:
    segments = np.arange(0, 101, 10, dtype=np.int32)
    out = there(np.full(8, POISON, np.int32))
    listed = np.array([3, 9, 0, 1, 5, 7], np.int32)
    report.bounds(there(segments), there(listed), out, status_of(segments=10, overlong=1000))
    assert out.tolist() == [30, 90, 0, 10, 40, 100, 10, 20]


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("documents", [0, 1, report.BLOCK - 1, report.BLOCK, report.BLOCK + 1])
def test_first_tokens_of_documents(documents: int, tokens: int) -> None:
    random = np.random.default_rng(tokens + documents)
    starts = np.concatenate([[0], np.cumsum(random.integers(1, 5, tokens))]).astype(np.uint32)
    places = np.sort(random.choice(starts, documents)).astype(np.int32)
    room = 2 * report.BLOCK
    firsts = np.full(room, POISON, np.int32)
    sizes = np.zeros(SIZE_SLOTS, np.int32)
    sizes[SIZE_DOCUMENTS] = documents
    padded = np.concatenate([places, np.full(room - documents, POISON, np.int32)])
    out = there(firsts)
    report.first_tokens(there(starts), there(padded), out, there(sizes), status_of(tokens=tokens))
    firsts[:documents] = report_twin.first_tokens(starts, places)
    assert out.tolist() == firsts.tolist()


@pytest.mark.parametrize("length", [1, TILE - 1, TILE, TILE + 1, 2 * TILE + 7])
def test_stretches_are_cleared_and_their_tokens_put_in(length: int) -> None:
    random = np.random.default_rng(length)
    before = random.integers(0, 2**31, length + 500).astype(np.uint32)
    starts = np.array([3, 17, length + 40], np.int32)
    ends = np.array([5, 17 + length, length + 41], np.int32)
    inside = [random.choice(np.arange(a, b), random.integers(1, b - a + 1), False) for a, b in zip(starts, ends)]  # noqa: B905
    at = np.sort(np.concatenate(inside)).astype(np.int32)
    ids = random.integers(0, 2**32 - 1, len(at), dtype=np.uint32)
    expected, out = before.copy(), there(before)
    overlong_twin.place(expected, starts, ends, at, ids)
    overlong.place(out, *(there(part) for part in (*tiles(starts, ends), at, ids)))
    assert out.numpy().tolist() == expected.tolist()
    assert (expected[starts[0] : ends[0]] == NONE).sum() == ends[0] - starts[0] - len(inside[0])


@pytest.mark.parametrize("count", [1, overlong.BLOCK - 1, overlong.BLOCK, overlong.BLOCK + 1])
def test_tokens_around_a_block_are_put_in(count: int) -> None:
    token = np.full(2 * count, POISON & 0xFFFFFFFF, np.uint32)
    at, ids = np.arange(0, 2 * count, 2, dtype=np.int32), np.arange(count, dtype=np.uint32)
    out = there(token)
    nowhere = there(np.empty(0, np.int32))
    overlong.place(out, nowhere, nowhere, there(at), there(ids))
    overlong_twin.place(token, np.empty(0, np.int32), np.empty(0, np.int32), at, ids)
    assert out.numpy().tolist() == token.tolist()


def test_tiles_cover_their_ranges_and_no_more() -> None:
    starts, ends = np.array([0, 10, 30], np.int32), np.array([1, 30, 34], np.int32)
    begins, stops = tiles(starts, ends, 4)
    covered = [position for a, b in zip(begins, stops, strict=True) for position in range(a, b)]
    assert covered == [0, *range(10, 34)]
    assert ((stops - begins) <= 4).all()
    assert all(a < b for a, b in pairwise(begins))
