"""What the tier holds of each conversation, and which of them a new text goes on with. Pure: no I/O, no clock.

A text is known by a chain of hashes, one per whole block of it, each over all the text up to there. The longest mark
that a new text shares with a kept one names the conversation. A hash only proposes: the texts themselves are compared
before anything is sent, so a collision costs work and nothing else.

Rules:
 1. Who takes a conversation has it alone until it is put back or forgotten: nobody else finds it meanwhile.
 2. A conversation is gone on with if the change replaces little of it (a new turn, a rewritten last answer). Otherwise
    the text is another branch: it starts a conversation of its own, and the kept one stays as it is.
 3. Texts and IDs kept are bounded by `limit_bytes`, the least recently used go first.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from toktier_tier.client import IdBuffer

BLOCK_CHARS = 1_024
FREE_TO_REPLACE_CHARS = 8_192
"""A change may replace this much of a conversation, or a quarter of it."""
BYTES_PER_ID, LEAST_BYTES = 8, 20_480
"""Of a buffer that doubles as it grows, and of the smallest."""
BYTES_PER_MARK = 160

Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """new = old[:start] + replacement + old[stop:], in characters."""

    start: int
    stop: int
    replacement: str


@dataclass(slots=True)
class Conversation:
    """text and buffer are what the tier's session `name` stands for at the buffer's revision; new if never asked."""

    name: str
    chain: Chain
    text: str = ""
    buffer: IdBuffer = field(default_factory=IdBuffer)

    @property
    def new(self) -> bool:
        return self.buffer.revision < 0

    @property
    def bytes_(self) -> int:
        return (
            sys.getsizeof(self.text) + LEAST_BYTES + BYTES_PER_ID * len(self.buffer) + BYTES_PER_MARK * len(self.chain)
        )


class Conversations:
    """Thread-safe. `prefix` makes the names of sessions unlike those of any other process."""

    def __init__(self, limit_bytes: int, prefix: str) -> None:
        self._limit, self._prefix = limit_bytes, prefix
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Conversation] = OrderedDict()
        self._by_mark: dict[int, str] = {}
        self._bytes = self._started = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes_(self) -> int:
        return self._bytes

    def take(self, text: str) -> Conversation | None:
        """The conversation for `text`, kept or new; None for one too short to be found again or too long to be kept."""
        if len(text) < BLOCK_CHARS or sys.getsizeof(text) > self._limit // 2:
            return None
        chain = chain_of(text)
        with self._lock:
            found = next((self._by_mark[mark] for mark in reversed(chain) if mark in self._by_mark), None)
            kept = self._remove(found) if found is not None else None
        if kept is not None:
            change = difference(kept.text, text)
            if change.stop - change.start <= max(FREE_TO_REPLACE_CHARS, len(kept.text) // 4):
                kept.chain = chain
                return kept
            self.put(kept)
        with self._lock:
            self._started += 1
            return Conversation(f"{self._prefix}/{self._started}", chain)

    def put(self, conversation: Conversation) -> None:
        """Give it back; from now on its text finds it. One with the same marks is forgotten for it."""
        with self._lock:
            twin = self._by_mark.get(conversation.chain[-1])
            if twin is not None and self._kept[twin].chain == conversation.chain:
                self._remove(twin)
            self._kept[conversation.name] = conversation
            self._bytes += conversation.bytes_
            for mark in conversation.chain:
                self._by_mark[mark] = conversation.name
            while self._bytes > self._limit:
                self._remove(next(iter(self._kept)))

    def _remove(self, name: str) -> Conversation:
        found = self._kept.pop(name)
        self._bytes -= found.bytes_
        for mark in found.chain:
            if self._by_mark.get(mark) == name:
                del self._by_mark[mark]
        return found


def chain_of(text: str) -> Chain:
    """One mark per whole block, each a hash of everything up to its end. Holds within this process only."""
    marks: list[int] = []
    mark = 0
    for end in range(BLOCK_CHARS, len(text) + 1, BLOCK_CHARS):
        mark = hash((mark, text[end - BLOCK_CHARS : end]))
        marks.append(mark)
    return tuple(marks)


def difference(old: str, new: str) -> Change:
    """The change from `old` to `new`: what lies between their longest common prefix and suffix."""
    if new.startswith(old):
        return Change(len(old), len(old), new[len(old) :])
    start = common_prefix_chars(old, new)
    most = min(len(old), len(new)) - start
    low, high = 0, most
    while low < high:  # the longest suffix that fits left of the prefix
        middle = (low + high + 1) // 2
        if old[len(old) - middle : len(old) - low] == new[len(new) - middle : len(new) - low]:
            low = middle
        else:
            high = middle - 1
    return Change(start, len(old) - low, new[start : len(new) - low])


def common_prefix_chars(old: str, new: str) -> int:
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
