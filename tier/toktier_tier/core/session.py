"""The token state of one conversation: a rope of sealed segments and an open tail.

Rules:
 1. The text is the segments' texts, then the tail's; the IDs (without template tokens) are theirs, in order.
 2. Every segment border is a boundary of the snapshot's rule, so each segment's IDs are the encoding of its text by
    itself (the first at the text's start, the others as continuations).
 3. Segments never change; an edit replaces them. Only the tail grows.
 4. With `keep_text` off, a sealed segment keeps its length and digest but not its text.
 5. `untrusted` are the spans of the whole text in which no added token is recognized; a segment's IDs are those of its
    text with its part of them.

So an append costs nothing that grows with the context, and a mid-context edit rewrites one or two segments.
Per token: 4 bytes of ID, and the text in UTF-8 where it is kept.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .errors import StateError
from .pipeline import Position
from .trust import NO_SPANS, Spans
from .values import Ids

SEGMENT_CHARS = 8_192
TAIL_CHARS = 8_192
"""A tail longer than this is sealed down to no less than `TAIL_KEEP_CHARS`."""
TAIL_KEEP_CHARS = 4_096
SEGMENT_OVERHEAD_BYTES = 320
SESSION_OVERHEAD_BYTES = 2_048
SPAN_BYTES = 128

Piece = tuple[str, Ids]
"""A stretch of text between two boundaries, and its IDs."""


def text_digest(data: bytes) -> bytes:
    """BLAKE2b-128 of UTF-8 text."""
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed stretch: UTF-8 text (or None and its digest), lengths, IDs."""

    text: bytes | None
    digest: bytes | None
    bytes_: int
    chars: int
    ids: Ids

    @property
    def memory_bytes(self) -> int:
        return self.ids.nbytes + (self.bytes_ if self.text is not None else 16) + SEGMENT_OVERHEAD_BYTES

    def decoded(self) -> str:
        if self.text is None:
            raise StateError("session.text_not_kept", "only a digest of this text is left")
        return self.text.decode("utf-8")

    def matches(self, data: bytes, offset: int) -> bool:
        """Whether `data` continues with this segment's text at byte `offset`."""
        if self.text is not None:
            return data.startswith(self.text, offset)
        return text_digest(data[offset : offset + self.bytes_]) == self.digest


class SessionState:
    """One session. Not thread-safe: its owner serializes writers.

    revision    counts committed changes
    marks       (characters, tokens) from the tail's start to known boundaries in the tail, ascending
    untrusted   set by `mark_untrusted`
    """

    __slots__ = (
        "_buffer",
        "_sealed_bytes",
        "chars_before",
        "count",
        "keep_text",
        "marks",
        "revision",
        "segments",
        "tail",
        "tokens_before",
        "untrusted",
    )

    def __init__(self, *, keep_text: bool = True) -> None:
        self.keep_text = keep_text
        self.revision = 0
        self.segments: list[Segment] = []
        self.chars_before: list[int] = [0]
        self.tokens_before: list[int] = [0]
        self.tail = ""
        self.count = 0
        self.marks: list[tuple[int, int]] = []
        self._buffer = np.empty(0, dtype=np.uint32)
        self._sealed_bytes = 0
        self.untrusted: Spans = NO_SPANS

    @property
    def chars(self) -> int:
        return self.chars_before[-1] + len(self.tail)

    @property
    def tokens(self) -> int:
        """IDs in the state, template tokens not counted."""
        return self.tokens_before[-1] + self.count

    @property
    def tail_ids(self) -> Ids:
        """A view; valid until the next change."""
        return self._buffer[: self.count]

    @property
    def tail_position(self) -> Position:
        return Position.CONTINUATION if self.segments else Position.TEXT_START

    def ids(self) -> Ids:
        """All IDs, copied into one array: O(tokens)."""
        return np.concatenate([*(segment.ids for segment in self.segments), self.tail_ids])

    def text(self) -> str:
        """The whole text; raises `StateError` if it isn't kept."""
        return "".join([*(segment.decoded() for segment in self.segments), self.tail])

    def has_text(self) -> bool:
        return self.keep_text or not self.segments

    def state_bytes(self) -> int:
        """Memory of IDs, text and spans, with a fixed allowance per object: O(1)."""
        return self._sealed_bytes + self._buffer.nbytes + self.tail.__sizeof__() + SESSION_OVERHEAD_BYTES

    def copy(self) -> SessionState:
        """The same state on its own from now on: segments are shared (rule 3), the tail's IDs are copied."""
        twin = SessionState(keep_text=self.keep_text)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value[:] if isinstance(value, list) else value)
        twin._buffer = self._buffer[: self.count].copy()
        return twin

    # --- changes; callers guarantee rule 2 ---------------------------------------------------------------------

    def mark_untrusted(self, spans: Spans) -> None:
        """The whole text's untrusted spans from now on."""
        self._sealed_bytes += SPAN_BYTES * (len(spans) - len(self.untrusted))
        self.untrusted = spans

    def splice_tail(self, text: str, kept: int, ids: Ids) -> None:
        """Make `text` the tail and its IDs the first `kept` old ones and `ids`."""
        count = kept + len(ids)
        if count > len(self._buffer):
            grown = np.empty(count + (count >> 3) + 256, dtype=np.uint32)
            grown[:kept] = self._buffer[:kept]
            self._buffer = grown
        self._buffer[kept:count] = ids
        self.tail, self.count = text, count

    def mark(self, chars: int, tokens: int) -> None:
        """Note a boundary in the tail, and drop those behind it."""
        marks = self.marks
        while marks and marks[-1][0] >= chars:
            marks.pop()
        if chars:
            marks.append((chars, tokens))

    def seal(self) -> None:
        """Move the front of a long tail into a segment, at the last mark that leaves enough behind."""
        if len(self.tail) <= TAIL_CHARS:
            return
        limit = len(self.tail) - TAIL_KEEP_CHARS
        usable = [mark for mark in self.marks if mark[0] <= limit]
        chars, tokens = usable[-1] if usable else (0, 0)
        if chars < TAIL_KEEP_CHARS:
            return
        self._append_segment(self.tail[:chars], self._buffer[:tokens].copy())
        rest = self._buffer[tokens : self.count].copy()
        self.tail, self._buffer, self.count = self.tail[chars:], rest, len(rest)
        self.marks = [(c - chars, t - tokens) for c, t in self.marks if c > chars]

    def replace_segments(self, start: int, stop: int | None, pieces: Iterable[Piece]) -> None:
        """Put `pieces` in place of segments[start:stop]; `stop` None: of those and the tail."""
        merged = _merge(pieces)
        if stop is None:
            tail, ids = _take_tail(merged)
            self.tail, self._buffer, self.count, self.marks = tail, ids, len(ids), []
        fresh = [self._segment(text, ids) for text, ids in merged]
        stop = len(self.segments) if stop is None else stop
        self._sealed_bytes += sum(s.memory_bytes for s in fresh) - sum(
            s.memory_bytes for s in self.segments[start:stop]
        )
        self.segments[start:stop] = fresh
        changed = self.segments[start:]
        self.chars_before[start:] = accumulate((s.chars for s in changed), initial=self.chars_before[start])
        self.tokens_before[start:] = accumulate((len(s.ids) for s in changed), initial=self.tokens_before[start])

    def adopt(
        self, segments: list[Segment], tail: str, tail_ids: Ids, revision: int, untrusted: Spans = NO_SPANS
    ) -> None:
        """Become an imported state, as it was exported."""
        self.segments = segments
        self.chars_before = [0, *accumulate(segment.chars for segment in segments)]
        self.tokens_before = [0, *accumulate(len(segment.ids) for segment in segments)]
        self._sealed_bytes = sum(segment.memory_bytes for segment in segments)
        self.untrusted = NO_SPANS
        self.mark_untrusted(untrusted)
        self.splice_tail(tail, 0, tail_ids)
        self.marks, self.revision = [], revision

    def find(self, chars: int) -> int:
        """Index of the segment that holds the character at position `chars`; len(segments) means the tail."""
        return bisect_right(self.chars_before, chars) - 1

    def _append_segment(self, text: str, ids: Ids) -> None:
        self.segments.append(self._segment(text, ids))
        self._sealed_bytes += self.segments[-1].memory_bytes
        self.chars_before.append(self.chars_before[-1] + len(text))
        self.tokens_before.append(self.tokens_before[-1] + len(ids))

    def _segment(self, text: str, ids: Ids) -> Segment:
        data = text.encode("utf-8")
        owned = ids.copy() if ids.base is not None else ids
        owned.setflags(write=False)
        if self.keep_text:
            return Segment(data, None, len(data), len(text), owned)
        return Segment(None, text_digest(data), len(data), len(text), owned)


def _merge(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbours as long as they stay within a segment's size; drop empty ones."""
    groups: list[list[Piece]] = []
    size = 0
    for text, ids in pieces:
        if not text:
            continue
        if groups and size + len(text) <= SEGMENT_CHARS:
            groups[-1].append((text, ids))
            size += len(text)
        else:
            groups.append([(text, ids)])
            size = len(text)
    return [_join(group) for group in groups]


def _join(group: list[Piece]) -> Piece:
    if len(group) == 1:
        return group[0]
    return "".join(text for text, _ in group), np.concatenate([ids for _, ids in group])


def _take_tail(pieces: list[Piece]) -> Piece:
    """Remove from the end of `pieces` what becomes the tail: at least `TAIL_KEEP_CHARS`, if there is that much."""
    group: list[Piece] = []
    size = 0
    while pieces and size < TAIL_KEEP_CHARS:
        group.insert(0, pieces.pop())
        size += len(group[0][0])
    if not group:
        return "", np.empty(0, dtype=np.uint32)
    text, ids = _join(group)
    return text, ids.copy()
