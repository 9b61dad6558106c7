"""The backlog: bounded by number and bytes, first in first out, and whoever gives never waits."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.core.values import Route
from toktier_tier.shadow.backlog import Backlog
from toktier_tier.shadow.sample import Sample, sample_encoding

BASE = sample_encoding("", np.empty(0, dtype=np.uint32), Route.ENCODE)


def sample(name: str, bytes_: int = 10) -> Sample:
    return replace(BASE, tail=name, bytes_=bytes_)


@pytest.mark.parametrize(("samples", "bytes_"), [(0, 1), (-1, 1), (1, -1)])
def test_a_backlog_that_can_hold_nothing_is_refused(samples: int, bytes_: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Backlog(samples, bytes_)
    assert caught.value.code == "shadow.queue"


def test_the_number_is_bounded_and_the_one_taken_counts() -> None:
    backlog = Backlog(2, 1_000)
    assert [backlog.offer(sample(name)) for name in "abc"] == [True, True, False]
    taken = backlog.take()
    assert taken is not None
    assert taken.tail == "a"
    assert not backlog.offer(sample("d"))
    backlog.done()
    assert backlog.offer(sample("e"))
    assert (len(backlog), backlog.bytes_) == (2, 20)


def test_bytes_are_bounded_except_for_one_sample_alone() -> None:
    backlog = Backlog(10, 100)
    assert backlog.offer(sample("large", 1_000))  # it is verified whole
    assert not backlog.offer(sample("small", 1))
    assert backlog.take() is not None
    assert not backlog.offer(sample("small", 1))
    backlog.done()
    assert [backlog.offer(sample(name, size)) for name, size in (("a", 60), ("b", 41), ("c", 40))] == [
        True,
        False,
        True,
    ]
    assert backlog.bytes_ == 100


def test_a_closed_backlog_takes_nothing_in_and_gives_out_what_it_holds() -> None:
    backlog = Backlog(10, 1_000)
    backlog.offer(sample("a"))
    backlog.offer(sample("b"))
    backlog.close()
    assert not backlog.offer(sample("c"))
    names = []
    while (taken := backlog.take()) is not None:
        names.append(taken.tail)
        backlog.done()
    assert (names, backlog.bytes_) == (["a", "b"], 0)


def test_what_is_abandoned_is_told_and_the_one_taken_stays() -> None:
    backlog = Backlog(10, 1_000)
    for name in "abc":
        backlog.offer(sample(name))
    backlog.take()
    assert backlog.abandon() == 2
    assert (len(backlog), backlog.bytes_) == (1, 10)
    backlog.done()
    assert (len(backlog), backlog.bytes_) == (0, 0)


def test_waiting_ends_when_it_is_empty_and_at_its_deadline() -> None:
    backlog = Backlog(10, 1_000)
    assert backlog.wait_until_empty(0.0)
    backlog.offer(sample("a"))
    started = time.monotonic()
    assert not backlog.wait_until_empty(0.05)
    assert time.monotonic() - started < 5.0

    def work() -> None:
        backlog.take()
        backlog.done()

    threading.Timer(0.02, work).start()
    assert backlog.wait_until_empty(30.0)


def test_nothing_is_lost_or_doubled_between_many_givers_and_a_taker() -> None:
    backlog = Backlog(7, 65)
    accepted: list[str] = []
    taken: list[str] = []

    def take() -> None:
        while (found := backlog.take()) is not None:
            taken.append(found.tail)
            backlog.done()

    def give(giver: int) -> None:
        for number in range(300):
            if backlog.offer(sample(f"{giver}:{number}")):
                accepted.append(f"{giver}:{number}")

    taker = threading.Thread(target=take)
    givers = [threading.Thread(target=give, args=(giver,)) for giver in range(4)]
    for thread in (taker, *givers):
        thread.start()
    for thread in givers:
        thread.join(60)
    backlog.close()
    taker.join(60)
    assert sorted(taken) == sorted(accepted)
    assert (len(backlog), backlog.bytes_) == (0, 0)
