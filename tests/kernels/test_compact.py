"""Compaction keeps order and count, whatever the size."""

from __future__ import annotations

import numpy as np
import pytest
import samples

from toktier_kernels.status import NONE
from toktier_kernels.twins import compact as twin

BLOCK = 32
POISON = 0x5A5A5A5A


def mask(size: int, density: float) -> np.ndarray:
    rng = np.random.default_rng(size)
    return ((rng.random(size) < density) * rng.integers(1, 256, size)).astype(np.uint8)


@pytest.mark.parametrize("size", samples.sizes(BLOCK))
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_positions_are_those_that_python_finds(size: int, density: float) -> None:
    entries = mask(size, density)
    assert twin.positions(entries).tolist() == [i for i, entry in enumerate(entries.tolist()) if entry] + [size]
    token = np.where(entries > 0, np.arange(size), NONE).astype(np.uint32)
    ids, starts = twin.tokens(token)
    assert ids.tolist() == [int(entry) for entry in token if entry != NONE]
    assert starts.tolist() == [*ids.tolist(), size]


class TestKernels:
    @pytest.fixture(autouse=True)
    def _triton(self) -> None:
        pytest.importorskip("triton")
        pytest.importorskip("torch")

    @pytest.mark.parametrize("size", [*samples.sizes(BLOCK), 40 * BLOCK + 1])
    @pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
    @pytest.mark.parametrize("spare", [0, 2 * BLOCK + 1])
    def test_positions(self, size: int, density: float, spare: int) -> None:
        import torch

        from toktier_kernels import compact

        entries = mask(size, density)
        wanted = twin.positions(entries)
        capacity = size + spare
        padded = torch.from_numpy(np.concatenate([entries, np.full(spare, 7, np.uint8)]))
        counts = torch.full((compact.counts_needed(capacity, BLOCK),), POISON, dtype=torch.int32)
        positions = torch.full((capacity + 1,), POISON, dtype=torch.int32)
        status = torch.full((3,), POISON, dtype=torch.int32)
        sizes = torch.tensor([size, 0, 0], dtype=torch.int32)
        compact.compact_mask(padded, counts, positions, sizes, status[1:2], block=BLOCK)
        assert status.tolist() == [POISON, len(wanted) - 1, POISON]
        assert positions[: len(wanted)].tolist() == wanted.tolist()
        assert (positions[len(wanted) :] == POISON).all()

    @pytest.mark.parametrize("size", [4095, 4096, 4097, 9001])
    def test_positions_by_the_launcher_s_own_block(self, size: int) -> None:
        import torch

        from toktier_kernels import compact

        wanted = twin.positions(mask(size, 0.3))
        counts = torch.full((compact.counts_needed(size),), POISON, dtype=torch.int32)
        positions = torch.full((size + 1,), POISON, dtype=torch.int32)
        total = torch.full((1,), POISON, dtype=torch.int32)
        sizes = torch.tensor([size, 0, 0], dtype=torch.int32)
        compact.compact_mask(torch.from_numpy(mask(size, 0.3)), counts, positions, sizes, total)
        assert total.tolist() == [len(wanted) - 1]
        assert positions[: len(wanted)].tolist() == wanted.tolist()

    @pytest.mark.parametrize("size", samples.sizes(BLOCK))
    @pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("spare", [0, 2 * BLOCK + 1])
    def test_tokens(self, size: int, density: float, spare: int) -> None:
        import torch

        from toktier_kernels import compact

        rng = np.random.default_rng(size)
        token = np.where(mask(size, density) > 0, rng.integers(0, NONE, size), NONE).astype(np.uint32)
        if size:
            token[rng.integers(size)] = 0
        ids, starts = twin.tokens(token)
        capacity = size + spare
        padded = torch.from_numpy(np.concatenate([token, np.full(spare, 7, np.uint32)]))
        counts = torch.full((compact.counts_needed(capacity, BLOCK),), POISON, dtype=torch.int32)
        got_ids = torch.from_numpy(np.full(capacity, POISON, np.uint32))
        got_starts = torch.from_numpy(np.full(capacity + 1, POISON, np.uint32))
        total = torch.full((1,), POISON, dtype=torch.int32)
        sizes = torch.tensor([size, 0, 0], dtype=torch.int32)
        compact.compact_tokens(padded, counts, got_ids, got_starts, sizes, total, block=BLOCK)
        assert total.tolist() == [len(ids)]
        assert got_ids.numpy()[: len(ids)].tolist() == ids.tolist()
        assert got_starts.numpy()[: len(starts)].tolist() == starts.tolist()
        assert (got_ids.numpy()[len(ids) :] == POISON).all()
        assert (got_starts.numpy()[len(starts) :] == POISON).all()

    def test_counts_of_many_blocks_are_added_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        from toktier_kernels import compact

        monkeypatch.setattr(compact, "COUNTS", 16)
        entries = mask(8 * 50 + 3, 0.4)
        counts = torch.full((compact.counts_needed(len(entries), 8),), POISON, dtype=torch.int32)
        positions = torch.full((len(entries) + 1,), POISON, dtype=torch.int32)
        total = torch.zeros(1, dtype=torch.int32)
        sizes = torch.tensor([len(entries), 0, 0], dtype=torch.int32)
        compact.compact_mask(torch.from_numpy(entries), counts, positions, sizes, total, block=8)
        assert positions[: int(total[0]) + 1].tolist() == twin.positions(entries).tolist()
