"""What the CPU encodes of a text: segments that are too long for a lane. NumPy only.

Guarantee: where each token starts is told by its length, and the lengths add up to the stretch, or it is an error: a
token is never put where it doesn't stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .batch import Bytes, Ids, Positions
from .errors import Overlong

EncodeOverlong = Callable[[Sequence[bytes]], Sequence[NDArray[np.uint32]]]
"""The IDs of each stretch of (normalized) text that stands between two boundaries."""

TILE = 2048
"""Bytes that one program clears."""


def encode_stretches(
    text: Bytes, starts: Positions, ends: Positions, encode: EncodeOverlong | None, length_of: NDArray[np.uint16]
) -> tuple[Positions, Ids]:
    """(where each token starts, its ID) for the stretches text[starts[k]:ends[k]], in order.

    Raises `Overlong` without `encode`, or if what it gives doesn't cover the stretches byte for byte.
    """
    if encode is None:
        raise Overlong("kernels.overlong", f"{len(starts)} stretches are too long", stretches=len(starts))
    encoded = encode([text[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
    counts = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.concatenate([np.empty(0, np.uint32), *(np.asarray(part, dtype=np.uint32) for part in encoded)])
    if len(counts) != len(starts) or not counts.all() or ids.max(initial=0) >= len(length_of):
        raise _uncovered()
    lengths = length_of[ids].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    if (np.add.reduceat(lengths, firsts) != ends - starts).any():
        raise _uncovered()
    before = np.cumsum(lengths) - lengths
    at = before - np.repeat(before[firsts] - starts, counts)
    return at.astype(np.int32), ids


def tiles(starts: Positions, ends: Positions, most: int = TILE) -> tuple[Positions, Positions]:
    """The ranges [starts[k], ends[k]) in parts of at most `most` bytes."""
    parts = (ends - starts + most - 1) // most
    first = np.cumsum(parts) - parts
    begins = np.repeat(starts, parts) + (np.arange(int(parts.sum())) - np.repeat(first, parts)) * most
    return begins.astype(np.int32), np.minimum(begins + most, np.repeat(ends, parts)).astype(np.int32)


def _uncovered() -> Overlong:
    return Overlong("kernels.overlong", "what the CPU made of a stretch doesn't cover it byte for byte")
