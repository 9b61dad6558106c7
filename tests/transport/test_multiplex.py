"""Calls that share a stream: each is answered as a call of its own, and none is lost by what becomes of the stream."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from odd_calls import CHANGING, KEPT, STATED, check_kept, requests, state_of
from pods.cluster import breakable
from servers import GrpcTier, WholeTier, free_port, grpc_tier, whole_tier
from toktier_tier.client import AsyncTierClient, TierClient
from toktier_tier.client import aio as client_aio
from toktier_tier.client.multiplex import MOST_BYTES, Multiplexer
from toktier_tier.core.errors import EnvironmentFault, Overloaded, SessionNotFound, TierError
from toktier_tier.sessions.lives import changes_of
from toktier_tier.settings import SecuritySettings
from toktier_tier.transport import multiplex
from toktier_tier.transport.grpc_server import GrpcServer
from toktier_tier.transport.interface import METHODS, MULTIPLEX, path_of
from toktier_tier.transport.limits import Bounds, Limits
from toktier_tier.transport.multiplex import MESSAGE_BYTES, MOST_CALLS
from toktier_tier.transport.status import CODE_KEY, error_of
from toktier_tier.transport.tenants import ANONYMOUS_TENANT, TENANT_KEY
from toktier_tier.transport.v1 import toktier_pb2 as pb
from toktier_tier.transport.work import INLINE_CHARS
from workshop import examples, sample_text


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcTier]:
    with grpc_tier() as found:
        yield found


ENDINGS = ("request.malformed", "multiplex.id_in_use")


class Raw:
    """A stream by hand. `answers`, by id, as they have come."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._stream: Any = channel.stream_stream(path_of(MULTIPLEX))(metadata=metadata)
        self.answers: dict[int, pb.Answer] = {}
        self.last = False

    async def send(self, *calls: pb.Call) -> None:
        await self._stream.write(pb.MultiplexRequest(calls=calls).SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        await self._stream.write(data)

    async def receive(self) -> bool:
        """Whether a message came. Raises the tier's errors."""
        try:
            async with asyncio.timeout(20):
                data = await self._stream.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        if data is grpc.aio.EOF:
            return False
        message = pb.MultiplexResponse.FromString(data)
        self.last = self.last or message.last
        for answer in message.answers:
            assert answer.id not in self.answers
            self.answers[answer.id] = answer
        return True

    async def until(self, count: int) -> None:
        while len(self.answers) < count:
            assert await self.receive()

    async def end(self) -> None:
        await self._stream.done_writing()
        while await self.receive():
            pass


@asynccontextmanager
async def raw(address: str, **metadata: str) -> AsyncIterator[Raw]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield Raw(channel, tuple((key.replace("_", "-"), value) for key, value in metadata.items()))


def encode(id_: int, text: str, **more: Any) -> pb.Call:
    return pb.Call(id=id_, method="Encode", request=pb.EncodeRequest(text=text).SerializeToString(), **more)


def append(id_: int, session: str, delta: str, **more: Any) -> pb.Call:
    request = pb.AppendRequest(session=session, delta=delta)
    return pb.Call(id=id_, method="Append", request=request.SerializeToString(), **more)


def code_of(answer: pb.Answer) -> str:
    return answer.failure.metadata[CODE_KEY]


def ids_of(server: GrpcTier, text: str) -> bytes:
    return np.array(server.tier.ids(text), dtype="<u4").tobytes()


def streams(server: GrpcTier) -> int:
    found = server._server._streams
    assert found is not None
    return len(found._open)


def held(server: GrpcTier, session: str) -> threading.Lock:
    lock: threading.Lock = server.sessions._find(server.sessions._key(ANONYMOUS_TENANT, session)).lock
    return lock


async def under_way(client: AsyncTierClient, server: GrpcTier, session: str) -> asyncio.Task[bytes]:
    """An Append to a session that is held, once the tier works on it."""
    call = asyncio.create_task(client.ask("Append", append(0, session, " y").request))
    while not server.limits.requests:
        await asyncio.sleep(0.005)
    return call


async def answered_again(client: AsyncTierClient, server: GrpcTier) -> None:
    """Once it is connected anew, if it has to be."""
    async with asyncio.timeout(20):
        while True:
            try:
                assert (await client.encode("again")).tolist() == server.tier.ids("again")
                return
            except EnvironmentFault:
                await asyncio.sleep(0.05)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_many_sessions_at_once_share_a_stream_and_get_the_references_ids(server: GrpcTier) -> None:
    text = sample_text(40_000)

    async def agent(client: AsyncTierClient, number: int) -> None:
        session, at = await client.open(f"shared-{number}", text[:number]), number
        for step in range(1, 12):
            await session.append(text[at : at + 37 * step])
            at += 37 * step
        assert session.ids.tolist() == server.tier.ids(text[:at])

    async def talk() -> None:
        async with AsyncTierClient(server.address) as client:
            await asyncio.gather(*(agent(client, number) for number in range(64)))
            assert streams(server) == 1

    asyncio.run(talk())


def test_large_calls_are_calls_of_their_own(server: GrpcTier) -> None:
    text = sample_text(MOST_BYTES + 1)

    async def talk() -> None:
        async with AsyncTierClient(server.address) as client:
            session = await client.open("large", text)
            assert streams(server) == 0
            await session.append(" and a little more")
            assert streams(server) == 1
            assert session.ids.tolist() == server.tier.ids(text + " and a little more")

    asyncio.run(talk())


def test_without_streams_every_call_is_one_for_itself(server: GrpcTier) -> None:
    async def talk() -> None:
        async with AsyncTierClient(server.address, multiplex=False) as client:
            session = await client.open("alone", "Hello")
            await session.append(" there")
            assert session.ids.tolist() == server.tier.ids("Hello there")
            assert streams(server) == 0

    asyncio.run(talk())


def test_every_method_is_answered_as_by_itself(server: GrpcTier) -> None:
    """Also with an error: the same status, sentence and trailing metadata."""
    server.sessions.open(ANONYMOUS_TENANT, "same", "Hello there")
    asked: list[tuple[str, Any]] = [
        ("Encode", pb.EncodeRequest(text="naïve 中文")),
        ("GetSession", pb.GetSessionRequest(session="same", include_ids=True, include_state=True)),
        ("Decode", pb.DecodeRequest(ids=b"\x05\0\0\0")),
        ("Decode", pb.DecodeRequest(ids=b"\xff\xff\xff\xff")),
        ("ListSnapshots", pb.ListSnapshotsRequest()),
        ("Append", pb.AppendRequest(session="nobody", delta="x")),
        ("Append", pb.AppendRequest(session="same", delta="x", expected_revision=9)),
        ("Edit", pb.EditRequest(session="same", start_chars=9, stop_chars=5)),
        ("OpenSession", pb.OpenSessionRequest(session="x" * 600)),
        ("Encode", pb.EncodeRequest(model="another", text="x")),
        ("Handoff", pb.HandoffRequest(session="same", state=b"no state")),
        ("EncodeAll", pb.EncodeAllRequest(text="x", chain=b"not whole")),
        ("CloseSession", pb.CloseSessionRequest(session="nobody")),
    ]
    assert {name for name, _ in asked} == {method.name for method in METHODS}

    async def talk() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel, raw(server.address) as stream:
            calls = [pb.Call(id=at, method=n, request=r.SerializeToString()) for at, (n, r) in enumerate(asked)]
            await stream.send(*calls)
            await stream.until(len(calls))
            for at, (name, request) in enumerate(asked):
                assert told(name, stream.answers[at]) == await by_itself(channel, name, request)

    asyncio.run(talk())


Told = tuple[int, str, dict[str, Any]] | bytes


def told(method: str, answer: pb.Answer) -> Told:
    failure = answer.failure
    if answer.HasField("failure"):
        return failure.status, failure.message, dict(failure.metadata)
    return without_counts(method, answer.response)


async def by_itself(channel: grpc.aio.Channel, method: str, request: Any) -> Told:
    call: Any = channel.unary_unary(path_of(method))
    try:
        return without_counts(method, await call(request.SerializeToString()))
    except grpc.aio.AioRpcError as error:
        return error.code().value[0], error.details() or "", dict(error.trailing_metadata() or ())


def without_counts(method: str, answer: bytes) -> bytes:
    if method != "ListSnapshots":
        return answer
    found = pb.ListSnapshotsResponse.FromString(answer)
    for each in found.snapshots:
        each.sessions = each.state_bytes = 0
    return found.SerializeToString()


def test_an_unknown_method_fails_by_itself(server: GrpcTier) -> None:
    async def talk() -> None:
        async with raw(server.address) as stream:
            await stream.send(pb.Call(id=1, method="Nothing"), pb.Call(id=2, method=MULTIPLEX), encode(3, "x"))
            await stream.until(3)
            for at in (1, 2):
                assert stream.answers[at].failure.status == grpc.StatusCode.UNIMPLEMENTED.value[0]
                assert code_of(stream.answers[at]) == "request.unknown_method"
            assert stream.answers[3].response

    asyncio.run(talk())


def test_more_calls_than_may_be_under_way_are_answered_too(server: GrpcTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplex, "BATCH_BYTES", 1_000)
    count = 3 * MOST_CALLS

    async def talk() -> None:
        async with raw(server.address) as stream:
            reading = asyncio.create_task(stream.until(count))
            for start in range(0, count, 100):
                await stream.send(*(encode(at, f"number {at}") for at in range(start, min(start + 100, count))))
            await reading
            for at in (0, MOST_CALLS, count - 1):
                patch = pb.EncodeResponse.FromString(stream.answers[at].response).patch
                assert patch.ids == ids_of(server, f"number {at}")

    asyncio.run(talk())


def test_limits_are_of_calls_not_of_streams() -> None:
    with grpc_tier(limits=Limits(Bounds(tenant_requests=2))) as server:
        server.sessions.open(ANONYMOUS_TENANT, "held", "x")

        async def talk() -> None:
            async with raw(server.address) as stream:
                with held(server, "held"):
                    await stream.send(*(append(at, "held", " y") for at in range(3)))
                    await stream.until(1)
                    (refused,) = stream.answers.values()
                    assert code_of(refused) == "limits.tenant_requests"
                    assert refused.failure.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
                    assert refused.failure.metadata["retry-after-ms"] == "1000"
                await stream.until(3)
            async with AsyncTierClient(server.address) as client:
                server.limits._requests = 0
                with pytest.raises(Overloaded):
                    await client.encode("x")

        asyncio.run(talk())


# --- deadlines and calls that are given up ----------------------------------------------------------------------------


def test_a_call_has_its_own_deadline_and_keeps_nobody_waiting(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "slow", "x")

    async def talk() -> None:
        async with raw(server.address) as stream:
            with held(server, "slow"):
                await stream.send(append(1, "slow", " y", timeout_ms=100), encode(2, "meanwhile"))
                await stream.until(2)
            assert stream.answers[2].response
            assert code_of(stream.answers[1]) == "tier.late"
            assert stream.answers[1].failure.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        async with AsyncTierClient(server.address, timeout_s=0.2) as client:
            session = await client.open("slow", "x")
            with held(server, "slow"), pytest.raises(EnvironmentFault) as caught:
                await session.append(" y")
            assert caught.value.code in ("grpc.deadline_exceeded", "tier.late")
            client.timeout_s = 20
            assert (await client.encode("after")).tolist() == server.tier.ids("after")

    asyncio.run(talk())


def test_a_call_that_is_given_up_is_given_up_by_the_tier(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "left", "x")

    async def talk() -> None:
        async with AsyncTierClient(server.address) as client:
            await client.encode("x")
            with held(server, "left"):
                waiting = await under_way(client, server, "left")
                waiting.cancel()
                async with asyncio.timeout(10):
                    while server.limits.requests:
                        await asyncio.sleep(0.005)
            assert (await client.encode("after")).tolist() == server.tier.ids("after")
            assert client._multiplexer is not None
            assert client._multiplexer._stream is not None
            assert not client._multiplexer._stream._waiting

    asyncio.run(talk())


def test_a_call_that_is_given_up_before_it_was_sent_is_never_sent(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "unsent", "x")

    async def talk() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel:
            multiplexer = Multiplexer(channel)
            first = asyncio.create_task(multiplexer.call("Encode", encode(0, "x").request))
            for _ in range(3):
                await asyncio.sleep(0)  # it is on its way, and waits for the connection
            call = asyncio.create_task(multiplexer.call("Append", append(0, "unsent", " y").request))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await first
            answer = await multiplexer.call("Encode", encode(0, "x").request)
            assert pb.EncodeResponse.FromString(answer).patch.ids == ids_of(server, "x")
            await multiplexer.close()
        assert changes_of(server.sessions.info(ANONYMOUS_TENANT, "unsent").revision) == 0

    asyncio.run(talk())


def test_a_call_that_is_given_up_before_it_began_leaves_nothing_behind(server: GrpcTier) -> None:
    async def talk() -> None:
        async with raw(server.address) as stream:
            for start in range(0, 2 * MOST_CALLS, 64):
                ids = range(start, start + 64)
                await stream.send(*(each for at in ids for each in (encode(at, "x"), pb.Call(id=at, cancelled=True))))
            await stream.send(pb.Call(id=5, cancelled=True), encode(5, "x"))
            await stream.until(1)
            assert stream.answers.keys() == {5}
            await stream.end()

    asyncio.run(talk())


def test_a_caller_that_doesnt_read_stops_being_read(server: GrpcTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplex, "MOST_CALLS", 8)
    text = sample_text(200_000)
    server.sessions.open(ANONYMOUS_TENANT, "whole", text)
    request = pb.GetSessionRequest(session="whole", include_ids=True).SerializeToString()

    async def talk() -> None:
        async with raw(server.address) as stream:
            await stream.send(*(pb.Call(id=at, method="GetSession", request=request) for at in range(100)))
            found = server._server._streams
            assert found is not None
            while not (opened := list(found._open)):
                await asyncio.sleep(0.01)
            for _ in range(50):
                assert len(opened[0]._running) + len(opened[0]._answered) <= 8
                await asyncio.sleep(0.01)
            await stream.until(100)
            assert {answer.response for answer in stream.answers.values()} == {stream.answers[0].response}

    asyncio.run(talk())


def test_a_channel_that_somebody_else_closes_fails_the_calls_on_it(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "shut", "x")

    async def talk() -> None:
        channel = grpc.aio.insecure_channel(server.address)
        client = AsyncTierClient("", channel=channel)
        with held(server, "shut"):
            waiting = await under_way(client, server, "shut")
            await channel.close()
            with pytest.raises(EnvironmentFault) as caught:
                await waiting
        assert caught.value.code == "grpc.cancelled"

    asyncio.run(talk())


# --- what ends a stream -----------------------------------------------------------------------------------------------


def test_what_is_no_request_ends_the_stream_with_a_code(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "twice", "x")

    async def talk() -> None:
        for data, code in ((b"\xff\xff", "request.malformed"), (bytes(MESSAGE_BYTES + 1), "multiplex.too_large")):
            async with raw(server.address) as stream:
                await stream.send(encode(1, "x"))
                await stream.until(1)
                await stream.send_bytes(data)
                with pytest.raises(TierError) as caught:
                    await stream.end()
                assert caught.value.code == code
        async with raw(server.address) as stream:
            with held(server, "twice"):
                await stream.send(append(7, "twice", " y"), encode(7, "x"))
                with pytest.raises(TierError) as caught:
                    await stream.end()
            assert (caught.value.code, caught.value.details) == ("multiplex.id_in_use", {"id": 7})

    asyncio.run(talk())


def test_a_caller_that_ends_its_side_gets_the_answers_that_are_left(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "rest", "x")

    async def talk() -> None:
        async with raw(server.address) as stream:
            with held(server, "rest"):
                await stream.send(append(1, "rest", " y"), encode(2, "z"))
                ending = asyncio.create_task(stream.end())
                await asyncio.sleep(0.1)
            await ending
            assert stream.answers.keys() == {1, 2}
            assert not stream.last

    asyncio.run(talk())


def test_a_retiring_server_loses_no_call() -> None:
    """It says so on each stream; every call is answered, also those that come meanwhile, on streams of their own."""
    with grpc_tier() as server:
        answered = []

        async def talk() -> None:
            async with AsyncTierClient(server.address) as client:
                over = False

                async def ask(number: int) -> None:
                    while not over:
                        text = f"{number} {len(answered)}"
                        assert (await client.encode(text)).tolist() == server.tier.ids(text)
                        answered.append(number)

                tasks = [asyncio.create_task(ask(number)) for number in range(16)]
                while len(answered) < 200:
                    await asyncio.sleep(0.01)
                first = client._multiplexer and client._multiplexer._stream
                await asyncio.to_thread(server.run, server._server.retire())
                before = len(answered)
                while len(answered) < before + 200:
                    await asyncio.sleep(0.01)
                over = True
                await asyncio.gather(*tasks)
                assert first is not None
                assert first.ending
                assert client._multiplexer is not None
                assert client._multiplexer._stream is not first
            async with raw(server.address) as stream:
                await stream.send(encode(1, "x"))
                await stream.until(1)
                assert stream.last

        asyncio.run(talk())


def test_a_stream_grows_no_older_than_its_connection_may() -> None:
    with grpc_tier() as server:
        other = server.run(server.serve(connection_s=0.2))

        async def talk() -> None:
            async with raw(f"127.0.0.1:{other.port}") as stream:
                await stream.send(encode(1, "x"))
                await stream.until(1)
                assert await stream.receive()
                assert stream.last
                await stream.end()

        asyncio.run(talk())
        server.run(other.stop(1.0))


def test_a_tier_that_stops_answers_what_it_has_begun_and_is_found_again() -> None:
    port = free_port()
    with grpc_tier() as server:
        server.sessions.open(ANONYMOUS_TENANT, "stop", "x")

        async def talk() -> None:
            async with AsyncTierClient(f"127.0.0.1:{port}", timeout_s=20) as client:
                first = await asyncio.to_thread(server.run, server.serve(f"127.0.0.1:{port}"))
                await client.encode("x")
                with held(server, "stop"):
                    waiting = await under_way(client, server, "stop")
                    stopping = asyncio.create_task(asyncio.to_thread(server.run, first.stop(10.0)))
                    await asyncio.sleep(0.2)
                assert changes_of(pb.AppendResponse.FromString(await waiting).patch.revision) == 1
                await stopping
                with pytest.raises(EnvironmentFault) as caught:
                    await client.encode("x")
                assert caught.value.code == "grpc.unavailable"
                again = await asyncio.to_thread(server.run, server.serve(f"127.0.0.1:{port}"))
                await answered_again(client, server)
                await asyncio.to_thread(server.run, again.stop(1.0))

        asyncio.run(talk())


def test_a_stream_that_breaks_fails_its_calls_and_the_next_one_makes_another() -> None:
    with grpc_tier() as server:
        server.sessions.open(ANONYMOUS_TENANT, "cut", "x")

        async def talk() -> None:
            async with (
                breakable(server.address) as (address, sever),
                AsyncTierClient(address, timeout_s=20) as client,
            ):
                await client.encode("x")
                with held(server, "cut"):
                    waiting = await under_way(client, server, "cut")
                    sever()
                    with pytest.raises(EnvironmentFault) as caught:
                        await waiting
                    assert caught.value.code == "grpc.unavailable"
                await answered_again(client, server)

        asyncio.run(talk())


def test_a_client_that_is_closed_fails_its_calls(server: GrpcTier) -> None:
    server.sessions.open(ANONYMOUS_TENANT, "closed", "x")

    async def talk() -> None:
        client = AsyncTierClient(server.address)
        with held(server, "closed"):
            waiting = await under_way(client, server, "closed")
            await client.close()
            with pytest.raises(EnvironmentFault) as caught:
                await waiting
        assert caught.value.code == "grpc.cancelled"

    asyncio.run(talk())


# --- tiers without streams --------------------------------------------------------------------------------------------


def test_a_tier_without_streams_gets_calls_of_their_own(server: GrpcTier) -> None:
    other = server.run(server.serve(message_bytes=MESSAGE_BYTES - 1))

    async def talk() -> None:
        async with AsyncTierClient(f"127.0.0.1:{other.port}") as client:
            found = await asyncio.gather(*(client.encode(f"number {at}") for at in range(20)))
            assert [ids.tolist() for ids in found] == [server.tier.ids(f"number {at}") for at in range(20)]
            assert client._multiplexer is None

    asyncio.run(talk())
    server.run(other.stop(0.1))


def test_a_tier_that_isnt_ready_says_so() -> None:
    async def talk() -> None:
        starting = GrpcServer(None, "127.0.0.1:0")
        await starting.start()
        async with AsyncTierClient(f"127.0.0.1:{starting.port}") as client:
            for _ in range(2):
                with pytest.raises(EnvironmentFault) as caught:
                    await client.encode("x")
                assert caught.value.code == "tier.starting"
        await starting.stop(0.1)

    asyncio.run(talk())


# --- who calls, and traces --------------------------------------------------------------------------------------------


def lines(**tenants: str) -> str:
    return "".join(f"{hashlib.sha256(token.encode()).hexdigest()} {tenant}\n" for tenant, token in tenants.items())


def test_credentials_are_checked_for_every_call(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(lines(a="token-a", b="token-b"))
    with whole_tier(tmp_path, security=SecuritySettings(tokens=str(tokens))) as server:

        async def talk() -> None:
            async with raw(server.grpc) as stream:
                await stream.send(encode(1, "x"), encode(2, "x", metadata={"authorization": "Bearer token-b"}))
                await stream.until(2)
                assert code_of(stream.answers[1]) == "auth.missing"
                assert stream.answers[2].response
            async with (
                AsyncTierClient(server.grpc, token="token-a") as a,
                raw(server.grpc, authorization="Bearer token-b") as b,
            ):
                session = await a.open("mine", "Hello")
                await b.send(
                    append(1, "mine", " x"),
                    append(2, "mine", " x", metadata={TENANT_KEY: "a"}),
                    append(3, "mine", " x", metadata={"authorization": "Bearer another"}),
                )
                await b.until(3)
                assert [code_of(b.answers[at]) for at in (1, 2, 3)] == [
                    "session.not_found",
                    "session.not_found",
                    "auth.unknown",
                ]
                tokens.write_text(lines(b="token-b"))
                await asyncio.to_thread(server.run, refreshed(server))
                with pytest.raises(TierError) as caught:
                    await session.append(" y")
                assert caught.value.code == "auth.unknown"
                await b.send(encode(4, "x"))
                await b.until(4)
                assert b.answers[4].response

        asyncio.run(talk())


async def refreshed(server: WholeTier) -> None:
    server.tier.security.refresh(force=True)


def test_a_calls_trace_goes_on_in_the_tier(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    server = WholeTier(tmp_path, spans=spans).start()
    tracer = TracerProvider().get_tracer("test")
    try:

        async def talk() -> list[int]:
            asked = []
            async with AsyncTierClient(server.grpc) as client:
                for number in range(2):
                    with tracer.start_as_current_span("agent") as span:
                        await client.encode(f"number {number}")
                        asked.append(span.get_span_context().trace_id)
                assert not trace.get_current_span().get_span_context().is_valid
                await client.encode("no trace")
            return asked

        asked = asyncio.run(talk())
    finally:
        server.stop()
    found = [s for s in spans.get_finished_spans() if s.name == path_of("Encode")[1:]]
    assert [s.context.trace_id for s in found[:2] if s.parent is not None] == asked
    assert found[2].parent is None


# --- whatever is sent -------------------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(requests(), min_size=1, max_size=8), odd=st.binary(max_size=60), how=st.integers(0, 3))
def test_any_calls_are_answered_or_refused_with_a_code(
    server: GrpcTier, calls: list[tuple[str, bytes]], odd: bytes, how: int
) -> None:
    sessions = server.sessions
    sessions.open(ANONYMOUS_TENANT, "kept", KEPT)

    async def talk() -> None:
        async with raw(server.address) as stream:
            for at, (method, data) in enumerate(calls):
                before = state_of(server)
                await stream.send(pb.Call(id=at, method=method, request=data))
                await stream.until(at + 1)
                answer = stream.answers[at]
                refused = answer.HasField("failure")
                if refused:
                    assert answer.failure.status in {status.value[0] for status in STATED}
                    assert code_of(answer)
                if refused or method not in CHANGING:
                    assert state_of(server) == before
            if how:
                await stream.send_bytes(odd)
            ended = (await asyncio.gather(stream.end(), return_exceptions=True))[0]
            assert ended is None or (isinstance(ended, TierError) and ended.code in ENDINGS)

    asyncio.run(talk())
    with grpc.insecure_channel(server.address) as channel:
        check_kept(server, channel)


def test_the_two_clients_tell_the_same_errors(server: GrpcTier) -> None:
    async def talk() -> tuple[type[TierError], str, dict[str, Any]]:
        async with AsyncTierClient(server.address) as client:
            with pytest.raises(SessionNotFound) as caught:
                await client.call("Append", pb.AppendRequest(session="nobody", delta="x"))
            return type(caught.value), caught.value.message, caught.value.details

    with TierClient(server.address) as client, pytest.raises(SessionNotFound) as caught:
        client.call(client._stub.Append, pb.AppendRequest(session="nobody", delta="x"))
    assert asyncio.run(talk()) == (type(caught.value), caught.value.message, caught.value.details)
    assert {method.name for method in METHODS} >= client_aio.MULTIPLEXED
    assert INLINE_CHARS <= MOST_BYTES
