"""The API server, as far as the operator uses it: a few verbs on plain JSON objects, each with a deadline.

Every method raises only the errors of `cluster.errors`. Nothing is tried twice here: trying again is the queue's. What
an answer says of an object goes into `observed`, so that a reconcile sees its own writes before the watch brings them.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ..api.group import OPERATOR
from .errors import ClusterError, Conflict, Invalid, NotFound
from .events import EventRecorder
from .kinds import EVENT, Json, Jsons, Kind, kind_of
from .observed import Observed, with_digest
from .wire import Wire

REMEMBER_S = 600.0
"""How long `create_once` believes that what it made is still there."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
Query = builtins.list[tuple[str, Any]]
log = logging.getLogger("toktier.operator")


class Cluster:
    """Use it as an async context: leaving it closes the connections."""

    def __init__(self, wire: Wire, observed: Observed | None = None) -> None:
        self._wire = wire
        self.observed = observed if observed is not None else Observed()
        self._made: dict[tuple[Kind, str, str, str], float] = {}
        self._events = EventRecorder(self._wire)

    @classmethod
    async def connect(cls, observed: Observed | None = None, environ: Mapping[str, str] = os.environ) -> Cluster:
        """In a pod by its service account, else by KUBECONFIG. ConfigException of `kubernetes` if there is neither."""
        return cls(await Wire.connect(environ), observed)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """None if there is no such object, or no such kind."""
        try:
            found = await self._wire.ask("GET", kind.path(namespace, name))
        except NotFound:
            self.observed.remove(kind, namespace, name)
            return None
        self.observed.put(kind, found)
        return found

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server has such objects."""
        path = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        try:
            found = await self._wire.ask("GET", path)
        except NotFound:
            return False
        return any(each.get("name") == kind.plural for each in found.get("resources") or ())

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> Jsons:
        """All that `labels` selects, in every namespace if `namespace` is empty; none if there is no such kind."""
        return (await self.snapshot(kind, namespace, labels))[0]

    async def snapshot(
        self, kind: Kind, namespace: str = "", labels: str = "", *, metadata_only: bool = False
    ) -> tuple[Jsons, int]:
        """`list`, and the resourceVersion as of which that was all."""
        return await self._list(kind, namespace, labels, accept=METADATA_LIST if metadata_only else "application/json")

    async def list_metadata(self, kind: Kind, namespace: str = "", labels: str = "") -> Jsons:
        """The same with nothing but `metadata`, which is all the API server sends then."""
        return (await self.snapshot(kind, namespace, labels, metadata_only=True))[0]

    async def get_metadata(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """`get` with nothing but `metadata`; not put into `observed`."""
        try:
            return await self._wire.ask("GET", kind.path(namespace, name), accept=METADATA)
        except NotFound:
            return None

    async def apply(self, manifest: Json) -> Json:
        """Server-side apply by `toktier-operator`, forced: fields of before that are left out now are taken away.

        The annotation `toktier.dev/applied` with the manifest's digest is added (see `observed.needs_apply`). Status
        isn't touched. Returns the object as it is now.
        """
        kind = kind_of(manifest)
        metadata = manifest["metadata"]
        applied = await self._wire.ask(
            "PATCH",
            kind.path(metadata.get("namespace", ""), metadata["name"]),
            query=[("fieldManager", OPERATOR), ("force", "true")],
            body=with_digest(manifest),
            content_type=APPLY,
        )
        self.observed.put(kind, applied)
        return applied

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Json, *, observed: Json | None
    ) -> Json | None:
        """Make the status equal to `status`, fields left out removed; no call if `observed` (the object) has it.

        With `observed`, `Conflict` if the object is no longer the one that was looked at: decide again.
        Returns the object as it is now, None if it is gone.
        """
        if observed is not None and (observed.get("status") or {}) == status:
            return observed
        metadata: Json = {"name": name, "namespace": namespace}
        if observed is not None:
            metadata |= {key: observed["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "status": status}
        query = [("fieldManager", OPERATOR), ("force", "true")]
        try:
            now = await self._wire.ask(
                "PATCH", kind.path(namespace, name, "status"), query=query, body=body, content_type=APPLY
            )
        except NotFound:
            self.observed.remove(kind, namespace, name)
            return None
        self.observed.put(kind, now)
        return now

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> bool:
        """In the background, dependents too; only that very object if `uid` is given. False if it wasn't there."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._wire.ask("DELETE", kind.path(namespace, name), body=body)
        except NotFound:
            self.observed.remove(kind, namespace, name, uid)
            return False
        except Conflict:
            if uid is None:
                raise
            return False
        return True

    async def create(self, manifest: Json) -> Json:
        """`Conflict` (reason AlreadyExists) if something of that name exists."""
        kind = kind_of(manifest)
        path = kind.path(manifest["metadata"].get("namespace", ""))
        created = await self._wire.ask("POST", path, query=[("fieldManager", OPERATOR)], body=manifest)
        self.observed.put(kind, created)
        return created

    async def create_once(self, manifest: Json) -> bool:
        """Create it unless something of that name exists, which then is left as it is. Whether it was created.

        What is known to be there isn't tried again for `REMEMBER_S`, as long as its owner is the same.
        """
        kind, metadata = kind_of(manifest), manifest["metadata"]
        owner = ",".join(str(each.get("uid")) for each in metadata.get("ownerReferences") or ())
        key = (kind, str(metadata.get("namespace", "")), str(metadata["name"]), owner)
        now = time.monotonic()
        if self._made.get(key, 0.0) > now:
            return False
        try:
            await self.create(manifest)
            made = True
        except Conflict as conflict:
            if conflict.reason != "AlreadyExists":
                raise
            made = False
        self._made = {each: until for each, until in self._made.items() if until > now}
        self._made[key] = now + REMEMBER_S
        return made

    async def event(self, about: Json, type_: str, reason: str, message: str) -> None:
        """An Event on an object (with apiVersion, kind, metadata), counted up if it is the same as an earlier one.

        type_ is "Normal" or "Warning". A failure is logged, never raised.
        """
        try:
            await self._events.record(about, type_, reason, message)
        except ClusterError as error:
            log.warning("%s %s not posted on %s: %s", EVENT.kind, reason, about["metadata"].get("name"), error)

    async def _list(self, kind: Kind, namespace: str, labels: str, *, accept: str) -> tuple[Jsons, int]:
        found: Jsons = []
        token = ""
        while True:
            query: Query = [("limit", 500)]
            query += [("labelSelector", labels)] if labels else []
            query += [("continue", token)] if token else []
            try:
                answer = await self._wire.ask("GET", kind.path(namespace), query=query, accept=accept)
            except NotFound:
                return [], 0
            except Invalid as error:
                if error.reason != "Expired" or not token:
                    raise
                found, token = [], ""
                continue
            for item in answer.get("items") or []:
                found.append({"apiVersion": kind.api_version, "kind": kind.kind, **item})
            metadata = answer.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                version = str(metadata.get("resourceVersion") or "")
                return found, int(version) if version.isdigit() else 0
            await asyncio.sleep(0)
