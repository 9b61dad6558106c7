"""A candidate encoder inside its limits: unsafe code points, exceptions and memory.

Guarantees: whatever the candidate does, the answer is the reference's or one that admission vouches for. Text with
an unsafe code point and every raised exception go to the reference, counted by reason. An encoder whose process
memory grew past the budget is rebuilt off the request path and swapped in whole.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..core.classes import Bools
from ..ports import Encoder, Ids

DEFAULT_MEMORY_BYTES = 1 << 30
PICK_CHARS = 2_048
CHECK_EVERY_CHARS = 32 << 20
ASTRAL = 0x10000


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * 4096


class Guarded:
    """`encode` for one position. Thread-safe.

    unsafe     code points on which the candidate differs from the reference; None: there are none
    fallbacks  counts by reason: `unsafe_code_point`, `encoder_exception`, `quarantined`; `rebuilt` counts rebuilds
    """

    def __init__(
        self,
        candidate: Encoder | None,
        reference: Encoder,
        unsafe: Bools | None = None,
        *,
        rebuild: Callable[[], Encoder] | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self.reference = reference
        self._reference = reference.encode
        self._unsafe = unsafe if unsafe is not None and unsafe.any() else None
        self._find_unsafe = _pattern(self._unsafe).search if self._unsafe is not None else None
        self._rebuild, self._memory_bytes, self._resident = rebuild, memory_bytes, resident
        self._fed_chars = 0
        self._baseline = resident() if rebuild else 0
        self._rebuilding = threading.Lock()
        self.fallbacks: Counter[str] = Counter()
        self.name = candidate.name if candidate else reference.name
        self.version = candidate.version if candidate else reference.version
        self._fast: Callable[[str], Ids] | None = candidate.encode if candidate else None

    def quarantine(self) -> None:
        """Serve by the reference only, from the next call on."""
        self._fast, self._rebuild = None, None
        self.fallbacks["quarantined"] += 1

    def replace(self, candidate: Encoder) -> None:
        """Serve by another encoder from the next call on (campaigns and tests plant faulty ones)."""
        self._fast, self._rebuild = candidate.encode, None

    @property
    def is_reference(self) -> bool:
        """Whether every answer comes from the reference."""
        return self._fast is None

    def encode(self, text: str, safe: bool = False) -> Ids:
        """`safe`: the caller knows the text to hold no unsafe code point."""
        if not safe and self._unsafe is not None and not text.isascii() and self._holds_unsafe(text):
            self.fallbacks["unsafe_code_point"] += 1
            return self._reference(text)
        fast = self._fast
        if fast is None:
            return self._reference(text)
        try:
            ids = fast(text)
        except BaseException as error:  # Rust panics aren't Exceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self.fallbacks["encoder_exception"] += 1
            return self._reference(text)
        self._fed_chars += len(text)
        if self._fed_chars > CHECK_EVERY_CHARS:
            self._watch_memory()
        return ids

    def _holds_unsafe(self, text: str) -> bool:
        """Only called for text that isn't all ASCII. Long text is mostly ASCII: the rest is picked out first."""
        assert self._unsafe is not None
        assert self._find_unsafe is not None
        if len(text) <= PICK_CHARS:
            return self._find_unsafe(text) is not None
        data = np.frombuffer(text.encode(), dtype=np.int8)
        text = data[data < 0].tobytes().decode()
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        return bool(self._unsafe.take(points).any())

    def _watch_memory(self) -> None:
        self._fed_chars = 0
        if self._rebuild is None or self._resident() - self._baseline <= self._memory_bytes:
            return
        if self._rebuilding.acquire(blocking=False):
            threading.Thread(target=self._swap, args=(self._rebuild,), name="toktier-rebuild", daemon=True).start()

    def _swap(self, rebuild: Callable[[], Encoder]) -> None:
        try:
            fresh = rebuild()
            if self._fast is not None:  # not quarantined meanwhile
                self._fast = fresh.encode
                self.fallbacks["rebuilt"] += 1
            self._baseline = self._resident()
        finally:
            self._rebuilding.release()


def _pattern(unsafe: Bools) -> re.Pattern[str]:
    """Finds an unsafe character. Of a short text that costs a third of looking all of them up in an array.

    `re` tells at once whether a character below U+10000 is in a class, and goes through ranges for those above: so
    every one of those is a find at first, and then has to be behind itself in the class of the unsafe ones.
    """
    return re.compile(f"[{_ranges(unsafe[:ASTRAL])}{chr(ASTRAL)}-{chr(sys.maxunicode)}](?<=[{_ranges(unsafe)}])")


def _ranges(chosen: Bools) -> str:
    points = np.flatnonzero(chosen)
    if not len(points):
        return ""
    runs = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in runs)
