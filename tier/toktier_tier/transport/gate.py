"""The HTTP port before the tier is ready: alive, not ready, and everything else told to come later."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from .status import RETRY_AFTER_S

_ERROR = {"message": "the tier isn't ready yet", "type": "EnvironmentFault", "code": "tier.starting", "details": {}}


class Gate:
    """An ASGI application that is another one from `open` on."""

    def __init__(self) -> None:
        self._app: Any = _closed

    def open(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


async def _closed(scope: Any, receive: Any, send: Any) -> None:
    match scope["path"]:
        case "/health":
            answer = JSONResponse({"status": "ok"})
        case "/ready":
            answer = JSONResponse({"ready": False}, 503)
        case _:
            answer = JSONResponse({"error": _ERROR}, 503, {"retry-after": str(RETRY_AFTER_S)})
    await answer(scope, receive, send)
