"""The ready pods of a Service, as Kubernetes tells them: EndpointSlices, listed once and watched.

Guarantees: a pod that is terminating, not ready or not serving is left out; what was known stays until something newer
arrives whole; a watch that can't go on (410) starts over from a list; an API server that is away is asked again after a
growing, jittered wait. Errors are counted, by status or type.

The protocol: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .membership import Membership, target_of
from .ring import Peer

Json = Mapping[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_S = 240
"""How long one watch lasts; the next goes on where it ended."""
SILENT_S = 20.0
"""More than `WATCH_S` after which a watch without an end counts as lost."""
REQUEST_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0
MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and who asks. The token is read for each request: it is renewed in place."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], account: Path = ACCOUNT) -> ApiServer:
        """As Kubernetes tells its pods. Raises `KeyError` outside of one."""
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", account / "token", account / "ca.crt")

    def headers(self) -> dict[str, str]:
        if self.token_file is None:
            return {}
        return {"authorization": f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"}

    def client(self) -> httpx.AsyncClient:
        verify = ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file is not None else True
        return httpx.AsyncClient(base_url=self.url, verify=verify, timeout=REQUEST_S, trust_env=False)


class _Expired(Exception):
    """The version to go on from is too old."""


class EndpointSliceMembership(Membership):
    """The pods of `service` in `namespace`, at the port that its slices call `port` (a name, or a number to use).

    A pod's name is its Kubernetes name; an endpoint without one goes by its address.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        service: str,
        port: str | int,
        *,
        watch_s: int = WATCH_S,
        randomness: random.Random | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        super().__init__()
        self._api, self._port = api, port
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={service}"
        self._watch_s, self._first_wait_s, self._wait_s = watch_s, first_wait_s, first_wait_s
        self._random = randomness or random.Random()
        self._slices: dict[str, Json] = {}
        self._version = ""

    async def run(self) -> None:
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
                self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    async def _list(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(self._path, params={"labelSelector": self._selector}, headers=self._api.headers())
        answer.raise_for_status()
        document = answer.json()
        slices = {item["metadata"]["name"]: item for item in document["items"]}
        version = str(document["metadata"]["resourceVersion"])
        peers = peers_of(slices.values(), self._port)
        self._slices, self._version = slices, version
        self.counts["listed"] += 1
        self.replace(peers)

    async def _watch(self, client: httpx.AsyncClient) -> bool:
        """Follow changes until the server ends the watch; whether it told anything."""
        parameters = {
            "labelSelector": self._selector,
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
            slices = dict(self._slices)
            if kind == "DELETED":
                slices.pop(item["metadata"]["name"], None)
            else:
                slices[item["metadata"]["name"]] = item
            peers = peers_of(slices.values(), self._port)
            self._slices = slices
            self.replace(peers)
        self._version, self._wait_s = version, self._first_wait_s
        self.counts["events"] += 1


def peers_of(slices: Iterable[Json], port: str | int) -> list[Peer]:
    """The ready endpoints of the slices. A pod with an IPv4 and an IPv6 address is one peer, at the former."""
    found: dict[str, tuple[str, Peer]] = {}
    for item in slices:
        family, number = str(item.get("addressType", "")), _port(item, port)
        if family not in ("IPv4", "IPv6") or number is None:
            continue
        for endpoint in item.get("endpoints") or ():
            addresses = endpoint.get("addresses") or ()
            if not addresses or not _ready(endpoint.get("conditions") or {}):
                continue
            target = target_of(addresses[0], number)
            reference = endpoint.get("targetRef") or {}
            name = str(reference.get("name") or target)
            entry = (family, Peer(name, target))
            found[name] = min(found.get(name, entry), entry)
    return [peer for _, peer in found.values()]


def _port(item: Json, port: str | int) -> int | None:
    if isinstance(port, int):
        return port
    return next((int(each["port"]) for each in item.get("ports") or () if each.get("name") == port), None)


def _ready(conditions: Json) -> bool:
    """A condition that isn't told counts as the API defines: ready and serving, not terminating."""
    return conditions.get("ready") is not False and (
        conditions.get("serving") is not False and conditions.get("terminating") is not True
    )


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
