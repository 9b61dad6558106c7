"""The works on whole texts: a full encode, by fresh encoder objects and by warm ones.

Guarantee: every object's first and last answer are compared with the reference's. Cold means an object that has
encoded `timing.PRIMER` only; warm, one that has encoded the very same text before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from toktier_tier.ports import Ids

from .engines import FASTOKENS, GIGATOKEN, REFERENCE, TIER, WORKERS, Engines, FullEncoder
from .peer_toktier import ENGINE as PEER
from .peer_toktier import Peer
from .plan import Plan
from .results import Row, Unequal, row_of
from .texts import Chat, Texts
from .timing import time_encodes

MOST_WARM = 60
WARM_SLICES = 4
"""The engines take turns in slices, so that a machine that is slow for a second is slow for all of them."""
MOST_OBJECTS = {PEER: 2, FASTOKENS: 2}
"""They take seconds to load."""


class Encodes(Protocol):
    """An encoder object, wherever it lives."""

    route: str

    def encode(self, text: str, count: int) -> tuple[list[int], Ids]:
        """(nanoseconds of each of `count` encodes, the IDs of the last one)."""


class _Here:
    route = ""

    def __init__(self, encoder: FullEncoder) -> None:
        self._encoder = encoder

    def encode(self, text: str, count: int) -> tuple[list[int], Ids]:
        times, answer = time_encodes(self._encoder.encode, [text] * count, prewarm=False)
        return times, self._encoder.as_ids(answer)


class _AtThePeer:
    def __init__(self, peer: Peer) -> None:
        self._peer, self._fresh, self.route = peer, True, ""

    def encode(self, text: str, count: int) -> tuple[list[int], Ids]:
        timed, ids = self._peer.encode(text, count, fresh=self._fresh)
        self._fresh, self.route = False, timed.route
        return timed.times_ns, ids


@dataclass
class _Contender:
    """An engine on one text, and its times by warmth.

    of_chars   the length of the text that `text` was made from
    workers    the tier's threads, 0 for other engines
    """

    engine: str
    text: str
    kind: str
    of_chars: int
    workers: int = 0
    route: str = ""
    times_ns: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})

    def run_cold(self, encodes: Encodes, expected: Ids) -> None:
        self.times_ns[False] += self._encodes(encodes, 1, expected)
        self.route = encodes.route

    def run_warm(self, encodes: Encodes, expected: Ids, warm_s: float) -> None:
        """As many encodes as fit into `warm_s`."""
        begun = perf_counter()
        self._encodes(encodes, 1, expected)  # tells how long one takes, and isn't counted
        count = int(warm_s / (perf_counter() - begun))
        self.times_ns[True] += self._encodes(encodes, max(1, min(MOST_WARM, count)), expected)

    def _encodes(self, encodes: Encodes, count: int, expected: Ids) -> list[int]:
        times, ids = encodes.encode(self.text, count)
        if ids.tobytes() != expected.tobytes():
            what = f"{self.kind} of {len(self.text):,} characters"
            raise Unequal(f"{self.engine} gave other IDs than the reference: {what}")
        return times

    def rows(self, work: str) -> list[Row]:
        extra: dict[str, object] = {"text": self.kind, "of_chars": self.of_chars}
        if self.workers:
            extra["workers"] = self.workers
        if self.route:
            extra["route"] = self.route
        sizes = len(self.text), 0
        found = [(warm, times) for warm, times in self.times_ns.items() if times]
        return [row_of(work, self.engine, sizes, times, warm=warm, **extra) for warm, times in found]


class ColdWorks:
    """Full encodes of plain and of chat text."""

    def __init__(self, plan: Plan, engines: Engines, peer: Peer | None, texts: Texts) -> None:
        self._plan, self._engines, self._peer, self._texts = plan, engines, peer, texts

    def plain(self, chars: int) -> list[Row]:
        return self._measure("cold_plain", self._contenders(self._texts.context(chars), "agent"))

    def chat(self, chars: int) -> list[Row]:
        """Chat text; `gigatoken` also on the same text without the special tokens' literals."""
        chat = Chat(chars, self._engines.literals())
        contenders = self._contenders(chat.text, "chat")
        if self._plan.runs(GIGATOKEN):
            contenders.append(_Contender(GIGATOKEN, chat.without_literals, "chat without special tokens", chars))
        return self._measure("cold_chat", contenders)

    def _contenders(self, text: str, kind: str) -> list[_Contender]:
        """The tier by its thread counts, then the others."""
        counts = self._plan.workers if self._plan.runs(TIER) else ()
        contenders = [_Contender(TIER, text, kind, len(text), workers) for workers in counts]
        return contenders + [_Contender(name, text, kind, len(text)) for name in self._plan.engines if name != TIER]

    def _measure(self, work: str, contenders: Sequence[_Contender]) -> list[Row]:
        expected = {text: self._engines.reference_ids(text) for text in {each.text for each in contenders}}
        for turn in range(self._plan.objects):
            running = [each for each in contenders if turn < self._objects(each)]
            objects: list[Encodes] = []
            for each in running:  # cold at once: the first encode after several were built pays for their memory
                objects.append(self._fresh(each))
                each.run_cold(objects[-1], expected[each.text])
            slice_s = self._plan.cell_s / self._plan.objects / WARM_SLICES
            for _ in range(WARM_SLICES):
                for each, encodes in zip(running, objects, strict=True):
                    if each.engine != REFERENCE:  # which is the same, cold and warm
                        each.run_warm(encodes, expected[each.text], slice_s)
        return [row for each in contenders for row in each.rows(work)]

    def _objects(self, each: _Contender) -> int:
        if each.engine == TIER and each.workers != self._plan.workers[0]:
            return 1
        return min(MOST_OBJECTS.get(each.engine, self._plan.objects), self._plan.objects)

    def _fresh(self, each: _Contender) -> Encodes:
        if each.engine == PEER:
            assert self._peer is not None
            return _AtThePeer(self._peer)
        return _Here(self._engines.fresh(each.engine, workers=each.workers or WORKERS))
