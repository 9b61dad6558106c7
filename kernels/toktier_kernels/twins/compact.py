"""Twins of `toktier_kernels.compact`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..status import NONE


def positions(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """i32[count + 1]: where `mask` isn't 0, ascending, then its size."""
    return np.append(np.flatnonzero(mask), len(mask)).astype(np.int32)


def tokens(token: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """`ids: u32[count]`, the tokens in order; `starts: u32[count + 1]`: where they start, then the text's size."""
    starts = np.append(np.flatnonzero(token != NONE), len(token)).astype(np.uint32)
    return token[starts[:-1]], starts
