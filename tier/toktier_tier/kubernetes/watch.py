"""Objects of one kind, listed once and watched from there.

Guarantees: what was known stays until something newer arrives whole; a watch that can't go on (410) starts over from a
list; an API server that is away is asked again after a growing, jittered wait. Errors are counted, by status or type.

The protocol: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from .api import REQUEST_S, ApiServer

Json = Mapping[str, Any]
Take = Callable[[Mapping[str, Json]], None]
WATCH_S = 240
"""How long one watch lasts; the next goes on where it ended."""
SILENT_S = 20.0
"""More than `WATCH_S` after which a watch without an end counts as lost."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0
MAX_LINE_BYTES = 16 << 20


class _Expired(Exception):
    """The version to go on from is too old."""


class Followed:
    """The objects at `path` that `selector` (query parameters) chooses.

    take     called in the event loop with all of them by name, after the list and after every change. Where it raises
             `ValueError`, `KeyError`, `TypeError` or `AttributeError` they make no sense: what was known stays, and all
             are listed anew
    counts   what became of looking: `<what>` happened so often
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        selector: Mapping[str, str],
        take: Take,
        *,
        counts: Counter[str] | None = None,
        watch_s: int = WATCH_S,
        randomness: random.Random | None = None,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._api, self._path, self._selector, self._taken = api, path, dict(selector), take
        self.counts: Counter[str] = counts if counts is not None else Counter()
        self._watch_s, self._first_wait_s, self._wait_s = watch_s, first_wait_s, first_wait_s
        self._longest_wait_s = longest_wait_s
        self._random = randomness or random.Random()
        self._items: dict[str, Json] = {}
        self._version = ""

    async def run(self) -> None:
        """Until cancelled. Raises `OSError` for a certificate authority that can't be read."""
        async with self._api.client() as client:
            while True:
                try:
                    if not self._version:
                        await self._list(client)
                    if await self._watch(client):
                        continue
                    self.counts["failed.empty_watch"] += 1  # ended at once: not again without a wait
                except _Expired:
                    self.counts["expired"] += 1
                    self._version = ""
                except httpx.HTTPStatusError as error:
                    self.counts[f"failed.{error.response.status_code}"] += 1
                    if error.response.status_code == 410:
                        self._version = ""
                except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    self.counts[f"failed.{type(error).__name__}"] += 1
                    if not isinstance(error, httpx.HTTPError | OSError):
                        self._version = ""  # an answer that makes no sense: from the beginning
                await asyncio.sleep(self._wait_s * self._random.uniform(0.5, 1.0))
                self._wait_s = min(2 * self._wait_s, self._longest_wait_s)

    async def _list(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(self._path, params=self._selector, headers=self._api.headers())
        answer.raise_for_status()
        document = answer.json()
        items = {item["metadata"]["name"]: item for item in document["items"]}
        version = str(document["metadata"]["resourceVersion"])
        self._taken(items)
        self._items, self._version = items, version
        self.counts["listed"] += 1

    async def _watch(self, client: httpx.AsyncClient) -> bool:
        """Follow changes until the server ends the watch; whether it told anything."""
        parameters = {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._watch_s),
        }
        timeout = httpx.Timeout(REQUEST_S, read=self._watch_s + SILENT_S)
        began = asyncio.get_running_loop().time()
        told = False
        async with client.stream(
            "GET", self._path, params=parameters, headers=self._api.headers(), timeout=timeout
        ) as answer:
            answer.raise_for_status()
            self.counts["watches"] += 1
            async for line in _lines(answer.aiter_bytes()):
                self._take(json.loads(line))
                told = True
        return told or asyncio.get_running_loop().time() - began >= 1.0

    def _take(self, event: Json) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == 410:
                raise _Expired
            raise ValueError(f"the watch ended with {item.get('code')}")
        version = str(item["metadata"]["resourceVersion"])
        if kind != "BOOKMARK":
            items = dict(self._items)
            if kind == "DELETED":
                items.pop(item["metadata"]["name"], None)
            else:
                items[item["metadata"]["name"]] = item
            self._taken(items)
            self._items = items
        self._version, self._wait_s = version, self._first_wait_s
        self.counts["events"] += 1


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines by LF alone: JSON strings may hold what else ends a line. One that was cut off is dropped."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError("an event is longer than it can be")
