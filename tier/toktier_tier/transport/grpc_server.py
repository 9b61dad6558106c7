"""`toktier.v1.TokenizerService` over grpc.aio.

Guarantees: every answer carries revision, route, reason and certificate; every deliberate error becomes a status
with its code in the trailing metadata, anything else `internal`; a call that fails has changed nothing. A call is
worked on for the tenant of its credential only, within the limits, and before its deadline. With several pods, a call
goes to the pod that has its session.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from ..core.errors import EnvironmentFault, InvalidRequest, TierError
from ..core.values import Patch
from ..sessions.lookup import unpacked
from ..sessions.registry import Registry, Served
from ..telemetry import Telemetry, silent
from .elsewhere import Elsewhere
from .identity import Identities
from .limits import Limits
from .messages import MAX_MESSAGE_BYTES, bytes_of, fill, ids_of, message_limits, ranges_of
from .prompts import Prompts
from .status import STARTING, Late, OwnerAnswered, PermissionDenied, grpc_status, metadata_of, told
from .tenants import FORWARDED_KEY, Identity
from .tls import ServerTls
from .v1 import toktier_pb2 as pb
from .work import Work

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["TokenizerService"]
SERVICE = _DESCRIPTOR.full_name
STREAMS = 1_024
"""Calls at once on one connection; more wait at the client."""
NOT_READY = EnvironmentFault(STARTING, "the tier isn't ready yet")
FOR_PEERS = frozenset({"Handoff", "EncodeAll"})
"""What only other pods may call, where callers are told apart or pods share a token."""
Context = grpc.aio.ServicerContext[Any, Any]
Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]


def options(message_bytes: int = MAX_MESSAGE_BYTES, connection_s: float = 0.0) -> tuple[tuple[str, int], ...]:
    """Of a server that takes messages of up to `message_bytes`, and connections for `connection_s` (0: for ever)."""
    limits = message_limits(message_bytes, MAX_MESSAGE_BYTES)
    age = (("grpc.max_connection_age_ms", int(1e3 * connection_s)),) if connection_s else ()
    return (*limits, *age, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS))


OPTIONS = options()


class TokenizerServicer:
    """The calls, by the names of the interface, each for a tenant. One object serves all requests of an event loop.

    identities, limits   by default everybody is one tenant, within the default bounds
    prompts              for texts that other pods place here
    pods                 the tier's other pods, if there are any
    """

    def __init__(
        self,
        registry: Registry,
        work: Work,
        telemetry: Telemetry | None = None,
        *,
        identities: Identities | None = None,
        limits: Limits | None = None,
        prompts: Prompts | None = None,
        pods: Elsewhere | None = None,
    ) -> None:
        self.registry, self.work = registry, work
        self.telemetry = telemetry or silent()
        self.identities, self.limits = identities or Identities(), limits or Limits()
        self.prompts, self.pods = prompts or Prompts(registry, {}, work, self.telemetry), pods

    async def Encode(self, request: pb.EncodeRequest, tenant: str) -> pb.EncodeResponse:
        served = self.registry.find(request.model)
        text, session = request.text, request.session
        untrusted = ranges_of(request.untrusted) if request.untrusted else ()
        if session:
            expected = request.expected_revision if request.HasField("expected_revision") else None
            patch = await self._patch(
                "Encode",
                served,
                len(text),
                lambda wait: served.sessions.full_text(
                    tenant, session, text, expected_revision=expected, wait=wait, untrusted=untrusted
                ),
            )
        else:
            patch = await self._patch(
                "Encode", served, len(text), lambda wait: served.sessions.encode(text, untrusted=untrusted)
            )
        answer = pb.EncodeResponse()
        fill(answer.patch, patch)
        return answer

    async def OpenSession(self, request: pb.OpenSessionRequest, tenant: str) -> pb.OpenSessionResponse:
        served = self.registry.find(request.model)
        text = request.text
        untrusted = ranges_of(request.untrusted) if request.untrusted else ()
        patch = await self._patch(
            "OpenSession",
            served,
            len(text),
            lambda wait: served.sessions.open(tenant, request.session, text, untrusted=untrusted),
        )
        answer = pb.OpenSessionResponse()
        fill(answer.patch, patch)
        return answer

    async def Append(self, request: pb.AppendRequest, tenant: str) -> pb.AppendResponse:
        served = self.registry.find(request.model)
        delta = request.delta
        expected = request.expected_revision if request.HasField("expected_revision") else None
        untrusted = ranges_of(request.untrusted) if request.untrusted else ()
        patch = await self._patch(
            "Append",
            served,
            len(delta),
            lambda wait: served.sessions.append(
                tenant, request.session, delta, expected_revision=expected, wait=wait, untrusted=untrusted
            ),
        )
        answer = pb.AppendResponse()
        fill(answer.patch, patch)
        return answer

    async def Edit(self, request: pb.EditRequest, tenant: str) -> pb.EditResponse:
        served = self.registry.find(request.model)
        expected = request.expected_revision if request.HasField("expected_revision") else None
        patch = await self._patch(
            "Edit",
            served,
            len(request.replacement),
            lambda wait: served.sessions.edit(
                tenant,
                request.session,
                request.start_chars,
                request.stop_chars,
                request.replacement,
                expected_revision=expected,
                wait=wait,
                untrusted=ranges_of(request.untrusted),
            ),
        )
        answer = pb.EditResponse()
        fill(answer.patch, patch)
        return answer

    async def CloseSession(self, request: pb.CloseSessionRequest, tenant: str) -> pb.CloseSessionResponse:
        served = self.registry.find(request.model)
        return pb.CloseSessionResponse(closed=served.sessions.close(tenant, request.session))

    async def GetSession(self, request: pb.GetSessionRequest, tenant: str) -> pb.GetSessionResponse:
        served = self.registry.find(request.model)
        sessions, session = served.sessions, request.session

        def get() -> pb.GetSessionResponse:
            state = sessions.export(tenant, session) if request.include_state else b""
            if request.include_ids:
                info, ids = sessions.snapshot(tenant, session)
            else:
                info, ids = sessions.info(tenant, session), None
            return pb.GetSessionResponse(
                revision=info.revision,
                text_chars=info.chars,
                tokens=info.tokens,
                state_bytes=info.state_bytes,
                ids=bytes_of(ids) if ids is not None else b"",
                state=state,
            )

        return await self.work.in_thread(get)

    async def Decode(self, request: pb.DecodeRequest, tenant: str) -> pb.DecodeResponse:
        served = self.registry.find(request.model)
        ids = ids_of(request.ids)
        if len(ids) and int(ids.max()) >= served.tokenizer.reference.id_limit:
            raise InvalidRequest("ids.unknown", "an ID is outside the vocabulary")
        skip = request.skip_special_tokens
        text = await self.work.in_thread(lambda: served.tokenizer.reference.decode(ids, skip_special_tokens=skip))
        return pb.DecodeResponse(text=text)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, tenant: str) -> pb.ListSnapshotsResponse:
        return pb.ListSnapshotsResponse(snapshots=[_snapshot(served) for served in self.registry])

    async def Handoff(self, request: pb.HandoffRequest, tenant: str) -> pb.HandoffResponse:
        served = self.registry.find(request.model)
        chain = unpacked(request.chain)
        info = await self.work.in_thread(lambda: served.sessions.restore(tenant, request.session, request.state))
        if chain:
            self.prompts.adopt(served, tenant, request.session, chain)
        return pb.HandoffResponse(revision=info.revision, text_chars=info.chars, tokens=info.tokens)

    async def EncodeAll(self, request: pb.EncodeAllRequest, tenant: str) -> pb.EncodeAllResponse:
        return await self.prompts.encode_all(request, tenant)

    async def _patch(self, method: str, served: Served, chars: int, call: Callable[[bool], Patch]) -> Patch:
        begun = perf_counter()
        patch = await self.work.run(served, chars, call)
        self.telemetry.answered(served, method, patch, chars, perf_counter() - begun)
        return patch


def _snapshot(served: Served) -> pb.Snapshot:
    tokenizer = served.tokenizer
    compiled = tokenizer.compiled
    return pb.Snapshot(
        name=served.name,
        models=served.models,
        fingerprint=compiled.fingerprint,
        sha256=compiled.sha256,
        reference_version=compiled.reference_version,
        verdict=compiled.verdict.value,
        reason=compiled.reason,
        rule_digest=compiled.rule.digest,
        encoder=compiled.encoder,
        whole_form=tokenizer.whole is not None,
        quarantined=tokenizer.quarantined,
        sessions=len(served.sessions),
        state_bytes=served.sessions.state_bytes,
        admission=served.admission,
    )


def _rpc(servicer: TokenizerServicer, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    """One call: bytes to request to answer to bytes, errors as statuses, under the span of the request."""
    handle = getattr(servicer, method.name)
    parse = getattr(pb, method.input_type.name).FromString
    telemetry, span = servicer.telemetry, f"{SERVICE}/{method.name}"
    tracing = telemetry.tracing
    identify, anonymous = servicer.identities.of_call, servicer.identities.unasked
    enter, leave = servicer.limits.enter, servicer.limits.leave
    peers_only = method.name in FOR_PEERS and anonymous is None
    pods, marks_checked = servicer.pods, servicer.identities.knows_pods

    async def by_pods(elsewhere: Elsewhere, data: bytes, who: Identity, context: Context) -> bytes:
        request, tenant = parse(data), who.tenant

        async def here() -> bytes:
            return (await handle(request, tenant)).SerializeToString()  # type: ignore[no-any-return]

        metadata, left_s = context.invocation_metadata(), context.time_remaining()
        if marks_checked and not who.peer and any(key == FORWARDED_KEY for key, _ in metadata or ()):
            raise _not_a_peer()
        return await elsewhere.serve(method.name, request, data, tenant, metadata, left_s, here)

    async def call(data: bytes, context: Context) -> bytes:
        try:
            who = anonymous or identify(context.invocation_metadata(), context.auth_context)
            if peers_only and not who.peer:
                raise _not_a_peer()
            size = len(data)
            load = enter(who.tenant, size)
            try:
                if context.time_remaining() == 0:
                    raise Late("tier.late", "the deadline was over before the call was worked on")
                if pods is None and not tracing:
                    return (await handle(parse(data), who.tenant)).SerializeToString()  # type: ignore[no-any-return]
                with telemetry.receive(span, lambda: _carrier(context)):
                    if pods is not None:
                        return await by_pods(pods, data, who, context)
                    return (await handle(parse(data), who.tenant)).SerializeToString()  # type: ignore[no-any-return]
            finally:
                leave(load, size)
        except DecodeError:
            error: TierError = InvalidRequest("request.malformed", f"no {method.input_type.name}")
            status: Status = (grpc_status(error), str(error), metadata_of(error))
        except OwnerAnswered as answered:
            error, status = answered.error, (answered.status, answered.details, answered.trailing)
        except Exception as raised:
            error = told(raised)
            status = (grpc_status(error), str(error), metadata_of(error))
        telemetry.failed(method.name, error.code)
        await context.abort(*status)
        return b""  # abort has raised

    return grpc.unary_unary_rpc_method_handler(call)


async def _starting(data: bytes, context: Context) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(NOT_READY), metadata_of(NOT_READY))
    return b""  # abort has raised


class _Methods(grpc.GenericRpcHandler):
    """The service's calls; until `handlers` are set, all of them are told to come later."""

    def __init__(self) -> None:
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(_starting)
        self.handlers = {f"/{SERVICE}/{method.name}": handler for method in _DESCRIPTOR.methods}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self.handlers.get(details.method)


def _not_a_peer() -> PermissionDenied:
    return PermissionDenied("auth.peers_only", "only other pods of the tier may call this")


def _carrier(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


class GrpcServer:
    """The service with health and reflection on one address.

    Without a servicer it takes calls as one that isn't ready, `NOT_SERVING`, until `serve`. Raises `EnvironmentFault`
    (`grpc.address`) for an address that can't be had.

    connection_s    after so long, more or less a tenth, a client is told to connect anew; its calls end as they would
                    have (measured: none of 14,000 was lost over 80 such moments; `stop` under load loses some, since
                    calls that come in before its GOAWAY is heard are cancelled). 0: never
    """

    def __init__(
        self,
        servicer: TokenizerServicer | None,
        address: str,
        *,
        tls: ServerTls | None = None,
        message_bytes: int = MAX_MESSAGE_BYTES,
        connection_s: float = 0.0,
    ) -> None:
        self._server = grpc.aio.server(options=options(message_bytes, connection_s))
        self._methods, self._serving = _Methods(), False
        self._server.add_generic_rpc_handlers((self._methods,))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )
        if servicer is not None:
            self._take(servicer)
        try:
            self.port = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, tls.grpc_credentials())
            )
        except RuntimeError:
            raise EnvironmentFault("grpc.address", f"can't listen on {address}") from None

    async def start(self) -> None:
        await self._tell()
        await self._server.start()

    async def serve(self, servicer: TokenizerServicer) -> None:
        """From now on by `servicer`."""
        self._take(servicer)
        await self._tell()

    async def retire(self) -> None:
        """Tell `NOT_SERVING` from now on; calls are served as before."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Tell `NOT_SERVING`, take no new calls, let the running ones end within `grace_s`."""
        await self.retire()
        await self._server.stop(grace_s)

    def _take(self, servicer: TokenizerServicer) -> None:
        self._methods.handlers = {f"/{SERVICE}/{method.name}": _rpc(servicer, method) for method in _DESCRIPTOR.methods}
        self._serving = True

    async def _tell(self) -> None:
        states = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, states.SERVING if self._serving else states.NOT_SERVING)
