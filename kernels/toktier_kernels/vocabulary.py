"""A byte-level BPE vocabulary as arrays that the device can search: whole pieces and merges. Imports NumPy only.

Guarantee: `build_vocabulary` gives what merges exactly as `models.BPE` of Hugging Face `tokenizers` does over the same
vocabulary and merges, or raises `InvalidTables`. docs/decisions/0009-kernels.md defines the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from toktier_kernels.errors import InvalidTables
from toktier_kernels.hashing import EMPTY_KEY, U8, U32, U64, Placement, find_pairs, hash_bytes, hash_pairs, place
from toktier_kernels.ranks import PAD, merge_rows
from toktier_kernels.status import NONE

U16 = npt.NDArray[np.uint16]
I64 = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

ID_BITS = 22  # so that an ID and one of 512 columns fit into 31 bits
LIMIT_IDS = (1 << ID_BITS) - 1  # the last one together with the last column is what stands for none
LIMIT_MERGES = 1 << 29
NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
LIMIT_TOKEN_BYTES = 0xFFFF

# The lowest two bits of a merge's upper half, below its rank: which of the pairs of least rank may merge in one round.
ALL = 0  # all: they can't overlap
LEFTMOST = 1  # the leftmost alone: what it makes may merge by a lower rank
ALTERNATE = 2  # of pairs in a row that overlap, as in aaaa, every second from the leftmost on


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """byte_id: u32[256]; whole_*: [whole_size + whole_probes - 1]; merge_*: [merge_size + merge_probes - 1].

    merge_value: (rank << 2 | mode) << 32 | new ID; `whole_longest`: bytes of the longest whole piece.
    """

    byte_id: U32
    blob: U8
    whole_hash: U64
    whole_at: U32
    whole_length: U16
    whole_id: U32
    whole_size: int
    whole_probes: int
    whole_longest: int
    merge_key: U64
    merge_value: U64
    merge_size: int
    merge_probes: int
    length_of: U16

    def find(self, left: U32, right: U32) -> U64:
        """The entries of `merge_value` for pairs of IDs; `hashing.ABSENT` for pairs that don't merge."""
        return find_pairs(self.merge_key, self.merge_value, self.merge_size, self.merge_probes, left, right)


def build_vocabulary(
    byte_id: U32,
    tokens: Mapping[int, bytes],
    merges: Sequence[tuple[int, int, int]],
    whole: Iterable[int] | None = None,
) -> Vocabulary:
    """`merges`: (left, right, new) by rank; of several for one pair the last counts, as in the reference.

    `byte_id`: u32[256]; `NONE` is allowed for bytes that UTF-8 never has.

    `whole`: the IDs that a piece with their token's bytes becomes; None: those whose bytes merge to them. Raises
    `InvalidTables`: kernels.byte_without_id, kernels.id_out_of_range, kernels.token_too_long, kernels.invalid_merge,
    kernels.ambiguous_token (two whole IDs with the same bytes), kernels.crowded_table.
    """
    length_of = _lengths(tokens)
    byte_id = _checked_bytes(byte_id, tokens)
    table = _checked_merges(merges, tokens, length_of)
    key, value = _ranked(table)
    merge_at = place(hash_pairs(key))
    merge_key = _scattered(merge_at, key, EMPTY_KEY)
    merge_value = _scattered(merge_at, value, 0)

    pairs = _Pairs(merge_key, merge_value, merge_at.size, merge_at.probes)
    found = _own_encodings(pairs, byte_id, tokens, length_of) if whole is None else _checked_whole(whole, tokens)
    lengths = length_of[found].astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    blob = np.frombuffer(b"".join([tokens[id] for id in found.tolist()]), np.uint8)
    hashes = hash_bytes(blob, starts, lengths)
    whole_at = place(hashes)
    return Vocabulary(
        byte_id=byte_id,
        blob=blob if len(blob) else np.zeros(1, np.uint8),
        whole_hash=_scattered(whole_at, hashes, 0),
        whole_at=_scattered(whole_at, starts.astype(np.uint32), 0),
        whole_length=_scattered(whole_at, lengths.astype(np.uint16), 0),
        whole_id=_scattered(whole_at, found.astype(np.uint32), PAD),
        whole_size=whole_at.size,
        whole_probes=whole_at.probes,
        whole_longest=int(lengths.max(initial=0)),
        merge_key=merge_key,
        merge_value=merge_value,
        merge_size=merge_at.size,
        merge_probes=merge_at.probes,
        length_of=length_of,
    )


@dataclass(frozen=True)
class _Pairs:
    key: U64
    value: U64
    size: int
    probes: int

    def find(self, left: U32, right: U32) -> U64:
        return find_pairs(self.key, self.value, self.size, self.probes, left, right)


def _scattered(placement: Placement, entries: npt.NDArray[Scalar], empty: int) -> npt.NDArray[Scalar]:
    result = np.full(placement.slots, empty, entries.dtype)
    result[placement.slot] = entries
    return result


def _lengths(tokens: Mapping[int, bytes]) -> U16:
    ids = np.fromiter(tokens, np.int64, len(tokens))
    if not len(ids) or ids.min() < 0 or ids.max() >= LIMIT_IDS:
        raise InvalidTables("kernels.id_out_of_range", f"IDs are 0 to {LIMIT_IDS - 1}")
    lengths = np.fromiter(map(len, tokens.values()), np.int64, len(tokens))
    if lengths.max() > LIMIT_TOKEN_BYTES:
        raise InvalidTables(
            "kernels.token_too_long", f"a token of {lengths.max()} bytes", id=int(ids[lengths.argmax()])
        )
    result = np.zeros(ids.max() + 1, np.uint16)
    result[ids] = lengths
    return result


def _checked_bytes(byte_id: U32, tokens: Mapping[int, bytes]) -> U32:
    for byte, id in enumerate(np.asarray(byte_id).tolist()):
        if tokens.get(id) != bytes([byte]) and not (id == NONE and byte in NEVER_IN_UTF8):
            raise InvalidTables("kernels.byte_without_id", f"byte 0x{byte:02X} has no token of its own", byte=byte)
    if np.shape(byte_id) != (256,):
        raise InvalidTables("kernels.byte_without_id", "byte_id has not 256 entries")
    return np.array(byte_id, np.uint32)


def _checked_merges(merges: Sequence[tuple[int, int, int]], tokens: Mapping[int, bytes], length_of: U16) -> I64:
    """i64[merges, 3]. A merge that isn't its parts' bytes one behind the other would let one span have two tokens."""
    if len(merges) > LIMIT_MERGES:
        raise InvalidTables("kernels.invalid_merge", f"more than {LIMIT_MERGES} merges")
    for rank, (left, right, new) in enumerate(merges):
        parts = tokens.get(left), tokens.get(right)
        if not parts[0] or not parts[1] or tokens.get(new) != parts[0] + parts[1]:
            raise InvalidTables("kernels.invalid_merge", "a merge's token isn't its parts' bytes", rank=rank)
    return np.array(merges, np.int64).reshape(-1, 3)


def _ranked(table: I64) -> tuple[U64, U64]:
    """`merge_key` and `merge_value` of the merges that count.

    Why `ALL` and `ALTERNATE` change nothing: let r be the least rank at hand and m what it makes, and let no merge
    with m as a part have a rank below r. Merging the leftmost of r makes no other new pairs than ones with m, so r
    stays the least rank for as long as it is there, and its next is the leftmost of those left; by induction, all
    that don't overlap one further left merge in a row. Merges overlap only where left = right. `LEFTMOST` otherwise.
    """
    left, right, new = table[:, 0], table[:, 1], table[:, 2]
    key = (left << 32 | right).astype(np.uint64)
    _, last = np.unique(key[::-1], return_index=True)
    rank = np.sort(len(key) - 1 - last)
    left, right, new, key = left[rank], right[rank], new[rank], key[rank]
    first_use = np.full(int(table.max(initial=0)) + 1, LIMIT_MERGES, np.int64)
    np.minimum.at(first_use, left, rank)
    np.minimum.at(first_use, right, rank)
    mode = np.where(first_use[new] < rank, LEFTMOST, np.where(left == right, ALTERNATE, ALL))
    return key, ((rank << 2 | mode) << 32 | new).astype(np.uint64)


def _checked_whole(whole: Iterable[int], tokens: Mapping[int, bytes]) -> I64:
    ids = sorted({id for id in whole if tokens.get(id, b"-")})
    spelled: dict[bytes, int] = {}
    for id in ids:
        if id not in tokens:
            raise InvalidTables("kernels.id_out_of_range", "a whole piece's ID without a token", id=id)
        if spelled.setdefault(tokens[id], id) != id:
            raise InvalidTables("kernels.ambiguous_token", "two whole pieces with the same bytes", id=id)
    return np.array(ids, np.int64)


def _own_encodings(pairs: _Pairs, byte_id: U32, tokens: Mapping[int, bytes], length_of: U16) -> I64:
    """The IDs whose tokens' bytes merge to them, ascending. Tokens of like length are merged together."""
    found: list[I64] = []
    ids = np.sort(np.fromiter(tokens, np.int64, len(tokens)))
    lengths = length_of[ids].astype(np.int64)
    for low, high in _length_classes(int(lengths.max(initial=0))):
        some = ids[(lengths > low) & (lengths <= high)]
        for part in np.array_split(some, max(1, len(some) * high // _CELLS)):
            if len(part):
                merged, _ = merge_rows(pairs, _spelled(part, tokens, byte_id, high))
                found.append(part[(merged[:, 0] == part) & (merged[:, 1] == PAD)])
    return np.sort(np.concatenate([np.empty(0, np.int64), *found]))


_CELLS = 1 << 20  # of the matrices in `merge_rows`, about: what caches hold


def _length_classes(longest: int) -> list[tuple[int, int]]:
    edges = [0, *range(2, 17), 20, 24, 32]
    while edges[-1] < longest:
        edges.append(edges[-1] * 2)
    return list(pairwise(edges))


def _spelled(ids: I64, tokens: Mapping[int, bytes], byte_id: U32, width: int) -> U32:
    """u32[ids, width]: each token's bytes as IDs, `PAD` behind them."""
    lengths = np.fromiter((len(tokens[id]) for id in ids.tolist()), np.int64, len(ids))
    rows = np.full((len(ids), width), PAD, np.uint32)
    data = np.frombuffer(b"".join([tokens[id] for id in ids.tolist()]), np.uint8)
    rows[np.arange(width) < lengths[:, None]] = byte_id[data]
    return rows
