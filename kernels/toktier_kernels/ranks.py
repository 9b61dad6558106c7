"""Merges by rank over many pieces at once, the obvious way. Imports NumPy only.

Guarantee: rules of `models.BPE` of Hugging Face `tokenizers` without dropout:
1. Of all neighbours that merge, those of the least rank merge first; of several such, the leftmost.
2. That is done until none merge.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from toktier_kernels.hashing import ABSENT

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

PAD = 0xFFFFFFFF  # behind a row's last symbol


class Pairs(Protocol):
    def find(self, left: U32, right: U32) -> U64:
        """What each pair merges to, rank above ID, so that the least one is the one to merge; `ABSENT`: nothing."""


def merge_rows(pairs: Pairs, ids: U32) -> tuple[U32, I32]:
    """Merges each row of `ids: u32[rows, width]`, `PAD` behind its symbols.

    Gives the rows' tokens, `PAD` behind them, and for each the column of its first symbol: u32 and i32[rows, width].
    """
    rows, width = ids.shape
    merged = ids.copy()
    column = np.tile(np.arange(width, dtype=np.int32), (rows, 1))
    if width < 2:
        return merged, column
    here = np.arange(rows)
    row, at = merged, column
    value = pairs.find(row[:, :-1], row[:, 1:])
    while True:
        best = value.argmin(axis=1)
        least = value[np.arange(len(here)), best]
        going = least != ABSENT
        done = ~going
        merged[here[done]], column[here[done]] = row[done], at[done]
        if not going.any():
            return merged, column
        here, row, at, value = here[going], row[going], at[going], value[going]
        best, least = best[going], least[going]
        every = np.arange(len(here))
        row[every, best] = least.astype(np.uint32)
        row, at = _without(row, best + 1, PAD), _without(at, best + 1, 0)
        value = _without(value, np.minimum(best + 1, width - 2), ABSENT)
        value[every, best] = pairs.find(row[every, best], row[every, np.minimum(best + 1, width - 1)])
        inner = every[best > 0]
        before = best[best > 0] - 1
        value[inner, before] = pairs.find(row[inner, before], row[inner, before + 1])


def _without(rows: npt.NDArray[Scalar], column: I64, filler: int) -> npt.NDArray[Scalar]:
    """Each row without one of its columns, a filler behind it."""
    width = rows.shape[1]
    kept = np.arange(width - 1)
    shifted = np.take_along_axis(rows, kept + (kept >= column[:, None]), axis=1)
    return np.concatenate([shifted, np.full((len(rows), 1), filler, rows.dtype)], axis=1)
