"""Twin of `overlong`: stretches that the CPU encoded, put among the tokens."""

from __future__ import annotations

from ..batch import Ids, Positions
from ..status import NONE


def place(token: Ids, starts: Positions, ends: Positions, at: Positions, ids: Ids) -> None:
    """token[starts[k]:ends[k]] = NONE for every stretch, then token[at] = ids, in place.

    token: u32[n]; starts, ends: i32[K]; at: i32[T], where each token starts; ids: u32[T].
    """
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        token[start:end] = NONE
    token[at] = ids
