"""When an upstream is left alone, and when it is tried again: a state machine without clock or I/O.

Rules:
 1. CLOSED admits every request. `failures_to_open` failures with no success between them open it.
 2. OPEN admits nothing until its wait is over. Then the next request is admitted as the trial: HALF_OPEN.
 3. HALF_OPEN admits nothing while its trial is out. A trial without a result after `trial_s` counts as lost, and the
    next request becomes the trial.
 4. A trial's success closes it. Its failure opens it again, with twice the wait, up to `max_open_s`. An abandoned trial
    (the client went away) lets the next request be the trial.
 5. Every admission gives a ticket, and results name theirs. A ticket from before the last change of phase or trial
    changes nothing: a slow request of yesterday neither opens nor closes today's breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    failures_to_open: int = 5
    open_s: float = 1.0
    max_open_s: float = 30.0
    trial_s: float = 120.0

    def __post_init__(self) -> None:
        if self.failures_to_open < 1 or not 0 < self.open_s <= self.max_open_s or self.trial_s <= 0:
            raise ValueError("a breaker opens after one failure or more, and waits a while")


@dataclass(frozen=True, slots=True)
class Breaker:
    """One state; every method returns the next one.

    era      counts phases and trials; a ticket is the era it was given in
    openings how often it opened since it was last closed
    until_s  OPEN: when the wait is over; HALF_OPEN: when the trial counts as lost, or now if none is out
    """

    policy: BreakerPolicy = BreakerPolicy()
    phase: Phase = Phase.CLOSED
    era: int = 0
    failures: int = 0
    openings: int = 0
    until_s: float = 0.0

    def admit(self, now_s: float) -> tuple[Breaker, int | None]:
        """(the next state, a ticket or None)."""
        if self.phase is Phase.CLOSED:
            return self, self.era
        if now_s < self.until_s:
            return self, None
        trial = replace(self, phase=Phase.HALF_OPEN, era=self.era + 1, until_s=now_s + self.policy.trial_s)
        return trial, trial.era

    def succeeded(self, ticket: int) -> Breaker:
        if ticket != self.era or self.phase is Phase.OPEN:
            return self
        if self.phase is Phase.CLOSED:
            return replace(self, failures=0) if self.failures else self
        return Breaker(self.policy, era=self.era)

    def failed(self, ticket: int, now_s: float) -> Breaker:
        if ticket != self.era or self.phase is Phase.OPEN:
            return self
        if self.phase is Phase.CLOSED and self.failures + 1 < self.policy.failures_to_open:
            return replace(self, failures=self.failures + 1)
        wait_s = min(self.policy.open_s * 2.0 ** min(self.openings, 64), self.policy.max_open_s)
        return Breaker(self.policy, Phase.OPEN, self.era + 1, 0, self.openings + 1, now_s + wait_s)

    def abandoned(self, ticket: int, now_s: float) -> Breaker:
        if ticket != self.era or self.phase is not Phase.HALF_OPEN:
            return self
        return replace(self, era=self.era + 1, until_s=now_s)
