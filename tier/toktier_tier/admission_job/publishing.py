"""A run's result, from the Job's working folder to the API server: ConfigMaps that the TokenizerAdmission owns.

Guarantees:
1. The result is created last: once it is there, all chunks of its bundle are. Everything is immutable.
2. It may be stopped at any point and started again, by whichever pod of the Job: what is there already stays, if it
   belongs to this very admission (by its uid) and is the same; other bytes under a chunk's name are an error. A result
   that is there stays whatever this pod found: the first one of a run is the run's.
3. What an admission of the same name left behind is waited for to be collected, never taken over.

It needs to create and get ConfigMaps, nothing else. Raises `EnvironmentFault`: `publish.refused` (the API server says
no), `publish.unreachable` (no answer within `PATIENCE_S`), `publish.conflict`, `publish.no_result`.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from ..core.errors import EnvironmentFault
from ..kubernetes.api import ApiServer
from .bundle import REPORT, chunk_names, chunks_of, verify
from .request import AdmissionRequest
from .running import BUNDLE, RESULT

FIELD_MANAGER = "toktier-admission"
PATIENCE_S = 300.0
FOREIGN_S = 90.0
"""How long another admission's object may stay; the garbage collector takes seconds."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 10.0
DATA_BYTES = 900_000
REFUSED_S = 30.0
"""How long a refusal may be over: a role or namespace just made, or an API server that has just started, isn't known
everywhere yet (seen on 1.36: 403 for a second after a restart)."""
_NOT_YET = frozenset({403, 404})
_TRY_AGAIN = frozenset({401, 408, 429, 500, 502, 503, 504})
log = logging.getLogger("toktier")
Json = Mapping[str, Any]


def objects_of(request: AdmissionRequest, work: Path) -> list[dict[str, Any]]:
    """The ConfigMaps of a run in the order in which they are to be made. Raises `StateCorrupt` (`bundle.*`)."""
    try:
        result_text = (work / RESULT).read_text(encoding="utf-8")
        result = json.loads(result_text)
        found, bundle_text = result["bundle"], b""
        if result["id"] != request.id:
            raise EnvironmentFault("publish.no_result", f"{work} holds the result of {result['id']}")
        if found is not None:
            bundle_text = (work / BUNDLE).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault("publish.no_result", f"no result in {work}: {type(error).__name__}") from error
    objects = []
    if found is not None:
        verify(bundle_text, found["sha256"])
        chunks = chunks_of(bundle_text)
        for name, (key, data) in zip(chunk_names(request.name, found["sha256"], len(chunks)), chunks, strict=True):
            # The operator's watch of ConfigMaps leaves out what has this label: bundles have megabytes.
            labels = {"toktier.dev/bundle": found["sha256"][:16]}
            objects.append(_config_map(request, name, binary={key: data}, labels=labels))
    room = DATA_BYTES - len(result_text.encode())
    text, binary = _report(work / REPORT, room)
    return [*objects, _config_map(request, result_name(request), data={RESULT: result_text} | text, binary=binary)]


def result_name(request: AdmissionRequest) -> str:
    return f"{request.name}-run-{request.run}"


def _report(path: Path, room: int) -> tuple[dict[str, str], dict[str, bytes]]:
    """As text where it fits into `room` bytes, else gzipped, else left out: the bundle has it, too."""
    if not path.is_file():
        return {}, {}
    data = path.read_bytes()
    if len(data) <= room:
        return {REPORT: data.decode()}, {}
    packed = gzip.compress(data, mtime=0)
    if len(packed) <= room:
        return {}, {f"{REPORT}.gz": packed}
    log.warning("the report has %d bytes and is left out", len(data))
    return {}, {}


def _config_map(
    request: AdmissionRequest,
    name: str,
    *,
    data: Mapping[str, str] | None = None,
    binary: Mapping[str, bytes],
    labels: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": request.namespace,
            "labels": {
                "app.kubernetes.io/name": "toktier",
                "app.kubernetes.io/managed-by": "toktier-operator",
                "app.kubernetes.io/instance": request.name,
                "app.kubernetes.io/component": "admission",
                "toktier.dev/admission": request.name,
                **labels,
            },
            # Not its controller, and without blocking its deletion: that would take a permission on its finalizers.
            "ownerReferences": [
                {
                    "apiVersion": "toktier.dev/v1alpha1",
                    "kind": "TokenizerAdmission",
                    "name": request.name,
                    "uid": request.uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "immutable": True,
    }
    if data:
        document["data"] = dict(data)
    if binary:
        document["binaryData"] = {key: base64.b64encode(value).decode() for key, value in binary.items()}
    return document


async def publish(request: AdmissionRequest, work: Path, api: ApiServer, *, patience_s: float = PATIENCE_S) -> None:
    """Make them all."""
    objects = objects_of(request, work)
    async with api.client() as client:
        publisher = _Publisher(request, api, client, patience_s)
        for document in objects[:-1]:
            await publisher.make(document, first_counts=False)
        await publisher.make(objects[-1], first_counts=True)


class _Publisher:
    def __init__(self, request: AdmissionRequest, api: ApiServer, client: httpx.AsyncClient, patience_s: float) -> None:
        self._uid, self._api, self._client = request.uid, api, client
        self._path = f"/api/v1/namespaces/{request.namespace}/configmaps"
        self._patience_s = patience_s

    async def make(self, document: Json, *, first_counts: bool) -> None:
        """Until it is there. `first_counts`: one that is there already counts, whatever it says."""
        name = document["metadata"]["name"]
        give_up = time.monotonic() + min(self._patience_s, FOREIGN_S)
        while True:
            answer = await self._ask("POST", self._path, name, json=document)
            if answer.status_code == 201:
                log.info("created ConfigMap %s", name)
                return
            # 409: there is one of that name, or there was a moment ago.
            answer = await self._ask("GET", f"{self._path}/{name}", name)
            if answer.status_code == 200:
                there = answer.json()
                if self._is_ours(there):
                    if first_counts or _content(there) == _content(document):
                        log.info("ConfigMap %s is there already", name)
                        return
                    raise EnvironmentFault("publish.conflict", f"ConfigMap {name} holds something else")
            if time.monotonic() > give_up:
                raise EnvironmentFault("publish.conflict", f"ConfigMap {name} belongs to something else")
            await asyncio.sleep(min(1.0, self._patience_s / 10))

    def _is_ours(self, there: Json) -> bool:
        metadata = there["metadata"]
        owners = {each.get("uid") for each in metadata.get("ownerReferences") or ()}
        return self._uid in owners and not metadata.get("deletionTimestamp")

    async def _ask(self, method: str, path: str, name: str, json: Json | None = None) -> httpx.Response:
        """An answer that decides something; others are waited out."""
        decided = (200, 201, 409 if method == "POST" else 404)
        parameters = {"fieldManager": FIELD_MANAGER} if method == "POST" else {}
        code, refuse_at = "publish.unreachable", 0.0
        give_up, wait_s = time.monotonic() + self._patience_s, FIRST_WAIT_S
        while True:
            try:
                answer = await self._client.request(
                    method, path, params=parameters, json=json, headers=self._api.headers()
                )
                status, reason = answer.status_code, f"{answer.status_code}: {_message(answer)}"
                if status in decided:
                    return answer
                code = "publish.unreachable" if status in _TRY_AGAIN else "publish.refused"
                if status in _NOT_YET and not refuse_at:
                    refuse_at = time.monotonic() + min(REFUSED_S, self._patience_s)
            except (httpx.TransportError, OSError, UnicodeError) as error:
                code, status, reason = "publish.unreachable", 0, f"{type(error).__name__}: {error}"[:200]
            if code == "publish.refused" and (status not in _NOT_YET or time.monotonic() > refuse_at):
                raise EnvironmentFault(code, f"ConfigMap {name}: {reason}")
            if time.monotonic() + wait_s > give_up:
                raise EnvironmentFault(code, f"ConfigMap {name}: {reason}")
            log.warning("ConfigMap %s: %s; trying again", name, reason)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _content(document: Json) -> tuple[Any, Any]:
    return document.get("data") or {}, document.get("binaryData") or {}


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return answer.text[:100]
