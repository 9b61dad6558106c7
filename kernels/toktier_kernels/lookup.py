"""Step `lookup` on the device: pieces that are one token as they stand; the others, listed by length.

Twin: `toktier_kernels.twins.lookup`. A hash only says where to look: a piece has a token's ID where all bytes agree.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from toktier_kernels import hashing
from toktier_kernels import status as s
from toktier_kernels.blocks import anywhere, append
from toktier_kernels.specs import AheadSpec

SHORT_BYTES = 32
LANES = 64
PROGRAMS = 132 * 32  # as many as run at a time on the largest devices; the others take more turns

_APART = tl.constexpr(s.APART)
_PIECE = tl.constexpr(s.PIECE)
_SEGMENTS = tl.constexpr(s.SEGMENTS)
_PIECES = tl.constexpr(s.PIECES)
_SHORT = tl.constexpr(s.SHORT)
_LONG = tl.constexpr(s.LONG)
_OVERLONG = tl.constexpr(s.OVERLONG)
_MULTIPLIER = tl.constexpr(hashing.MULTIPLIER)
_SEED = tl.constexpr(hashing.SEED)
_SHORT_BYTES = tl.constexpr(SHORT_BYTES)


@triton.jit
def _hash(text, start, length, mask):
    """h = (h ^ byte) * MULTIPLIER over the bytes, from SEED on; then its least bit set."""
    result = tl.full(start.shape, _SEED, tl.uint64)
    for at in range(tl.max(tl.where(mask, length, 0), axis=0)):
        going = mask & (at < length)
        byte = tl.load(text + start + at, mask=going, other=0).to(tl.uint64)
        result = tl.where(going, (result ^ byte) * _MULTIPLIER, result)
    return result | 1


@triton.jit
def _equal(text, start, blob, other, length, mask):
    """Whether text[start:start + length] is blob[other:other + length]; False outside `mask`."""
    result = mask
    at = 0
    longest = tl.max(tl.where(mask, length, 0), axis=0)
    while at < longest:
        going = result & (at < length)
        left = tl.load(text + start + at, mask=going, other=0)
        right = tl.load(blob + other + at, mask=going, other=0)
        result = result & (left == right)
        at += 1
    return result


@triton.jit
def _segment_of(segments, count, position, mask):
    """The last segment that starts at or before `position`, by bisection."""
    low = tl.zeros_like(position).to(tl.int32)
    high = low + count
    while anywhere(mask & (high - low > 1)):
        middle = low + (high - low) // 2
        going = mask & (high - low > 1)
        after = tl.load(segments + middle, mask=going, other=0) > position
        high = tl.where(going & after, middle, high)
        low = tl.where(going & ~after, middle, low)
    return low


@triton.jit
def _lookup(
    text, pieces, piece, segments, token, short, short_capacity, long, long_capacity, overlong, overlong_capacity,
    blob, whole_hash, whole_at, whole_length, whole_id, whole_size, whole_probes, whole_longest, merge_limit, status,
    LANES: tl.constexpr,
):  # fmt: skip
    """token[start] = whole_id[slot], the slot with hash, length and bytes of text[start:end]; else to a list."""
    count = tl.load(status + _PIECES).to(tl.int64)
    for block in range(tl.program_id(0), tl.cdiv(count, LANES), tl.num_programs(0)):
        entry = tl.arange(0, LANES).to(tl.int64) + block * LANES
        inside = entry < count
        start = tl.load(pieces + entry, mask=inside, other=0).to(tl.int64)
        end = tl.load(pieces + entry + 1, mask=inside, other=0).to(tl.int64)
        inside = inside & (tl.load(piece + start, mask=inside, other=_APART) == _PIECE)
        length = tl.where(inside, end - start, 0).to(tl.int32)
        waiting = inside & (length <= whole_longest)
        wanted = _hash(text, start, length, waiting)
        slot = ((wanted >> 32).to(tl.int64)) & (whole_size - 1)
        last = slot + whole_probes - 1
        found = waiting & ~waiting
        while anywhere(waiting):
            # The next slot with this hash, of all lanes; then its bytes: mostly they agree, and this was the only turn.
            hit = found & ~found
            seeking = waiting
            while anywhere(seeking):
                stored = tl.load(whole_hash + slot, mask=seeking, other=0)
                hit = hit | (seeking & (stored == wanted))
                seeking = seeking & (stored != wanted) & (stored != 0) & (slot < last)
                slot = tl.where(seeking, slot + 1, slot)
            like = hit & (tl.load(whole_length + slot, mask=hit, other=0).to(tl.int32) == length)
            other = tl.load(whole_at + slot, mask=like, other=0).to(tl.int64)
            same = _equal(text, start, blob, other, length, like)
            tl.store(token + start, tl.load(whole_id + slot, mask=same, other=0), mask=same)
            found = found | same
            waiting = hit & ~same & (slot < last)
            slot = tl.where(waiting, slot + 1, slot)
        left = inside & ~found
        is_short = left & (length <= tl.minimum(merge_limit, _SHORT_BYTES))
        is_long = left & ~is_short & (length <= merge_limit)
        is_overlong = left & ~is_short & ~is_long
        append(short, short_capacity, status + _SHORT, entry.to(tl.int32), is_short)
        append(long, long_capacity, status + _LONG, entry.to(tl.int32), is_long)
        if anywhere(is_overlong):
            segment = _segment_of(segments, tl.load(status + _SEGMENTS), start, is_overlong)
            append(overlong, overlong_capacity, status + _OVERLONG, segment, is_overlong)


def lookup(
    text: torch.Tensor,
    pieces: torch.Tensor,
    piece: torch.Tensor,
    segments: torch.Tensor,
    token: torch.Tensor,
    short: torch.Tensor,
    long: torch.Tensor,
    overlong: torch.Tensor,
    blob: torch.Tensor,
    whole_hash: torch.Tensor,
    whole_at: torch.Tensor,
    whole_length: torch.Tensor,
    whole_id: torch.Tensor,
    status: torch.Tensor,
    *,
    whole_size: int,
    whole_probes: int,
    whole_longest: int,
    merge_limit: int,
    programs: int = PROGRAMS,
    lanes: int = LANES,
) -> None:
    """Step 6. `token: u32[capacity]`; `short`, `long`, `overlong: i32[]`, counted in `status[SHORT]` and so on.

    The arrays from `blob` to `whole_id` and the numbers `whole_*` are those of `Vocabulary`; `merge_limit` is in bytes.
    """
    grid = (max(1, min(programs, triton.cdiv(text.numel(), lanes))),)
    _lookup[grid](
        text, pieces, piece, segments, token, short, short.numel(), long, long.numel(), overlong, overlong.numel(),
        blob, whole_hash, whole_at, whole_length, whole_id, whole_size, whole_probes, whole_longest, merge_limit,
        status, LANES=lanes, num_warps=1,
    )  # fmt: skip


AHEAD: tuple[AheadSpec, ...] = (
    AheadSpec(
        _lookup,
        {
            "text": "*u8", "pieces": "*i32", "piece": "*u8", "segments": "*i32", "token": "*u32",
            "short": "*i32", "short_capacity": "i32", "long": "*i32", "long_capacity": "i32",
            "overlong": "*i32", "overlong_capacity": "i32",
            "blob": "*u8", "whole_hash": "*u64", "whole_at": "*u32", "whole_length": "*u16", "whole_id": "*u32",
            "whole_size": "i32", "whole_probes": "i32", "whole_longest": "i32", "merge_limit": "i32",
            "status": "*i32",
        },
        {"LANES": LANES},
        1,
    ),
)  # fmt: skip
