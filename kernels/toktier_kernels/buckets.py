"""How large the device's arrays are for a text: sizes in steps, and their memory. Imports nothing of torch.

Guarantee: `arena_bytes(bucket)` bounds what one text of the bucket takes on the device, whatever the text; deliveries
(up to `DELIVERED_BYTES` a token) and corrections by the CPU come on top while they last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .status import SIZE_SLOTS, STATUS_SLOTS

LEAST_BYTES = 4096
LARGEST_TEXT_BYTES = 3 << 29
ALIGNMENT = 256
COMPACT_BLOCK = 1024
"""At least one entry of `counts` for so many bytes: no launcher of `compact` uses smaller blocks."""
DELIVERED_BYTES = 12

Kind = Literal["u8", "i32", "u32"]
WIDTH: Mapping[Kind, int] = {"u8": 1, "i32": 4, "u32": 4}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Texts of up to `text` bytes with up to `marks` documents, and as many spans."""

    text: int
    marks: int

    @property
    def overlong(self) -> int:
        """Entries of the list of overlong segments, all told with the counts; more are an error for the device."""
        return 64 + self.text // 256

    @property
    def unsettled(self) -> int:
        """Unsettled characters whose positions are looked at; a text with more is normalized whole."""
        return self.text // 32


def bucket_of(text_bytes: int, marks: int) -> Bucket:
    """The smallest bucket for a text with so many documents, or spans: of powers of two and halfway between."""
    size = LEAST_BYTES
    while size < text_bytes or _dense(size) < marks:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return Bucket(size, _sparse(size) if marks <= _sparse(size) else _dense(size))


def _sparse(size: int) -> int:
    return 64 + size // 256


def _dense(size: int) -> int:
    return 64 + size // 4


def upload_layout(bucket: Bucket) -> dict[str, tuple[Kind, int]]:
    """What the host sends, in one copy: name → (kind, entries). The text comes last, so that its rest isn't sent."""
    return {
        "sizes": ("i32", SIZE_SLOTS),
        "documents": ("i32", bucket.marks),
        "spans": ("i32", bucket.marks),
        "span_ends": ("i32", bucket.marks),
        "span_ids": ("u32", bucket.marks),
        "text": ("u8", bucket.text),
    }


def report_layout(bucket: Bucket) -> dict[str, tuple[Kind, int]]:
    """What the host reads, in one copy; of `firsts` only as much as there are documents."""
    return {
        "status": ("i32", STATUS_SLOTS),
        "bounds": ("i32", 2 * bucket.overlong),
        "firsts": ("i32", bucket.marks),
    }


def work_layout(bucket: Bucket) -> dict[str, tuple[Kind, int]]:
    """What stays on the device."""
    size = bucket.text
    return {
        "flags": ("u8", size),
        "cls": ("u8", size),
        "cut": ("u8", size),
        "piece": ("u8", size),
        "unsettled": ("u8", size),
        "unsettled_at": ("i32", size + 1),
        "segments": ("i32", size + 1),
        "pieces": ("i32", size + 1),
        "short": ("i32", size),
        "long": ("i32", 64 + size // 32),
        "overlong": ("i32", bucket.overlong),
        "counts": ("i32", 64 + size // COMPACT_BLOCK),
        "token": ("u32", size),
        "ids": ("u32", size),
        "starts": ("u32", size + 1),
    }


def offsets(layout: Mapping[str, tuple[Kind, int]], start: int = 0) -> tuple[dict[str, int], int]:
    """Where each array starts, and where the last one ends, in bytes."""
    found: dict[str, int] = {}
    for name, (kind, entries) in layout.items():
        start = (start + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        found[name] = start
        start += WIDTH[kind] * entries
    return found, start


@lru_cache(maxsize=256)
def arena_bytes(bucket: Bucket) -> int:
    """Device memory of one bucket: 34 to 41 bytes a byte of text."""
    return sum(offsets(layout(bucket))[1] + ALIGNMENT for layout in (upload_layout, report_layout, work_layout))


def limit_text_bytes(memory_bytes: int) -> int:
    """The largest text, with few marks, whose bucket takes no more than `memory_bytes`; 0: none does."""
    found, bucket = 0, bucket_of(0, 0)
    while bucket.text <= LARGEST_TEXT_BYTES and arena_bytes(bucket) <= memory_bytes:
        found, bucket = bucket.text, bucket_of(bucket.text + 1, 0)
    return found
