"""Events that say what happened, each once: the same words on the same object are counted up, not repeated.

An event's name follows from what it says, so that an operator that was started again finds its own. Within `QUIET_S`
the same event is only counted here, and written with the next one.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from dataclasses import dataclass

from ..api.group import OPERATOR
from ..api.times import rfc3339
from .errors import Conflict, NotFound
from .kinds import EVENT, Json
from .wire import Wire

QUIET_S = 30.0
MAX_KNOWN = 4096
MAX_MESSAGE_CHARS = 1024


@dataclass(slots=True)
class _Known:
    count: int
    written_at_s: float


class EventRecorder:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known: dict[tuple[str, str], _Known] = {}

    async def record(self, about: Json, type_: str, reason: str, message: str) -> None:
        manifest = event_of(about, type_, reason, message, datetime.datetime.now(datetime.UTC))
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        known = self._known.get((namespace, name))
        if known is not None:
            known.count += 1
            if time.monotonic() - known.written_at_s < QUIET_S:
                return
        elif len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        count = await self._write(manifest, known.count if known is not None else None)
        self._known[namespace, name] = _Known(count, time.monotonic())

    async def _write(self, manifest: Json, count: int | None) -> int:
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if count is None:
            try:
                await self._wire.ask("POST", EVENT.path(namespace), body=manifest)
                return 1
            except Conflict:
                there = await self._wire.ask("GET", EVENT.path(namespace, name))
                count = int(there.get("count") or 1) + 1
        counted = {"count": count, "lastTimestamp": manifest["lastTimestamp"]}
        try:
            await self._wire.ask(
                "PATCH", EVENT.path(namespace, name), body=counted, content_type="application/merge-patch+json"
            )
            return count
        except NotFound:  # they expire
            await self._wire.ask("POST", EVENT.path(namespace), body=manifest)
            return 1


def event_of(about: Json, type_: str, reason: str, message: str, now: datetime.datetime) -> Json:
    """`about`: an object with apiVersion, kind and metadata."""
    metadata = about["metadata"]
    message = message[:MAX_MESSAGE_CHARS]
    said = "\0".join((str(metadata.get("uid", "")), type_, reason, message))
    at = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            "namespace": metadata.get("namespace") or "default",
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": type_,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
        "reportingInstance": OPERATOR,
    }
