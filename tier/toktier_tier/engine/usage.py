"""The token counts of a reply, found while its bytes pass by. No I/O.

Guarantees: `feed` never changes or keeps back a byte, `usage` depends on the concatenation of the bytes alone, never on
how they were cut, and what is held back in memory is bounded by `MAX_HELD_BYTES`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

MAX_HELD_BYTES = 4 << 20

# A raw quotation mark can't stand inside a JSON string, so this matches members only.
_COUNTS = re.compile(rb'"(?:usage|meta_info)"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts as SGLang reports them; `cached_tokens` is None where the server doesn't report it."""

    prompt_tokens: int
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Watch(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    def usage(self) -> Usage | None:
        """What the bytes so far say; None if they don't."""

    def complete(self) -> bool | None:
        """Whether the reply's own end mark was seen; None where the format has none."""


class JsonWatch:
    """A reply that is one JSON value: read at the end, if it is at most `max_held_bytes` long."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._max = max_held_bytes
        self._held = bytearray()
        self._too_long = False

    def feed(self, chunk: bytes) -> None:
        if self._too_long or len(self._held) + len(chunk) > self._max:
            self._too_long = True
            self._held.clear()
            return
        self._held += chunk

    def usage(self) -> Usage | None:
        return None if self._too_long else read_usage(bytes(self._held))

    def complete(self) -> bool | None:
        return None


class EventWatch:
    """A stream of server-sent events: the last `data:` line with counts, and whether `[DONE]` came.

    Lines end in LF or CRLF, as SGLang writes them. A line longer than `max_held_bytes` is passed over.
    """

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._max = max_held_bytes
        self._line = bytearray()
        self._passing_over = False
        self._last: bytes | None = None
        self._done = False

    def feed(self, chunk: bytes) -> None:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._hold(chunk[start:end])
            self._end_line()
            start = end + 1
        self._hold(chunk[start:])

    def _hold(self, part: bytes) -> None:
        if self._passing_over or len(self._line) + len(part) > self._max:
            self._passing_over = True
            self._line.clear()
            return
        self._line += part

    def _end_line(self) -> None:
        if not self._passing_over and self._line.startswith(b"data:"):
            value = bytes(self._line[5:]).strip()
            if value == b"[DONE]":
                self._done = True
            elif _COUNTS.search(value):
                self._last = value
        self._passing_over = False
        self._line.clear()

    def usage(self) -> Usage | None:
        return read_usage(self._last) if self._last is not None else None

    def complete(self) -> bool | None:
        return self._done


class NoWatch:
    """A reply that can't be read in passing: compressed, or of another kind."""

    def feed(self, chunk: bytes) -> None:
        pass

    def usage(self) -> Usage | None:
        return None

    def complete(self) -> bool | None:
        return None


def watch_for(content_type: str, content_encoding: str = "") -> Watch:
    if content_encoding.strip().lower() not in ("", "identity"):
        return NoWatch()
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return EventWatch()
    return JsonWatch() if kind == "application/json" else NoWatch()


def read_usage(data: bytes) -> Usage | None:
    """From an OpenAI reply or chunk (`usage`), or one of /generate (`meta_info`; of several outputs, the first)."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    usage, meta = value.get("usage"), value.get("meta_info")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return _usage(usage, cached)
    return _usage(meta, meta.get("cached_tokens")) if isinstance(meta, dict) else None


def _usage(counts: dict[str, Any], cached: Any) -> Usage | None:
    prompt = _count(counts.get("prompt_tokens"))
    return None if prompt is None else Usage(prompt, _count(counts.get("completion_tokens")), _count(cached))


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
