"""Twin of `toktier_kernels.lookup`: pieces that are one token as they stand, and lists of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier_kernels.hashing import hash_bytes, home_of
from toktier_kernels.status import PIECE
from toktier_kernels.vocabulary import Vocabulary

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

SHORT_BYTES = 32


@dataclass(frozen=True)
class Lists:
    """Entries of `pieces` up to 32 bytes, and longer ones up to the limit; segments with a piece past the limit, once
    for each such piece. All ascending."""

    short: I32
    long: I32
    overlong: I32


def lookup(
    text: U8,
    pieces: I32,
    piece: U8,
    segments: I32,
    token: U32,
    vocabulary: Vocabulary,
    *,
    merge_limit: int,
) -> Lists:
    """`token[start]` = the ID of each piece that is a whole one, in place; the other pieces by their lengths."""
    entries = np.flatnonzero(piece[pieces[:-1]] == PIECE)
    start = pieces[entries].astype(np.int64)
    length = pieces[entries + 1] - start
    searched = np.flatnonzero(length <= vocabulary.whole_longest)
    slot = find_whole(text, start[searched], length[searched], vocabulary)
    known = slot >= 0
    token[start[searched[known]]] = vocabulary.whole_id[slot[known]]
    left = np.ones(len(entries), bool)
    left[searched[known]] = False
    is_short = left & (length <= min(SHORT_BYTES, merge_limit))
    is_long = left & ~is_short & (length <= merge_limit)
    is_overlong = left & ~is_short & ~is_long
    segment = np.searchsorted(segments[:-1], start[is_overlong], side="right") - 1
    return Lists(*(found.astype(np.int32) for found in (entries[is_short], entries[is_long], segment)))


def find_whole(text: U8, start: I64, length: I64, vocabulary: Vocabulary) -> I64:
    """The slot of the whole piece text[start:start + length], -1 where it is none."""
    wanted = hash_bytes(text, start, length)
    home = home_of(wanted, vocabulary.whole_size)
    result = np.full(len(start), -1, np.int64)
    for index, slot in enumerate(home.tolist()):
        spelling = text[start[index] : start[index] + length[index]].tobytes()
        for probe in range(slot, slot + vocabulary.whole_probes):
            if vocabulary.whole_hash[probe] == 0:
                break
            if vocabulary.whole_hash[probe] == wanted[index] and _spelling(vocabulary, probe) == spelling:
                result[index] = probe
                break
    return result


def _spelling(vocabulary: Vocabulary, slot: int) -> bytes:
    at = int(vocabulary.whole_at[slot])
    return vocabulary.blob[at : at + int(vocabulary.whole_length[slot])].tobytes()
