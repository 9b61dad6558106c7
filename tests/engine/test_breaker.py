"""The breaker against its rules, with time as an argument: every history of admissions, results and waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toktier_tier.engine.breaker import Breaker, BreakerPolicy, Phase
from workshop import examples

POLICY = BreakerPolicy(failures_to_open=3, open_s=1.0, max_open_s=8.0, trial_s=5.0)


def opened(openings: int = 1, now_s: float = 0.0) -> tuple[Breaker, float]:
    """A breaker that just opened for the so-manieth time in a row, and the time."""
    breaker = Breaker(POLICY)
    for _ in range(POLICY.failures_to_open):
        breaker, ticket = breaker.admit(now_s)
        assert ticket is not None
        breaker = breaker.failed(ticket, now_s)
    for _ in range(openings - 1):
        now_s = breaker.until_s
        breaker, ticket = breaker.admit(now_s)
        assert ticket is not None
        breaker = breaker.failed(ticket, now_s)
    assert breaker.phase is Phase.OPEN
    return breaker, now_s


@settings(max_examples=examples(200))
@given(st.lists(st.booleans(), max_size=40))
def test_it_opens_after_failures_in_a_row_only(results: list[bool]) -> None:
    breaker, in_a_row = Breaker(POLICY), 0
    for good in results:
        _, ticket = breaker.admit(0.0)
        if in_a_row == POLICY.failures_to_open:
            assert (breaker.phase, ticket) == (Phase.OPEN, None)
            return
        assert ticket is not None
        breaker = breaker.succeeded(ticket) if good else breaker.failed(ticket, 0.0)
        in_a_row = 0 if good else in_a_row + 1


@pytest.mark.parametrize(("openings", "wait_s"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (2000, 8.0)])
def test_the_wait_doubles_up_to_its_bound(openings: int, wait_s: float) -> None:
    breaker, now_s = opened(openings)
    assert breaker.until_s == now_s + wait_s
    assert breaker.admit(now_s + wait_s * 0.999)[1] is None
    assert breaker.admit(now_s + wait_s)[1] is not None


def test_one_trial_at_a_time_and_its_success_closes() -> None:
    breaker, _ = opened(3)
    breaker, ticket = breaker.admit(breaker.until_s)
    assert breaker.phase is Phase.HALF_OPEN
    assert breaker.admit(breaker.until_s - 0.001)[1] is None
    assert ticket is not None
    breaker = breaker.succeeded(ticket)
    assert (breaker.phase, breaker.openings, breaker.failures) == (Phase.CLOSED, 0, 0)
    assert breaker.failed(ticket, 0.0).failures == 1  # the same request may still break off later


def test_a_lost_trial_makes_room_and_its_late_result_counts_for_nothing() -> None:
    breaker, _ = opened()
    start_s = breaker.until_s
    breaker, lost = breaker.admit(start_s)
    breaker, second = breaker.admit(start_s + POLICY.trial_s)
    assert lost is not None
    assert second is not None
    assert breaker.succeeded(lost) == breaker.failed(lost, 0.0) == breaker.abandoned(lost, 0.0) == breaker
    assert breaker.succeeded(second).phase is Phase.CLOSED


def test_an_abandoned_trial_lets_the_next_request_try() -> None:
    breaker, _ = opened()
    now_s = breaker.until_s
    breaker, ticket = breaker.admit(now_s)
    assert ticket is not None
    breaker = breaker.abandoned(ticket, now_s)
    assert breaker.phase is Phase.HALF_OPEN
    assert breaker.failed(ticket, now_s) == breaker
    assert breaker.admit(now_s)[1] is not None


def test_results_from_before_it_opened_change_nothing() -> None:
    breaker = Breaker(POLICY)
    _, early = breaker.admit(0.0)
    assert early is not None
    breaker, _ = opened()
    assert breaker.succeeded(early) == breaker.failed(early, 9.0) == breaker.abandoned(early, 9.0) == breaker
    breaker, _ = breaker.admit(breaker.until_s)
    assert breaker.succeeded(early) == breaker.failed(early, 9.0) == breaker


@pytest.mark.parametrize("wrong", [{"failures_to_open": 0}, {"open_s": 0.0}, {"open_s": 9.0, "max_open_s": 8.0}])
def test_a_policy_that_cant_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="breaker"):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]


class Histories(RuleBasedStateMachine):
    """Many requests at once, in any order; checked: bounded waits, at most one trial, no way to get stuck."""

    @initialize()
    def start(self) -> None:
        self.breaker, self.now_s, self.out = Breaker(POLICY), 0.0, []

    @rule()
    def admit(self) -> None:
        before = self.breaker
        self.breaker, ticket = before.admit(self.now_s)
        if ticket is None:
            assert before.phase is not Phase.CLOSED
            assert self.now_s < before.until_s
            assert self.breaker == before
        else:
            assert ticket == self.breaker.era
            self.out.append(ticket)

    @rule(wait_s=st.sampled_from([0.0, 0.4, 1.0, 5.0, 9.0]))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s

    @precondition(lambda self: self.out)
    @rule(data=st.data(), result=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def result(self, data: st.DataObject, result: str) -> None:
        before = self.breaker
        ticket = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        match result:
            case "succeeded":
                self.breaker = before.succeeded(ticket)
            case "failed":
                self.breaker = before.failed(ticket, self.now_s)
            case _:
                self.breaker = before.abandoned(ticket, self.now_s)
        if ticket != before.era:
            assert self.breaker == before
        if before.phase is Phase.OPEN:
            assert self.breaker == before

    @invariant()
    def bounded(self) -> None:
        if not hasattr(self, "breaker"):
            return
        assert 0 <= self.breaker.failures < POLICY.failures_to_open
        assert self.breaker.until_s <= self.now_s + max(POLICY.max_open_s, POLICY.trial_s)
        later, ticket = self.breaker.admit(self.now_s + max(POLICY.max_open_s, POLICY.trial_s))
        assert ticket is not None
        assert later.succeeded(ticket).phase is Phase.CLOSED
        if self.breaker.phase is Phase.HALF_OPEN:
            assert self.out.count(self.breaker.era) <= 1


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(60), stateful_step_count=40)
