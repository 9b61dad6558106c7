"""Several pods in one event loop: real gRPC servers on loopback, each with its sessions and its own view of the others.

Each serves the calls by way of `Pods.serve`, as a tier does, for the tenant that the `test-tenant` metadata names.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from toktier_tier.client import AsyncSession, AsyncTierClient
from toktier_tier.core.errors import RevisionConflict, SessionNotFound
from toktier_tier.core.values import Patch
from toktier_tier.pods.forward import Forwarder, Timeouts
from toktier_tier.pods.held import PodSessions
from toktier_tier.pods.membership import Membership
from toktier_tier.pods.ring import Peer, Ring
from toktier_tier.pods.router import Pods
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.transport.interface import METHODS, SERVICE, path_of
from toktier_tier.transport.messages import MESSAGE_LIMITS, bytes_of, fill
from toktier_tier.transport.status import OwnerAnswered, error_of, grpc_status, metadata_of, told
from toktier_tier.transport.tenants import TENANT_KEY
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import Tier, family_tier, fresh_tokenizer

FAMILY = "gpt2-novelai"
QUICK = Timeouts(connect_s=0.3, answer_s=1.0)
ROOMY = Timeouts(connect_s=2.0, answer_s=15.0)
"""A machine that others use too takes its time."""


class Pod:
    def __init__(self, name: str, family: str = FAMILY, timeouts: Timeouts = ROOMY) -> None:
        tokenizer = fresh_tokenizer(family_tier(family))
        self.name = name
        self.sessions = PodSessions(tokenizer)
        self.served = Served(family, (), tokenizer, self.sessions)
        self.membership = Membership()
        self.forwarder = Forwarder(name, timeouts=timeouts)
        self.pods = Pods(name, self.membership, Registry([self.served]), self.forwarder)
        self.hang: asyncio.Event | None = None
        self.hung = 0
        self.cancelled = 0
        self.seen: list[tuple[str, dict[str, str]]] = []

    async def start(self) -> None:
        self.server = grpc.aio.server(options=(*MESSAGE_LIMITS, ("grpc.so_reuseport", 0)))
        handlers = {method.name: self._handler(method) for method in METHODS}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.peer = Peer(self.name, f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}")
        await self.server.start()

    async def until_hung(self, calls: int = 1) -> None:
        """Until so many calls hang, or have."""
        while self.hung < calls:
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        await self.server.stop(None)

    async def stop(self) -> None:
        if self.hang is not None:
            self.hang.set()
        await self.server.stop(None)
        await self.pods.aclose()

    def holds(self, session: str, tenant: str = "default") -> bool:
        return any((key.tenant, key.session) == (tenant, session) for key in self.sessions.hottest())

    def _handler(self, method: Any) -> Any:
        parse = getattr(pb, method.input_type.name).FromString

        async def call(data: bytes, context: Any) -> bytes:
            metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            self.seen.append((method.name, metadata))
            try:
                request = parse(data)
                if self.hang is not None:
                    self.hung += 1
                    try:
                        await self.hang.wait()
                    except asyncio.CancelledError:
                        self.cancelled += 1
                        raise
                tenant = metadata.get(TENANT_KEY) or metadata.get("test-tenant", "default")

                async def here() -> bytes:
                    answer = await asyncio.to_thread(self._serve, method.name, request, tenant)
                    data: bytes = answer.SerializeToString()
                    return data

                left_s = context.time_remaining()
                return await self.pods.serve(
                    method.name, request, data, tenant, context.invocation_metadata(), left_s, here
                )
            except OwnerAnswered as answered:
                status: Any = (answered.status, answered.details, answered.trailing)
            except Exception as error:
                found = told(error)
                status = (grpc_status(found), str(found), metadata_of(found))
            await context.abort(*status)
            return b""

        return grpc.unary_unary_rpc_method_handler(call)

    def _serve(self, method: str, request: Any, tenant: str) -> Any:
        if "model" in request.DESCRIPTOR.fields_by_name:
            self.pods.registry.find(request.model)
        sessions = self.sessions
        expected = None
        if "expected_revision" in request.DESCRIPTOR.fields_by_name and request.HasField("expected_revision"):
            expected = request.expected_revision
        match method:
            case "Encode" if request.session:
                patch = sessions.full_text(tenant, request.session, request.text, expected_revision=expected)
                return patched(pb.EncodeResponse(), patch)
            case "Encode":
                return patched(pb.EncodeResponse(), sessions.encode(request.text))
            case "OpenSession":
                return patched(pb.OpenSessionResponse(), sessions.open(tenant, request.session, request.text))
            case "Append":
                patch = sessions.append(tenant, request.session, request.delta, expected_revision=expected)
                return patched(pb.AppendResponse(), patch)
            case "CloseSession":
                return pb.CloseSessionResponse(closed=sessions.close(tenant, request.session))
            case "GetSession":
                info, ids = sessions.snapshot(tenant, request.session)
                return pb.GetSessionResponse(revision=info.revision, text_chars=info.chars, ids=bytes_of(ids))
            case "Handoff":
                info = sessions.restore(tenant, request.session, request.state)
                return pb.HandoffResponse(revision=info.revision, text_chars=info.chars, tokens=info.tokens)
        raise NotImplementedError(method)


def patched(answer: Any, patch: Patch) -> Any:
    fill(answer.patch, patch)
    return answer


class Cluster:
    def __init__(self, pods: list[Pod]) -> None:
        self.pods = {pod.name: pod for pod in pods}
        self.tier: Tier = family_tier(FAMILY)
        self._clients: dict[str, AsyncTierClient] = {}

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]

    def __iter__(self) -> Any:
        return iter(self.pods.values())

    def see(self, names: Iterable[str] | None = None, *, by: str | None = None) -> None:
        """Let `by` (or every pod) see these pods as ready."""
        peers = [self.pods[name].peer for name in (self.pods if names is None else names)]
        for pod in self if by is None else [self.pods[by]]:
            pod.membership.replace(peers)

    def owner(self, session: str, tenant: str = "default", *, among: Iterable[str] | None = None) -> Pod:
        found = Ring(self.pods[name].peer for name in (among or self.pods)).owner(tenant, session)
        assert found is not None
        return self.pods[found.name]

    def named(self, owner: str, count: int = 1, *, among: Iterable[str] | None = None) -> list[str]:
        """Sessions that `owner` owns."""
        names, number = [], 0
        while len(names) < count:
            number += 1
            if self.owner(f"session-{number}", among=among).name == owner:
                names.append(f"session-{number}")
        return names

    def client(self, name: str) -> AsyncTierClient:
        if name not in self._clients:
            self._clients[name] = AsyncTierClient(self.pods[name].peer.address, timeout_s=20)
        return self._clients[name]

    async def raw(self, name: str, method: str, request: Any, **metadata: str) -> Any:
        """A call by itself; raises the tier's errors."""
        answer = getattr(pb, METHODS[[each.name for each in METHODS].index(method)].output_type.name)
        pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        call = self.client(name)._channel.unary_unary(path_of(method))
        try:
            return answer.FromString(await call(request.SerializeToString(), metadata=pairs, timeout=20))
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def stop(self) -> None:
        for client in self._clients.values():
            await client.close()
        for pod in self:
            await pod.stop()


@asynccontextmanager
async def cluster(*names: str, timeouts: Timeouts = ROOMY) -> AsyncIterator[Cluster]:
    """Pods that see each other."""
    pods = [Pod(name, timeouts=timeouts) for name in names]
    for pod in pods:
        await pod.start()
    found = Cluster(pods)
    found.see()
    try:
        yield found
    finally:
        await found.stop()


class Agent:
    """A client that has its text: it appends at any pod, and opens its session again when it is told to.

    After one in `every` answers its IDs are compared with the reference's.
    """

    def __init__(self, where: Cluster, session: str, every: int = 1) -> None:
        self.every, self.turns = every, 0
        self.where, self.session, self.text = where, session, ""
        self.open: AsyncSession | None = None
        self.misses: list[str] = []

    async def append(self, delta: str, at: str) -> None:
        self.text += delta
        client = self.where.client(at)
        if self.open is not None:
            self.open._client = client
            try:
                await self.open.append(delta)
            except (SessionNotFound, RevisionConflict) as error:
                self.misses.append(error.code)
                self.open = None
        if self.open is None:
            self.open = await client.open(self.session, self.text)
        self.turns += 1
        if self.turns % self.every == 0:
            self.check()

    def check(self) -> None:
        assert self.open is not None
        assert self.open.ids.tolist() == self.where.tier.ids(self.text)


@asynccontextmanager
async def silent_port() -> AsyncIterator[str]:
    """An address that accepts connections and never says a word."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in writers:
            writer.close()
        server.close()


@asynccontextmanager
async def breakable(address: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """An address from which connections go to `address`, and what breaks all of them."""
    writers: list[asyncio.StreamWriter] = []
    host, _, port = address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        writers.extend((writer, inner_writer))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    def sever() -> None:
        for writer in writers:
            writer.transport.abort()
        writers.clear()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", sever
    finally:
        sever()
        server.close()


def closed_port() -> str:
    """An address at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"
