"""A pod that leaves: its sessions go on where they are owned next, under load, and no ID is ever of an older state."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from pods.cluster import Agent, Cluster, closed_port, cluster
from toktier_tier.pods.drain import Handover
from toktier_tier.pods.forward import FORWARDED, Timeouts
from toktier_tier.pods.ring import Peer
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import examples, sample_text


def holders(where: Cluster, session: str, tenant: str = "default") -> list[str]:
    return [pod.name for pod in where if pod.holds(session, tenant)]


async def opened(where: Cluster, owner: str, count: int, chars: int = 2_000, every: int = 1) -> list[Agent]:
    agents = [Agent(where, session, every) for session in where.named(owner, count)]
    for number, agent in enumerate(agents):
        await agent.append(sample_text(chars, seed=number), owner)
    return agents


def test_sessions_go_on_where_they_went() -> None:
    async def talk() -> None:
        async with cluster("a", "b", "c") as pods:
            agents = await opened(pods, "a", 8, chars=30_000, every=3)
            report = await pods["a"].pods.drain(10)
            assert (report.moved, report.left, report.counts) == (8, 0, Counter({"moved": 8}))
            assert report.moved_bytes > 8 * 30_000
            pods.see(["b", "c"])
            for turn in range(4):
                for agent in agents:
                    await agent.append(f" and turn {turn}", "bca"[turn % 3])  # a forwards
            assert not any(agent.misses for agent in agents)
            for agent in agents:
                agent.check()
                assert holders(pods, agent.session) == [pods.owner(agent.session, among=["b", "c"]).name]

    asyncio.run(talk())


@pytest.mark.parametrize("seed", range(examples(3)))
def test_under_concurrent_appends_no_id_is_wrong_and_nothing_is_opened_twice(seed: int) -> None:
    """Agents append all the while, each at any pod, whose views change at different times."""

    async def talk() -> None:
        async with cluster("a", "b", "c") as pods:
            agents = await opened(pods, "a", 16, chars=6_000, every=8)
            agents += await opened(pods, "b", 4, every=8)
            done = asyncio.Event()
            turns: Counter[str] = Counter()

            async def work(agent: Agent, chooser: random.Random) -> None:
                while not done.is_set():
                    delta = sample_text(chooser.randrange(1, 300), seed=chooser.randrange(1 << 30))
                    await agent.append(delta, chooser.choice("abc"))
                    turns[agent.session] += 1

            async def leave() -> None:
                await asyncio.sleep(0.3)
                report = await pods["a"].pods.drain(20)
                assert report.left == 0
                assert report.moved >= 16
                await asyncio.sleep(0.2)
                pods.see(["b", "c"], by="b")  # until then b forwards to a, which names the new owner
                await asyncio.sleep(0.2)
                pods.see(["b", "c"])
                await asyncio.sleep(0.3)
                done.set()

            working = [work(agent, random.Random(f"{seed}/{agent.session}")) for agent in agents]
            await asyncio.gather(leave(), *working)
            assert len(turns) == 20
            assert [agent.misses for agent in agents if agent.misses] == []
            assert pods["b"].pods.counts["redirected"] + pods["c"].pods.counts["redirected"] > 0
            assert len(pods["a"].sessions) == 0
            for agent in agents:
                agent.check()
                assert agent.open is not None
                owner = pods.owner(agent.session, among=["b", "c"])
                assert holders(pods, agent.session) == [owner.name]
                info, ids = owner.sessions.snapshot("default", agent.session)
                assert (info.revision, ids.tolist()) == (agent.open.revision, agent.open.ids.tolist())

    asyncio.run(talk())


@pytest.mark.parametrize("seed", range(examples(2)))
def test_when_the_others_know_first_they_ask_the_owner_before_and_nothing_is_opened_twice(seed: int) -> None:
    async def talk() -> None:
        async with cluster("a", "b", "c") as pods:
            agents = await opened(pods, "a", 12, chars=12_000, every=8)
            chooser = random.Random(seed)
            done = asyncio.Event()

            async def work(agent: Agent) -> None:
                while not done.is_set():
                    await agent.append(" more" * chooser.randrange(1, 9), chooser.choice("abc"))

            async def leave() -> None:
                await asyncio.sleep(0.1)
                pods.see(["b", "c"], by="c")
                await asyncio.sleep(0.1)
                report = await pods["a"].pods.drain(20)
                assert report.left == 0
                pods.see(["b", "c"])
                await asyncio.sleep(0.2)
                done.set()

            await asyncio.gather(leave(), *(work(agent) for agent in agents))
            assert [agent.misses for agent in agents if agent.misses] == []
            assert pods["c"].pods.counts["found"] > 0
            for agent in agents:
                agent.check()
                owner = pods.owner(agent.session, among=["b", "c"])
                assert agent.open is not None
                assert owner.sessions.snapshot("default", agent.session)[0].revision == agent.open.revision

    asyncio.run(talk())


def test_what_a_leaving_pod_hands_over_doesnt_come_back_from_one_that_doesnt_know_yet() -> None:
    async def talk() -> None:
        async with cluster("a", "b", "c") as pods:
            agents = await opened(pods, "b", 12)
            to_c = [agent for agent in agents if pods.owner(agent.session, among=["a", "c"]).name == "c"]
            done = asyncio.Event()

            async def work(agent: Agent) -> None:
                while not done.is_set():
                    await agent.append(" more", "a")

            async def leave() -> None:
                b, c = pods["b"].pods, pods["c"].pods
                draining = asyncio.create_task(b.drain(20))
                sent_back: Counter[str] = Counter()
                while not draining.done() or not sent_back:
                    sent_back += (await c.rebalance(5)).counts
                    await asyncio.sleep(0.01)
                assert set(sent_back) <= {"refused.pods.leaving", "busy"}
                assert ((await draining).moved, len(pods["b"].sessions)) == (12, 0)
                done.set()

            await asyncio.gather(leave(), *(work(agent) for agent in agents))
            assert [agent.misses for agent in agents if agent.misses] == []
            assert {agent.session for agent in to_c} == {key.session for key in pods["c"].sessions.hottest()} != set()
            pods.see(["a", "c"])
            assert not (await pods["c"].pods.rebalance(5)).counts

    asyncio.run(talk())


def test_the_hottest_go_first_and_the_budget_ends_it() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            agents = await opened(pods, "a", 8)
            await agents[3].append(" hot", "a")
            gone: list[str] = []
            restore = pods["b"].sessions.restore

            def slowly(tenant: str, session: str, data: bytes) -> object:
                gone.append(session)
                time.sleep(0.25)
                return restore(tenant, session, data)

            pods["b"].sessions.restore = slowly  # type: ignore[method-assign, assignment]
            pods["a"].pods.handover._concurrent = 1
            begun = time.monotonic()
            report = await pods["a"].pods.drain(0.9)
            assert time.monotonic() - begun < 1.6
            assert gone[0] == agents[3].session
            assert gone[1] == agents[7].session
            assert 2 <= report.moved <= 4
            assert report.left >= 3
            await asyncio.sleep(0.4)
            for agent in agents:  # those that are left are served here, those that went are forwarded
                await agent.append(" more", "a")
            assert sum(len(agent.misses) for agent in agents) <= 1  # the one that was cut off

    asyncio.run(talk())


def test_a_session_lands_under_its_tenant() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            for tenant in ("one", "two"):
                session = next(f"s{i}" for i in range(99) if pods.owner(f"s{i}", tenant).name == "a")
                pods["a"].sessions.open(tenant, session, f"of {tenant}")
            report = await pods["a"].pods.drain(5)
            assert report.moved == 2
            keys = pods["b"].sessions.hottest()
            assert {key.tenant for key in keys} == {"one", "two"}
            for key in keys:
                ids = pods["b"].sessions.ids(key.tenant, key.session).tolist()
                assert ids == pods.tier.ids(f"of {key.tenant}")

    asyncio.run(talk())


def test_a_session_that_was_opened_there_meanwhile_stays_and_the_old_one_is_dropped() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            (agent,) = await opened(pods, "a", 1)
            pods["b"].sessions.open("default", agent.session, "opened anew, and newer")
            report = await pods["a"].pods.drain(5)
            assert report.counts == {"refused.handoff.session_exists": 1}
            assert (report.moved, report.left) == (0, 0)
            assert holders(pods, agent.session) == ["b"]
            await agent.append(" goes on", "a")
            assert agent.misses == ["session.revision_conflict"]

    asyncio.run(talk())


def test_what_the_next_owner_refuses_stays_here_and_is_served() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            agents = await opened(pods, "a", 2)

            def spoilt(key: object, state: bytes) -> pb.HandoffRequest:
                return pb.HandoffRequest(session=key.session, state=state[:-1] + b"?")  # type: ignore[attr-defined]

            a = pods["a"]
            a.pods.handover = Handover([a.served], a.forwarder, lambda: a.pods.ring, request=spoilt)
            begun = time.monotonic()
            report = await a.pods.drain(5)
            assert report.counts == {"refused.handoff.digest": 2}
            assert (report.moved, report.left, time.monotonic() - begun < 2) == (0, 2, True)
            assert len(pods["b"].sessions) == 0
            for agent in agents:
                assert holders(pods, agent.session) == ["a"]
                assert agent.open is not None
                revision = agent.open.revision
                agent.open._client = pods.client("a")
                request = pb.AppendRequest(session=agent.session, delta="!", expected_revision=revision)
                await pods.raw("a", "Append", request, x_toktier_forwarded="b")

    asyncio.run(talk())


def test_an_owner_that_cant_be_reached_is_tried_until_the_budget_ends() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            agents = await opened(pods, "a", 3)
            peers = [pods["a"].peer, Peer("b", closed_port())]
            pods["a"].membership.replace(peers)
            draining = asyncio.create_task(pods["a"].pods.drain(3))
            await asyncio.sleep(0.5)
            for agent in agents:  # still here
                await agent.append(" more", "a")
            pods.see()  # b is back
            report = await draining
            assert (report.moved, report.left) == (3, 0)
            assert report.counts["unreachable"] >= 1
            for agent in agents:
                await agent.append(" more", "b")
            pods.see(["b"])
            for agent in agents:
                await agent.append(" more", "a")
            assert not any(agent.misses for agent in agents)

    asyncio.run(talk())


def test_a_state_whose_arrival_nobody_confirmed_is_served_at_one_pod_at_most() -> None:
    async def talk() -> None:
        async with cluster("a", "b", timeouts=Timeouts(connect_s=0.3, answer_s=0.4)) as pods:
            agents = await opened(pods, "a", 3)
            pods["b"].hang = asyncio.Event()
            report = await pods["a"].pods.drain(2)
            assert report.counts["late"] >= 1
            late = report.counts["late"]
            assert report.left == 3 - late
            pods["b"].hang.set()
            pods["b"].hang = None
            await asyncio.sleep(0.3)
            assert sum("a" in holders(pods, agent.session) for agent in agents) == 3 - late
            for agent in agents:
                assert len(holders(pods, agent.session)) <= 1
            pods.see(["b"])
            for agent in agents:
                await agent.append(" more", "b")

    asyncio.run(talk())


def test_requests_wait_for_a_session_on_its_way_and_follow_it() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            (agent,) = await opened(pods, "a", 1)
            pods["b"].hang = asyncio.Event()
            draining = asyncio.create_task(pods["a"].pods.drain(10))
            await pods["b"].until_hung()
            asked = asyncio.create_task(agent.append(" while it travels", "a"))
            await asyncio.sleep(0.2)
            assert not asked.done()
            pods["b"].hang.set()
            pods["b"].hang = None
            await asked
            assert (await draining).moved == 1
            assert agent.misses == []

    asyncio.run(talk())


@pytest.mark.parametrize("metadata", [(), ((FORWARDED, "c"),)])
def test_a_request_whose_turn_comes_while_its_session_is_away_finds_it_when_it_is_back(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            pods.see(["a"], by="a")
            (session,) = pods.named("b")
            agent = Agent(pods, session)
            await agent.append("some text", "a")
            assert agent.open is not None
            pods.see()
            request = pb.AppendRequest(session=session, delta="!", expected_revision=agent.open.revision)
            turn = asyncio.Event()

            async def here() -> bytes:
                await turn.wait()
                answer = await asyncio.to_thread(pods["a"]._serve, "Append", request, "default")
                return bytes(answer.SerializeToString())

            data = request.SerializeToString()
            asked = asyncio.create_task(pods["a"].pods.serve("Append", request, data, "default", metadata, None, here))
            hang = pods["b"].hang = asyncio.Event()
            moving = asyncio.create_task(pods["a"].pods.rebalance(10))
            await pods["b"].until_hung()
            turn.set()
            await asyncio.sleep(0.3)
            assert not asked.done()
            pods["b"].pods.leave()  # it refuses the session
            hang.set()
            assert (await moving).counts == {"refused.pods.leaving": 1}
            assert pb.AppendResponse.FromString(await asked).patch.revision == agent.open.revision + 1

    asyncio.run(talk())


def test_a_drain_that_is_cancelled_keeps_what_it_hadnt_sent() -> None:
    async def talk() -> None:
        async with cluster("a", "b") as pods:
            agents = await opened(pods, "a", 6)
            pods["b"].hang = asyncio.Event()
            draining = asyncio.create_task(pods["a"].pods.drain(10))
            await pods["b"].until_hung(4)
            draining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await draining
            assert len(pods["a"].sessions) == 2  # four may have arrived
            assert not pods["a"].pods.handover._moving
            assert all(len(holders(pods, agent.session)) <= 1 for agent in agents)

    asyncio.run(talk())


def test_a_pod_that_joins_gets_what_it_owns() -> None:
    async def talk() -> None:
        async with cluster("a", "b", "c") as pods:
            pods.see(["a", "b"])
            agents = [Agent(pods, f"agent-{i}") for i in range(24)]
            for agent in agents:
                await agent.append(sample_text(1_000), "a")
            theirs = [agent for agent in agents if pods.owner(agent.session).name == "c"]
            pods.see()
            reports = [await pods[name].pods.rebalance(5) for name in "ab"]
            assert sum(report.moved for report in reports) == len(theirs) > 0
            for agent in agents:
                await agent.append(" goes on", "b")
                assert holders(pods, agent.session) == [pods.owner(agent.session).name]
            assert not any(agent.misses for agent in agents)

    asyncio.run(talk())
