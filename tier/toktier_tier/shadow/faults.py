"""Wrong IDs on purpose, to see that they are found: for tests of a running tier, never for one that serves.

Guarantee: nothing is planted unless the caller says `allow=True`, which the application does only when it was started
with TOKTIER_ALLOW_FAULTS=1.
"""

from __future__ import annotations

import random
import threading

from ..core.errors import InvalidRequest
from ..encoders.gpu import GpuEncoder
from ..encoders.guarded import Guarded
from ..ports import Ids
from ..tokenizer import TierTokenizer


class WrongIds:
    """The reference behind the encoder protocol, except that a share `rate` of its answers has one ID changed.

    lies    how many answers that were so far
    """

    name, version = "faulty", "planted"

    def __init__(self, honest: Guarded | GpuEncoder, rate: float, id_limit: int, randomness: random.Random) -> None:
        self._honest, self._rate, self._limit = honest.reference.encode, rate, max(id_limit, 2)
        self._random, self._lock = randomness, threading.Lock()
        self.lies = 0

    def encode(self, text: str) -> Ids:
        ids = self._honest(text)
        with self._lock:
            if not len(ids) or self._random.random() >= self._rate:
                return ids
            at, shift = self._random.randrange(len(ids)), self._random.randrange(1, self._limit)
            self.lies += 1
        ids = ids.copy()
        ids[at] = (int(ids[at]) + shift) % self._limit
        return ids


class PlantedFaults:
    """What was planted in one tokenizer."""

    def __init__(self, planted: tuple[WrongIds, ...]) -> None:
        self._planted = planted

    @property
    def lies(self) -> int:
        """Answers of encoders that were wrong so far; an answer of the tier may be made of several."""
        return sum(planted.lies for planted in self._planted)


def plant_wrong_ids(tokenizer: TierTokenizer, *, rate: float, seed: int, allow: bool = False) -> PlantedFaults:
    """From now on each encoder of `tokenizer`, core forms, whole-file form and GPU path, errs in a share `rate` of its
    calls.

    Raises `InvalidRequest`: `faults.not_allowed` without `allow`, `faults.rate`, and `faults.nothing_admitted` for a
    tokenizer that the reference alone serves.
    """
    if allow is not True:
        raise InvalidRequest("faults.not_allowed", "faults are planted only where TOKTIER_ALLOW_FAULTS=1 allows it")
    if not 0 <= rate <= 1:
        raise InvalidRequest("faults.rate", "the share of wrong answers is from 0 to 1", rate=rate)
    if tokenizer.quarantined or tokenizer.cores is None:
        raise InvalidRequest("faults.nothing_admitted", "the reference alone serves this tokenizer")
    guards: list[Guarded | GpuEncoder] = list(dict.fromkeys(tokenizer.cores.by_position.values()))
    if tokenizer.whole is not None:
        guards.append(tokenizer.whole.guarded)
    if tokenizer.gpu is not None:
        guards.append(tokenizer.gpu)
    planted: list[WrongIds] = []
    for index, guard in enumerate(guards):
        randomness = random.Random(f"{seed} {index}")
        planted.append(WrongIds(guard, rate, tokenizer.reference.id_limit, randomness))
        guard.replace(planted[-1])
    return PlantedFaults(tuple(planted))
