"""Steps `clear`, `mark`, `decode`, `cuts` and `unsettled` on the device. Twins: `toktier_kernels.twins.decode`.

Launchers take tensors, launch, and return: they neither allocate nor wait, so a CUDA graph can capture them. Grids are
sized by the arrays' capacity; how much of them is text is read from `sizes` on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import status as s
from .blocks import get, grid, put
from .specs import AheadSpec

BLOCK = 1024
MARK_BLOCK = 128  # documents or spans
SPAN_BLOCK = 64  # bytes of a span at a time
SPAN_PROGRAMS = 256
WARPS = 4

_HARD = tl.constexpr(s.HARD)
_SPAN = tl.constexpr(s.SPAN)
_CONTINUATION = tl.constexpr(s.CONTINUATION)
_NONE = tl.constexpr(s.NONE)
_SIZE_TEXT = tl.constexpr(s.SIZE_TEXT)
_SIZE_DOCUMENTS = tl.constexpr(s.SIZE_DOCUMENTS)
_SIZE_SPANS = tl.constexpr(s.SIZE_SPANS)
_ERROR = tl.constexpr(s.ERROR)
_UNSETTLED = tl.constexpr(s.UNSETTLED)
_STATUS_SLOTS = tl.constexpr(s.STATUS_SLOTS)


@triton.jit
def _clear(flags, piece, token, sizes, status, BLOCK: tl.constexpr):
    """flags[i] = piece[i] = 0, token[i] = NONE; status[ERROR] = n, status[k] = 0."""
    size = tl.load(sizes + _SIZE_TEXT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    whole = (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= size
    put(flags, at, tl.zeros([BLOCK], tl.uint8), size, whole)
    put(piece, at, tl.zeros([BLOCK], tl.uint8), size, whole)
    put(token, at, tl.full([BLOCK], _NONE, tl.uint32), size, whole)
    if tl.program_id(0) == 0:
        slot = tl.arange(0, _STATUS_SLOTS)
        tl.store(status + slot, tl.where(slot == _ERROR, size, 0))


@triton.jit
def _length(lead):
    """Bytes of the character that a lead announces; 1 for a byte that continues one."""
    return 1 + (lead >= 0xC0).to(tl.int32) + (lead >= 0xE0).to(tl.int32) + (lead >= 0xF0).to(tl.int32)


@triton.jit
def _continues(byte):
    return (byte & 0xC0) == 0x80


@triton.jit
def _byte(text, at, size, mask):
    """text[at] as i32, 0 outside the text."""
    return tl.load(text + at, mask=mask & (at >= 0) & (at < size), other=0).to(tl.int32)


@triton.jit
def _mark(text, documents, span_ends, flags, sizes, status, BLOCK: tl.constexpr):
    """flags[documents[k]] = flags[span_ends[k]] = HARD.

    Where a character of valid UTF-8 would cross such a place it ends too early, there or at its lead: the error's
    position is the lead's where the lead's length reaches past the place. So `_decode` need not look at HARD.
    """
    size = tl.load(sizes + _SIZE_TEXT)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    error = size
    for kind in tl.static_range(2):
        if kind == 0:
            at = tl.load(documents + index, mask=index < tl.load(sizes + _SIZE_DOCUMENTS), other=size)
        else:
            at = tl.load(span_ends + index, mask=index < tl.load(sizes + _SIZE_SPANS), other=size)
        inside = (at >= 0) & (at < size)
        tl.store(flags + at, tl.full([BLOCK], _HARD, tl.uint8), mask=inside)
        cut = inside & _continues(_byte(text, at, size, inside))
        wrong = at
        searching = cut
        for back in tl.static_range(1, 4):
            byte = _byte(text, at - back, size, searching)
            lead = searching & ~_continues(byte)
            wrong = tl.where(lead & (_length(byte) > back), at - back, wrong)
            searching = searching & ~lead
        error = tl.minimum(error, tl.min(tl.where(cut, wrong, size), axis=0))
    if error < size:
        tl.atomic_min(status + _ERROR, error, sem="relaxed")


@triton.jit
def _mark_spans(spans, span_ends, span_ids, flags, token, sizes, BLOCK: tl.constexpr):
    """flags = SPAN in [spans[k], span_ends[k]), with HARD at its start, where token = span_ids[k]."""
    size = tl.load(sizes + _SIZE_TEXT)
    for index in range(tl.program_id(0), tl.load(sizes + _SIZE_SPANS), tl.num_programs(0)):
        start = tl.load(spans + index)
        end = tl.minimum(tl.load(span_ends + index), size)
        for left in range(start, end, BLOCK):
            at = left + tl.arange(0, BLOCK)
            tl.store(flags + at, tl.where(at == start, _HARD | _SPAN, _SPAN).to(tl.uint8), mask=at < end)
        tl.store(token + start, tl.load(span_ids + index), mask=start < size)


@triton.jit
def _character(text, at, size, page_of, class_of, mask):
    """Of the byte at `at`: the class of the character that it leads (0: of none), and its value."""
    first = _byte(text, at, size, mask)
    second = _byte(text, at + 1, size, mask)
    third = _byte(text, at + 2, size, mask)
    fourth = _byte(text, at + 3, size, mask)
    of_two = (first & 0x1F) << 6 | (second & 0x3F)
    of_three = (first & 0x0F) << 12 | (second & 0x3F) << 6 | (third & 0x3F)
    of_four = (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | (fourth & 0x3F)
    one = first < 0x80
    two = (first >= 0xC2) & (first < 0xE0) & _continues(second)
    three = ((first >> 4) == 0xE) & _continues(second) & _continues(third)
    three = three & (of_three >= 0x800) & ((of_three >> 11) != 0x1B)
    four = ((first >> 3) == 0x1E) & _continues(second) & _continues(third) & _continues(fourth)
    four = four & (of_four >= 0x10000) & (of_four < 0x110000)
    valid = mask & (at >= 0) & (at < size) & (one | two | three | four)
    point = tl.where(one, first, tl.where(two, of_two, tl.where(three, of_three, of_four)))
    page = tl.load(page_of + (point >> 8), mask=valid, other=0).to(tl.int32)
    return tl.load(class_of + (page * 256 + (point & 0xFF)), mask=valid, other=0).to(tl.int32), first


@triton.jit
def _decode(text, flags, page_of, class_of, cuts, cls, cut, sizes, status, BLOCK: tl.constexpr):
    """cls[i] = class_of[page_of[c >> 8], c & 255] of the character c at i; cut[i] = HARD or cuts[cls[prev(i)], cls[i]].

    The character before is decoded again from the bytes before, so that no program waits for another's `cls`.
    """
    size = tl.load(sizes + _SIZE_TEXT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    whole = (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= size
    here, first = _character(text, at, size, page_of, class_of, inside)
    continues = _continues(first) & inside
    back_1 = _byte(text, at - 1, size, inside)
    back_2 = _byte(text, at - 2, size, inside)
    back_3 = _byte(text, at - 3, size, inside)
    lead_1 = ~_continues(back_1)
    lead_2 = ~_continues(back_2)
    lead_3 = ~_continues(back_3)
    back = tl.where(lead_1, 1, tl.where(lead_2, 2, tl.where(lead_3, 3, 4)))
    reach = tl.where(lead_1, _length(back_1), tl.where(lead_2, _length(back_2), tl.where(lead_3, _length(back_3), 0)))
    # A lead of no valid character stands before all that it leaves uncovered: the least position is exact.
    wrong = inside & tl.where(continues, reach <= back, here == 0)
    error = tl.min(tl.where(wrong, at, size), axis=0)
    if error < size:
        tl.atomic_min(status + _ERROR, error.to(tl.int32), sem="relaxed")
    put(cls, at, tl.where(continues, _CONTINUATION, here).to(tl.uint8), size, whole)
    lead = inside & ~continues
    before, _ = _character(text, at - back, size, page_of, class_of, lead & (at > 0))
    rule = tl.load(cuts + (before * 256 + here), mask=lead & (at > 0), other=0)
    flag = get(flags, at, size, whole, 0)
    starts = ((flag & _HARD) != 0) | ((rule != 0) & ((flag & _SPAN) == 0))
    put(cut, at, starts.to(tl.uint8), size, whole)


@triton.jit
def _unsettle(cls, flags, settled, unsettled, sizes, status, BLOCK: tl.constexpr):
    """unsettled[i] = settled[i] == 2 or settled[i] == 1 and not (settled[prev(i)] == settled[next(i)] == 0)."""
    size = tl.load(sizes + _SIZE_TEXT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    whole = (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= size
    here = get(cls, at, size, whole, _CONTINUATION).to(tl.int32)
    flag = get(flags, at, size, whole, 0)
    looked = (here != _CONTINUATION) & ((flag & _SPAN) == 0)
    kind = tl.load(settled + here, mask=looked, other=0).to(tl.int32)
    touched = kind == 2
    alone = kind == 1
    if tl.max(alone.to(tl.int32), axis=0) > 0:
        bad = tl.zeros([BLOCK], tl.int32)
        for side in tl.static_range(2):
            searching = alone & ((flag & _HARD) == 0) if side == 0 else alone
            for distance in tl.static_range(1, 5):
                there = at - distance if side == 0 else at + distance
                within = searching & (there >= 0) & (there < size)
                near = tl.load(cls + there, mask=within, other=_CONTINUATION).to(tl.int32)
                lead = within & (near != _CONTINUATION)
                if side == 1:
                    edge = tl.load(flags + there, mask=lead, other=0) & _HARD
                    bad |= tl.load(settled + near, mask=lead & (edge == 0), other=0).to(tl.int32)
                else:
                    bad |= tl.load(settled + near, mask=lead, other=0).to(tl.int32)
                searching = searching & ~lead
        touched = touched | (alone & (bad != 0))
    put(unsettled, at, touched.to(tl.uint8), size, whole)
    count = tl.sum(touched.to(tl.int32), axis=0)
    if count > 0:
        tl.atomic_add(status + _UNSETTLED, count, sem="relaxed")


def clear(
    flags: torch.Tensor,
    piece: torch.Tensor,
    token: torch.Tensor,
    sizes: torch.Tensor,
    status: torch.Tensor,
    *,
    block: int = BLOCK,
) -> None:
    """Step 0. `flags, piece: u8[capacity]`, `token: u32[capacity]`, `sizes: i32[3]`, `status: i32[8]`."""
    _clear[grid(flags.numel(), block)](flags, piece, token, sizes, status, BLOCK=block, num_warps=WARPS)


def mark(
    text: torch.Tensor,
    documents: torch.Tensor,
    spans: torch.Tensor,
    span_ends: torch.Tensor,
    span_ids: torch.Tensor,
    flags: torch.Tensor,
    token: torch.Tensor,
    sizes: torch.Tensor,
    status: torch.Tensor,
    *,
    block: int = MARK_BLOCK,
    span_block: int = SPAN_BLOCK,
) -> None:
    """Step 1. `documents: i32[]`, `spans: i32[]`, `span_ends: i32[]`, `span_ids: u32[]`, of the capacity each."""
    capacity = max(documents.numel(), span_ends.numel())
    _mark[grid(capacity, block)](text, documents, span_ends, flags, sizes, status, BLOCK=block, num_warps=WARPS)
    if spans.numel():
        _mark_spans[(min(spans.numel(), SPAN_PROGRAMS),)](
            spans, span_ends, span_ids, flags, token, sizes, BLOCK=span_block, num_warps=1
        )


def decode(
    text: torch.Tensor,
    flags: torch.Tensor,
    page_of: torch.Tensor,
    class_of: torch.Tensor,
    cuts: torch.Tensor,
    cls: torch.Tensor,
    cut: torch.Tensor,
    sizes: torch.Tensor,
    status: torch.Tensor,
    *,
    block: int = BLOCK,
) -> None:
    """Steps 2 and 3: `cls: u8[capacity]`, `cut: u8[capacity]` and `status[ERROR]`."""
    _decode[grid(text.numel(), block)](
        text, flags, page_of, class_of, cuts, cls, cut, sizes, status, BLOCK=block, num_warps=WARPS
    )


def unsettle(
    cls: torch.Tensor,
    flags: torch.Tensor,
    settled: torch.Tensor,
    unsettled: torch.Tensor,
    sizes: torch.Tensor,
    status: torch.Tensor,
    *,
    block: int = BLOCK,
) -> None:
    """Step 3, for a tokenizer that normalizes: `unsettled: u8[capacity]` and `status[UNSETTLED]`, their number."""
    _unsettle[grid(cls.numel(), block)](cls, flags, settled, unsettled, sizes, status, BLOCK=block, num_warps=WARPS)


_AT = {"sizes": "*i32", "status": "*i32"}
_BLOCK = {"BLOCK": BLOCK}

AHEAD: tuple[AheadSpec, ...] = (
    AheadSpec(_clear, {"flags": "*u8", "piece": "*u8", "token": "*u32", **_AT}, _BLOCK, WARPS),
    AheadSpec(
        _mark,
        {"text": "*u8", "documents": "*i32", "span_ends": "*i32", "flags": "*u8", **_AT},
        {"BLOCK": MARK_BLOCK},
        WARPS,
        hot=False,
    ),
    AheadSpec(
        _mark_spans,
        {
            "spans": "*i32",
            "span_ends": "*i32",
            "span_ids": "*u32",
            "flags": "*u8",
            "token": "*u32",
            "sizes": "*i32",
        },
        {"BLOCK": SPAN_BLOCK},
        1,
        hot=False,
    ),
    AheadSpec(
        _decode,
        {
            "text": "*u8",
            "flags": "*u8",
            "page_of": "*u16",
            "class_of": "*u8",
            "cuts": "*u8",
            "cls": "*u8",
            "cut": "*u8",
            **_AT,
        },
        _BLOCK,
        WARPS,
    ),
    AheadSpec(_unsettle, {"cls": "*u8", "flags": "*u8", "settled": "*u8", "unsettled": "*u8", **_AT}, _BLOCK, WARPS),
)
