"""Revisions that identify states.

A revision is which life a session is in, and how many changes that life has seen. A life begins wherever a state comes
from a text alone (open, a full text without a session), and with the first change of a copy (a fork, a state that was
exported and taken over).

Guarantee: two states that differ have different revisions. A process counts its lives and numbers them by a secret
permutation, so that none comes twice in 2**34 of them and no number tells how many sessions others have opened; lives
of two processes share a number by a chance of 2**-34. A copy stands at the revision of what it is a copy of: until one
of them changes they are the same state.

Revisions are below 2**53: every JSON reader keeps them exact.
"""

from __future__ import annotations

import hashlib
import random
from itertools import count

_HALF_BITS, _ROUNDS = 17, 4
LIFE_BITS, CHANGE_BITS = 2 * _HALF_BITS, 19
REVISION_LIMIT = 1 << (LIFE_BITS + CHANGE_BITS)
_HALF = (1 << _HALF_BITS) - 1
_CHANGES = (1 << CHANGE_BITS) - 1


class Lives:
    """Thread-safe. `randomness` chooses the permutation."""

    def __init__(self, randomness: random.Random | None = None) -> None:
        self._key = (randomness or random.SystemRandom()).randbytes(16)
        self._numbers = count()

    def begin(self) -> int:
        """The first revision of a new life."""
        return self._permuted(next(self._numbers)) << CHANGE_BITS

    def _permuted(self, number: int) -> int:
        """A Feistel network: whatever `_mixed` is, no two numbers of `LIFE_BITS` bits give the same."""
        left, right = number >> _HALF_BITS & _HALF, number & _HALF
        for turn in range(_ROUNDS):
            left, right = right, left ^ self._mixed(turn, right)
        return left << _HALF_BITS | right

    def _mixed(self, turn: int, half: int) -> int:
        data = (turn << _HALF_BITS | half).to_bytes(4, "little")
        return int.from_bytes(hashlib.blake2b(data, key=self._key, digest_size=4).digest(), "little") & _HALF


def life_of(revision: int) -> int:
    return revision >> CHANGE_BITS


def changes_of(revision: int) -> int:
    """How many changes the life has seen. None, after a change: the life before it has no numbers left."""
    return revision & _CHANGES
