"""Step `merge` on the device: rank merges of pieces that aren't one token. Twin: `toktier_kernels.twins.merge`.

A program holds pieces in registers, a byte a column: two of up to 32 bytes, one of up to 128, or, over four warps, one
of up to 512. What decides the time is the number of rounds: each waits for the look-up of the pairs that the round
before changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from toktier_kernels import hashing
from toktier_kernels import status as s
from toktier_kernels import vocabulary as v
from toktier_kernels.blocks import anywhere
from toktier_kernels.lookup import SHORT_BYTES
from toktier_kernels.specs import AheadSpec

LIMIT_BYTES = 512  # of a piece, at most
PROGRAMS = 132 * 32  # as many as run at a time on the largest devices; the others take more turns

_NEVER = tl.constexpr(0xFFFFFFFF)  # the rank of a pair that doesn't merge
_MULTIPLIER = tl.constexpr(hashing.MULTIPLIER)
_EMPTY_KEY = tl.constexpr(hashing.EMPTY_KEY)
_ABSENT = tl.constexpr(hashing.ABSENT)
_LEFTMOST = tl.constexpr(v.LEFTMOST)
_ALTERNATE = tl.constexpr(v.ALTERNATE)
_NOBODY = tl.constexpr(0x7FFFFFFF)  # behind the last symbol
_ID_BITS = tl.constexpr(v.ID_BITS)
_ID_MASK = tl.constexpr((1 << v.ID_BITS) - 1)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _symbols(text, byte_id, position, mask):
    """The byte's ID at each position, as i32: IDs have 22 bits."""
    byte = tl.load(text + position, mask=mask, other=0).to(tl.int32)
    return tl.load(byte_id + byte, mask=mask, other=0).to(tl.int32)


@triton.jit
def _find(merge_key, merge_value, merge_size, merge_probes, left, right, mask):
    """merge_value of (left, right) where it merges and in `mask`; ABSENT elsewhere. Two slots a turn."""
    wanted = (left.to(tl.uint64) << 32) | right.to(tl.uint64)
    mixed = (wanted ^ (wanted >> 29)) * _MULTIPLIER
    slot = (mixed >> 32).to(tl.int32) & (merge_size - 1)
    result = tl.full(left.shape, _ABSENT, tl.uint64)
    waiting = mask
    probe = 0
    while anywhere(waiting):
        second = waiting & (probe + 1 < merge_probes)
        key_1 = tl.load(merge_key + slot, mask=waiting, other=_EMPTY_KEY)
        key_2 = tl.load(merge_key + slot + 1, mask=second, other=_EMPTY_KEY)
        value_1 = tl.load(merge_value + slot, mask=waiting, other=0)
        value_2 = tl.load(merge_value + slot + 1, mask=second, other=0)
        result = tl.where(waiting & (key_1 == wanted), value_1, tl.where(second & (key_2 == wanted), value_2, result))
        ended = (key_1 == wanted) | (key_2 == wanted) | (key_1 == _EMPTY_KEY) | (key_2 == _EMPTY_KEY)
        slot += 2
        probe += 2
        waiting = waiting & ~ended & (probe < merge_probes)
    return result


@triton.jit
def _merge_rows(
    text, pieces, items, capacity, token, byte_id, merge_key, merge_value, merge_size, merge_probes, status,
    SLOT: tl.constexpr, ABOVE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """While a pair merges: all of a row's least rank in one round, where `vocabulary._ranked` proves that to be the
    same as leftmost first; then token[start + i] = the symbol at i.

    A symbol stands in the column of its first byte; `before` and `after` are its neighbours' columns (its own: none).
    """
    column = tl.broadcast_to(tl.arange(0, WIDTH)[None, :], [ROWS, WIDTH])
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    # The count is read again each turn: held over the rounds, it would be spilled.
    while first_row < tl.minimum(tl.load(status + SLOT), capacity):
        count = tl.minimum(tl.load(status + SLOT), capacity)
        row = first_row + tl.arange(0, ROWS)
        entry = tl.load(items + row, mask=row < count, other=0).to(tl.int64)
        start = tl.load(pieces + entry, mask=row < count, other=0).to(tl.int64)
        end = tl.load(pieces + entry + 1, mask=row < count, other=0).to(tl.int64)
        length = (end - start).to(tl.int32)
        length = tl.where((length > ABOVE) & (length <= WIDTH), length, 0)
        position = start[:, None] + column
        alive = column < length[:, None]
        paired = column + 1 < length[:, None]
        id = _symbols(text, byte_id, position, alive)
        right = _symbols(text, byte_id, position + 1, paired)
        before = tl.maximum(column - 1, 0)
        after = tl.where(paired, column + 1, column)
        value = _find(merge_key, merge_value, merge_size, merge_probes, id, right, paired)
        rank = (value >> 32).to(tl.uint32)
        new = value.to(tl.uint32).to(tl.int32)
        least = tl.min(rank, axis=1)
        while tl.min(least, axis=0) != _NEVER:
            hit = (rank == least[:, None]) & (rank != _NEVER)
            mode = (least & 3)[:, None]
            first = tl.min(tl.where(hit, column, WIDTH), axis=1)[:, None]
            merging = hit & ((mode != _LEFTMOST) | (column == first))
            if anywhere(merging & (mode == _ALTERNATE) & (column != first)):
                # Which of the pairs in a row that overlap it is: counted from the first one in symbols.
                number = tl.cumsum(alive.to(tl.int32), axis=1)
                begins = hit & ((before == column) | (tl.gather(hit.to(tl.int32), before, 1) == 0))
                begin = tl.associative_scan(tl.where(begins, number, 0), 1, _larger)
                merging = merging & ((mode != _ALTERNATE) | (((number - begin) & 1) == 0))
            mark = merging.to(tl.int32) << _ID_BITS
            behind = tl.gather(mark | before, before, 1)
            further = behind & _ID_MASK
            gone = alive & (before != column) & ((behind >> _ID_BITS) != 0)
            moved = tl.gather(mark, further, 1) != 0
            before = tl.where(moved, further, before)
            ahead = tl.gather(after, after, 1)
            after = tl.where(merging, tl.where(ahead == after, column, ahead), after)
            alive = alive & ~gone
            paired = alive & (after != column)
            id = tl.where(merging, new, id)
            next = tl.gather(mark | id, after, 1)
            changed = paired & (merging | ((next >> _ID_BITS) != 0))
            value = _find(merge_key, merge_value, merge_size, merge_probes, id, next & _ID_MASK, changed)
            rank = tl.where(changed, (value >> 32).to(tl.uint32), tl.where(paired, rank, _NEVER))
            new = tl.where(changed, value.to(tl.uint32).to(tl.int32), new)
            least = tl.min(rank, axis=1)
        tl.store(token + position, id.to(tl.uint32), mask=alive)
        first_row += tl.num_programs(0) * ROWS


@triton.jit
def _merge_one(
    text, pieces, items, capacity, token, byte_id, merge_key, merge_value, merge_size, merge_probes, status,
    SLOT: tl.constexpr, ABOVE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """While a pair merges: the leftmost of the least rank; then token[start + i] = the symbol at i.

    Neighbours are found by reductions over columns, which cross warps cheaply; `value` is of the pair from a column on.
    """
    column = tl.arange(0, WIDTH)
    item = tl.program_id(0).to(tl.int64)
    while item < tl.minimum(tl.load(status + SLOT), capacity):
        entry = tl.load(items + item).to(tl.int64)
        start = tl.load(pieces + entry).to(tl.int64)
        length = (tl.load(pieces + entry + 1) - start).to(tl.int32)
        if (length > ABOVE) & (length <= WIDTH):
            position = start + column
            alive = column < length
            paired = column + 1 < length
            id = _symbols(text, byte_id, position, alive)
            right = _symbols(text, byte_id, position + 1, paired)
            value = _find(merge_key, merge_value, merge_size, merge_probes, id, right, paired)
            least, at = tl.min(value, axis=0, return_indices=True)
            while least != _ABSENT:
                new = least.to(tl.uint32).to(tl.int32)
                gone = tl.min(tl.where(alive & (column > at), column, WIDTH), axis=0)
                before = tl.max(tl.where(alive & (column < at), column, -1), axis=0)
                after = tl.min(tl.where(alive & (column > gone), column << _ID_BITS | id, _NOBODY), axis=0)
                alive = alive & (column != gone)
                id = tl.where(column == at, new, id)
                right = tl.where(column == at, after & _ID_MASK, new)
                paired = ((column == at) & (after != _NOBODY)) | (column == before)
                found = _find(merge_key, merge_value, merge_size, merge_probes, id, right, paired)
                stale = (column == at) | (column == gone) | paired
                value = tl.where(stale, found, value)
                least, at = tl.min(value, axis=0, return_indices=True)
            tl.store(token + position, id.to(tl.uint32), mask=alive)
        item += tl.num_programs(0)


@dataclass(frozen=True)
class _Tile:
    """What a kernel takes from the list counted in `status[slot]`: pieces of more than `above`, up to `width` bytes."""

    fn: Any
    slot: int
    above: int
    width: int
    rows: int
    warps: int

    @property
    def constants(self) -> dict[str, int]:
        rows = {"ROWS": self.rows} if self.fn is _merge_rows else {}
        return {"SLOT": self.slot, "ABOVE": self.above, "WIDTH": self.width, **rows}


_TILES = (
    _Tile(_merge_rows, s.SHORT, 0, SHORT_BYTES, 2, 1),
    _Tile(_merge_rows, s.LONG, SHORT_BYTES, 128, 1, 1),
    _Tile(_merge_one, s.LONG, 128, LIMIT_BYTES, 1, 4),
)


def merge(
    text: torch.Tensor,
    pieces: torch.Tensor,
    short: torch.Tensor,
    long: torch.Tensor,
    token: torch.Tensor,
    byte_id: torch.Tensor,
    merge_key: torch.Tensor,
    merge_value: torch.Tensor,
    status: torch.Tensor,
    *,
    merge_size: int,
    merge_probes: int,
    programs: int = PROGRAMS,
) -> None:
    """Step 7: the tokens of the pieces in `short` and `long` into `token: u32[capacity]`; nothing else is written.

    `byte_id`, `merge_key`, `merge_value` and the numbers `merge_*` are those of `Vocabulary`. A piece of more than
    `LIMIT_BYTES` is passed over.
    """
    for tile in _TILES:
        items = short if tile.slot == s.SHORT else long
        grid = (max(1, min(programs, triton.cdiv(items.numel(), tile.rows))),)
        tile.fn[grid](
            text, pieces, items, items.numel(), token, byte_id, merge_key, merge_value, merge_size, merge_probes,
            status, **tile.constants, num_warps=tile.warps,
        )  # fmt: skip


_TYPES = {
    "text": "*u8", "pieces": "*i32", "items": "*i32", "capacity": "i32", "token": "*u32", "byte_id": "*u32",
    "merge_key": "*u64", "merge_value": "*u64", "merge_size": "i32", "merge_probes": "i32", "status": "*i32",
}  # fmt: skip

AHEAD: tuple[AheadSpec, ...] = tuple(
    AheadSpec(tile.fn, _TYPES, tile.constants, tile.warps, name=f"_merge_{tile.width}") for tile in _TILES
)
