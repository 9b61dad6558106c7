"""The part of an API server that pods use, over a real socket: list and watch of one kind, and merge patches.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATH = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
CONFIG_MAPS = "/api/v1/namespaces/models/configmaps"


def endpoint(name: str, address: str, **conditions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if name:
        found["targetRef"] = {"kind": "Pod", "name": name}
    return found


class KubernetesApi:
    """`put`, `hold` and `drop` change objects and tell the watches; the rest makes it misbehave."""

    def __init__(self, path: str = PATH) -> None:
        self.path = path
        self.version = 100
        self.oldest = 0
        self.slices: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.changed = asyncio.Condition()
        self.status = 200
        self.requests: list[dict[str, str]] = []
        self.patches: list[tuple[str, dict[str, str], Any]] = []
        self.watching: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def put(self, name: str, *endpoints: dict[str, Any], family: str = "IPv4", port: int = 50051) -> None:
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = {
            "addressType": family,
            "endpoints": list(endpoints) or None,
            "ports": [{"name": "http", "port": 8080}, {"name": "grpc", "port": port}],
        }
        await self._note(kind, name, self.slices[name])

    async def hold(self, name: str, **data: str) -> None:
        """A ConfigMap."""
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = {"data": data}
        await self._note(kind, name, self.slices[name])

    async def drop(self, name: str) -> None:
        await self._note("DELETED", name, self.slices.pop(name))

    async def bookmark(self) -> None:
        self.version += 1
        item = {"metadata": {"resourceVersion": str(self.version)}}
        await self.send({"type": "BOOKMARK", "object": item})

    async def send(self, event: Any) -> None:
        """To every watch, history or not."""
        for writer in self.watching:
            _chunk(writer, json.dumps(event, ensure_ascii=False).encode() + b"\n")

    async def cut(self, rest: bytes = b"") -> None:
        """Break off every watch, in the middle of a line."""
        for writer in list(self.watching):
            if rest:
                _chunk(writer, rest)
                await writer.drain()
            writer.close()

    def forget(self) -> None:
        """As after a compaction: no watch can go on from an older version."""
        self.version += 50
        self.oldest = self.version
        self.history.clear()

    async def _note(self, kind: str, name: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"] = {"name": name, "resourceVersion": str(self.version)}
        async with self.changed:
            self.history.append((self.version, json.loads(json.dumps({"type": kind, "object": item}))))
            self.changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                lines = head.split("\r\n")
                target = urlsplit(lines[0].split(" ")[1])
                asked = {key: values[0] for key, values in parse_qs(target.query).items()}
                asked["authorization"] = next((x[15:] for x in lines if x.lower().startswith("authorization: ")), "")
                if lines[0].startswith("PATCH "):
                    await self._patch(reader, writer, target.path, lines, asked)
                    continue
                self.requests.append(asked)
                if target.path != self.path or self.status != 200:
                    _answer(writer, self.status if target.path == self.path else 404, {"kind": "Status"})
                elif "watch" not in asked:
                    document = {
                        "items": [item for name, item in self.slices.items() if _chosen(name, asked)],
                        "metadata": {"resourceVersion": str(self.version)},
                    }
                    _answer(writer, 200, document)
                else:
                    await self._watch(writer, asked)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _patch(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: str,
        lines: list[str],
        asked: dict[str, str],
    ) -> None:
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        document = json.loads(await reader.readexactly(int(headers["content-length"])))
        folder, _, name = path.rpartition("/")
        found = folder == self.path and name in self.slices
        if self.status != 200 or not found:
            _answer(writer, self.status if self.status != 200 else 404, {"kind": "Status"})
        else:
            self.patches.append((name, {**headers, **asked}, document))
            await self.hold(name, **{**self.slices[name]["data"], **document["data"]})
            _answer(writer, 200, self.slices[name])
        await writer.drain()

    async def _watch(self, writer: asyncio.StreamWriter, asked: dict[str, str]) -> None:
        version = int(asked["resourceVersion"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if version < self.oldest:
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
            _chunk(writer, json.dumps(gone).encode() + b"\n")
            writer.write(b"0\r\n\r\n")
            return
        self.watching.add(writer)
        ends = asyncio.get_running_loop().time() + float(asked["timeoutSeconds"])
        try:
            while (left := ends - asyncio.get_running_loop().time()) > 0 and not writer.is_closing():
                for number, event in [each for each in self.history if each[0] > version]:
                    if not _chosen(event["object"]["metadata"]["name"], asked):
                        continue
                    line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
                    _chunk(writer, line[: len(line) // 2])  # an event may come in any number of chunks
                    await writer.drain()
                    _chunk(writer, line[len(line) // 2 :])
                    version = number
                await writer.drain()
                try:
                    async with asyncio.timeout(min(left, 0.05)), self.changed:
                        await self.changed.wait()
                except TimeoutError:
                    pass
            writer.write(b"0\r\n\r\n")
        finally:
            self.watching.discard(writer)


async def until(what: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.005)


def _chosen(name: str, asked: dict[str, str]) -> bool:
    return asked.get("fieldSelector", f"metadata.name={name}") == f"metadata.name={name}"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _answer(writer: asyncio.StreamWriter, status: int, document: Any) -> None:
    data = json.dumps(document).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
