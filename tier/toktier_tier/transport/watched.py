"""Files that are read again once they change, as Kubernetes changes mounted Secrets: by putting others in their place.

Guarantee: what was read last and was right stays in use until something right replaces it.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import InvalidRequest, TierError

MAX_WORD_BYTES = 4_096
log = logging.getLogger("toktier")


def secret_word(path: str, code: str, what: str) -> str:
    """A file's one word. Raises `InvalidRequest` (`code`) for a file that can't be read, or has anything else in it."""
    try:
        with Path(path).open("rb") as file:
            word = file.read(MAX_WORD_BYTES + 1).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise InvalidRequest(code, f"{what} can't be read: {type(error).__name__}") from None
    if not word or len(word) > MAX_WORD_BYTES or not word.isprintable() or " " in word:
        raise InvalidRequest(code, f"{what} is one word of printable ASCII")
    return word


class Watched(ABC):
    """`reloads` counts by outcome (`loaded`, `refused`), the first reading aside. Belongs to one thread.

    The first reading raises what is wrong; later ones log its code and keep what there is.
    """

    def __init__(self, what: str, paths: Sequence[str]) -> None:
        self._what, self._paths = what, tuple(path for path in paths if path)
        self._seen = self._signature()
        self.reloads: Counter[str] = Counter({"loaded": 0, "refused": 0})
        self.load()

    @abstractmethod
    def load(self) -> None:
        """Read all of it and take it into use, or raise a `TierError` and change nothing."""

    def refresh(self, *, force: bool = False) -> bool:
        """Read again if a file has changed, or anyway; whether that was done and was right."""
        found = self._signature()
        if found == self._seen and not force:
            return False
        self._seen = found  # taken before reading: a change while reading is read again
        try:
            self.load()
        except TierError as error:
            self.reloads["refused"] += 1
            log.error("%s: not taken into use, the old stays: %s", self._what, error.code)
            return False
        self.reloads["loaded"] += 1
        log.warning("%s: read again", self._what)
        return True

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
