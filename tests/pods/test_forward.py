"""Calls between pods: answers and errors as they were, waits that end, a breaker that waits once."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from pods.cluster import closed_port, cluster, silent_port
from toktier_tier.core.errors import RevisionConflict
from toktier_tier.engine.breaker import BreakerPolicy
from toktier_tier.pods.forward import FORWARDED, MOST_SLOW, Forwarder, NotServed, Timeouts, hop_of
from toktier_tier.pods.ring import Peer
from toktier_tier.transport.status import OwnerAnswered
from toktier_tier.transport.tenants import TENANT_KEY
from toktier_tier.transport.v1 import toktier_pb2 as pb

OPEN = pb.OpenSessionRequest(session="s", text="some text").SerializeToString()
QUICK = Timeouts(connect_s=0.3, answer_s=0.5)


def forwarder(**more: object) -> Forwarder:
    return Forwarder("me", timeouts=QUICK, **more)  # type: ignore[arg-type]


async def reason_of(found: Forwarder, peer: Peer, *, timeout_s: float | None = None) -> tuple[str, float]:
    begun = time.monotonic()
    with pytest.raises(NotServed) as caught:
        await found.call(peer, "OpenSession", OPEN, "default", timeout_s=timeout_s)
    return caught.value.reason, time.monotonic() - begun


def test_a_call_carries_its_mark_its_tenant_and_what_else_goes_along() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            found = forwarder(metadata=lambda: [("traceparent", "00-1-2-01")])
            answer = await found.call(pods["b"].peer, "OpenSession", OPEN, "team/1@x", timeout_s=5)
            assert pb.OpenSessionResponse.FromString(answer).patch.total > 0
            assert pods["b"].holds("s", "team/1@x")
            ((method, metadata),) = pods["b"].seen
            assert (method, metadata[FORWARDED], metadata["traceparent"]) == ("OpenSession", "me", "00-1-2-01")
            assert metadata[TENANT_KEY] == "team/1@x"
            assert found.counts == {"answered": 1}
            await found.aclose()

    asyncio.run(talk())


def test_a_mark_names_the_pod_that_forwarded() -> None:
    assert hop_of(((TENANT_KEY, "x"), (FORWARDED, "a"), ("other", "1"))) == "a"
    assert hop_of(((FORWARDED, ""),))
    assert hop_of(((TENANT_KEY, "x"),)) == hop_of(None) == ""


def test_an_owners_error_comes_back_as_it_was() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            found = forwarder()
            patch = pods["b"].sessions.open("t", "s", "text")
            stale = pb.AppendRequest(session="s", delta="x", expected_revision=7).SerializeToString()
            with pytest.raises(OwnerAnswered) as caught:
                await found.call(pods["b"].peer, "Append", stale, "t")
            answered = caught.value
            assert answered.status is grpc.StatusCode.ABORTED
            assert answered.details == "[session.revision_conflict] the session has moved on"
            assert dict(answered.trailing)["toktier-code"] == "session.revision_conflict"
            assert isinstance(answered.error, RevisionConflict)
            assert answered.error.details == {"expected": 7, "actual": patch.revision}
            with pytest.raises(OwnerAnswered) as caught:
                await found.call(pods["b"].peer, "Append", b"\x0a\xff", "t")
            assert caught.value.error.code == "internal"
            assert found._lines[pods["b"].peer].breaker.failures == 0
            await found.aclose()

    asyncio.run(talk())


def test_a_method_that_a_pod_of_another_version_lacks_is_served_here() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            found = forwarder()
            for _ in range(2):  # and opens no breaker
                with pytest.raises(NotServed) as caught:
                    await found.call(pods["b"].peer, "NotYet", b"", "t")
                assert (caught.value.reason, caught.value.untouched) == ("unknown_method", True)
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_isnt_there_costs_one_wait() -> None:
    async def talk() -> None:
        found = forwarder()
        peer = Peer("gone", closed_port())
        reason, seconds = await reason_of(found, peer)
        assert (reason, seconds < 0.3) == ("unreachable", True)
        assert (await reason_of(found, peer))[0] == "open"
        await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_accepts_and_stays_silent_costs_one_wait() -> None:
    async def talk() -> None:
        async with silent_port() as address:
            found = forwarder()
            peer = Peer("silent", address)
            reason, seconds = await reason_of(found, peer)
            assert (reason, 0.25 < seconds < 1.0) == ("unreachable", True)
            reason, seconds = await reason_of(found, peer)
            assert (reason, seconds < 0.05) == ("open", True)
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_never_answers_is_late_once_and_its_calls_are_cancelled() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            pods["b"].hang = asyncio.Event()
            found = forwarder()
            reason, seconds = await reason_of(found, pods["b"].peer)
            assert (reason, 0.4 < seconds < 1.5) == ("late", True)
            assert (await reason_of(found, pods["b"].peer))[0] == "open"
            for _ in range(50):
                if pods["b"].cancelled:
                    break
                await asyncio.sleep(0.02)
            assert (pods["b"].hung, pods["b"].cancelled) == (1, 1)
            await found.aclose()

    asyncio.run(talk())


@pytest.mark.parametrize("by_health", [False, True])
def test_a_peer_that_is_late_with_one_call_and_lives_is_asked_on(by_health: bool) -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            found, peer = Forwarder("me", timeouts=Timeouts(connect_s=1.0, answer_s=1.0)), pods["b"].peer
            await found.call(peer, "OpenSession", OPEN, "t")
            pods["b"].hang = asyncio.Event()
            late = asyncio.create_task(reason_of(found, peer))
            await pods["b"].until_hung()
            hang, pods["b"].hang = pods["b"].hang, None
            if by_health:
                found.heard(peer)
            else:
                await found.call(peer, "OpenSession", OPEN, "t")
            assert (await late)[0] == "late"
            await found.call(peer, "OpenSession", OPEN, "t")
            hang.set()
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_lives_and_is_always_late_is_left_alone_in_the_end() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            patience = Timeouts(connect_s=0.5, answer_s=0.5)
            found = Forwarder("me", timeouts=patience, policy=BreakerPolicy(1, 60.0, 60.0))
            pods["b"].hang = asyncio.Event()
            reasons = []
            for number in range(MOST_SLOW + 2):
                call = asyncio.create_task(reason_of(found, pods["b"].peer))
                await pods["b"].until_hung(min(number + 1, MOST_SLOW))
                found.heard(pods["b"].peer)
                reasons.append((await call)[0])
            assert reasons == ["late"] * MOST_SLOW + ["open"] * 2
            await found.aclose()

    asyncio.run(talk())


def test_half_of_the_callers_time_is_left_for_serving_here() -> None:
    async def talk() -> None:
        async with cluster("b") as pods, silent_port() as address:
            pods["b"].hang = asyncio.Event()
            found = forwarder()
            reason, seconds = await reason_of(found, pods["b"].peer, timeout_s=0.3)
            assert (reason, 0.1 < seconds < 0.25) == ("late", True)
            silent = Peer("silent", address)
            reason, seconds = await reason_of(found, silent, timeout_s=0.2)
            assert (reason, seconds < 0.18) == ("unreachable", True)
            assert (await reason_of(found, silent))[0] == "unreachable"  # a caller's short time blames nobody
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_is_back_gets_a_trial_and_then_everything() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            now = [0.0]
            found = Forwarder("me", timeouts=QUICK, policy=BreakerPolicy(1, 1.0, 8.0, 5.0), clock=lambda: now[0])
            peer = pods["b"].peer
            pods["b"].hang = asyncio.Event()
            assert (await reason_of(found, peer))[0] == "late"
            now[0] = 1.5
            assert (await reason_of(found, peer))[0] == "late"  # the trial
            now[0] = 3.0
            assert (await reason_of(found, peer))[0] == "open"  # twice the wait
            pods["b"].hang.set()
            now[0] = 4.0
            for _ in range(3):
                await found.call(peer, "OpenSession", OPEN, "t")
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_is_killed_in_a_call_is_lost() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            pods["b"].hang = asyncio.Event()
            found = Forwarder("me", timeouts=Timeouts(answer_s=20))
            call = asyncio.create_task(reason_of(found, pods["b"].peer))
            await pods["b"].until_hung()
            await pods["b"].kill()
            reason, seconds = await call
            assert (reason, seconds < 5) == ("lost", True)
            await found.aclose()

    asyncio.run(talk())


def test_a_peer_that_leaves_may_finish_and_gets_no_more() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            pods["b"].hang = asyncio.Event()
            found = Forwarder("me", timeouts=Timeouts(answer_s=20))
            call = asyncio.create_task(found.call(pods["b"].peer, "OpenSession", OPEN, "t"))
            await pods["b"].until_hung()
            found.keep([])
            assert not found._lines
            await asyncio.sleep(0.05)
            pods["b"].hang.set()
            assert pb.OpenSessionResponse.FromString(await call).patch.total > 0
            await found.aclose()

    asyncio.run(talk())


def test_a_call_whose_channel_is_closed_under_it_is_lost_not_cancelled() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            pods["b"].hang = asyncio.Event()
            found = Forwarder("me", timeouts=Timeouts(answer_s=20))
            call = asyncio.create_task(reason_of(found, pods["b"].peer))
            await pods["b"].until_hung()
            await found.aclose()
            assert (await call)[0] == "lost"

    asyncio.run(talk())


def test_a_caller_that_goes_away_takes_its_call_along() -> None:
    async def talk() -> None:
        async with cluster("b") as pods:
            pods["b"].hang = asyncio.Event()
            found = Forwarder("me", timeouts=Timeouts(answer_s=20))
            call = asyncio.create_task(found.call(pods["b"].peer, "OpenSession", OPEN, "t"))
            await pods["b"].until_hung()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            for _ in range(50):
                if pods["b"].cancelled:
                    break
                await asyncio.sleep(0.02)
            assert pods["b"].cancelled == 1
            await found.aclose()

    asyncio.run(talk())
