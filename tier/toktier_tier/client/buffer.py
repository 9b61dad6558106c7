"""The IDs of one session at a client: a buffer that patches are applied to in place.

Guarantee: after `apply` the buffer holds the IDs of the patch's revision; a patch made for other IDs raises and
changes nothing. An append costs the IDs it brings, not those that are there.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import StateCorrupt
from ..core.values import Ids, Patch

FIRST_TOKENS = 4_096


class IdBuffer:
    """`ids` is a read-only view that holds until the next `apply`; `revision` is that of the last patch."""

    def __init__(self) -> None:
        self._buffer: Ids = np.empty(FIRST_TOKENS, dtype=np.uint32)
        self._count = 0
        self.revision = -1

    @property
    def ids(self) -> Ids:
        view = self._buffer[: self._count]
        view.setflags(write=False)
        return view

    def __len__(self) -> int:
        return self._count

    def apply(self, patch: Patch) -> None:
        """Raises `StateCorrupt` (`patch.wrong_base`)."""
        whole = patch.keep == 0 and patch.total == len(patch.ids)  # replaces whatever is here
        resume = self._count if whole else patch.resume
        behind = self._count - resume
        if behind < 0 or patch.keep + len(patch.ids) + behind != patch.total:
            raise StateCorrupt("patch.wrong_base", "the IDs at hand aren't those that the patch was made for")
        if patch.total > len(self._buffer):
            grown = np.empty(max(patch.total, 2 * len(self._buffer)), dtype=np.uint32)
            grown[: self._count] = self._buffer[: self._count]
            self._buffer = grown
        end = patch.keep + len(patch.ids)
        if behind and end != resume:
            self._buffer[end : end + behind] = self._buffer[resume : self._count].copy()
        self._buffer[patch.keep : end] = patch.ids
        self._count = patch.total
        self.revision = patch.revision
