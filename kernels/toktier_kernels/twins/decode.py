"""Twins of `toktier_kernels.decode`: marks, classes, cuts, characters that the normalizer may touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..status import CONTINUATION, HARD, NONE, SPAN
from ..tables import Tables

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Marks:
    """`flags: u8[n]` and `token: u32[n]` with the spans' IDs in it."""

    flags: U8
    token: U32


def mark(size: int, documents: I32, spans: I32, span_ends: I32, span_ids: U32) -> Marks:
    """Where documents, spans and what stands behind spans start.

    Spans aren't empty, don't overlap, lie each in one document, and ascend. Starts at `size` (empty documents) are
    passed over.
    """
    flags = np.zeros(size, np.uint8)
    token = np.full(size, NONE, np.uint32)
    flags[documents[documents < size]] |= HARD
    flags[span_ends[span_ends < size]] |= HARD
    for start, end in zip(spans.tolist(), span_ends.tolist(), strict=True):
        flags[start] |= HARD
        flags[start:end] |= SPAN
    token[spans] = span_ids
    return Marks(flags, token)


def decode(text: U8, flags: U8, tables: Tables) -> tuple[U8, int]:
    """`cls` and the least position where decoding the stretches between HARDs fails, `n` where it doesn't.

    The position is `UnicodeDecodeError.start` of the first stretch that `bytes.decode` refuses, counted from the
    text's start. `cls` doesn't look at HARD: what crosses one is an error anyway.
    """
    size = len(text)
    padded = np.concatenate([text, np.zeros(3, np.uint8)]).astype(np.int32)
    first, second, third, fourth = (padded[k : size + k] for k in range(4))
    follows = [(byte & 0xC0) == 0x80 for byte in (second, third, fourth)]
    low = [byte & 0x3F for byte in (second, third, fourth)]
    of_two = (first & 0x1F) << 6 | low[0]
    of_three = (first & 0x0F) << 12 | low[0] << 6 | low[1]
    of_four = (first & 0x07) << 18 | low[0] << 12 | low[1] << 6 | low[2]
    two = (first >= 0xC2) & (first < 0xE0) & follows[0]
    three = (first >> 4 == 0xE) & follows[0] & follows[1] & (of_three >= 0x800) & (of_three >> 11 != 0x1B)
    four = (first >> 3 == 0x1E) & follows[0] & follows[1] & follows[2] & (of_four >> 16 >= 1) & (of_four < 0x110000)
    point = np.select([first < 0x80, two, three, four], [first, of_two, of_three, of_four], 0)
    length = np.select([first < 0x80, two, three, four], [1, 2, 3, 4], 0)
    classes = tables.class_of[tables.page_of[point >> 8], point & 0xFF]
    continues = (text & 0xC0) == 0x80
    cls = np.where(continues, CONTINUATION, np.where(length > 0, classes, 0)).astype(np.uint8)
    return cls, _first_error(length, np.flatnonzero(flags & HARD))


def _first_error(length: npt.NDArray[np.integer], hard: I64) -> int:
    """The first byte that no character covers; a character that goes past a HARD covers nothing."""
    size = len(length)
    starts = np.flatnonzero(length)
    following = np.append(hard, size)[np.searchsorted(hard, starts, side="right")]
    kept = starts + length[starts] <= following
    edges = np.zeros(size + 1, np.int64)
    np.add.at(edges, starts[kept], 1)
    np.add.at(edges, starts[kept] + length[starts[kept]], -1)
    bare = np.flatnonzero(np.cumsum(edges[:size]) == 0)
    return int(bare[0]) if len(bare) else size


def cuts(cls: U8, flags: U8, tables: Tables) -> U8:
    """1 where a segment starts. Takes the `cls` of valid UTF-8."""
    result = (flags & HARD).astype(np.uint8)
    leads = np.flatnonzero(cls != CONTINUATION)
    rule = tables.cuts[cls[leads[:-1]], cls[leads[1:]]] != 0
    at = leads[1:][rule]
    result[at[flags[at] & SPAN == 0]] = 1
    return result


def unsettled(cls: U8, flags: U8, tables: Tables) -> U8:
    """1 at the characters outside spans that the normalizer may touch. Takes the `cls` of valid UTF-8.

    `settled` 2 may be touched; 1 may be unless both neighbours are 0, an edge at a HARD or at the text's end being as
    good as a neighbour of 0.
    """
    leads = np.flatnonzero(cls != CONTINUATION)
    kind = tables.settled[cls[leads]]
    hard = (flags[leads] & HARD) != 0
    before = np.where(hard, 0, np.concatenate([[0], kind])[: len(kind)])
    after = np.where(np.append(hard, True)[1:], 0, np.append(kind, 0)[1:]) if len(kind) else kind
    touched = (kind == 2) | (kind == 1) & ((before != 0) | (after != 0))
    result = np.zeros(len(cls), np.uint8)
    result[leads[touched & (flags[leads] & SPAN == 0)]] = 1
    return result
