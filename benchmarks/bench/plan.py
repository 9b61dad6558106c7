"""How much is measured: sizes, repetitions and time per cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .engines import FASTOKENS, GIGATOKEN, REFERENCE, TIER, WORKERS
from .peer_toktier import ENGINE as PEER

ENGINES = (TIER, PEER, GIGATOKEN, FASTOKENS, REFERENCE)


@dataclass(frozen=True)
class Plan:
    """What one run measures.

    deltas          (characters, most repetitions)
    ascii_deltas    the same, for ASCII-only texts
    cold            (work, characters)
    objects         fresh encoder objects per engine in the cold works
    workers         thread counts of the tier in the cold works
    cell_s          time that one engine may take in one cell, its untimed preparation included
    rounds          engines take turns this many times in a cell
    recheck_chars   sessions of longer contexts are compared again after timing at the smallest delta, and edits, only
    """

    engines: Sequence[str]
    contexts: Sequence[int]
    deltas: Sequence[tuple[int, int]]
    ascii_deltas: Sequence[tuple[int, int]]
    cold: Sequence[tuple[str, int]]
    state_chars: int
    state_sessions: int
    edit_chars: int = 200
    objects: int = 3
    workers: Sequence[int] = tuple(dict.fromkeys((WORKERS, 1)))
    cell_s: float = 1.5
    rounds: int = 5
    recheck_chars: int = 1_000_000

    def rechecks(self, context_chars: int, delta_chars: int) -> bool:
        """Whether sessions are compared with the reference once more after they were timed."""
        return context_chars <= self.recheck_chars or delta_chars <= min(chars for chars, _ in self.deltas)

    def runs(self, engine: str) -> bool:
        return engine in self.engines


def full_plan(engines: Sequence[str]) -> Plan:
    return Plan(
        engines=engines,
        contexts=(10_000, 100_000, 1_000_000, 4_400_000, 8_000_000),
        deltas=((1_500, 300), (10_000, 200), (50_000, 60), (100_000, 40)),
        ascii_deltas=((1_500, 300), (100_000, 40)),
        cold=(
            ("cold_plain", 100_000),
            ("cold_plain", 1_000_000),
            ("cold_plain", 4_400_000),
            ("cold_chat", 100_000),
            ("cold_chat", 1_000_000),
        ),
        state_chars=1_000_000,
        state_sessions=20,
    )


def quick_plan(engines: Sequence[str]) -> Plan:
    return Plan(
        engines=engines,
        contexts=(10_000,),
        deltas=((1_500, 10),),
        ascii_deltas=(),
        cold=(("cold_plain", 10_000), ("cold_chat", 10_000)),
        state_chars=10_000,
        state_sessions=2,
        objects=1,
        workers=(WORKERS,),
        cell_s=0.2,
        rounds=2,
    )
