"""Bounds on what is under way, over real sockets: refused at once, told when to come again, given back in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import GrpcTier, grpc_tier
from toktier_tier.client import TierClient
from toktier_tier.core.errors import Overloaded, SessionNotFound
from toktier_tier.sessions.lives import changes_of
from toktier_tier.transport import limits as limits_module
from toktier_tier.transport.interface import SERVICE
from toktier_tier.transport.limits import Bounds, Limits, Load
from toktier_tier.transport.tenants import ANONYMOUS_TENANT
from toktier_tier.transport.v1 import toktier_pb2 as pb
from toktier_tier.transport.work import INLINE_CHARS, Work

LONG = "x " * INLINE_CHARS


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60))
def test_what_is_entered_is_within_the_bounds_and_all_of_it_is_given_back(calls: list[tuple[str, int, bool]]) -> None:
    limits = Limits(Bounds(requests=6, tenant_requests=3, tenant_bytes=100))
    under_way: list[tuple[str, int, Load]] = []
    for tenant, size, leaves in calls:
        if leaves and under_way:
            _, old_size, load = under_way.pop(size % len(under_way))
            limits.leave(load, old_size)
        own = [each for each in under_way if each[0] == tenant]
        fits = len(under_way) < 6 and len(own) < 3 and sum(each[1] for each in own) + size <= 100
        if fits:
            under_way.append((tenant, size, limits.enter(tenant, size)))
        else:
            with pytest.raises(Overloaded):
                limits.enter(tenant, size)
        assert limits.requests == len(under_way)
    for _, size, load in under_way:
        limits.leave(load, size)
    assert limits.requests == 0
    assert all((load.requests, load.bytes_) == (0, 0) for load in limits._loads.values())


def test_tenants_without_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_IDLE_TENANTS", 10)
    limits = Limits()
    kept = limits.enter("kept", 5)
    for number in range(1_000):
        limits.leave(limits.enter(str(number), 1), 1)
        assert len(limits._loads) <= 11
    limits.leave(kept, 5)
    assert limits.requests == kept.bytes_ == 0


def test_a_body_that_grows_beyond_the_budget_adds_nothing() -> None:
    limits = Limits(Bounds(tenant_bytes=10))
    load = limits.enter("a", 0)
    limits.grow(load, 8)
    with pytest.raises(Overloaded) as caught:
        limits.grow(load, 3)
    assert (caught.value.code, load.bytes_, limits.refused) == ("limits.tenant_bytes", 8, {"limits.tenant_bytes": 1})


class Blocked:
    """A tier whose only thread is held until `let_go`."""

    def __init__(self, server: GrpcTier, client: TierClient) -> None:
        self.server, self.client = server, client
        self._free = threading.Event()
        server.run(self._hold())

    async def _hold(self) -> None:
        work, served = self.server.work, self.server.served[0]
        self._held = asyncio.create_task(work.run(served, 1 << 30, lambda _: self._free.wait(60)))
        await asyncio.sleep(0)

    def send(self, request: Any, timeout_s: float = 60) -> Any:
        return getattr(self.client._stub, type(request).__name__.removesuffix("Request")).future(
            request, timeout=timeout_s
        )

    def until(self, requests: int) -> None:
        end = time.monotonic() + 20
        while self.server.limits.requests != requests:
            assert time.monotonic() < end
            time.sleep(0.005)

    def let_go(self) -> None:
        self._free.set()


@pytest.fixture
def blocked(request: pytest.FixtureRequest) -> Iterator[Blocked]:
    bounds, waiting = getattr(request, "param", (Bounds(), 256))
    work = Work(threads=1, waiting=waiting)
    with grpc_tier(work=work, limits=Limits(bounds)) as server, TierClient(server.address) as client:
        found = Blocked(server, client)
        yield found
        found.let_go()


def refused(blocked: Blocked, request: Any) -> tuple[str, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        blocked.send(request).result()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = {key: value for key, value in error.trailing_metadata() if isinstance(value, str)}
    return trailing["toktier-code"], trailing


@pytest.mark.parametrize(
    ("blocked", "code"),
    [
        ((Bounds(requests=2), 256), "limits.requests"),
        ((Bounds(tenant_requests=2), 256), "limits.tenant_requests"),
        ((Bounds(tenant_bytes=2 * len(LONG) + 50), 256), "limits.tenant_bytes"),
        ((Bounds(), 3), "tier.overloaded"),  # with the one that holds the thread
    ],
    indirect=["blocked"],
)
def test_beyond_a_bound_a_call_is_refused_at_once_with_the_time_to_come_again(blocked: Blocked, code: str) -> None:
    running = [blocked.send(pb.OpenSessionRequest(session=f"s{number}", text=LONG)) for number in range(2)]
    blocked.until(2)
    found, trailing = refused(blocked, pb.OpenSessionRequest(session="more", text=LONG))
    assert found == code
    assert trailing["retry-after-ms"] == trailing["grpc-retry-pushback-ms"] == "1000"
    with pytest.raises(Overloaded) as caught:  # the same by the client
        blocked.client.open("more", LONG)
    assert caught.value.code == code
    blocked.let_go()
    assert [changes_of(each.result().patch.revision) for each in running] == [0, 0]
    blocked.until(0)
    assert blocked.client.open("more", LONG).ids.tolist() == blocked.server.tier.ids(LONG)


def test_a_call_whose_deadline_passes_while_it_waits_is_never_run(blocked: Blocked) -> None:
    waiting = blocked.send(pb.OpenSessionRequest(session="late", text=LONG), timeout_s=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    blocked.until(0)
    assert blocked.server.work._waiting == 2  # it still counts: its text is still held
    blocked.let_go()
    blocked.client.open("next", LONG)  # the thread has come past it
    with pytest.raises(SessionNotFound):
        blocked.server.sessions.info(ANONYMOUS_TENANT, "late")
    assert blocked.server.work._waiting == 0


def test_a_call_that_was_cancelled_while_it_waits_is_never_run(blocked: Blocked) -> None:
    waiting = blocked.send(pb.OpenSessionRequest(session="left", text=LONG))
    blocked.until(1)
    assert waiting.cancel()
    blocked.until(0)
    blocked.let_go()
    blocked.client.open("next", LONG)
    with pytest.raises(SessionNotFound):
        blocked.server.sessions.info(ANONYMOUS_TENANT, "left")


def test_a_call_that_comes_after_its_deadline_is_not_worked_on() -> None:
    with grpc_tier() as server, TierClient(server.address) as client:

        async def block() -> None:
            time.sleep(0.6)  # the event loop, as a burst of short calls would

        blocking = asyncio.run_coroutine_threadsafe(block(), server._loop)
        with pytest.raises(grpc.RpcError):
            client._stub.OpenSession(pb.OpenSessionRequest(session="late", text="x"), timeout=0.2)
        blocking.result(10)
        client.open("next")
        with pytest.raises(SessionNotFound):
            server.sessions.info(ANONYMOUS_TENANT, "late")


def test_what_is_late_already_is_told_so() -> None:
    class Context:
        def time_remaining(self) -> float:
            return 0.0

        async def abort(self, status: Any, message: str, trailing: Any) -> None:
            self.told = status, dict(trailing)["toktier-code"]

    context: Any = Context()
    with grpc_tier() as server:
        handler: Any = server._server._methods._handlers[f"/{SERVICE}/OpenSession"].unary_unary
        server.run(handler(pb.OpenSessionRequest(session="s").SerializeToString(), context))
        assert len(server.sessions) == 0
    assert context.told == (grpc.StatusCode.DEADLINE_EXCEEDED, "tier.late")


def test_a_message_beyond_the_limit_is_refused_by_the_port() -> None:
    with grpc_tier() as server:
        small_server = server.run(server.serve(message_bytes=10_000))
        with TierClient(f"127.0.0.1:{small_server.port}") as client:
            assert client.encode("x" * 9_000).tolist() == server.tier.ids("x" * 9_000)
            with pytest.raises(grpc.RpcError) as caught:
                client._stub.Encode(pb.EncodeRequest(text="x" * 10_001), timeout=10)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        server.run(small_server.stop(0.1))
