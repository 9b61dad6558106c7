"""The cluster's DNS, as much as a test needs: addresses of Services and of pods behind headless ones.

    python -m onenode.dns ADDRESS PKI

answers `A` for SERVICE.NAMESPACE.svc.cluster.local and POD.SERVICE.NAMESPACE.svc.cluster.local, over UDP, by asking the
API server. Any other name doesn't exist; other types of a name that does are empty. What was read is used for CACHE_S.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onenode.control_plane import Endpoints

SUFFIX = ("svc", "cluster", "local")
A, IN = 1, 1
NO_ERROR, FAILED, NO_SUCH_NAME = 0, 2, 3
TTL_S = 1
CACHE_S = 0.5
MOST_ADDRESSES = 25  # within UDP's 512 bytes
WORKERS = 4


@dataclass(frozen=True, slots=True)
class Names:
    """Looks names up at the API server. Raises OSError where that doesn't answer."""

    endpoints: Endpoints
    pki: Path
    _cache: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def addresses(self, name: str) -> list[str] | None:
        """None where there is no such name."""
        labels = name.lower().rstrip(".").split(".")
        if tuple(labels[-3:]) != SUFFIX or len(labels) not in (5, 6):
            return None
        *host, service, namespace = labels[:-3]
        found = self._get(f"/api/v1/namespaces/{namespace}/services/{service}")
        if found is None:
            return None
        address = found["spec"].get("clusterIP", "None")
        if not host and address != "None":
            return [address]
        addresses = self._behind(namespace, service, host[0] if host else None)
        return addresses or (None if host else [])

    def _behind(self, namespace: str, service: str, host: str | None) -> list[str]:
        selector = f"kubernetes.io/service-name%3D{service}"
        slices = self._get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}")
        endpoints = [endpoint for each in (slices or {}).get("items", ()) for endpoint in each.get("endpoints") or ()]
        return sorted(
            address
            for endpoint in endpoints
            if endpoint.get("conditions", {}).get("ready", True) and host in (None, endpoint.get("hostname"))
            for address in endpoint["addresses"]
        )

    def _get(self, path: str) -> Any:
        read, held = self._cache.get(path, (float("-inf"), None))
        if time.monotonic() - read < CACHE_S:
            return held
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection(self.endpoints.address, self.endpoints.api, timeout=2, context=context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            found = json.loads(answer.read()) if answer.status == 200 else None
            if answer.status not in (200, 404):
                raise OSError(f"{path}: {answer.status}")
        finally:
            connection.close()
        self._cache[path] = time.monotonic(), found
        return found


def answer(query: bytes, names: Names) -> bytes:
    """To one query of one question."""
    identity, flags = struct.unpack_from("!HH", query)
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    kind, class_ = struct.unpack_from("!HH", query, at + 1)
    question = query[12 : at + 5]
    try:
        found = names.addresses(".".join(labels)) if class_ == IN else None
        code = NO_SUCH_NAME if found is None else NO_ERROR
    except (OSError, http.client.HTTPException):
        found, code = None, FAILED
    given = (found or [])[:MOST_ADDRESSES] if kind == A else []
    # An answer, authoritative, recursion as asked and available.
    head = struct.pack("!HHHHHH", identity, 0x8480 | flags & 0x0100 | code, 1, len(given), 0, 0)
    records = (struct.pack("!HHHIH", 0xC00C, A, IN, TTL_S, 4) + socket.inet_aton(address) for address in given)
    return head + question + b"".join(records)


def serve(address: str, names: Names) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, ThreadPoolExecutor(WORKERS) as workers:
        server.bind((address, 53))

        def reply(query: bytes, sender: Any) -> None:
            try:
                server.sendto(answer(query, names), sender)
            except (struct.error, IndexError) as error:
                print(f"{sender}: not a query ({error})", file=sys.stderr, flush=True)

        while True:
            workers.submit(reply, *server.recvfrom(4096))


if __name__ == "__main__":
    from onenode.cluster import ENDPOINTS

    serve(sys.argv[1], Names(ENDPOINTS, Path(sys.argv[2])))
