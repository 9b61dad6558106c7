"""Servers for tests, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from opentelemetry.sdk.trace.export import SpanExporter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from catalog import path_of
from toktier_tier.admission.compiled import save
from toktier_tier.serve import Tier
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import TierSettings, TokenizerSettings
from toktier_tier.telemetry import Telemetry
from toktier_tier.transport.grpc_server import GrpcServer
from toktier_tier.transport.limits import Limits
from toktier_tier.transport.servicer import TokenizerServicer
from toktier_tier.transport.work import Work
from workshop import family_tier, fresh_tokenizer

FAMILY = "gpt2-novelai"
OTHER_FORMS = ("/v1/messages/count_tokens", "/v1/responses")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def rendered(messages: list[dict[str, str]]) -> str:
    parts = [f"<{each['role']}>{each['content']}</{each['role']}>\n" for each in messages]
    return "".join(parts) + "<assistant>"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class GrpcTier:
    """A tier's gRPC server in a thread of its own."""

    def __init__(self, *families: str, work: Work | None = None, limits: Limits | None = None) -> None:
        self.tier = family_tier(families[0])
        self.served = []
        for family in families:
            tokenizer = fresh_tokenizer(family_tier(family))
            self.served.append(Served(family, (f"models/{family}",), tokenizer, SessionService(tokenizer)))
        self.sessions = self.served[0].sessions
        self.work = work or Work()
        self.telemetry = Telemetry()
        self.limits = limits or Limits()
        self.servicer = TokenizerServicer(Registry(self.served), self.work, self.telemetry, limits=self.limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: GrpcServer = self.run(self.serve())
        self.address = f"127.0.0.1:{self._server.port}"

    async def serve(self, address: str = "127.0.0.1:0", **options: Any) -> GrpcServer:
        """A server of the same sessions, for `run`; whoever asks for another one stops it."""
        server = GrpcServer(self.servicer, address, **options)
        await server.start()
        return server

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self.run(self._server.stop(1.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.work.close()


@contextmanager
def grpc_tier(*families: str, work: Work | None = None, limits: Limits | None = None) -> Iterator[GrpcTier]:
    server = GrpcTier(*(families or (FAMILY,)), work=work, limits=limits)
    try:
        yield server
    finally:
        server.stop()


class OnThread:
    """An ASGI application served by uvicorn on a loopback port, on a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


class Engine:
    """What SGLang does with a request, seen from outside. `ignores_ids`: as its Rust server does."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.ignores_ids = False
        self.left = threading.Event()
        paths = ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages", *OTHER_FORMS)
        routes = [Route(path, self._answer, methods=["POST"]) for path in paths]
        tokenize = Route("/v1/tokenize", self._tokenize, methods=["POST"])
        self.app = Starlette(routes=[*routes, tokenize, Route("/v1/models", self._models)])
        self.tokenized: Callable[[list[dict[str, Any]]], Any] = lambda messages: None
        self.encoded: Callable[[list[str]], Any] = lambda texts: None

    async def _tokenize(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        found = self.tokenized(asked["messages"]) if "messages" in asked else self.encoded(asked["prompt"])
        return JSONResponse({"tokens": found}) if found is not None else JSONResponse({"error": "x"}, 400)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "the engine's"}]})

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append((request.url.path, body, dict(request.headers)))
        ids = body.get("input_ids") or body.get("prompt")
        counted = len(ids) if isinstance(ids, list) and not self.ignores_ids else 7_777
        if body.get("stream"):
            return _Watched(self.left, self._stream(body, counted), media_type="text/event-stream")
        if request.url.path == "/generate":
            return JSONResponse({"text": "é", "meta_info": {"prompt_tokens": counted}})
        return JSONResponse({"id": "x", "usage": {"prompt_tokens": counted, "completion_tokens": 1}})

    async def _stream(self, body: dict[str, Any], counted: int) -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"delta":{"content":"\\u00e9"}}]}\n\n'
        if body.get("endless"):
            while True:
                await asyncio.sleep(0.02)
                yield b": still here\n\n"
        usage = json.dumps({"usage": {"prompt_tokens": counted}}).encode()
        yield b"data: " + usage + b"\n\ndata: [DONE]\n\n"


class _Watched(StreamingResponse):
    """Tells when its client has it whole or is gone."""

    def __init__(self, left: threading.Event, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._left = left

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._left.set()


class WholeTier:
    """A tier as its settings describe it, both addresses on ports of their own, in a thread of its own."""

    def __init__(self, directory: Path, *, spans: SpanExporter | None = None, **settings: Any) -> None:
        compiled, chat = directory / "compiled", directory / "chat"
        chat.mkdir(parents=True, exist_ok=True)
        (chat / "chat_template.jinja").write_text(TEMPLATE)
        save(family_tier(FAMILY).compiled, compiled)
        tokenizer = TokenizerSettings(FAMILY, str(path_of(FAMILY)), ("a/model",), chat_template=str(chat))
        addresses = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "compiled_dir": str(compiled)}
        self.settings = TierSettings(**{"tokenizers": (tokenizer,), **addresses, **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._listen(spans))

    async def _listen(self, spans: SpanExporter | None) -> None:
        self.tier = Tier(self.settings)
        if spans is not None:
            self.tier.telemetry = Telemetry(span_exporter=spans, trace_ratio=1.0)
        self._http, listening = self.tier.http_port()
        self.http = f"127.0.0.1:{listening.getsockname()[1]}"
        self._serving = asyncio.create_task(self._http.serve([listening]))

    def start(self) -> WholeTier:
        self.run(self.tier.start())
        assert self.tier.grpc is not None
        self.grpc = f"127.0.0.1:{self.tier.grpc.port}"
        self.served = next(iter(self.tier.loaded.registry))
        self.sessions = self.served.sessions
        return self

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def page(self) -> str:
        return self.tier.telemetry.page().decode()

    async def _stop(self) -> None:
        self._http.end()
        await self._serving
        await self.tier.stop()

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@contextmanager
def whole_tier(directory: Path, **settings: Any) -> Iterator[WholeTier]:
    server = WholeTier(directory, **settings)
    try:
        yield server.start()
    finally:
        server.stop()
