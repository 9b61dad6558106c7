"""The choice of an upstream: a session's own while it can be, few others move, no more requests than room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.errors import EngineFault
from toktier_tier.engine.breaker import BreakerPolicy, Phase
from toktier_tier.engine.upstreams import Deadline, EngineEvent, Lease, Timeouts, Upstreams, ranked
from workshop import examples

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8, unique=True)
POLICY = BreakerPolicy(failures_to_open=2, open_s=1.0, max_open_s=4.0, trial_s=10.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def engines(count: int) -> list[str]:
    return [f"http://engine-{index}:30000" for index in range(count)]


@settings(max_examples=examples(200))
@given(NAMES, st.text(max_size=20), st.data())
def test_taking_one_away_moves_nothing_else(names: list[str], session: str, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    order = ranked(names, session)
    assert sorted(order) == sorted(names)
    assert ranked([name for name in names if name != gone], session) == [name for name in order if name != gone]
    assert ranked(data.draw(st.permutations(names)), session) == order


def test_sessions_spread_evenly_and_only_the_lost_ones_move() -> None:
    names, sessions = engines(5), [f"tenant/{index}" for index in range(5000)]
    before = {session: ranked(names, session)[0] for session in sessions}
    after = {session: ranked(names[1:], session)[0] for session in sessions}
    moved = {session for session in sessions if before[session] != after[session]}
    assert moved == {session for session in sessions if before[session] == names[0]}
    loads = [list(before.values()).count(name) for name in names]
    assert all(850 < load < 1150 for load in loads)
    heirs = [sum(after[session] == name for session in moved) for name in names[1:]]
    assert all(180 < heir < 320 for heir in heirs)


def fail(upstreams: Upstreams, session: str, times: int) -> str:
    name = ""
    for _ in range(times):
        with upstreams.lease(session) as lease:
            name = lease.name
            lease.failed()
    return name


def test_a_session_returns_to_its_upstream_when_that_is_well_again() -> None:
    clock = Clock()
    events: list[EngineEvent] = []
    upstreams = Upstreams(engines(3), breaker=POLICY, clock=clock, observe=events.append)
    home = fail(upstreams, "s", 2)
    assert upstreams.phases()[home] is Phase.OPEN
    with upstreams.lease("s") as lease:
        assert lease.name == ranked(upstreams.names, "s")[1]
    clock.now_s += POLICY.open_s
    with upstreams.lease("s") as trial:
        assert trial.name == home
        with upstreams.lease("s") as other:
            assert other.name != home
        trial.answered()
        assert upstreams.phases()[home] is Phase.CLOSED
    assert [event.reason for event in events if event.name == "breaker"] == ["open", "half_open", "closed"]


def test_a_trial_whose_client_went_away_says_nothing() -> None:
    clock = Clock()
    upstreams = Upstreams(engines(1), breaker=POLICY, clock=clock)
    fail(upstreams, "s", 2)
    clock.now_s += POLICY.open_s
    with upstreams.lease("s"):
        pass
    assert list(upstreams.phases().values()) == [Phase.HALF_OPEN]
    with upstreams.lease("s") as lease:
        lease.ended_well()
    assert list(upstreams.phases().values()) == [Phase.CLOSED]


def test_replies_that_all_break_off_after_their_first_byte_open_the_breaker() -> None:
    upstreams = Upstreams(engines(1), breaker=POLICY, clock=Clock())
    for _ in range(2):
        with upstreams.lease("s") as lease:
            lease.answered()
            lease.failed()
    assert list(upstreams.phases().values()) == [Phase.OPEN]


def test_when_all_are_left_alone_the_fault_says_how_long() -> None:
    upstreams = Upstreams(engines(2), breaker=POLICY, clock=Clock())
    fail(upstreams, "s", 4)
    with pytest.raises(EngineFault) as caught:
        upstreams.lease("s")
    assert (caught.value.code, caught.value.details["retry_after_s"]) == ("engine.circuit_open", 1.0)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", ""])), max_size=60))
def test_no_upstream_gets_more_than_it_has_room_for(steps: list[tuple[bool, str]]) -> None:
    upstreams = Upstreams(engines(3), max_in_flight=2, clock=Clock())
    leases: list[Lease] = []
    for take, session in steps:
        if take and len(leases) == 6:
            with pytest.raises(EngineFault) as caught:
                upstreams.lease(session)
            assert caught.value.code == "engine.busy"
        elif take:
            leases.append(upstreams.lease(session))
        elif leases:
            leases[0].close()
            leases.pop(0).close()  # closing twice gives one place back
        counts = upstreams.in_flight()
        assert sum(counts.values()) == len(leases)
        assert max(counts.values()) <= 2
        if session == "" and take and leases:
            assert max(counts.values()) - min(counts.values()) <= 2


def test_without_a_session_the_least_busy_is_asked() -> None:
    upstreams = Upstreams(engines(4), clock=Clock())
    leases = [upstreams.lease("") for _ in range(40)]
    assert set(upstreams.in_flight().values()) == {10}
    assert len(leases) == 40


def test_upstreams_that_were_tried_are_not_asked_again() -> None:
    upstreams = Upstreams(engines(3), clock=Clock())
    tried: list[str] = []
    for _ in range(3):
        with upstreams.lease("s", tried) as lease:
            tried.append(lease.name)
    assert tried == ranked(upstreams.names, "s")
    with pytest.raises(EngineFault):
        upstreams.lease("s", tried)


def test_a_deadline_shortens_every_wait() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    assert deadline.limit(3.0, "idle") == (3.0, "idle")
    clock.now_s += 8.0
    assert deadline.limit(3.0, "idle") == (2.0, "total")
    clock.now_s += 8.0
    assert deadline.limit(3.0, "idle") == (0.0, "total")


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_upstreams_that_cant_be_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="upstream"):
        Upstreams(names)


def test_a_wait_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="wait"):
        Timeouts(idle_s=0.0)
