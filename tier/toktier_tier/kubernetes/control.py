"""What the operator wants quarantined: one key of one ConfigMap, listed once and watched.

Guarantees: an id that the ConfigMap lists is told once, in the event loop, as soon as the change arrives; an id once
told stays told, whatever becomes of the ConfigMap: nothing is lifted in a running pod. A list that makes no sense
changes nothing and is counted.

An API server that is away is asked every `LONGEST_WAIT_S` at the latest: its return is noticed within that time.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping

from .api import ApiServer
from .watch import FIRST_WAIT_S, WATCH_S, Followed, Json

KEY = "quarantined"
LONGEST_WAIT_S = 2.0
MAX_IDS = 100_000


class Control:
    """The ConfigMap `name` in `namespace`; `quarantine` hears of ids that weren't told before.

    known    every id that was told
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        quarantine: Callable[[frozenset[str]], None],
        *,
        watch_s: int = WATCH_S,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._name, self._quarantine = name, quarantine
        self.known: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self._listed = asyncio.Event()
        self._followed = Followed(
            api,
            f"/api/v1/namespaces/{namespace}/configmaps",
            {"fieldSelector": f"metadata.name={name}"},
            self._take,
            counts=self.counts,
            watch_s=watch_s,
            first_wait_s=first_wait_s,
            longest_wait_s=LONGEST_WAIT_S,
        )

    async def run(self) -> None:
        """Until cancelled."""
        await self._followed.run()

    async def listed(self, timeout_s: float) -> bool:
        """Whether the ids are known, or there are none, giving it `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._listed.wait()
        except TimeoutError:
            return False
        return True

    def _take(self, items: Mapping[str, Json]) -> None:
        ids = quarantined_ids(items.get(self._name))
        new = ids - self.known
        self.known |= ids
        self._listed.set()
        if new:
            self.counts["told"] += len(new)
            self._quarantine(new)


def quarantined_ids(config_map: Json | None) -> frozenset[str]:
    """Of a ConfigMap; none where there is no ConfigMap or key. Raises `ValueError` for what is no list of ids."""
    text = ((config_map or {}).get("data") or {}).get(KEY)
    if text is None:
        return frozenset()
    ids = json.loads(text)
    if not isinstance(ids, list) or len(ids) > MAX_IDS or not all(isinstance(each, str) for each in ids):
        raise ValueError("what is quarantined is no list of ids")
    return frozenset(ids)
