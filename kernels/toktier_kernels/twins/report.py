"""Twins of `toktier_kernels.report`."""

from __future__ import annotations

import numpy as np

from ..batch import Ids, Positions


def bounds(segments: Positions, overlong: Positions) -> tuple[Positions, Positions]:
    """(starts, ends) of the segments listed."""
    return segments[overlong], segments[overlong + 1]


def first_tokens(starts: Ids, documents: Positions) -> Positions:
    """How many tokens start before each document. `starts`: u32[count + 1], with the text's size at its end."""
    return np.searchsorted(starts[:-1], documents.astype(np.uint32)).astype(np.int32)
