"""A tier in service: everything built from the settings, started, and ended in order.

On SIGTERM or SIGINT: no new requests, the running ones end, sessions are left to their time, spans are sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from .app import open_tokenizer
from .core.errors import InvalidRequest, InvalidTokenizer
from .engine.chat_files import load_chat_template
from .engine.chat_template import ChatRenderer, Server
from .engine.sglang_grpc import SGLangGrpc
from .engine.sglang_http import SGLangHttp
from .engine.upstreams import EngineEvent, Timeouts, Upstreams
from .engine.wires import NativeWire, SmgWire
from .sessions.registry import Registry, Served
from .sessions.service import SessionService
from .settings import TierSettings, TokenizerSettings, UpstreamSettings, faults_allowed
from .shadow.evidence import EvidenceFolder
from .shadow.faults import plant_wrong_ids
from .shadow.sampler import Sampler
from .shadow.verifier import Verifier
from .sources import default_cache_dir
from .telemetry import Telemetry, registry_meters
from .transport.agreement import agrees
from .transport.grpc_server import GrpcServer, TokenizerServicer
from .transport.http_server import HttpServer
from .transport.prompts import Prompts
from .transport.work import TENANT, Work

STOP_S = 10.0
PROBE_EVERY_S = 300.0
log = logging.getLogger("toktier")


class _Uvicorn(uvicorn.Server):
    """Without signal handlers of its own, which would end the process before the rest of the tier has ended."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        self.should_exit = True


class Tier:
    """What `settings` ask for. `run` serves until a signal; `start` and `stop` are for those who embed it.

    Made in the event loop that it serves in; tokenizers without a compiled snapshot are admitted before that returns.
    """

    def __init__(self, settings: TierSettings) -> None:
        self.settings = settings
        self.verifiers: dict[str, Verifier] = {}
        self.registry = Registry([self._served(each) for each in settings.tokenizers])
        found = {each.name: self._renderer(each) for each in settings.tokenizers if each.chat_template}
        renderers = {name: renderer for name, renderer in found.items() if renderer is not None}
        self.work = Work(settings.threads, settings.waiting)
        spans = settings.telemetry
        exporter = OTLPSpanExporter(endpoint=spans.otlp, insecure=spans.otlp_insecure) if spans.otlp else None
        self.telemetry = Telemetry(span_exporter=exporter, trace_ratio=spans.trace_ratio)
        self.engine_events: dict[tuple[str, str, str], int] = {}
        self.engine = self._engine(settings.upstream)
        self.prompts = Prompts(self.registry, renderers, self.work, self.telemetry)
        self.http = HttpServer(self.prompts, self.engine, self.telemetry)
        self.grpc: GrpcServer | None = None
        self._probing: asyncio.Task[None] | None = None
        self._watch()

    async def run(self) -> None:
        """Serve both addresses until a signal ends it."""
        host, port = _address(self.settings.http)
        config = uvicorn.Config(
            self.http.app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=int(STOP_S)
        )
        server = _Uvicorn(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.end)
        await self.start()
        try:
            await server.serve()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Everything but the HTTP server, which `run` or an embedding server brings."""
        for verifier in self.verifiers.values():
            verifier.start()
        self.grpc = GrpcServer(TokenizerServicer(self.registry, self.work, self.telemetry), self.settings.grpc)
        await self.grpc.start()
        if isinstance(self.engine, SGLangHttp):
            self._probing = asyncio.create_task(self._probe(self.engine))
        log.warning("serving gRPC on port %d, HTTP on %s", self.grpc.port, self.settings.http)

    async def _probe(self, engine: SGLangHttp) -> None:
        """Ask the engines now and then whether they use IDs, and make the same of chats: traffic doesn't tell."""
        while True:
            for model in self.prompts.models():
                name = model.served.models[0] if model.served.models else model.served.name
                for upstream, uses in (await engine.probe_ids(name)).items():
                    if uses is False:
                        log.error("engine %s ignores token IDs: it gets text", upstream)
                if model.agrees and await agrees(self.prompts, engine, name, TENANT) is False:
                    model.agrees = False
                    log.error("tokenizer %s: the engine renders chats otherwise, they go on as text", model.served.name)
            await asyncio.sleep(PROBE_EVERY_S)

    async def stop(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        if self.grpc is not None:
            await self.grpc.stop(STOP_S)
        if self.engine is not None:
            await self.engine.aclose()
        for verifier in self.verifiers.values():
            verifier.stop(1.0)
        self.work.close()
        self.telemetry.close()

    def _served(self, each: TokenizerSettings) -> Served:
        settings = self.settings
        directory = Path(settings.compiled_dir) if settings.compiled_dir else default_cache_dir() / "compiled"
        tokenizer = open_tokenizer(
            each.source, policy=each.special_tokens, compiled_dir=directory, budget_s=settings.admission_s
        )
        shadow, limits = settings.shadow, settings.sessions
        if shadow.fault_rate:
            plant_wrong_ids(tokenizer, rate=shadow.fault_rate, seed=0, allow=faults_allowed())
        verifier = Verifier(
            tokenizer,
            queue_samples=shadow.queue,
            queue_bytes=shadow.queue_bytes,
            evidence=EvidenceFolder(Path(shadow.samples) if shadow.samples else None, redact=shadow.redact),
            on_divergence=lambda found: log.error("tokenizer %s: quarantined, %r", each.name, found),
        )
        self.verifiers[each.name] = verifier
        sessions = SessionService(
            tokenizer,
            budget_bytes=limits.budget_bytes,
            ttl_s=limits.ttl_s,
            keep_text=limits.keep_text,
            max_text_chars=limits.max_text_chars,
            observer=Sampler(verifier, rate=shadow.rate, randomness=random.Random()),
            on_quarantine=lambda reason: log.error("tokenizer %s: quarantined, %s", each.name, reason),
        )
        return Served(each.name, each.models, tokenizer, sessions)

    def _renderer(self, each: TokenizerSettings) -> ChatRenderer | None:
        """None where SGLang would know a special token that the tokenizer.json doesn't: it then matches in text."""
        template = load_chat_template(Path(each.chat_template))
        reference = self.registry.find(each.name).tokenizer.reference
        known = {token.content for token in reference.added_tokens()}
        unknown = sorted(set(template.special_tokens.values()) - known)
        if unknown:
            log.error("tokenizer %s: chats go on as text, %s are no added tokens", each.name, unknown[:5])
            return None
        prefix, suffix = reference.fixed_template()
        bos = template.special_tokens.get("bos_token", "")
        model = _model_config(Path(each.chat_template))
        return ChatRenderer(
            template.text,
            special_tokens=template.special_tokens,
            server=Server(
                empty_text_ids=prefix + suffix,
                bos_id=reference.id_of(bos) if bos else None,
                model_type=str(model.get("model_type", "")),
                architecture=str(next(iter(model.get("architectures") or ()), "")),
                reasoning_parser=each.reasoning_parser or None,
                tool_call_parser=each.tool_call_parser or None,
            ),
            content_format=template.content_format,
            message_ends=0,
        )

    def _engine(self, upstream: UpstreamSettings) -> SGLangHttp | SGLangGrpc | None:
        if not upstream.urls:
            return None
        timeouts = Timeouts(upstream.connect_s, upstream.first_byte_s, upstream.idle_s, upstream.total_s)
        upstreams = Upstreams([url.rstrip("/") for url in upstream.urls], observe=self._note)
        if upstream.protocol == "http":
            return SGLangHttp(upstreams, timeouts=timeouts, observe=self._note)
        wire = SmgWire() if upstream.protocol == "smg" else NativeWire()
        return SGLangGrpc(upstreams, wire, timeouts=timeouts, observe=self._note)

    def _note(self, event: EngineEvent) -> None:
        key = (event.name, event.upstream, event.reason)
        self.engine_events[key] = self.engine_events.get(key, 0) + 1

    def _watch(self) -> None:
        registry_meters(self.telemetry, self.registry)
        self.telemetry.watch(
            "toktier.shadow.samples",
            "{sample}",
            "samples of the shadow verifier by what became of them",
            lambda: [
                (count, {"tokenizer": name, "outcome": outcome})
                for name, verifier in self.verifiers.items()
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


def _model_config(directory: Path) -> dict[str, Any]:
    """The model's config.json, if it lies there: some models' chats SGLang encodes in its own way."""
    try:
        document = json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidTokenizer("chat.config", f"the model's config.json can't be read: {error}"[:200]) from None
    return document if isinstance(document, dict) else {}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequest("settings.value", f"{text!r} isn't HOST:PORT")
    return host.strip("[]"), int(port)
