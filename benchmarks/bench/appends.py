"""The works on a session: appends, and edits of the tail.

Guarantee: per context size and delta size, the first step of every engine is compared with the reference's full
encode of the same text before anything is timed, and what the timed steps of a session left is compared again
afterwards. All engines get the same deltas in the same order, and sessions are opened anew by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import Protocol

from toktier_tier.ports import Ids
from toktier_tier.sessions.service import SessionService

from .engines import REFERENCE, TIER, Engines, FullEncoder
from .peer_toktier import ENGINE as PEER
from .peer_toktier import Peer
from .plan import Plan
from .results import Row, Unequal, row_of
from .texts import Texts
from .timing import Appender, keep_out_of_collections, time_encodes, undisturbed

TENANT, SESSION = "bench", "session"


class Lane(Protocol):
    """One engine doing one work on one context.

    stateful   what is left after the timed steps is worth another comparison
    """

    engine: str
    work: str
    stateful: bool

    def run(self, deltas: Sequence[str]) -> list[int]:
        """Nanoseconds per step."""

    def ids(self) -> Ids:
        """The IDs after the last step."""

    def text(self, deltas: Sequence[str]) -> str:
        """The text after the last step; `deltas` are all so far."""


class TierSession:
    """A session by the public service, every change with the revision that the client expects."""

    def __init__(self, service: SessionService, context: str) -> None:
        self._append, self._edit = service.append, service.edit
        self._revision = service.open(TENANT, SESSION, context).revision
        self._chars = len(context)

    def append(self, delta: str) -> None:
        self._revision = self._append(TENANT, SESSION, delta, expected_revision=self._revision).revision

    def replace_tail(self, replacement: str) -> None:
        """Replace as many characters as `replacement` has, at the end."""
        chars = self._chars
        start = chars - len(replacement)
        self._revision = self._edit(
            TENANT, SESSION, start, chars, replacement, expected_revision=self._revision
        ).revision


class TierAppends:
    work, engine, stateful = "append", TIER, True

    def __init__(self, service: SessionService, context: str) -> None:
        self._service, self._context = service, context
        self._appender = Appender(lambda text: TierSession(service, text), context)

    def run(self, deltas: Sequence[str]) -> list[int]:
        return self._appender.run(deltas)

    def ids(self) -> Ids:
        return self._service.ids(TENANT, SESSION)

    def text(self, deltas: Sequence[str]) -> str:
        return self._context + "".join(deltas[len(deltas) - self._appender.pending :])


class TierEdits:
    """Tail edits that leave the text as long as it was."""

    work, engine, stateful = "edit", TIER, True

    def __init__(self, service: SessionService, context: str) -> None:
        self._service, self._context = service, context
        self._session = TierSession(service, context)

    def run(self, deltas: Sequence[str]) -> list[int]:
        replace_tail, times = self._session.replace_tail, []
        with undisturbed():
            for delta in deltas:
                start = perf_counter_ns()
                replace_tail(delta)
                times.append(perf_counter_ns() - start)
        return times

    def ids(self) -> Ids:
        return self._service.ids(TENANT, SESSION)

    def text(self, deltas: Sequence[str]) -> str:
        return self._context[: -len(deltas[-1])] + deltas[-1]


class PeerAppends:
    work, engine, stateful = "append", PEER, True

    def __init__(self, peer: Peer, context: str) -> None:
        self._peer, self._context = peer, context
        peer.open(context)
        self.route = ""

    def run(self, deltas: Sequence[str]) -> list[int]:
        timed = self._peer.append(deltas)
        self.route = timed.route
        return timed.times_ns

    def ids(self) -> Ids:
        return self._peer.ids()

    def text(self, deltas: Sequence[str]) -> str:
        return self._context + "".join(deltas[len(deltas) - self._peer.pending :])


class FullEncodes:
    """Context and delta, encoded whole; `prewarm`: the same text was encoded by the same object just before."""

    stateful = False

    def __init__(self, encoder: FullEncoder, context: str, *, work: str = "append", prewarm: bool) -> None:
        self.engine, self.work = encoder.engine, work
        self._encoder, self._context, self._prewarm = encoder, context, prewarm
        self._last: object = None

    def run(self, deltas: Sequence[str]) -> list[int]:
        self._last = None
        texts = (self.text([delta]) for delta in deltas)
        times, self._last = time_encodes(self._encoder.encode, texts, prewarm=self._prewarm)
        return times

    def ids(self) -> Ids:
        return self._encoder.as_ids(self._last)

    def text(self, deltas: Sequence[str]) -> str:
        if self.work == "edit":
            return self._context[: -len(deltas[-1])] + deltas[-1]
        return self._context + deltas[-1]


@dataclass
class _Turns:
    """A lane, what it has been timed at, how many deltas it has taken, and how long its steps take all in all."""

    lane: Lane
    times_ns: list[int] = field(default_factory=list)
    taken: int = 0
    spent_s: float = 0.0
    step_s: float = 0.0

    def run(self, deltas: Sequence[str]) -> None:
        begun = perf_counter()
        self.times_ns += self.lane.run(deltas)
        took_s = perf_counter() - begun
        self.taken += len(deltas)
        self.spent_s += took_s
        self.step_s = took_s / len(deltas)


class Cell:
    """The lanes of one context and delta size; they get the same deltas, the first of which is the check's."""

    def __init__(self, plan: Plan, context: str, deltas: list[str], lanes: Sequence[Lane], alphabet: str) -> None:
        self._plan, self._context, self._deltas, self._alphabet = plan, context, deltas, alphabet
        # The reference first: it says what is right.
        self._turns = [_Turns(lane) for lane in sorted(lanes, key=lambda lane: lane.engine != REFERENCE)]

    def measure(self, reference_ids: Callable[[str], Ids]) -> list[Row]:
        """Check, time, check again. Raises `Unequal`."""
        self._check_first_steps(reference_ids)
        for index in range(self._plan.rounds):
            for turns in self._turns:
                count = self._count(turns, self._plan.rounds - index)
                if count:
                    turns.run(self._deltas[turns.taken : turns.taken + count])
        again = self._plan.rechecks(len(self._context), len(self._deltas[0]))
        for turns in self._turns:
            if turns.lane.stateful and again:
                text = turns.lane.text(self._deltas[: turns.taken])
                _compare(turns.lane, len(self._context), reference_ids(text))
        return [self._row(turns) for turns in self._turns]

    def _check_first_steps(self, reference_ids: Callable[[str], Ids]) -> None:
        expected: dict[str, Ids] = {}
        for turns in self._turns:
            lane = turns.lane
            turns.run(self._deltas[:1])
            turns.step_s = 3 * turns.times_ns[0] / 1e9  # a guess: preparation may cost as much again, or twice
            if lane.engine == REFERENCE:  # has no warmth to speak of, so its first step counts
                expected[lane.work] = lane.ids()
                continue
            turns.times_ns = []
            if lane.work not in expected:
                expected[lane.work] = reference_ids(lane.text(self._deltas[:1]))
            _compare(lane, len(self._context), expected[lane.work])

    def _count(self, turns: _Turns, rounds_left: int) -> int:
        """How many steps fit into a lane's next turn; a lane out of time gets none once it has been timed."""
        if turns.times_ns and turns.spent_s >= self._plan.cell_s:
            return 0
        fair = -(-(len(self._deltas) - turns.taken) // rounds_left)
        return min(fair, max(1, int(self._plan.cell_s / self._plan.rounds / turns.step_s)))

    def _row(self, turns: _Turns) -> Row:
        lane = turns.lane
        extra: dict[str, object] = {"text": self._alphabet}
        if isinstance(lane, PeerAppends):
            extra["route"] = lane.route
        if isinstance(lane, FullEncodes) and lane.engine != REFERENCE:
            extra["warm"] = True
        return row_of(lane.work, lane.engine, (len(self._context), len(self._deltas[0])), turns.times_ns, **extra)


def _compare(lane: Lane, context_chars: int, expected: Ids) -> None:
    if lane.ids().tobytes() != expected.tobytes():
        raise Unequal(f"{lane.engine} gave other IDs than the reference: {lane.work} at {context_chars:,} characters")


class SessionWorks:
    """Appends and edits at every size of a plan, on long-lived engines that have seen the longest context once."""

    def __init__(self, plan: Plan, engines: Engines, peer: Peer | None, texts: Texts, *, alphabet: str) -> None:
        self._plan, self._engines, self._peer, self._texts = plan, engines, peer, texts
        self._alphabet = alphabet
        names = [name for name in plan.engines if name not in (TIER, PEER)]
        self._encoders = [engines.fresh(name) for name in names]
        self._service = SessionService(engines.tier)
        self._season(texts.context(max(plan.contexts)))
        keep_out_of_collections()

    def _season(self, text: str) -> None:
        for encoder in self._encoders:
            if encoder.engine != REFERENCE:
                encoder.encode(text)
        TierSession(self._service, text)
        if self._peer is not None:
            self._peer.open(text)

    def appends(self, context_chars: int, delta_chars: int, most: int) -> list[Row]:
        context = self._texts.context(context_chars)
        lanes: list[Lane] = [
            FullEncodes(encoder, context, prewarm=encoder.engine != REFERENCE) for encoder in self._encoders
        ]
        if self._plan.runs(TIER):
            lanes.append(TierAppends(self._service, context))
        if self._peer is not None:
            lanes.append(PeerAppends(self._peer, context))
        return self._measure(context, delta_chars, most, lanes)

    def edits(self, context_chars: int, most: int) -> list[Row]:
        """Edits of the tail, and appends of as many characters."""
        context = self._texts.context(context_chars)
        # One service each: the two lanes take turns, and there is one session to a service here.
        services = SessionService(self._engines.tier), SessionService(self._engines.tier)
        lanes: list[Lane] = [TierEdits(services[0], context), TierAppends(services[1], context)]
        return self._measure(context, self._plan.edit_chars, most, lanes)

    def _measure(self, context: str, delta_chars: int, most: int, lanes: list[Lane]) -> list[Row]:
        deltas = self._texts.deltas(1 + most, delta_chars)
        return Cell(self._plan, context, deltas, lanes, self._alphabet).measure(self._engines.reference_ids)
