"""A streamed response that lets go of what it streams, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import StreamingResponse


class ClosingStream(StreamingResponse):
    """Awaits `close` once the client has it all or is gone.

    A generator's own `finally` isn't enough: if the client goes while a chunk is being sent, the generator stands at
    its `yield`, and nothing closes it before the garbage collector does. The engine would generate on until then.
    """

    def __init__(
        self, content: AsyncIterator[bytes], close: Callable[[], Awaitable[Any]], *arguments: Any, **more: Any
    ) -> None:
        super().__init__(content, *arguments, **more)
        self._close = close

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            await self._close()
