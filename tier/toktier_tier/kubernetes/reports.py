"""What this pod has to report: one key of one ConfigMap each, patched until it got through.

Guarantees: `tell` never waits; a report is sent again, after growing, jittered waits, until the API server has taken
it; of one key only the first is sent. What is sent is what was given: the caller sees to it that it holds no text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Mapping

import httpx

from .api import ApiServer

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
FIELD_MANAGER = "toktier-tier"
MERGE_PATCH = "application/merge-patch+json"
log = logging.getLogger("toktier")


class Reports:
    """To the ConfigMap `name` in `namespace`. Belongs to one event loop.

    counts    what became of sending
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        *,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
        randomness: random.Random | None = None,
    ) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._random = randomness or random.Random()
        self._keys: set[str] = set()
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()  # bounded: a pod has few ids
        self.counts: Counter[str] = Counter()

    def tell(self, key: str, report: Mapping[str, str | int | None]) -> None:
        """Send `report` as `key` unless something was told as that before."""
        if key not in self._keys:
            self._keys.add(key)
            self._waiting.put_nowait((key, json.dumps(report, separators=(",", ":"))))

    @property
    def pending(self) -> int:
        """Reports that haven't got through."""
        return len(self._keys) - self.counts["sent"]

    async def run(self) -> None:
        """Until cancelled. Raises `OSError` for a certificate authority that can't be read."""
        async with self._api.client() as client, asyncio.TaskGroup() as group:
            while True:
                key, report = await self._waiting.get()
                group.create_task(self._deliver(client, key, report))  # by itself: none keeps the others back

    async def _deliver(self, client: httpx.AsyncClient, key: str, report: str) -> None:
        wait_s = self._first_wait_s
        while not await self._send(client, key, report):
            await asyncio.sleep(wait_s * self._random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, self._longest_wait_s)
        self.counts["sent"] += 1
        log.warning("reported %s", key)

    async def _send(self, client: httpx.AsyncClient, key: str, report: str) -> bool:
        try:
            answer = await client.patch(
                self._path,
                params={"fieldManager": FIELD_MANAGER},
                content=json.dumps({"data": {key: report}}),
                headers={**self._api.headers(), "content-type": MERGE_PATCH},
            )
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            self.counts[f"failed.{error.response.status_code}"] += 1
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.counts[f"failed.{type(error).__name__}"] += 1
        else:
            return True
        return False
