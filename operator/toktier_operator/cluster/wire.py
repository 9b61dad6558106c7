"""One request to the API server and its answer: credentials, deadline, JSON, and the errors of `cluster.errors`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from .errors import ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from .kinds import Json

TIMEOUT_S = 15.0
PARALLEL = 16


class Wire:
    """At most `PARALLEL` requests at a time; each ends after `timeout_s`."""

    def __init__(self, api: client.ApiClient, timeout_s: float = TIMEOUT_S) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(PARALLEL)

    @classmethod
    async def connect(cls, environ: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S) -> Wire:
        """In a pod by its service account, else by KUBECONFIG."""
        settings = client.Configuration()
        if environ.get("KUBERNETES_SERVICE_HOST") and not environ.get("KUBECONFIG"):
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                environ.get("KUBECONFIG") or None, client_configuration=settings
            )
        return cls(client.ApiClient(configuration=settings), timeout_s)

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, Any]] = (),
        body: Json | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        """The object that is answered. Raises `ClusterError`."""
        about = f"{method} {path}"
        try:
            async with asyncio.timeout(self._timeout_s), self._room:
                url_parts = await self._api.param_serialize(
                    method,
                    path,
                    query_params=list(query),
                    header_params={"Accept": accept, "Content-Type": content_type},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                answer = await self._api.call_api(*url_parts, _request_timeout=self._timeout_s)
                data = await answer.read()  # type: ignore[no-untyped-call]
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout_s:g} s", reason="Timeout", about=about) from None
        except (aiohttp.ClientError, client.ApiException, OSError) as error:
            raise Unavailable(f"{type(error).__name__}: {error}", reason="NoConnection", about=about) from error
        found = _parsed(data)
        if 200 <= answer.status < 300:
            return found
        raise error_of(answer.status, found, about=about, retry_after=answer.headers.get("Retry-After"))


def error_of(status: int, answer: Json, *, about: str = "", retry_after: str | None = None) -> ClusterError:
    """The error that stands for an answer: its HTTP status, its `Status` object ({} if it sent none)."""
    reason = str(answer.get("reason") or "")
    message = str(answer.get("message") or f"HTTP status {status}")
    if status == 404:
        named = (answer.get("details") or {}).get("name")
        return NotFound(message, reason=reason if named else "", about=about)
    if status == 409:
        return Conflict(message, reason=reason, about=about)
    if status == 403:
        return Forbidden(message, reason=reason, about=about)
    if status in (401, 408, 429) or status >= 500:
        wait_s = float(retry_after) if retry_after and retry_after.isdigit() else None
        return Unavailable(message, reason=reason, about=about, retry_after_s=wait_s)
    return Invalid(message, reason=reason, about=about)


def _parsed(data: bytes) -> Json:
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace")}
    return found if isinstance(found, dict) else {}
