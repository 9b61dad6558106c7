"""SGLang's HTTP interface with the tier in it: requests go on with their token IDs, replies come back as they are.

Guarantees: what SGLang gets is the client's body plus the IDs, or, where the tier can't be sure, the body alone
(counted by reason); replies are streamed through byte for byte; a client that goes away closes the upstream's request;
every error of the tier's own is JSON with its code, and has changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import time
from typing import Any
from uuid import uuid4

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..core.errors import EngineFault, InvalidRequest, TierError
from ..engine.body import JsonBody
from ..engine.chat_template import PassThrough
from ..engine.ids import check_ids
from ..engine.reply import Reply
from ..engine.sglang_grpc import SGLangGrpc
from ..engine.sglang_http import CHAT, COMPLETIONS, GENERATE, SGLangHttp
from ..telemetry import Telemetry
from .generate import generate, sampling_of
from .prompts import Prompt, Prompts
from .status import http_status, told
from .streams import ClosingStream
from .work import TENANT

MAX_BODY_BYTES = 256 << 20
SESSION_HEADER = "x-toktier-session"
_OWN_HEADERS = frozenset({SESSION_HEADER, "traceparent", "tracestate"})

Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """The routes; `app` is the ASGI application. Without an engine only IDs are served; one that speaks gRPC takes
    `/generate` only.
    """

    def __init__(
        self,
        prompts: Prompts,
        engine: SGLangHttp | SGLangGrpc | None,
        telemetry: Telemetry,
        *,
        ready: Callable[[], bool] = lambda: True,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._prompts, self._telemetry = prompts, telemetry
        self._engine = engine if isinstance(engine, SGLangHttp) else None
        self._grpc = engine if isinstance(engine, SGLangGrpc) else None
        self._ready, self._max_body_bytes = ready, max_body_bytes
        self.passed_through: dict[str, int] = {}
        posts: dict[str, Handler] = {
            CHAT: self._chat,
            COMPLETIONS: self._completions,
            GENERATE: self._generate,
            f"{CHAT}/render": self._render,
            "/tokenize": self._tokenize,
            "/v1/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/detokenize": self._detokenize,
            "/v1/messages": self._messages,
        }
        gets: dict[str, Handler] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/ready": self._readiness,
            "/metrics": self._metrics,
        }
        self.app = Starlette(
            routes=[
                *(Route(path, self._coded(path, handler), methods=["POST"]) for path, handler in posts.items()),
                *(Route(path, self._coded(path, handler), methods=["GET"]) for path, handler in gets.items()),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
        )

    def _coded(self, path: str, handler: Handler) -> Handler:
        telemetry = self._telemetry

        async def coded(request: Request) -> Response:
            try:
                with telemetry.receive(f"{request.method} {path}", lambda: dict(request.headers)):
                    return await handler(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                found = told(error)
                telemetry.failed(path, found.code)
                return _error(found)

        return coded

    # --- with SGLang behind -----------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        if "input_ids" in body.fields:
            return await self._forward(request, body, CHAT, PassThrough("chat.has_ids", "the client gave IDs"))
        found = await self._prompts.chat(body.fields, TENANT, _named(request), len(body.raw))
        return await self._forward(request, body, CHAT, found)

    async def _completions(self, request: Request) -> Response:
        body = await self._body(request)
        found = await self._prompts.text(body.fields, "prompt", TENANT, _named(request))
        return await self._forward(request, body, COMPLETIONS, found)

    async def _generate(self, request: Request) -> Response:
        body = await self._body(request)
        if self._grpc is not None:
            return await self._generate_by_grpc(self._grpc, request, body.fields)
        if "input_ids" in body.fields:
            return await self._forward(request, body, GENERATE, PassThrough("text.has_ids", "the client gave IDs"))
        found = await self._prompts.text(body.fields, "text", TENANT, _named(request))
        return await self._forward(request, body, GENERATE, found)

    async def _generate_by_grpc(self, engine: SGLangGrpc, request: Request, fields: Mapping[str, Any]) -> Response:
        reference = self._prompts.model(fields).served.tokenizer.reference
        given = fields.get("input_ids")
        if given is not None:
            ids, session = check_ids(given, reference.id_limit), ""
        else:
            found = await self._prompts.text(fields, "text", TENANT, _named(request))
            if isinstance(found, PassThrough):
                raise InvalidRequest(found.reason, found.detail)
            ids, session = found.ids, f"{TENANT}/{found.session}"
        skip = sampling_of(fields).skip_special_tokens
        with self._telemetry.span("hand over"):
            trace = self._telemetry.headers()
            return await generate(
                engine,
                ids,
                fields,
                lambda output: reference.decode(output, skip_special_tokens=skip),
                session=session,
                trace=trace,
            )

    async def _messages(self, request: Request) -> Response:
        """Anthropic's form: as SGLang serves it."""
        body = await self._body(request)
        return await self._forward(request, body, "/v1/messages", PassThrough("messages.as_text", "not rendered here"))

    async def _forward(self, request: Request, body: JsonBody, path: str, found: Prompt | PassThrough) -> Response:
        if self._engine is None:
            if self._grpc is not None:
                raise InvalidRequest("engine.route", "the engine speaks gRPC: it serves /generate only")
            raise EngineFault("engine.none", "this tier has no engine behind it")
        session = ""
        if isinstance(found, PassThrough):
            self._count(found.reason)
        else:
            session = f"{TENANT}/{found.session}"
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
        with self._telemetry.span("hand over"):
            headers += self._telemetry.headers().items()
            reply = await self._engine.forward(
                path, body, headers, input_ids=None if isinstance(found, PassThrough) else found.ids, session=session
            )
        return _streamed(reply)

    async def _models(self, request: Request) -> Response:
        if self._engine is not None:
            return _streamed(await self._engine.forward("/v1/models", method="GET"))
        names = [name for served in self._prompts.registry for name in (served.models or (served.name,))]
        entries = [{"id": name, "object": "model", "created": int(time()), "owned_by": "toktier"} for name in names]
        return JSONResponse({"object": "list", "data": entries})

    # --- IDs only ---------------------------------------------------------------------------------------------------

    async def _render(self, request: Request) -> Response:
        """The IDs of a chat request, for those who hand them over themselves."""
        body = await self._body(request)
        found = await self._prompts.chat(body.fields, TENANT, _named(request), len(body.raw))
        if isinstance(found, PassThrough):
            raise InvalidRequest(found.reason, found.detail or "the tier passes such requests on as text")
        answer = {
            "request_id": f"chatcmpl-{uuid4().hex}",
            "model": body.fields.get("model", ""),
            "token_ids": found.ids.array.tolist(),
            "features": None,
            "route": found.patch.route.value,
            "reason": found.patch.reason.value,
            "revision": found.patch.revision,
        }
        return JSONResponse(answer)

    async def _tokenize(self, request: Request) -> Response:
        fields = (await self._body(request)).fields
        if ("prompt" in fields) == ("messages" in fields):
            raise InvalidRequest("tokenize.one_of", "either a prompt or messages")
        if "messages" in fields:
            found = await self._prompts.chat(fields, TENANT, _named(request), 1 << 30)
            if isinstance(found, PassThrough):
                raise InvalidRequest(found.reason, found.detail)
            return JSONResponse({"tokens": found.ids.array.tolist(), "count": len(found.ids), "max_model_len": -1})
        prompt, special = fields["prompt"], fields.get("add_special_tokens", True)
        prompts = prompt if isinstance(prompt, list) else [prompt]
        if not all(isinstance(each, str) for each in prompts) or not isinstance(special, bool):
            raise InvalidRequest("tokenize.types", "a prompt is a text or a list of texts")
        tokens = [await self._prompts.encoded(fields, each, special=special) for each in prompts]
        counts = [len(each) for each in tokens]
        if not isinstance(prompt, list):
            return JSONResponse({"tokens": tokens[0], "count": counts[0], "max_model_len": -1})
        return JSONResponse({"tokens": tokens, "count": counts, "max_model_len": -1})

    async def _detokenize(self, request: Request) -> Response:
        fields = (await self._body(request)).fields
        tokens, skip = fields.get("tokens"), fields.get("skip_special_tokens", True)
        if not isinstance(tokens, list) or not isinstance(skip, bool):
            raise InvalidRequest("detokenize.types", "tokens are a list of IDs, or a list of such lists")
        reference = self._prompts.model(fields).served.tokenizer.reference
        many = bool(tokens) and all(isinstance(each, list) for each in tokens)
        lists = tokens if many else [tokens]
        checked = [check_ids(each, reference.id_limit) if each else None for each in lists]
        texts = [reference.decode(each.array, skip_special_tokens=skip) if each else "" for each in checked]
        return JSONResponse({"text": texts if many else texts[0]})

    # --- about the tier ---------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readiness(self, request: Request) -> Response:
        ready = self._ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._telemetry.page(), media_type=CONTENT_TYPE_LATEST)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> JsonBody:
        """Raises `InvalidRequest`: `text.too_long` beyond the limit, and those of `JsonBody.parse`."""
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body_bytes:
                raise InvalidRequest("text.too_long", "the request's body is too large", limit=self._max_body_bytes)
            parts.append(part)
        return JsonBody.parse(b"".join(parts))

    def _count(self, reason: str) -> None:
        self.passed_through[reason] = self.passed_through.get(reason, 0) + 1


def _named(request: Request) -> str:
    return request.headers.get(SESSION_HEADER, "")


def _streamed(reply: Reply) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        async with reply:
            async for chunk in reply:
                yield chunk

    response = ClosingStream(chunks(), reply.aclose, reply.status)
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return response


def _error(error: TierError) -> JSONResponse:
    """In OpenAI's form, with the tier's code."""
    status = http_status(error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    document = {"message": error.message, "type": type(error).__name__, "code": error.code, "details": error.details}
    return JSONResponse(json.loads(json.dumps({"error": document}, default=str)), status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    document = {"message": "the tier doesn't serve this route", "type": "InvalidRequest", "code": "http.no_route"}
    return JSONResponse({"error": document}, 404)
