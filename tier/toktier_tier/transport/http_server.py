"""SGLang's HTTP interface with the tier in it: requests go on with their token IDs, replies come back as they are.

Guarantees: what SGLang gets is the client's body plus the IDs, or, where the tier can't be sure, the body alone
(counted by reason); replies are streamed through byte for byte; a client that goes away closes the upstream's request;
every error of the tier's own is JSON with its code, and has changed nothing. Sessions are those of the tenant of the
request's credential; what a request says of tenants otherwise counts for nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import time
from typing import Any, TypeVar
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
from .as_text import kept_as_text
from .generate import generate, sampling_of
from .http_admission import Door, HttpRules, entered_of
from .identity import Identities
from .limits import Limits
from .openapi import description
from .prompts import Prompt, Prompts
from .status import Late, http_headers, http_status, told
from .streams import ClosingStream
from .tenants import TENANT_KEY

SESSION_HEADER = "x-toktier-session"
_OWN_HEADERS = frozenset({SESSION_HEADER, TENANT_KEY, "traceparent", "tracestate"})
AUTHORIZATION = "authorization"
DEFAULT_RULES = HttpRules()

_AS_TEXT = {
    "/v1/messages": "messages.as_text",
    "/v1/messages/count_tokens": "messages.as_text",
    "/v1/responses": "responses.as_text",
}
"""Routes that the engine serves by itself, and the reasons that such requests are counted by."""
_TEXT_MEMBERS = {COMPLETIONS: "prompt", GENERATE: "text"}

Answer = TypeVar("Answer")
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
        identities: Identities | None = None,
        limits: Limits | None = None,
        rules: HttpRules = DEFAULT_RULES,
    ) -> None:
        self._prompts, self._telemetry = prompts, telemetry
        self._door = Door(identities or Identities(), limits or Limits(), rules)
        self._rules = rules
        self._own_headers = _OWN_HEADERS if rules.pass_authorization else _OWN_HEADERS | {AUTHORIZATION}
        self._engine = engine if isinstance(engine, SGLangHttp) else None
        self._grpc = engine if isinstance(engine, SGLangGrpc) else None
        self._ready = ready
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
            **{path: self._as_text(path, reason) for path, reason in _AS_TEXT.items()},
        }
        opened: dict[str, Handler] = {
            "/health": self._health,
            "/ready": self._readiness,
            "/metrics": self._metrics,
            "/openapi.json": self._description,
        }
        self.app = Starlette(
            routes=[
                *(Route(path, self._coded(path, self._let_in(each)), methods=["POST"]) for path, each in posts.items()),
                Route("/v1/models", self._coded("/v1/models", self._let_in(self._models)), methods=["GET"]),
                *(Route(path, self._coded(path, each), methods=["GET"]) for path, each in opened.items()),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
        )

    def _let_in(self, handler: Handler) -> Handler:
        """For those only who have a credential, and within the limits."""

        async def let_in(request: Request) -> Response:
            entered = self._door.enter(request)
            try:
                return await handler(request)
            finally:
                entered.leave()

        return let_in

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
        body = await self._door.body(request)
        if "input_ids" in body.fields:
            return await self._forward(request, body, CHAT, PassThrough("chat.has_ids", "the client gave IDs"))
        found = await self._within(self._prompts.chat(body.fields, _tenant(request), _named(request), len(body.raw)))
        return await self._forward(request, body, CHAT, found)

    async def _completions(self, request: Request) -> Response:
        body = await self._door.body(request)
        found = await self._text(request, body.fields, COMPLETIONS, "prompt")
        return await self._forward(request, body, COMPLETIONS, found)

    async def _generate(self, request: Request) -> Response:
        body = await self._door.body(request)
        if self._grpc is not None:
            return await self._generate_by_grpc(self._grpc, request, body.fields)
        if "input_ids" in body.fields:
            return await self._forward(request, body, GENERATE, PassThrough("text.has_ids", "the client gave IDs"))
        found = await self._text(request, body.fields, GENERATE, "text")
        return await self._forward(request, body, GENERATE, found)

    async def _text(self, request: Request, fields: Mapping[str, Any], path: str, key: str) -> Prompt | PassThrough:
        kept = kept_as_text(path, fields)
        if kept is not None:
            return kept
        return await self._within(self._prompts.text(fields, key, _tenant(request), _named(request)))

    async def _generate_by_grpc(self, engine: SGLangGrpc, request: Request, fields: Mapping[str, Any]) -> Response:
        reference = self._prompts.model(fields).served.tokenizer.reference
        given = fields.get("input_ids")
        if given is not None:
            ids, session = check_ids(given, reference.id_limit), ""
        else:
            found = await self._text(request, fields, GENERATE, "text")
            if isinstance(fields.get("text"), list):
                found = PassThrough("text.not_one_text", "over gRPC a prompt is one text, not a list")
            if isinstance(found, PassThrough):
                raise InvalidRequest(found.reason, found.detail)
            ids, session = found.ids, _affinity(request, found)
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

    def _as_text(self, path: str, reason: str) -> Handler:
        """Other forms of chats: as SGLang serves them."""

        async def forward(request: Request) -> Response:
            body = await self._door.body(request)
            return await self._forward(request, body, path, PassThrough(reason, "not rendered here"))

        return forward

    async def _forward(self, request: Request, body: JsonBody, path: str, found: Prompt | PassThrough) -> Response:
        if self._engine is None:
            if self._grpc is not None:
                raise InvalidRequest("engine.route", "the engine speaks gRPC: it serves /generate only")
            raise EngineFault("engine.none", "this tier has no engine behind it")
        session = ""
        if isinstance(found, PassThrough):
            self._count(found.reason)
        else:
            session = _affinity(request, found)
        headers = [(name, value) for name, value in request.headers.items() if name not in self._own_headers]
        with self._telemetry.span("hand over"):
            headers += self._telemetry.headers().items()
            ids = None if isinstance(found, PassThrough) else found.ids
            listed = ids is not None and isinstance(body.fields.get(_TEXT_MEMBERS.get(path, "")), list)
            reply = await self._engine.forward(path, body, headers, input_ids=ids, listed=listed, session=session)
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
        body = await self._door.body(request)
        found = await self._within(self._prompts.chat(body.fields, _tenant(request), _named(request), len(body.raw)))
        if isinstance(found, PassThrough):
            raise InvalidRequest(found.reason, found.detail or "the tier passes such requests on as text")
        name = body.fields.get("model", "")
        answer = {
            "request_id": f"chatcmpl-{uuid4().hex}",
            "model": name if isinstance(name, str) else "",
            "token_ids": found.ids.array.tolist(),
            "features": None,
            "route": found.patch.route.value,
            "reason": found.patch.reason.value,
            "revision": found.patch.revision,
        }
        return JSONResponse(answer)

    async def _tokenize(self, request: Request) -> Response:
        fields = (await self._door.body(request)).fields
        if (fields.get("prompt") is None) == (fields.get("messages") is None):
            raise InvalidRequest("tokenize.one_of", "either a prompt or messages")
        if fields.get("messages") is not None:
            return await self._tokenize_chat(request, fields)
        prompt, special = fields["prompt"], fields.get("add_special_tokens", True)
        prompts = prompt if isinstance(prompt, list) else [prompt]
        if not all(isinstance(each, str) for each in prompts) or not isinstance(special, bool):
            raise InvalidRequest("tokenize.types", "a prompt is a text or a list of texts")
        tokens = await self._within(self._encoded(fields, prompts, special))
        counts = [len(each) for each in tokens]
        if not isinstance(prompt, list):
            return JSONResponse({"tokens": tokens[0], "count": counts[0], "max_model_len": -1})
        return JSONResponse({"tokens": tokens, "count": counts, "max_model_len": -1})

    async def _tokenize_chat(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Without `add_generation_prompt` as for a completion; with it the messages as they are, and special tokens
        where they are asked for by name."""
        generation, special = fields.get("add_generation_prompt"), fields.get("add_special_tokens", False)
        if not isinstance(generation, bool | None) or not isinstance(special, bool):
            raise InvalidRequest("tokenize.types", "add_generation_prompt and add_special_tokens are true or false")
        special = special and generation is not None
        if fields.get("continue_final_message") and (generation is False or special):
            raise InvalidRequest("tokenize.continuation", "an answer to continue is behind a generation prompt only")
        work = self._prompts.chat(fields, _tenant(request), _named(request), 1 << 30, generation, special=special)
        found = await self._within(work)
        if isinstance(found, PassThrough):
            raise InvalidRequest(found.reason, found.detail)
        return JSONResponse({"tokens": found.ids.array.tolist(), "count": len(found.ids), "max_model_len": -1})

    async def _detokenize(self, request: Request) -> Response:
        fields = (await self._door.body(request)).fields
        tokens, skip = fields.get("tokens"), fields.get("skip_special_tokens", True)
        if not isinstance(tokens, list) or not isinstance(skip, bool):
            raise InvalidRequest("detokenize.types", "tokens are a list of IDs, or a list of such lists")
        reference = self._prompts.model(fields).served.tokenizer.reference
        many = bool(tokens) and all(isinstance(each, list) for each in tokens)
        lists = tokens if many else [tokens]
        checked = [check_ids(each, reference.id_limit) if each else None for each in lists]

        def decode() -> list[str]:
            return [reference.decode(each.array, skip_special_tokens=skip) if each else "" for each in checked]

        texts = await self._within(self._prompts.work.for_size(sum(map(len, lists)), decode))
        return JSONResponse({"text": texts if many else texts[0]})

    # --- about the tier ---------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readiness(self, request: Request) -> Response:
        ready = self._ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        if not self._rules.open_metrics:
            self._door.check(request)
        return Response(self._telemetry.page(), media_type=CONTENT_TYPE_LATEST)

    async def _description(self, request: Request) -> Response:
        return JSONResponse(description())

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _encoded(self, fields: Mapping[str, Any], texts: list[str], special: bool) -> list[list[int]]:
        return [await self._prompts.encoded(fields, each, special=special) for each in texts]

    async def _within(self, work: Awaitable[Answer]) -> Answer:
        """Raises `Late` (`tier.late`) where the IDs take too long: more waits than is worked off."""
        try:
            async with asyncio.timeout(self._rules.ids_s):
                return await work
        except TimeoutError:
            raise Late("tier.late", "the IDs weren't made in time", limit_s=self._rules.ids_s) from None

    def _count(self, reason: str) -> None:
        self.passed_through[reason] = self.passed_through.get(reason, 0) + 1


def _named(request: Request) -> str:
    return request.headers.get(SESSION_HEADER, "")


def _tenant(request: Request) -> str:
    return entered_of(request).tenant


def _affinity(request: Request, found: Prompt) -> str:
    """What the engine is chosen by: tenants hold no line break, so no two sessions share it."""
    return f"{_tenant(request)}\n{found.placed}"


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
    status, headers = http_status(error), http_headers(error)
    document = {"message": error.message, "type": type(error).__name__, "code": error.code, "details": error.details}
    return JSONResponse(json.loads(json.dumps({"error": document}, default=str)), status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    document = {"message": "the tier doesn't serve this route", "type": "InvalidRequest", "code": "http.no_route"}
    return JSONResponse({"error": document}, 404)
