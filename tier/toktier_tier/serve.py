"""A tier in service: everything built from the settings, started, and ended in order.

Both ports answer from the start: alive, not ready, until every tokenizer is loaded and proven on a probe. On SIGTERM
or SIGINT: no new requests, the running ones end, sessions are left to their time, spans are sent. With several pods, a
first signal only makes it not ready: it serves on while it hands its sessions to the others, then it ends; a second one
ends it at once. On SIGHUP the tokens' and certificates' files are read again; without one too, within a second of a
change.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from .core.errors import EnvironmentFault, InvalidRequest
from .engine.sglang_grpc import SGLangGrpc
from .engine.sglang_http import SGLangHttp
from .engine.upstreams import EngineEvent, Timeouts, Upstreams
from .engine.wires import NativeWire, SmgWire
from .loading import Loaded, load
from .operated import Operated
from .pods.assembly import Neighbours
from .security import Security, api_key_headers
from .settings import PodSettings, TierSettings, UpstreamSettings
from .telemetry import Telemetry, registry_meters, security_meters
from .transport.agreement import agrees, agrees_on_texts
from .transport.gate import Gate
from .transport.grpc_server import GrpcServer
from .transport.http_server import HttpServer
from .transport.listener import HttpPort, http_server
from .transport.prompts import Prompts
from .transport.servicer import TokenizerServicer
from .transport.tenants import OWN_TENANT
from .transport.work import Work

STOP_S = 10.0
PROBE_EVERY_S, PROBE_AGAIN_S = 300.0, 2.0
FIRST_ASKED_S = 5.0
"""How long the engines' first answers are waited for before requests are let in."""
_LOST = frozenset({"engine.unreachable", "engine.cut", "engine.circuit_open"})
RELOAD_EVERY_S = 1.0
BACKLOG = 2_048
SWITCH_S = 0.0005
"""How long the event loop waits for the interpreter's lock that a long call's thread has, if that can let go of it."""
CONNECTION_SHARE = 0.8
"""Of the time that a leaving pod lingers; connections end up to a tenth later."""
log = logging.getLogger("toktier")
Made = TypeVar("Made")


class Tier:
    """What `settings` ask for. `run` serves until a signal; `start` and `stop` are for those who embed it.

    Made in the event loop that it serves in; raises at once for credentials that can't be used. The rest is there
    once it is loaded: `loaded`, `prompts`, `http`, `servicer`; `on_ready` is called just before it serves.
    """

    loaded: Loaded
    prompts: Prompts
    http: HttpServer
    servicer: TokenizerServicer

    def __init__(self, settings: TierSettings, *, on_ready: Callable[[], object] = lambda: None) -> None:
        self.settings, self._on_ready = settings, on_ready
        self.security = Security(settings)
        self.ready = False
        self.work = Work(settings.threads, settings.waiting)
        spans = settings.telemetry
        exporter = OTLPSpanExporter(endpoint=spans.otlp, insecure=spans.otlp_insecure) if spans.otlp else None
        self.telemetry = Telemetry(span_exporter=exporter, trace_ratio=spans.trace_ratio)
        self.engine_events: dict[tuple[str, str, str], int] = {}
        self._away = asyncio.Event()
        """Set where an engine couldn't be reached, or broke off: another one may come in its place."""
        self.engine = self._engine(settings.upstream)
        self.neighbours = Neighbours(settings, self.telemetry) if settings.pods.several else None
        self.operated = Operated(settings, self.telemetry) if settings.kubernetes.used else None
        self.gate = Gate()
        """The HTTP application, from the start."""
        self.grpc: GrpcServer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Serve both addresses until a signal ends it. Raises what can't be served."""
        sys.setswitchinterval(SWITCH_S)
        server, listening = self.http_port()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_end, server)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._refresh(force=True))
        serving = asyncio.create_task(server.serve([listening]))
        starting = asyncio.create_task(self.start())
        try:
            await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
            await serving
        finally:
            starting.cancel()
            server.end()
            await asyncio.gather(serving, starting, return_exceptions=True)
            await self.stop()

    def _told_to_end(self, server: HttpPort) -> None:
        if self.neighbours is None or not self.ready:
            server.end()
            return

        async def end() -> None:
            server.retire()
            try:
                await self.leave()
            finally:
                server.end()

        self._tasks.append(asyncio.create_task(end()))

    async def leave(self) -> None:
        """Not ready from now on; serve until the sessions are with the other pods and everybody knows."""
        self.ready = False
        if self.grpc is not None:
            await self.grpc.retire()
        if self.neighbours is not None:
            await self.neighbours.leave()

    async def start(self) -> None:
        """Everything but the HTTP server, which `run` or an embedding server brings: that serves `gate`."""
        self.grpc = GrpcServer(
            None,
            self.settings.grpc,
            tls=self.security.tls,
            message_bytes=self.settings.limits.message_bytes,
            connection_s=_connection_s(self.settings.pods),
        )
        await self.grpc.start()
        self._tasks.append(asyncio.create_task(self._reload()))
        if self.neighbours is not None:
            self.neighbours.begin()
        if self.operated is not None:
            self.operated.begin()
        self.loaded = await _in_daemon(lambda: load(self.settings))
        if self.operated is not None:
            await self.operated.join(self.loaded)
        registry, security = self.loaded.registry, self.security
        pods = index = None
        if self.neighbours is not None:
            pods, index = await self.neighbours.join(registry), self.neighbours.index
        self.prompts = Prompts(
            registry, self.loaded.renderers, self.work, self.telemetry, index, pods, self.loaded.loadings
        )
        self.servicer = TokenizerServicer(
            registry,
            self.work,
            self.telemetry,
            identities=security.identities,
            limits=security.limits,
            prompts=self.prompts,
            pods=pods,
        )
        self.http = HttpServer(
            self.prompts,
            self.engine,
            self.telemetry,
            ready=lambda: self.ready,
            identities=security.identities,
            limits=security.limits,
            rules=security.http_rules,
        )
        self._watch()
        self.telemetry.watch(
            "toktier.queue.calls", "{call}", "long calls under way or waiting", lambda: [(self.work.waiting, {})]
        )
        for verifier in self.loaded.verifiers.values():
            verifier.start()
        if isinstance(self.engine, SGLangHttp):
            await self._ask_first(self.engine)
        self._on_ready()
        self.ready = True
        await self.grpc.serve(self.servicer)
        self.gate.open(self.http.app)
        log.warning("serving gRPC on port %d, HTTP on %s", self.grpc.port, self.settings.http)

    async def stop(self) -> None:
        self.ready = False
        for task in self._tasks:
            task.cancel()
        if self.grpc is not None:
            await self.grpc.stop(STOP_S)
        for other in (self.neighbours, self.operated):
            if other is not None:
                await other.aclose()
        if self.engine is not None:
            await self.engine.aclose()
        if hasattr(self, "loaded"):
            for verifier in self.loaded.verifiers.values():
                verifier.stop(1.0)
        self.work.close()
        self.telemetry.close()

    def http_port(self) -> tuple[HttpPort, socket.socket]:
        """The HTTP server and what it listens on. Raises `EnvironmentFault` (`http.address`)."""
        host, port = _address(self.settings.http)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise EnvironmentFault("http.address", f"can't listen on {self.settings.http}: {error.strerror}") from None
        bounds = self.security.port_bounds(int(STOP_S))
        return http_server(self.gate, host, port, bounds, self.security.tls), listening

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY_S)
            self._refresh()

    def _refresh(self, *, force: bool = False) -> None:
        self.security.refresh(force=force)
        if self.neighbours is not None:
            self.neighbours.refresh(force=force)

    async def _probe(self, engine: SGLangHttp, asked: asyncio.Event) -> None:
        """Ask the engines now and then whether they make the same of chats and texts, and use IDs: traffic doesn't
        tell. One that wasn't there when it was asked, or has been away since, is asked soon. `asked` is set after the
        first time."""
        pause_s = PROBE_AGAIN_S
        while True:
            self._away.clear()
            for model in self.prompts.models():
                name = model.served.models[0] if model.served.models else model.served.name
                if model.agrees_on_texts and await agrees_on_texts(self.prompts, engine, name) is False:
                    model.agrees_on_texts = False
                    log.error("tokenizer %s: the engine encodes texts otherwise, they go on as text", model.served.name)
                if model.agrees and await agrees(self.prompts, engine, name, OWN_TENANT) is False:
                    model.agrees = False
                    log.error("tokenizer %s: the engine renders chats otherwise, they go on as text", model.served.name)
            asked.set()
            for model in self.prompts.models():
                name = model.served.models[0] if model.served.models else model.served.name
                for upstream, uses in (await engine.probe_ids(name)).items():
                    if uses is False:
                        log.error("engine %s ignores token IDs: it gets text", upstream)
            pause_s = min(2 * pause_s, PROBE_EVERY_S) if self._away.is_set() else PROBE_AGAIN_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._away.wait(), PROBE_EVERY_S)
                await asyncio.sleep(pause_s)

    async def _ask_first(self, engine: SGLangHttp) -> None:
        """Begin to ask the engines; what they say at once is known before anything is sent to them."""
        asked = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._probe(engine, asked)))
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), FIRST_ASKED_S)

    def _engine(self, upstream: UpstreamSettings) -> SGLangHttp | SGLangGrpc | None:
        if not upstream.urls:
            return None
        timeouts = Timeouts(upstream.connect_s, upstream.first_byte_s, upstream.idle_s, upstream.total_s)
        upstreams = Upstreams([url.rstrip("/") for url in upstream.urls], observe=self._note)
        if upstream.protocol == "http":
            headers = api_key_headers(upstream.api_key_file)
            return SGLangHttp(upstreams, timeouts=timeouts, headers=headers, observe=self._note)
        wire = SmgWire() if upstream.protocol == "smg" else NativeWire()
        return SGLangGrpc(upstreams, wire, timeouts=timeouts, observe=self._note)

    def _note(self, event: EngineEvent) -> None:
        key = (event.name, event.upstream, event.reason)
        self.engine_events[key] = self.engine_events.get(key, 0) + 1
        if event.name in ("request", "question") and event.reason in _LOST:
            self._away.set()

    def _watch(self) -> None:
        registry_meters(self.telemetry, self.loaded.registry)
        security_meters(self.telemetry, self.security.counts, self.security.requests)
        self.telemetry.watch(
            "toktier.shadow.samples",
            "{sample}",
            "samples of the shadow verifier by what became of them",
            lambda: [
                (count, {"tokenizer": name, "outcome": outcome})
                for name, verifier in self.loaded.verifiers.items()
                for outcome, count in verifier.counts().items()
            ],
        )
        self.telemetry.watch(
            "toktier.engine.events",
            "{event}",
            "requests to engines, IDs compared and breakers, by outcome",
            lambda: [
                (count, {"event": event, "upstream": upstream, "reason": reason})
                for (event, upstream, reason), count in list(self.engine_events.items())
            ],
        )
        self.telemetry.watch(
            "toktier.passed_through",
            "{request}",
            "requests that went on as text, by reason",
            lambda: [(count, {"reason": reason}) for reason, count in list(self.http.passed_through.items())],
        )


def _connection_s(pods: PodSettings) -> float:
    """Short enough for every gRPC client to have left while this pod lingers; for ever where there are no others."""
    return max(CONNECTION_SHARE * pods.linger_s, 1.0) if pods.several and pods.linger_s else 0.0


async def _in_daemon(make: Callable[[], Made]) -> Made:
    """What `make` returns or raises, from a thread that nobody waits for once its caller has gone."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Made] = loop.create_future()

    def tell(set_: Callable[[], None]) -> None:
        if not made.done():
            set_()

    def run() -> None:
        try:
            found = make()
        except BaseException as error:
            loop.call_soon_threadsafe(tell, lambda error=error: made.set_exception(error))
        else:
            loop.call_soon_threadsafe(tell, lambda: made.set_result(found))

    threading.Thread(target=run, name="toktier-load", daemon=True).start()
    return await made


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequest("settings.value", f"{text!r} isn't HOST:PORT")
    return host.strip("[]"), int(port)
