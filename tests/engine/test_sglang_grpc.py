"""Generating over gRPC against real servers on loopback: honest, slow, dead, restarting, lying, refusing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from toktier_tier.core.errors import EngineFault
from toktier_tier.engine.breaker import BreakerPolicy, Phase
from toktier_tier.engine.ids import CheckedIds, check_ids
from toktier_tier.engine.sampling import Sampling
from toktier_tier.engine.sglang_grpc import SGLangGrpc
from toktier_tier.engine.upstreams import EngineEvent, Timeouts, Upstreams, ranked
from toktier_tier.engine.wire import native_pb2, smg_pb2
from toktier_tier.engine.wires import Delta, Finished, NativeWire, SmgWire, Wire

IDS = check_ids([5, 0, 7], 10)
QUICK = Timeouts(connect_s=1.0, first_byte_s=0.4, idle_s=0.4, total_s=5.0)
POLICY = BreakerPolicy(failures_to_open=2, open_s=0.2, max_open_s=1.0, trial_s=5.0)

Handler = Callable[[Any, Any], AsyncIterator[Any]]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


class Engine:
    """A gRPC server with one of the two services, whose replies the test writes."""

    def __init__(self, answer: Handler, wire: Wire | None = None) -> None:
        self.answer = answer
        self.wire: Wire = wire or SmgWire()
        self.asked: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Engine:
        _, service, method = self.wire.method.split("/")
        messages: Any = smg_pb2 if isinstance(self.wire, SmgWire) else native_pb2
        handler = grpc.unary_stream_rpc_method_handler(
            self._serve,
            request_deserializer=messages.GenerateRequest.FromString,
            response_serializer=messages.GenerateResponse.SerializeToString,
        )
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def _serve(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            async for message in self.answer(request, context):
                yield message
        except asyncio.CancelledError:
            self.gone.set()
            raise


def chunk(ids: list[int]) -> smg_pb2.GenerateResponse:
    return smg_pb2.GenerateResponse(chunk=smg_pb2.GenerateStreamChunk(token_ids=ids))


def end(prompt_tokens: int, ids: list[int], count: int) -> smg_pb2.GenerateResponse:
    complete = smg_pb2.GenerateComplete(
        output_ids=ids, finish_reason="length", prompt_tokens=prompt_tokens, completion_tokens=count, cached_tokens=1
    )
    return smg_pb2.GenerateResponse(complete=complete)


async def honest(request: Any, context: Any) -> AsyncIterator[Any]:
    for ids in ([1], [2, 3], [4]):
        yield chunk(ids)
    yield end(len(request.tokenized.input_ids), [4], 4)


async def honest_native(request: Any, context: Any) -> AsyncIterator[Any]:
    counts = {"prompt_tokens": str(len(request.input_ids)), "cached_tokens": "1"}
    for count in (1, 3):
        meta = {**counts, "completion_tokens": str(count), "finish_reason": "null"}
        yield native_pb2.GenerateResponse(output_ids=range(1, count + 1), meta_info=meta)
    meta = {**counts, "completion_tokens": "4", "finish_reason": '{"type": "length", "length": 4}'}
    yield native_pb2.GenerateResponse(output_ids=[1, 2, 3, 4], meta_info=meta, finished=True)


async def silent(request: Any, context: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(60)
    yield end(0, [], 0)


class Front:
    def __init__(self, *engines: Engine | str, wire: Wire | None = None, timeouts: Timeouts = QUICK) -> None:
        self.events: list[EngineEvent] = []
        targets = [engine if isinstance(engine, str) else engine.target for engine in engines]
        self.upstreams = Upstreams(targets, breaker=POLICY, max_in_flight=8, observe=self.events.append)
        self.grpc = SGLangGrpc(self.upstreams, wire or SmgWire(), timeouts=timeouts, observe=self.events.append)

    async def __aenter__(self) -> Front:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.grpc.aclose()
        assert set(self.upstreams.in_flight().values()) == {0}

    def reasons(self, name: str) -> list[str]:
        return [event.reason for event in self.events if event.name == name]

    async def ask(self, ids: CheckedIds = IDS, **more: Any) -> tuple[list[int], Finished]:
        output: list[int] = []
        async with aclosing(self.grpc.generate(ids, Sampling(max_new_tokens=4), **more)) as records:
            async for record in records:
                if isinstance(record, Finished):
                    return output, record
                output += record.ids
        raise AssertionError("no end")

    async def disconnected(self) -> None:
        """Return once no connection is left."""
        for channel in self.grpc._channels.values():
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def fault(self, **more: Any) -> EngineFault:
        with pytest.raises(EngineFault) as caught:
            await self.ask(**more)
        return caught.value


async def dead_target() -> str:
    async with Engine(honest) as engine:
        return engine.target


@pytest.mark.parametrize(("wire", "answer"), [(SmgWire(), honest), (NativeWire(), honest_native)])
def test_ids_go_in_and_ids_come_out(wire: Wire, answer: Handler) -> None:
    async def test() -> None:
        async with Engine(answer, wire) as engine, Front(engine, wire=wire) as front:
            output, finished = await front.ask(request_id="r", trace={"traceparent": "00-a-b-01"})
            assert (output, finished) == ([1, 2, 3, 4], Finished("length", 3, 4, 1))
            assert (front.reasons("request"), front.reasons("ids")) == (["ok"], ["matched"])
            asked = engine.asked[0]
            if isinstance(wire, SmgWire):
                assert list(asked.tokenized.input_ids) == [5, 0, 7]
                assert engine.metadata[0]["traceparent"] == "00-a-b-01"
            else:
                assert list(asked.input_ids) == [5, 0, 7]
                assert dict(asked.trace_headers) == {"traceparent": "00-a-b-01"}

    run(test)


def test_a_delta_is_passed_on_before_the_next_one_exists() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
            yield chunk([1])
            await go_on.wait()
            yield chunk([2])
            yield end(3, [2], 2)

        async with (
            Engine(answer) as engine,
            Front(engine) as front,
            aclosing(front.grpc.generate(IDS, Sampling())) as records,
        ):
            assert await anext(records) == Delta((1,))
            go_on.set()
            assert [record async for record in records] == [Delta((2,)), Finished("length", 3, 2, 1)]

    run(test)


def test_a_million_ids_arrive() -> None:
    async def test() -> None:
        ids = check_ids(np.random.default_rng(1).integers(0, 151_936, 1_000_000), 151_936)
        async with Engine(honest) as engine, Front(engine, timeouts=Timeouts()) as front:
            _, finished = await front.ask(ids)
            assert finished.prompt_tokens == 1_000_000
            assert np.array_equal(np.array(engine.asked[0].tokenized.input_ids, dtype=np.uint32), ids.array)

    run(test)


def test_an_engine_that_counts_other_tokens_is_a_fault() -> None:
    async def lying(request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk([1])
        yield end(2, [1], 1)

    async def test() -> None:
        async with Engine(lying) as engine, Front(engine) as front:
            fault = await front.fault()
            assert (fault.code, fault.details["sent"], fault.details["counted"]) == (
                "engine.prompt_tokens_mismatch",
                3,
                2,
            )
            assert front.reasons("ids") == ["mismatched"]

    run(test)


@pytest.mark.parametrize("status", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE])
def test_a_refusal_names_its_status_and_isnt_repeated(status: grpc.StatusCode) -> None:
    async def refuse(request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(status, "too long")
        yield end(0, [], 0)

    async def test() -> None:
        async with Engine(refuse) as a, Engine(refuse) as b, Front(a, b) as front:
            for _ in range(2):
                fault = await front.fault(session="s")
                assert (fault.code, fault.details["status"]) == ("engine.bad_status", status.name)
                assert "too long" in fault.message
            assert sorted([len(a.asked), len(b.asked)]) == [0, 2]
            opened = Phase.OPEN in front.upstreams.phases().values()
            assert opened == (status is grpc.StatusCode.UNAVAILABLE)

    run(test)


@pytest.mark.parametrize("messages", [[], [chunk([1])]])
def test_a_stream_without_its_end_is_a_fault(messages: list[Any]) -> None:
    async def short(request: Any, context: Any) -> AsyncIterator[Any]:
        for message in messages:
            yield message

    async def test() -> None:
        async with Engine(short) as engine, Front(engine) as front:
            assert (await front.fault()).code == "engine.cut"

    run(test)


def test_an_engine_that_goes_down_in_the_middle_is_a_fault() -> None:
    async def test() -> None:
        async with Engine(stuck) as engine, Front(engine, timeouts=Timeouts()) as front:
            asking = asyncio.ensure_future(front.fault())
            while not engine.asked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            await engine.__aexit__()
            assert (await asking).code == "engine.cut"

    run(test)


def test_a_message_that_cant_be_is_a_fault() -> None:
    async def odd(request: Any, context: Any) -> AsyncIterator[Any]:
        yield smg_pb2.GenerateResponse(request_id="r")

    async def test() -> None:
        async with Engine(odd) as engine, Front(engine) as front:
            assert (await front.fault()).code == "engine.bad_reply"

    run(test)


def test_another_service_behind_the_address_is_a_fault() -> None:
    async def test() -> None:
        async with Engine(honest_native, NativeWire()) as engine, Front(engine) as front:
            fault = await front.fault()
            assert (fault.code, fault.details["status"]) == ("engine.bad_status", "UNIMPLEMENTED")

    run(test)


async def stuck(request: Any, context: Any) -> AsyncIterator[Any]:
    yield chunk([1])
    await asyncio.sleep(60)


async def endless(request: Any, context: Any) -> AsyncIterator[Any]:
    while True:
        yield chunk([1])
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "limits", "phase"),
    [
        (silent, {}, "first_byte"),
        (silent, {"total_s": 0.3}, "total"),
        (stuck, {}, "idle"),
        (endless, {"total_s": 0.5}, "total"),
    ],
)
def test_no_wait_goes_past_its_limit(answer: Handler, limits: dict[str, float], phase: str) -> None:
    async def test() -> None:
        async with Engine(answer) as engine, Front(engine) as front:
            started_s = time.monotonic()
            fault = await front.fault(**limits)
            assert (fault.code, fault.details["phase"]) == ("engine.timeout", phase)
            assert time.monotonic() - started_s < 2.5
            await asyncio.wait_for(engine.gone.wait(), 2)

    run(test)


def test_closing_the_iterator_aborts_the_request_in_the_engine() -> None:
    async def test() -> None:
        async with Engine(stuck) as engine, Front(engine, timeouts=Timeouts()) as front:
            async with aclosing(front.grpc.generate(IDS, Sampling())) as records:
                assert await anext(records) == Delta((1,))
            await asyncio.wait_for(engine.gone.wait(), 2)
            assert front.reasons("request") == ["closed_early"]
            assert front.upstreams.phases()[engine.target] is Phase.CLOSED

    run(test)


def test_cancelling_the_task_aborts_the_request_in_the_engine() -> None:
    async def test() -> None:
        async with Engine(silent) as engine, Front(engine, timeouts=Timeouts()) as front:
            task = asyncio.ensure_future(front.ask())
            while not engine.asked:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(engine.gone.wait(), 2)

    run(test)


def test_a_dead_engine_is_passed_over_and_then_left_alone() -> None:
    async def test() -> None:
        dead = await dead_target()
        async with Engine(honest) as engine, Front(engine, dead) as front:
            session = next(s for s in map(str, range(100)) if ranked(front.upstreams.names, s)[0] == dead)
            for _ in range(4):
                assert (await front.ask(session=session))[0] == [1, 2, 3, 4]
            assert front.upstreams.phases()[dead] is not Phase.CLOSED
            assert front.reasons("request").count("engine.unreachable") >= 2

    run(test)


def test_an_engine_that_restarts_is_used_again() -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            await front.ask()
            await engine.__aexit__()
            await front.disconnected()  # else the first call may still begin on the connection that breaks
            codes = [(await front.fault()).code for _ in range(3)]
            assert codes == ["engine.unreachable", "engine.unreachable", "engine.circuit_open"]
            await engine.__aenter__()
            async with asyncio.timeout(15):
                while "ok" not in front.reasons("request")[1:]:
                    await asyncio.sleep(0.1)
                    with suppress(EngineFault):
                        await front.ask()
            assert set(front.reasons("request")) == {"ok", "engine.unreachable", "engine.circuit_open"}
            assert front.upstreams.phases()[engine.target] is Phase.CLOSED

    run(test)


def test_more_requests_than_room_are_refused_at_once() -> None:
    async def test() -> None:
        async with Engine(silent) as engine, Front(engine, timeouts=Timeouts()) as front:
            waiting = [asyncio.ensure_future(front.ask()) for _ in range(8)]
            while len(engine.asked) < 8:
                await asyncio.sleep(0.01)
            assert (await front.fault()).code == "engine.busy"
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(test)
