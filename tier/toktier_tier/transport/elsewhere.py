"""The other pods of a tier, as the interfaces need them: requests that another pod has the session for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from ..sessions.table import SessionKey


class Elsewhere(Protocol):
    async def serve(
        self,
        method: str,
        request: Any,
        data: bytes,
        tenant: str,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        timeout_s: float | None,
        here: Callable[[], Awaitable[bytes]],
    ) -> bytes:
        """A gRPC call's answer, by `here` or by another pod. Raises `OwnerAnswered` for one that ended with an error
        there, and the tier's errors."""

    async def ask(self, method: str, key: SessionKey, placed_by: str, data: bytes) -> bytes | None:
        """The answer of the pod that requests placed by `placed_by` belong to; None if that is this one."""

    async def stay(self, key: SessionKey, placed_by: str) -> None:
        """Raises `EnvironmentFault` (`session.moved`) if a request that another pod sent belongs elsewhere by now."""
