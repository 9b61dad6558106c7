"""Open addressing that NumPy builds and the device probes: hashes, homes, placement, look-up. Imports NumPy only.

Guarantee: an entry stands in one of the `probes` slots from its home on, and no slot between its home and itself is
empty, so that a probe may end at an empty slot. A table has `probes - 1` slots behind its `size` ones: nothing wraps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier_kernels.errors import InvalidTables

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd: every bit reaches all higher ones
SEED = 0xCBF29CE484222325  # of FNV-1a; not 0, from where bytes of 0 lead nowhere
PROBES = 8
ROOM = 2  # slots an entry, at least
MOST_ROOM = 64  # more wouldn't help: the entries' hashes are equal
EMPTY_KEY = 0xFFFFFFFFFFFFFFFF  # no pair of IDs: there is no ID 0xFFFFFFFF
ABSENT = 0xFFFFFFFFFFFFFFFF  # what a pair that doesn't merge looks up to: greater than any value


@dataclass(frozen=True)
class Placement:
    """Where entries stand in a table of `size + probes - 1` slots. slot: i64[entries]."""

    size: int
    probes: int
    slot: I64

    @property
    def slots(self) -> int:
        return self.size + self.probes - 1


def place(hashes: U64) -> Placement:
    """Slots for entries with these hashes, in the smallest table that bounds all probes by `PROBES`.

    Sorted by home, each entry takes its home or the slot behind the one before it; that is linear probing with the
    longest probe as short as it can be. Raises `InvalidTables` (`kernels.crowded_table`) where no size helps.
    """
    size = 1 << max(ROOM * len(hashes) - 1, 1).bit_length()
    while size <= MOST_ROOM * max(len(hashes), 1):
        home = home_of(hashes, size)
        order = np.argsort(home, kind="stable")
        index = np.arange(len(home))
        slot = np.maximum.accumulate(home[order] - index) + index
        if int((slot - home[order]).max(initial=0)) < PROBES:
            result = np.empty(len(home), np.int64)
            result[order] = slot
            return Placement(size, PROBES, result)
        size *= 2
    raise InvalidTables("kernels.crowded_table", f"more than {PROBES} entries with one hash", entries=len(hashes))


def home_of(hashes: U64, size: int) -> I64:
    """The first slot to probe: from the upper half of the hash, the better mixed one."""
    return ((hashes >> np.uint64(32)) & np.uint64(size - 1)).astype(np.int64)


def hash_pairs(keys: U64) -> U64:
    """Of left << 32 | right."""
    return (keys ^ (keys >> np.uint64(29))) * np.uint64(MULTIPLIER)


def hash_bytes(data: U8, starts: I64, lengths: I64) -> U64:
    """Of each data[start:start + length]: h = (h ^ byte) * MULTIPLIER from SEED on, then its least bit set.

    So no hash is 0, which marks an empty slot.
    """
    order = np.argsort(-lengths, kind="stable")
    first = starts[order]
    longer = np.searchsorted(-lengths[order], -np.arange(int(lengths.max(initial=0))), side="left")
    hashes = np.full(len(starts), SEED, np.uint64)
    for at, count in enumerate(longer.tolist()):
        hashes[:count] = (hashes[:count] ^ data[first[:count] + at]) * np.uint64(MULTIPLIER)
    result = np.empty_like(hashes)
    result[order] = hashes | np.uint64(1)
    return result


def find_pairs(key: U64, value: U64, size: int, probes: int, left: U32, right: U32) -> U64:
    """The value of each pair of IDs in the table `key` → `value`, `ABSENT` where it has none."""
    shape = left.shape
    wanted = (left.astype(np.uint64) << np.uint64(32) | right).reshape(-1)
    result = np.full(wanted.size, ABSENT, np.uint64)
    todo = np.flatnonzero(wanted != EMPTY_KEY)
    home = home_of(hash_pairs(wanted), size)
    for probe in range(probes):
        slot = home[todo] + probe
        stored = key[slot]
        hit = stored == wanted[todo]
        result[todo[hit]] = value[slot[hit]]
        todo = todo[~hit & (stored != EMPTY_KEY)]
        if not todo.size:
            break
    return result.reshape(shape)
