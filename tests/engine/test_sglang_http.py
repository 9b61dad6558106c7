"""Forwarding against real servers on loopback: honest, slow, dead, restarting, deaf to IDs, broken off, huge."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as AppRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from toktier_tier.core.errors import EngineFault, InvalidRequest, TierError
from toktier_tier.engine.body import JsonBody
from toktier_tier.engine.breaker import BreakerPolicy, Phase
from toktier_tier.engine.ids import CheckedIds, check_ids, ids_json
from toktier_tier.engine.reply import Reply
from toktier_tier.engine.sglang_http import CHAT, COMPLETIONS, GENERATE, SGLangHttp, place_ids
from toktier_tier.engine.upstreams import EngineEvent, Timeouts, Upstreams, ranked
from toktier_tier.engine.usage import Usage

IDS = check_ids([5, 0, 7, 151_935], 151_936)
CHAT_RAW = '{"model": "m",\n "messages": [{"role": "user", "content": "Grüße \\u00e9 😀"}], "stop":["}"]}\n'.encode()
CHAT_BODY = JsonBody.parse(CHAT_RAW)
STREAM_BODY = JsonBody.parse(b'{"model":"m","messages":[],"stream":true}')
QUICK = Timeouts(connect_s=1.0, first_byte_s=0.3, idle_s=0.3, total_s=5.0)
POLICY = BreakerPolicy(failures_to_open=2, open_s=0.2, max_open_s=1.0, trial_s=5.0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


# --- a server whose every byte is the test's ---------------------------------------------------------------------


@dataclass
class Asked:
    """A request as it came in; `gone` is set once the client closed the connection."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """An HTTP/1.1 server that reads requests properly and lets the test write the replies."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head[1:-2])]
        asked = Asked(head[0], headers, b"")
        asked.body = await reader.readexactly(int((asked.header("content-length") or ["0"])[0]))
        self.asked.append(asked)
        answering = asyncio.ensure_future(self.answer(asked, writer))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():  # the client sent nothing more, so it closed
                asked.gone.set()
                return False
            await answering
            return not writer.is_closing() and reader._buffer == b"" and not watching.done()  # type: ignore[attr-defined]
        finally:
            for each in (answering, watching):
                each.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)


def head(status: int = 200, kind: str = "application/json", *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", *more, "", ""]).encode()


def plain(body: bytes, status: int = 200, kind: str = "application/json") -> bytes:
    return head(status, kind, f"content-length: {len(body)}") + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def counted(prompt_tokens: int) -> bytes:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}}).encode()


def answers(*parts: bytes, pause_s: float = 0.0) -> Answer:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def honest(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Counts the IDs it was sent, or 9 for text."""
    body = asked.json() if asked.body else {}
    ids = body.get("input_ids") or (body["prompt"] if isinstance(body.get("prompt"), list) else None)
    writer.write(plain(counted(len(ids) if ids else 9)))


async def deaf(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Ignores `input_ids`, as SGLang's Rust server does."""
    writer.write(plain(counted(5)))


async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


class Front:
    """A forwarder over engines, with what it observed."""

    def __init__(self, *engines: Engine | str, timeouts: Timeouts = QUICK, clock: Callable[[], float] = time.monotonic):
        self.events: list[EngineEvent] = []
        urls = [engine if isinstance(engine, str) else engine.url for engine in engines]
        self.upstreams = Upstreams(urls, breaker=POLICY, max_in_flight=8, clock=clock, observe=self.events.append)
        self.http = SGLangHttp(self.upstreams, timeouts=timeouts, clock=clock, observe=self.events.append)

    async def __aenter__(self) -> Front:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        assert set(self.upstreams.in_flight().values()) == {0}

    def reasons(self, name: str) -> list[str]:
        return [event.reason for event in self.events if event.name == name]

    async def ask(self, path: str = CHAT, body: JsonBody = CHAT_BODY, **more: Any) -> tuple[Reply, bytes]:
        async with await self.http.forward(path, body, [("content-type", "application/json")], **more) as reply:
            return reply, await reply.read(1 << 30)


async def fault_of(asking: Awaitable[object]) -> EngineFault:
    with pytest.raises(EngineFault) as caught:
        await asking
    return caught.value


async def dead_url() -> str:
    async with Engine(honest) as engine:
        return engine.url


# --- what goes out -------------------------------------------------------------------------------------------------


def test_a_chat_request_goes_on_unchanged_but_for_its_ids() -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            reply, _ = await front.ask(input_ids=IDS)
            close = CHAT_RAW.rindex(b"}")
            assert engine.asked[0].body == CHAT_RAW[:close] + b',"input_ids":' + ids_json(IDS) + CHAT_RAW[close:]
            assert engine.asked[0].json() == {**CHAT_BODY.fields, "input_ids": IDS.array.tolist()}
            assert (reply.status, reply.ids, reply.usage) == (200, "matched", Usage(4, 1, None))
            assert front.reasons("ids") == ["matched"]

    run(test)


@pytest.mark.parametrize(
    ("path", "raw", "expected"),
    [
        (COMPLETIONS, b'{"model":"m", "prompt" : "a\\"b","n":1}', {"model": "m", "prompt": [5, 0, 7, 151_935], "n": 1}),
        (GENERATE, b'{"text":"a","rid":"r"}', {"input_ids": [5, 0, 7, 151_935], "rid": "r"}),
    ],
)
def test_other_routes_get_ids_in_the_place_of_text(path: str, raw: bytes, expected: dict[str, Any]) -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            reply, _ = await front.ask(path, JsonBody.parse(raw), input_ids=IDS)
            assert list(engine.asked[0].json().items()) == list(expected.items())
            assert reply.ids == "matched"

    run(test)


def test_without_ids_the_body_goes_as_it_came() -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            reply, _ = await front.ask()
            assert (engine.asked[0].body, reply.ids) == (CHAT_RAW, "not_sent")
            async with await front.http.forward("/v1/models?x=1", method="GET") as reply:
                await reply.read(1 << 20)
            assert engine.asked[1].line == "GET /v1/models?x=1 HTTP/1.1"

    run(test)


def test_headers_that_concern_one_connection_stay_behind() -> None:
    async def test() -> None:
        sent = [
            ("Authorization", "Bearer client"),
            ("traceparent", "00-1-2-01"),
            ("X-Two", "a"),
            ("X-Two", "b"),
            ("Host", "tier.example"),
            ("Content-Length", "3"),
            ("Connection", "close, X-Mine"),
            ("X-Mine", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Accept-Encoding", "gzip"),
            ("Expect", "100-continue"),
        ]
        async with Engine(
            answers(head(200, "application/json", "content-length: 2", "x-a: 1", "keep-alive: 9") + b"{}")
        ) as engine:
            upstreams = Upstreams([engine.url])
            http = SGLangHttp(upstreams, headers=[("Authorization", "Bearer tier")])
            async with await http.forward(CHAT, CHAT_BODY, sent) as reply:
                assert await reply.read(100) == b"{}"
            await http.aclose()
            asked = engine.asked[0]
            assert asked.header("authorization") == ["Bearer tier"]
            assert asked.header("traceparent") == ["00-1-2-01"]
            assert asked.header("x-two") == ["a", "b"]
            assert asked.header("host") == [engine.url.removeprefix("http://")]
            assert asked.header("content-length") == [str(len(CHAT_RAW))]
            assert asked.header("accept-encoding") == ["identity"]
            assert not [name for name in ("x-mine", "transfer-encoding", "expect") if asked.header(name)]
            assert reply.headers == [("content-type", "application/json"), ("content-length", "2"), ("x-a", "1")]

    run(test)


def test_a_cookie_of_the_engines_goes_to_nobody_else() -> None:
    async def test() -> None:
        answer = answers(head(200, "application/json", "content-length: 2", "set-cookie: route=a; Path=/") + b"{}")
        async with Engine(answer) as engine, Front(engine) as front:
            for cookies in ([], [("cookie", "mine=1")], []):
                async with await front.http.forward(CHAT, CHAT_BODY, cookies) as reply:
                    await reply.read(100)
                assert ("set-cookie", "route=a; Path=/") in reply.headers
            assert [asked.header("cookie") for asked in engine.asked] == [[], ["mine=1"], []]

    run(test)


@pytest.mark.parametrize(
    ("path", "raw", "code"),
    [
        (CHAT, b'{"messages":[],"input_ids":[1]}', "body.has_member"),
        (COMPLETIONS, b'{"prompt":[1,2]}', "engine.prompt_kind"),
        (COMPLETIONS, b"{}", "body.lacks_member"),
        (GENERATE, b'{"text":["a"]}', "engine.prompt_kind"),
        (GENERATE, b'{"text":"a","input_ids":[1]}', "body.has_member"),
        ("/v1/embeddings", b"{}", "engine.route"),
        ("//elsewhere.example/", b"{}", "engine.path"),
        ("http://elsewhere.example/", b"{}", "engine.path"),
    ],
)
def test_ids_that_have_no_place_are_refused_before_anything_is_sent(path: str, raw: bytes, code: str) -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            with pytest.raises(InvalidRequest) as caught:
                await front.http.forward(path, JsonBody.parse(raw), input_ids=IDS)
            assert (caught.value.code, engine.asked) == (code, [])

    run(test)


def test_a_header_that_cant_be_sent_is_the_callers_fault() -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            for value in ("a\r\nx-more: b", "snow☃man"):
                with pytest.raises(TierError) as caught:
                    await front.http.forward(CHAT, CHAT_BODY, [("x-a", value)])
                assert caught.value.code == "engine.header"
            assert front.upstreams.phases()[engine.url] is Phase.CLOSED
            assert not engine.asked

    run(test)


def test_a_million_ids_arrive() -> None:
    async def test() -> None:
        ids = check_ids(np.random.default_rng(1).integers(0, 151_936, 1_000_000), 151_936)
        async with Engine(honest) as engine, Front(engine, timeouts=Timeouts()) as front:
            reply, _ = await front.ask(input_ids=ids)
            assert reply.ids == "matched"
            assert engine.asked[0].json()["input_ids"] == ids.array.tolist()

    run(test)


# --- what comes back -----------------------------------------------------------------------------------------------

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9\xf0\x9f\x98\x80"}}],"usage":null}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


def test_a_stream_cut_anywhere_comes_through_byte_for_byte() -> None:
    async def test() -> None:
        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            cut = int(asked.header("x-cut")[0])
            writer.write(head(200, "text/event-stream", "transfer-encoding: chunked"))
            for part in (EVENTS[:cut], EVENTS[cut:]):
                if part:
                    writer.write(chunk(part))
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")

        async with Engine(answer) as engine, Front(engine, timeouts=Timeouts()) as front:
            for cut in range(len(EVENTS)):
                asking = front.http.forward(CHAT, STREAM_BODY, [("x-cut", str(cut))], input_ids=IDS)
                async with await asking as reply:
                    assert await reply.read(1 << 20) == EVENTS
                assert (reply.usage, reply.ids) == (Usage(4, 2, None), "matched")

    run(test)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_wire_bytes_in_any_packets_come_through(size: int) -> None:
    async def test() -> None:
        wire = head(200, "text/event-stream", "transfer-encoding: chunked")
        wire += b"".join(chunk(EVENTS[at : at + 50]) for at in range(0, len(EVENTS), 50)) + b"0\r\n\r\n"
        packets = [wire[at : at + size] for at in range(0, len(wire), size)]
        async with Engine(answers(*packets)) as engine, Front(engine, timeouts=Timeouts()) as front:
            reply, body = await front.ask(body=STREAM_BODY, input_ids=IDS)
            assert (body, reply.ids) == (EVENTS, "matched")

    run(test)


def test_a_chunk_is_passed_on_before_the_next_one_exists() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(head(200, "text/event-stream", "transfer-encoding: chunked") + chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async with (
            Engine(answer) as engine,
            Front(engine, timeouts=Timeouts()) as front,
            await front.http.forward(CHAT, STREAM_BODY) as reply,
        ):
            assert await anext(reply) == b"data: 1\n\n"
            go_on.set()
            assert await anext(reply) == b"data: [DONE]\n\n"
            with pytest.raises(StopAsyncIteration):
                await anext(reply)

    run(test)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{not json", "application/json"),
        (b"\xff\xfe\x00", "application/json"),
        (b"", "application/json"),
        (b"<html>", "text/html"),
        (b"[" * 50_000, "application/json"),
    ],
)
def test_a_reply_that_cant_be_read_comes_through_all_the_same(body: bytes, kind: str) -> None:
    async def test() -> None:
        async with Engine(answers(plain(body, kind=kind))) as engine, Front(engine) as front:
            reply, came = await front.ask(input_ids=IDS)
            assert (came, reply.usage, reply.ids) == (body, None, "unknown")

    run(test)


def test_a_huge_reply_comes_through_without_being_kept() -> None:
    async def test() -> None:
        body = b'{"choices":"' + b"x" * (24 << 20) + b'","usage":{"prompt_tokens":4}}'
        async with Engine(answers(plain(body))) as engine, Front(engine, timeouts=Timeouts()) as front:
            reply, came = await front.ask(input_ids=IDS)
            assert came == body
            assert reply.ids == "unknown"

    run(test)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_status_is_the_clients_to_read(status: int) -> None:
    async def test() -> None:
        async with Engine(answers(plain(b'{"error":"x"}', status))) as engine, Front(engine) as front:
            for _ in range(2):
                reply, body = await front.ask(input_ids=IDS)
                assert (reply.status, body) == (status, b'{"error":"x"}')
            expected = Phase.OPEN if status == 503 else Phase.CLOSED
            assert front.upstreams.phases()[engine.url] is expected

    run(test)


def test_a_stream_without_its_end_mark_is_counted() -> None:
    async def test() -> None:
        wire = head(200, "text/event-stream", "transfer-encoding: chunked") + chunk(b"data: 1\n\n") + b"0\r\n\r\n"
        async with Engine(answers(wire)) as engine, Front(engine) as front:
            await front.ask(body=STREAM_BODY)
            assert front.reasons("reply") == ["no_end_mark"]

    run(test)


# --- servers that don't use the IDs --------------------------------------------------------------------------------


def test_a_server_that_ignores_ids_is_found_out_and_sent_text() -> None:
    async def test() -> None:
        now_s = 0.0
        async with Engine(deaf) as engine, Front(engine, clock=lambda: now_s) as front:
            reply, _ = await front.ask(input_ids=IDS)
            assert reply.ids == "mismatched"
            reply, _ = await front.ask(input_ids=IDS)
            assert (reply.ids, engine.asked[1].body) == ("not_sent", CHAT_RAW)
            await front.ask(COMPLETIONS, JsonBody.parse(b'{"prompt":"a"}'), input_ids=IDS)
            assert engine.asked[2].json()["prompt"] == IDS.array.tolist()  # another route is another matter
            now_s = 601.0
            await front.ask(input_ids=IDS)
            assert engine.asked[3].json()["input_ids"] == IDS.array.tolist()
            assert front.reasons("ids") == ["mismatched", "ignored_before", "mismatched", "mismatched"]

    run(test)


def test_a_mismatch_in_a_stream_is_found_too() -> None:
    async def test() -> None:
        wire = head(200, "text/event-stream", "transfer-encoding: chunked") + chunk(EVENTS) + b"0\r\n\r\n"
        async with Engine(answers(wire)) as engine, Front(engine) as front:
            reply, body = await front.ask(body=STREAM_BODY, input_ids=check_ids([1, 2, 3], 10))
            assert (reply.ids, body) == ("mismatched", EVENTS)
            assert front.http.distrusts(engine.url, CHAT)

    run(test)


def test_the_probe_tells_servers_that_use_ids_from_those_that_dont() -> None:
    async def test() -> None:
        async with Engine(honest) as good, Engine(deaf) as bad:
            dead = await dead_url()
            async with Front(good, bad, dead) as front:
                assert await front.http.probe_ids("m") == {good.url: True, bad.url: False, dead: None}
                assert not front.http.distrusts(good.url, CHAT)
                assert front.http.distrusts(bad.url, CHAT)
                bad.answer = honest
                assert (await front.http.probe_ids("m"))[bad.url] is True
                assert not front.http.distrusts(bad.url, CHAT)
                good.answer = answers(plain(b"{}", 500))
                assert (await front.http.probe_ids("m"))[good.url] is None

    run(test)


# --- clients that go away ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
def test_closing_the_reply_closes_the_upstreams_connection(streamed: bool) -> None:
    async def test() -> None:
        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            kind = "text/event-stream" if streamed else "application/json"
            writer.write(head(200, kind, "transfer-encoding: chunked") + chunk(b"data: 1\n\n"))
            await asyncio.sleep(60)

        async with Engine(answer) as engine, Front(engine, timeouts=Timeouts()) as front:
            body = STREAM_BODY if streamed else CHAT_BODY
            async with await front.http.forward(CHAT, body, input_ids=IDS) as reply:
                assert await anext(reply) == b"data: 1\n\n"
            await asyncio.wait_for(engine.asked[0].gone.wait(), 2)
            assert (reply.ids, front.reasons("request")) == ("unknown", ["closed_early"])
            assert front.upstreams.phases()[engine.url] is Phase.CLOSED

    run(test)


def test_a_client_that_leaves_at_the_streams_end_mark_had_all_of_it() -> None:
    async def test() -> None:
        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            usage = json.dumps({"usage": {"prompt_tokens": len(IDS)}}).encode()
            writer.write(head(200, "text/event-stream", "transfer-encoding: chunked"))
            writer.write(chunk(b"data: " + usage + b"\n\ndata: [DONE]\n\n"))
            await asyncio.sleep(60)

        async with Engine(answer) as engine, Front(engine, timeouts=Timeouts()) as front:
            async with await front.http.forward(CHAT, STREAM_BODY, input_ids=IDS) as reply:
                assert (await anext(reply)).endswith(b"[DONE]\n\n")
            await asyncio.wait_for(engine.asked[0].gone.wait(), 2)
            assert (reply.ids, front.reasons("request")) == ("matched", ["ok"])

    run(test)


@pytest.mark.parametrize("answered", [True, False])
def test_cancelling_the_task_closes_the_upstreams_connection(answered: bool) -> None:
    async def test() -> None:
        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if answered:
                writer.write(head(200, "text/event-stream", "transfer-encoding: chunked") + chunk(b"data: 1\n\n"))
            await asyncio.sleep(60)

        async with Engine(answer) as engine, Front(engine, timeouts=Timeouts()) as front:
            task = asyncio.ensure_future(front.ask(body=STREAM_BODY))
            while not engine.asked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(engine.asked[0].gone.wait(), 2)

    run(test)


# --- servers that fail ---------------------------------------------------------------------------------------------


def by_rank(front: Front, session: str, *engines: Engine) -> list[Engine]:
    return sorted(engines, key=lambda engine: ranked(front.upstreams.names, session).index(engine.url))


def test_a_session_stays_with_its_engine_and_others_spread() -> None:
    async def test() -> None:
        async with Engine(honest) as a, Engine(honest) as b, Engine(honest) as c, Front(a, b, c) as front:
            for _ in range(3):
                for session in range(30):
                    reply, _ = await front.ask(session=f"s{session}")
                    assert reply.upstream == ranked(front.upstreams.names, f"s{session}")[0]
            assert all(len(engine.asked) >= 9 for engine in (a, b, c))

    run(test)


def test_a_dead_engine_is_passed_over_and_then_left_alone() -> None:
    async def test() -> None:
        async with Engine(honest) as engine:
            dead = await dead_url()
            async with Front(engine, dead) as front:
                session = next(s for s in map(str, range(100)) if ranked(front.upstreams.names, s)[0] == dead)
                for _ in range(4):
                    reply, _ = await front.ask(session=session, input_ids=IDS)
                    assert (reply.upstream, reply.ids) == (engine.url, "matched")
                assert front.reasons("request").count("engine.unreachable") == 2
                assert front.upstreams.phases()[dead] is Phase.OPEN

    run(test)


def test_when_all_are_dead_the_fault_says_so_and_then_nothing_is_tried() -> None:
    async def test() -> None:
        dead = await dead_url()
        async with Front(dead) as front:
            for _ in range(2):
                assert (await fault_of(front.ask())).code == "engine.unreachable"
            fault = await fault_of(front.ask())
            assert (fault.code, fault.details["retry_after_s"] > 0) == ("engine.circuit_open", True)

    run(test)


def test_an_engine_that_restarts_is_used_again() -> None:
    async def test() -> None:
        async with Engine(honest) as engine, Front(engine) as front:
            await front.ask()
            await engine.__aexit__()
            codes = [(await fault_of(front.ask())).code for _ in range(3)]
            assert codes == ["engine.unreachable", "engine.unreachable", "engine.circuit_open"]
            await engine.__aenter__()
            await asyncio.sleep(POLICY.open_s)
            assert (await front.ask())[0].status == 200
            assert front.reasons("breaker") == ["open", "half_open", "closed"]

    run(test)


def test_nothing_is_asked_twice_once_it_was_sent() -> None:
    async def hang_up(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def test() -> None:
        async with Engine(hang_up) as a, Engine(hang_up) as b, Front(a, b) as front:
            assert (await fault_of(front.ask(session="s"))).code == "engine.cut"
            assert len(a.asked) + len(b.asked) == 1

    run(test)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n",
        head(200, "application/json", "content-length: nine"),
        head(200, "application/json", "content-length: 9")[:30],
    ],
)
def test_what_isnt_http_is_a_fault(wire: bytes) -> None:
    async def test() -> None:
        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(wire)
            writer.close()

        async with Engine(answer) as engine, Front(engine) as front:
            assert (await fault_of(front.ask())).code == "engine.cut"

    run(test)


@pytest.mark.parametrize("framing", ["content-length: 100", "transfer-encoding: chunked"])
def test_a_reply_that_breaks_off_gives_its_bytes_and_then_the_fault(framing: str) -> None:
    async def test() -> None:
        part = b"data: 1\n\n"

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            sent = chunk(part) if "chunked" in framing else part
            writer.write(head(200, "text/event-stream", framing) + sent)
            await writer.drain()
            writer.close()

        async with Engine(answer) as engine, Front(engine) as front:
            for _ in range(2):
                async with await front.http.forward(CHAT, STREAM_BODY, input_ids=IDS) as reply:
                    assert await anext(reply) == part
                    with pytest.raises(EngineFault) as caught:
                        await anext(reply)
                    assert (caught.value.code, reply.ids) == ("engine.cut", "unknown")
            assert front.upstreams.phases()[engine.url] is Phase.OPEN

    run(test)


@pytest.mark.parametrize(
    ("answer", "body", "limits", "phase"),
    [
        (silent, STREAM_BODY, {}, "first_byte"),
        (silent, CHAT_BODY, {"total_s": 0.3}, "total"),
        (silent, STREAM_BODY, {"total_s": 0.2}, "total"),
        (
            answers(head(200, "text/event-stream", "transfer-encoding: chunked"), pause_s=9),
            STREAM_BODY,
            {},
            "first_byte",
        ),
        (answers(head(200, "application/json", "content-length: 9"), pause_s=9), CHAT_BODY, {}, "idle"),
        (
            answers(head(200, "text/event-stream", "transfer-encoding: chunked") + chunk(b"a"), pause_s=9),
            STREAM_BODY,
            {},
            "idle",
        ),
        (
            answers(head(200, "text/event-stream", "transfer-encoding: chunked"), *[chunk(b"a")] * 100, pause_s=0.05),
            STREAM_BODY,
            {"total_s": 0.4},
            "total",
        ),
    ],
)
def test_no_wait_goes_past_its_limit(answer: Answer, body: JsonBody, limits: dict[str, float], phase: str) -> None:
    async def test() -> None:
        async with Engine(answer) as engine, Front(engine) as front:
            started_s = time.monotonic()
            fault = await fault_of(front.ask(body=body, **limits))
            assert (fault.code, fault.details["phase"]) == ("engine.timeout", phase)
            assert 0.15 < time.monotonic() - started_s < 2.0
            await asyncio.wait_for(engine.asked[0].gone.wait(), 2)  # the engine is told

    run(test)


def test_the_callers_own_short_limit_doesnt_speak_against_the_engine() -> None:
    async def test() -> None:
        async with Engine(silent) as engine, Front(engine) as front:
            for _ in range(3):
                await fault_of(front.ask(total_s=0.05))
            assert front.upstreams.phases()[engine.url] is Phase.CLOSED
            for _ in range(2):
                await fault_of(front.ask(total_s=QUICK.first_byte_s))
            assert front.upstreams.phases()[engine.url] is Phase.OPEN

    run(test)


def test_more_requests_than_room_are_refused_at_once() -> None:
    async def test() -> None:
        async with Engine(silent) as engine, Front(engine, timeouts=Timeouts()) as front:
            waiting = [asyncio.ensure_future(front.ask()) for _ in range(8)]
            while len(engine.asked) < 8:
                await asyncio.sleep(0.01)
            assert (await fault_of(front.ask())).code == "engine.busy"
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            engine.answer = honest
            assert (await front.ask())[0].status == 200

    run(test)


def test_hundreds_of_requests_at_once_keep_their_replies_apart() -> None:
    async def test() -> None:
        async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(len(asked.json()["input_ids"]) % 7 / 500)
            await honest(asked, writer)

        async with Engine(echo) as a, Engine(echo) as b:
            upstreams = Upstreams([a.url, b.url])
            http = SGLangHttp(upstreams)

            async def one(count: int) -> tuple[int, str]:
                ids: CheckedIds = check_ids([1] * count, 2)
                async with await http.forward(CHAT, CHAT_BODY, input_ids=ids, session=str(count % 20)) as reply:
                    await reply.read(1 << 20)
                    return (reply.usage.prompt_tokens if reply.usage else 0), reply.ids

            found = await asyncio.gather(*(one(count) for count in range(1, 301)))
            assert found == [(count, "matched") for count in range(1, 301)]
            assert set(upstreams.in_flight().values()) == {0}
            await http.aclose()

    run(test)


# --- a server of the kind SGLang's is: uvicorn and Starlette -------------------------------------------------------


def app(seen: dict[str, Any]) -> Starlette:
    async def chat(request: AppRequest) -> Response:
        body = await request.json()
        counts = {"prompt_tokens": len(body["input_ids"]), "completion_tokens": 3}
        if not body.get("stream"):
            return JSONResponse({"choices": [], "usage": counts})

        async def events() -> Any:
            try:
                for index in range(body.get("max_tokens", 3)):
                    yield f'data: {{"choices":[{{"index":{index}}}]}}\n\n'
                    await asyncio.sleep(0.02)
                yield f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n"
                yield "data: [DONE]\n\n"
            finally:
                seen["stopped"].set()

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route(CHAT, chat, methods=["POST"])])


def test_uvicorn_serves_streams_and_learns_of_an_abort() -> None:
    async def test() -> None:
        seen = {"stopped": asyncio.Event()}
        config = uvicorn.Config(app(seen), port=0, log_level="error", timeout_keep_alive=5, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with Front(f"http://127.0.0.1:{port}", timeouts=Timeouts()) as front:
            for body in (CHAT_BODY, STREAM_BODY):
                reply, _ = await front.ask(body=body, input_ids=IDS)
                assert (reply.status, reply.ids) == (200, "matched")
            seen["stopped"].clear()
            endless = JsonBody.parse(b'{"messages":[],"stream":true,"max_tokens":100000}')
            async with await front.http.forward(CHAT, endless, input_ids=IDS) as reply:
                await anext(reply)
            await asyncio.wait_for(seen["stopped"].wait(), 3)
        server.should_exit = True
        await serving

    run(test)


def test_placing_ids_needs_no_server() -> None:
    assert json.loads(place_ids(CHAT, JsonBody.parse(b"{}"), IDS)) == {"input_ids": IDS.array.tolist()}
