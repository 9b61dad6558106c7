"""What this pod and its operator tell each other (docs/decisions/0008-operator.md): quarantines, both ways.

Guarantees: an id that the operator quarantines is off the fast paths at once, before the pod is ready where that is
told by then; what the pod itself found wrong is reported under each of its ids until the operator can see it.

The first list is waited for, `FIRST_LIST_S` at most, then the pod serves and goes on asking. An API server that is away
must not take the tier along: what serves was admitted, its probe is right, and samples are verified all the while. The
pod starts to ask before it loads, so that the wait is the API server's alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime

from .core.errors import InvalidRequest
from .findings import Finding
from .kubernetes.api import ApiServer
from .kubernetes.control import Control
from .kubernetes.reports import Reports
from .loading import Loaded
from .settings import TierSettings, own_name
from .telemetry import Telemetry
from .tokenizer import TierTokenizer

FIRST_LIST_S = 10.0
log = logging.getLogger("toktier")


class Operated:
    """Belongs to the tier's event loop. Raises `InvalidRequest` (`kubernetes.not_in_cluster`).

    begin    from then on the operator is heard
    join     once everything is loaded, before it serves
    """

    def __init__(self, settings: TierSettings, telemetry: Telemetry, api: ApiServer | None = None) -> None:
        given = settings.kubernetes
        try:
            api = api or ApiServer.in_cluster(os.environ)
        except KeyError:
            raise InvalidRequest("kubernetes.not_in_cluster", "kubernetes needs Kubernetes around the pod") from None
        # Pods are known to the operator by their Kubernetes names, whatever they call each other.
        self.me = os.environ.get("POD_NAME") or own_name(settings.pods)
        self.control = Control(api, given.namespace, given.control, self._quarantine) if given.control else None
        self.reports = Reports(api, given.namespace, given.reports) if given.reports else None
        self._admissions: Mapping[str, TierTokenizer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        telemetry.watch(
            "toktier.operator.events",
            "{event}",
            "what was heard of the operator, and reported to it",
            lambda: [
                (count, {"kind": kind, "event": event})
                for kind, part in (("control", self.control), ("report", self.reports))
                if part is not None
                for event, count in list(part.counts.items())
            ],
        )

    def begin(self) -> None:
        for part in (self.control, self.reports):
            if part is not None:
                self._tasks.append(asyncio.create_task(self._run(part)))

    async def join(self, loaded: Loaded, *, first_list_s: float = FIRST_LIST_S) -> None:
        self._admissions = loaded.admissions
        loop = asyncio.get_running_loop()

        def found(finding: Finding) -> None:
            loop.call_soon_threadsafe(self._report, finding)

        loaded.findings.subscribe(found)
        if self.control is None:
            return
        if not await self.control.listed(first_list_s):
            log.error("what the operator quarantined isn't known yet: the API server didn't tell in %s s", first_list_s)
        self._quarantine(self.control.known)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, part: Control | Reports) -> None:
        try:
            await part.run()
        except Exception as error:
            log.error("the operator isn't heard or told any more: %s", type(error).__name__)
            raise

    def _quarantine(self, ids: frozenset[str]) -> None:
        for id in sorted(ids):
            tokenizer = self._admissions.get(id)
            if tokenizer is not None and tokenizer.quarantine():
                log.error("admission %s is quarantined by the operator: the reference alone serves it", id)

    def _report(self, finding: Finding) -> None:
        if self.reports is None:
            return
        for id, tokenizer in self._admissions.items():
            if tokenizer is finding.tokenizer:
                self.reports.tell(
                    f"{self.me}.{id}",
                    {
                        "id": id,
                        "pod": self.me,
                        "fingerprint": tokenizer.fingerprint,
                        "kind": finding.kind,
                        "encoder": finding.encoder,
                        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                        "digest": finding.digest,
                        "text_chars": finding.text_chars,
                        "position": finding.position,
                    },
                )
