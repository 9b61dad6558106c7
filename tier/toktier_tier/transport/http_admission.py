"""What stands before a route: who asks, whether the tier takes on one more request, and its body within time and size.

Nothing of a body is read before its sender is known, and no more of it than the limits allow.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request

from ..core.errors import InvalidRequest
from ..engine.body import JsonBody
from .identity import NO_NAMES, Identities
from .limits import Limits
from .status import Late, Unauthenticated
from .tenants import ClientNames, Identity

MAX_BODY_BYTES = 256 << 20
NAMES_STATE = "client_names"
"""Of a connection's state: `ClientNames` of its verified certificate, or None."""


@dataclass(frozen=True, slots=True)
class HttpRules:
    """body_bytes, body_s: the largest body, and how long it may take to come
    ids_s: how long a request may wait for its IDs
    open_metrics: whether `/metrics` needs no credential
    pass_authorization: whether a client's `Authorization` goes on to the engine
    client_certificates: whether all but the open routes need one
    """

    body_bytes: int = MAX_BODY_BYTES
    body_s: float = 60.0
    ids_s: float = 60.0
    open_metrics: bool = True
    pass_authorization: bool = True
    client_certificates: bool = False


class Entered:
    """A request that is being worked on, for `tenant`; `leave` ends it."""

    __slots__ = ("_bytes", "_limits", "_load", "tenant")

    def __init__(self, limits: Limits, tenant: str) -> None:
        self._limits, self.tenant, self._bytes = limits, tenant, 0
        self._load = limits.enter(tenant, 0)

    def grow(self, size_bytes: int) -> None:
        self._limits.grow(self._load, size_bytes)
        self._bytes += size_bytes

    def leave(self) -> None:
        self._limits.leave(self._load, self._bytes)


class Door:
    """Lets requests in, by `identities`, `limits` and `rules`."""

    def __init__(self, identities: Identities, limits: Limits, rules: HttpRules) -> None:
        self._identities, self._limits, self._rules = identities, limits, rules

    def enter(self, request: Request) -> Entered:
        """Raises `Unauthenticated` and `Overloaded`."""
        entered = Entered(self._limits, self._who(request).tenant)
        request.state.entered = entered
        return entered

    def check(self, request: Request) -> None:
        """Only who it is. Raises `Unauthenticated`."""
        self._who(request)

    def _who(self, request: Request) -> Identity:
        names: ClientNames | None = request.scope.get("state", {}).get(NAMES_STATE)
        if self._rules.client_certificates and names is None:
            raise Unauthenticated("auth.no_certificate", "a client certificate is needed")
        return self._identities.of(request.headers.get("authorization"), None, lambda: names or NO_NAMES)

    async def body(self, request: Request) -> JsonBody:
        """Raises `InvalidRequest` (`text.too_long` beyond the limit), `Late` (`body.late`), `Overloaded`
        (`limits.tenant_bytes`) and what `JsonBody.parse` raises."""
        limit, entered = self._rules.body_bytes, entered_of(request)
        told = request.headers.get("content-length", "")
        parts: list[bytes] = []
        size = int(told) if told.isdecimal() and len(told) < 20 else 0
        if size > limit:
            raise _too_large(limit)
        size = 0
        try:
            async with asyncio.timeout(self._rules.body_s):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    entered.grow(len(part))
                    parts.append(part)
        except TimeoutError:
            raise Late("body.late", "the request's body didn't come in time", limit_s=self._rules.body_s) from None
        return JsonBody.parse(b"".join(parts))


def entered_of(request: Request) -> Entered:
    entered: Entered = request.state.entered
    return entered


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest("text.too_long", "the request's body is too large", limit=limit)
