"""SGLang over HTTP: the client's request goes on unchanged but for the token IDs, the reply comes back byte for byte.

Where the IDs go, by route:

    /v1/chat/completions   added as `input_ids`; the messages stay, SGLang takes stop strings and tools from them
    /v1/completions        in the place of `prompt`
    /generate              as `input_ids` in the place of `text`

A list of one text becomes a list of one list of IDs, so that the answer is a list, too, where SGLang's is one.

Guarantees:
 1. Nothing else in the request's body changes, and no byte of a reply's body does.
 2. The upstream's connection is closed as soon as the reply is closed: that is how SGLang learns of an abort.
 3. Every wait has an end: `Timeouts`, and one deadline over all attempts.
 4. Another upstream is asked only if nothing was sent to the one before.
 5. The prompt tokens that a reply counts are compared with the IDs sent. A server that counted others is sent text on
    that route for `distrust_s`. Equal counts are no proof (exact text gives the same count), and a stream counts only
    where the client asked for it, hence `probe_ids`.

Failures are `EngineFault`s, listed in `upstreams.py`. A reply with an error status is a reply: it is passed on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from ..core.errors import EngineFault, InvalidRequest
from ..ports import Clock
from .body import JsonBody
from .ids import CheckedIds, check_ids, ids_json
from .reply import End, Opened, Reply, end_to_end
from .upstreams import (
    DEFAULT_TIMEOUTS,
    Deadline,
    EngineEvent,
    Lease,
    Observe,
    Timeouts,
    Upstreams,
    observe_nothing,
    timeout_fault,
)
from .usage import Usage

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"

_REWRITTEN = frozenset({"host", "content-length", "accept-encoding", "expect"})
# Gateways say so when nothing serves behind them. A 500 may be one request's fault.
_UNHEALTHY = frozenset({502, 503, 504})
# SGLang closes an idle connection after 5 s; a request must not meet that moment.
_KEEPALIVE_S = 3.0
_MAX_PROBE_REPLY_BYTES = 1 << 20


def place_ids(path: str, body: JsonBody, ids: CheckedIds, *, listed: bool = False) -> bytes:
    """The request's body with the IDs where the route takes them; `listed`: in a list, for a list of one text.

    Raises `InvalidRequest`: `engine.route` (a route that takes none), `engine.prompt_kind` (a prompt that isn't one
    text), `body.has_member`, `body.lacks_member`.
    """
    if path == CHAT:
        return body.added("input_ids", ids_json(ids))
    if path not in (COMPLETIONS, GENERATE):
        raise InvalidRequest("engine.route", "this route takes no token IDs")
    key, new_key = ("prompt", "prompt") if path == COMPLETIONS else ("text", "input_ids")
    value = body.fields.get(key, "")
    if one_text(value) is None or isinstance(value, list) != listed:
        raise InvalidRequest("engine.prompt_kind", f"{key!r} is no text", member=key)
    text = ids_json(ids)
    return body.replaced(key, new_key, b"[" + text + b"]" if listed else text)


def one_text(value: object) -> str | None:
    """The text that a prompt is, or that a list holds as its only item."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, str) else None


class SGLangHttp:
    """Forwards requests to the upstreams, whose names are their base URLs. Belongs to one event loop."""

    def __init__(
        self,
        upstreams: Upstreams,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        headers: Iterable[tuple[str, str]] = (),
        distrust_s: float = 600.0,
        clock: Clock = time.monotonic,
        observe: Observe = observe_nothing,
    ) -> None:
        """`headers` are set on every request, in the place of the client's of that name (an API key, for one)."""
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._headers = end_to_end(list(headers))
        self._not_from_client = _REWRITTEN | {name for name, _ in self._headers}
        self._distrust_s = distrust_s
        self._clock = clock
        self._observe = observe
        self._distrusted: dict[tuple[str, str], float] = {}
        # `Upstreams` bounds the requests, so no pool has a queue; waits other than connecting are limited here.
        self._clients = {
            name: httpx.AsyncClient(
                base_url=name,
                timeout=httpx.Timeout(None, connect=timeouts.connect_s),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEEPALIVE_S),
                # One client's cookie from the engine must not reach it with another client's request.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                follow_redirects=False,
                trust_env=False,
            )
            for name in upstreams.names
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The upstreams."""
        return self._upstreams.names

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def forward(
        self,
        path: str,
        body: JsonBody | bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        input_ids: CheckedIds | None = None,
        listed: bool = False,
        session: str = "",
        total_s: float | None = None,
        method: str = "POST",
    ) -> Reply:
        """The upstream's reply, a streamed one with its first byte here; the caller closes it (`async with`).

        `session` stands for tenant and session in the choice of the upstream. Without `input_ids` the body goes as it
        is; `listed` as `place_ids` has it.

        Raises `InvalidRequest` (`engine.path`, `engine.header`, those of `place_ids`) and `EngineFault`.
        """
        if not path.startswith("/") or path.startswith("//"):
            raise InvalidRequest("engine.path", "no path of the engine's")
        text, streamed = (body, False) if isinstance(body, bytes) else (body.raw, body.fields.get("stream") is True)
        with_ids = text
        if input_ids is not None:
            if isinstance(body, bytes):
                raise InvalidRequest("body.not_json", "token IDs go into a JSON object only")
            with_ids = place_ids(path, body, input_ids, listed=listed)
        sent_headers = self._request_headers(headers)
        deadline = Deadline(self._timeouts.total_s if total_s is None else total_s, self._clock)
        tried: list[str] = []
        unreachable: EngineFault | None = None
        while True:
            try:
                lease = self._upstreams.lease(session, tried)
            except EngineFault as fault:
                if unreachable is not None:
                    raise unreachable from None
                self._observe(EngineEvent("request", "", fault.code))
                raise
            sent = input_ids
            if sent is not None and self.distrusts(lease.name, path):
                sent = None
                self._observe(EngineEvent("ids", lease.name, "ignored_before"))
            request = (method, path, text if sent is None else with_ids, sent_headers)
            try:
                opened = await self._open(lease, request, deadline, streamed=streamed)
            except EngineFault as fault:
                if fault.code != "engine.unreachable":
                    raise
                tried.append(lease.name)
                unreachable = fault
            else:
                finish = partial(self._finish, lease, path, sent, _healthy(opened))
                return Reply(opened, lease.name, deadline, self._timeouts.idle_s, finish)

    def distrusts(self, upstream: str, path: str) -> bool:
        """Whether the upstream was seen to ignore IDs on this route, lately."""
        until_s = self._distrusted.get((upstream, path))
        if until_s is not None and self._clock() >= until_s:
            del self._distrusted[upstream, path]
            return False
        return until_s is not None

    async def probe_ids(self, model: str, *, some_id: int = 0, total_s: float = 60.0) -> dict[str, bool | None]:
        """Whether each upstream uses the IDs of a chat request: asks for one token after 3 and after 5 IDs.

        None: no answer that tells. A server that ignores IDs counts the same for both, so one of them differs, and it
        is distrusted from then on; one that uses them is trusted again. `some_id` is an ID of the vocabulary.
        """
        found: dict[str, bool | None] = {}
        for name in self._upstreams.names:
            counts = [await self._probe(name, model, some_id, count, total_s) for count in (3, 5)]
            found[name] = None if None in counts else counts == [3, 5]
            if found[name]:
                self._distrusted.pop((name, CHAT), None)
            elif found[name] is False:
                self._distrust(name, CHAT)
        return found

    async def _probe(self, name: str, model: str, some_id: int, count: int, total_s: float) -> int | None:
        """The prompt tokens counted for a chat request with that many IDs."""
        message = {"role": "user", "content": "a"}
        asked = {"model": model, "messages": [message], "max_tokens": 1, "temperature": 0}
        ids = check_ids([some_id] * count, some_id + 1)
        content = place_ids(CHAT, JsonBody.parse(json.dumps(asked).encode()), ids)
        reply = await self.ask(name, CHAT, content, total_s=total_s, max_bytes=_MAX_PROBE_REPLY_BYTES)
        return reply[1].prompt_tokens if reply is not None and reply[1] is not None else None

    async def ask(
        self, name: str, path: str, content: bytes, *, total_s: float = 60.0, max_bytes: int = _MAX_PROBE_REPLY_BYTES
    ) -> tuple[bytes, Usage | None] | None:
        """A question of the tier's own to that upstream: its answer, if it is one."""
        request = ("POST", path, content, self._request_headers([("content-type", "application/json")]))
        deadline = Deadline(total_s, self._clock)
        others = [each for each in self._upstreams.names if each != name]
        try:
            lease = self._upstreams.lease("probe", others)
            opened = await self._open(lease, request, deadline, streamed=False)
            finish = partial(self._finish, lease, path, None, _healthy(opened))
            async with Reply(opened, name, deadline, self._timeouts.idle_s, finish) as reply:
                answer = await reply.read(max_bytes)
        except EngineFault as fault:
            self._observe(EngineEvent("question", name, fault.code))
            return None
        return (answer, reply.usage) if reply.status == 200 else None

    def _request_headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        kept = end_to_end(list(headers), also_without=self._not_from_client)
        return [*kept, *self._headers, ("accept-encoding", "identity")]

    async def _open(
        self,
        lease: Lease,
        request: tuple[str, str, bytes, list[tuple[str, str]]],
        deadline: Deadline,
        *,
        streamed: bool,
    ) -> Opened:
        """Sends (method, path, content, headers); on any error the lease is closed and the upstream judged."""
        limit_s, phase = deadline.limit(self._timeouts.first_byte_s if streamed else float("inf"), "first_byte")
        response: httpx.Response | None = None
        try:
            async with asyncio.timeout(limit_s):
                response = await self._respond(lease.name, request)
                chunks = response.aiter_raw()
                first = await anext(chunks, b"") if streamed else b""
        except BaseException as error:
            fault = _fault(error, phase, lease.name)
            # The caller's own short limit says nothing about the engine.
            patient = phase == "first_byte" or deadline.total_s >= self._timeouts.first_byte_s
            if fault is None:
                lease.close()
            else:
                self._fail(lease, fault, blamed=patient or not isinstance(error, TimeoutError))
            if response is not None:
                await response.aclose()
            if fault is None:
                raise
            raise fault from error
        opened = Opened(response, chunks, first)
        if _healthy(opened):
            lease.answered()
        else:
            lease.failed()
        return opened

    async def _respond(self, name: str, request: tuple[str, str, bytes, list[tuple[str, str]]]) -> httpx.Response:
        method, path, content, headers = request
        client = self._clients[name]
        try:
            built = client.build_request(method, path, content=content, headers=headers)
            return await client.send(built, stream=True)
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError) as error:
            raise InvalidRequest("engine.header", "a header or path that can't be sent") from error

    def _finish(self, lease: Lease, path: str, sent: CheckedIds | None, healthy: bool, end: End) -> str:
        """What a reply's end says about the upstream; returns how the counted tokens fit the IDs sent."""
        if end.fault is not None:
            self._fail(lease, end.fault, blamed=end.fault.details.get("phase") != "total")
        else:
            if end.whole and healthy:
                lease.ended_well()
            lease.close()
            self._observe(EngineEvent("request", lease.name, "ok" if end.whole else "closed_early"))
        if end.whole and end.end_mark is False:
            self._observe(EngineEvent("reply", lease.name, "no_end_mark"))
        if sent is None:
            return "not_sent"
        if end.usage is None:
            verdict = "unknown"
        elif end.usage.prompt_tokens == len(sent):
            verdict = "matched"
        else:
            verdict = "mismatched"
            self._distrust(lease.name, path)
        self._observe(EngineEvent("ids", lease.name, verdict))
        return verdict

    def _fail(self, lease: Lease, fault: EngineFault, *, blamed: bool) -> None:
        if blamed:
            lease.failed()
        lease.close()
        self._observe(EngineEvent("request", lease.name, fault.code))

    def _distrust(self, upstream: str, path: str) -> None:
        self._distrusted[upstream, path] = self._clock() + self._distrust_s


def _healthy(opened: Opened) -> bool:
    return opened.response.status_code not in _UNHEALTHY


def _fault(error: BaseException, phase: str, upstream: str) -> EngineFault | None:
    """What an error before the reply's first byte means; None if it isn't the engine's."""
    match error:
        case TimeoutError():
            return timeout_fault(phase, upstream)
        case httpx.ConnectTimeout():
            return EngineFault("engine.unreachable", "no connection in time", upstream=upstream)
        case httpx.ConnectError():
            return EngineFault("engine.unreachable", "no connection", upstream=upstream)
        case httpx.ProtocolError():
            return EngineFault("engine.cut", "the engine sent no proper reply", upstream=upstream)
        case httpx.TransportError():
            return EngineFault("engine.cut", "the connection broke", upstream=upstream)
        case _:
            return None
