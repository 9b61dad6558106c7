"""`toktier.v1.TokenizerService` over grpc.aio.

Guarantees: every answer carries revision, route, reason and certificate; every deliberate error becomes a status
with its code in the trailing metadata, anything else `internal`; a call that fails has changed nothing.
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

from ..core.errors import InvalidRequest, TierError
from ..core.values import Patch
from ..sessions.registry import Registry, Served
from ..telemetry import Telemetry, silent
from .messages import MESSAGE_LIMITS, bytes_of, fill, ids_of
from .status import grpc_status, metadata_of, told
from .v1 import toktier_pb2 as pb
from .work import TENANT, Work

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["TokenizerService"]
SERVICE = _DESCRIPTOR.full_name
OPTIONS = (*MESSAGE_LIMITS, ("grpc.so_reuseport", 0))
Context = grpc.aio.ServicerContext[Any, Any]


class TokenizerServicer:
    """The calls, by the names of the interface. One object serves all requests of an event loop."""

    def __init__(self, registry: Registry, work: Work, telemetry: Telemetry | None = None) -> None:
        self.registry, self.work = registry, work
        self.telemetry = telemetry or silent()

    async def Encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        served = self.registry.find(request.model)
        text, session = request.text, request.session
        if session:
            expected = request.expected_revision if request.HasField("expected_revision") else None
            patch = await self._patch(
                "Encode",
                served,
                len(text),
                lambda wait: served.sessions.full_text(TENANT, session, text, expected_revision=expected, wait=wait),
            )
        else:
            patch = await self._patch("Encode", served, len(text), lambda wait: served.sessions.encode(text))
        answer = pb.EncodeResponse()
        fill(answer.patch, patch)
        return answer

    async def OpenSession(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        served = self.registry.find(request.model)
        text = request.text
        patch = await self._patch(
            "OpenSession", served, len(text), lambda wait: served.sessions.open(TENANT, request.session, text)
        )
        answer = pb.OpenSessionResponse()
        fill(answer.patch, patch)
        return answer

    async def Append(self, request: pb.AppendRequest) -> pb.AppendResponse:
        served = self.registry.find(request.model)
        delta = request.delta
        expected = request.expected_revision if request.HasField("expected_revision") else None
        patch = await self._patch(
            "Append",
            served,
            len(delta),
            lambda wait: served.sessions.append(TENANT, request.session, delta, expected_revision=expected, wait=wait),
        )
        answer = pb.AppendResponse()
        fill(answer.patch, patch)
        return answer

    async def Edit(self, request: pb.EditRequest) -> pb.EditResponse:
        served = self.registry.find(request.model)
        expected = request.expected_revision if request.HasField("expected_revision") else None
        patch = await self._patch(
            "Edit",
            served,
            len(request.replacement),
            lambda wait: served.sessions.edit(
                TENANT,
                request.session,
                request.start_chars,
                request.stop_chars,
                request.replacement,
                expected_revision=expected,
                wait=wait,
            ),
        )
        answer = pb.EditResponse()
        fill(answer.patch, patch)
        return answer

    async def CloseSession(self, request: pb.CloseSessionRequest) -> pb.CloseSessionResponse:
        served = self.registry.find(request.model)
        return pb.CloseSessionResponse(closed=served.sessions.close(TENANT, request.session))

    async def GetSession(self, request: pb.GetSessionRequest) -> pb.GetSessionResponse:
        served = self.registry.find(request.model)
        sessions, session = served.sessions, request.session

        def get() -> pb.GetSessionResponse:
            state = sessions.export(TENANT, session) if request.include_state else b""
            if request.include_ids:
                info, ids = sessions.snapshot(TENANT, session)
            else:
                info, ids = sessions.info(TENANT, session), None
            return pb.GetSessionResponse(
                revision=info.revision,
                text_chars=info.chars,
                tokens=info.tokens,
                state_bytes=info.state_bytes,
                ids=bytes_of(ids) if ids is not None else b"",
                state=state,
            )

        return await self.work.in_thread(get)

    async def Decode(self, request: pb.DecodeRequest) -> pb.DecodeResponse:
        served = self.registry.find(request.model)
        ids = ids_of(request.ids)
        if len(ids) and int(ids.max()) >= served.tokenizer.reference.id_limit:
            raise InvalidRequest("ids.unknown", "an ID is outside the vocabulary")
        skip = request.skip_special_tokens
        text = await self.work.in_thread(lambda: served.tokenizer.reference.decode(ids, skip_special_tokens=skip))
        return pb.DecodeResponse(text=text)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        return pb.ListSnapshotsResponse(snapshots=[_snapshot(served) for served in self.registry])

    async def Handoff(self, request: pb.HandoffRequest) -> pb.HandoffResponse:
        served = self.registry.find(request.model)
        info = await self.work.in_thread(lambda: served.sessions.restore(TENANT, request.session, request.state))
        return pb.HandoffResponse(revision=info.revision, text_chars=info.chars, tokens=info.tokens)

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
    )


def _rpc(servicer: TokenizerServicer, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    """One call: bytes to request to answer to bytes, errors as statuses, under the span of the request."""
    handle = getattr(servicer, method.name)
    parse = getattr(pb, method.input_type.name).FromString
    telemetry, span = servicer.telemetry, f"{SERVICE}/{method.name}"
    tracing = telemetry.tracing

    async def call(data: bytes, context: Context) -> bytes:
        try:
            if not tracing:
                return (await handle(parse(data))).SerializeToString()  # type: ignore[no-any-return]
            with telemetry.receive(span, lambda: _carrier(context)):
                return (await handle(parse(data))).SerializeToString()  # type: ignore[no-any-return]
        except DecodeError:
            found: TierError = InvalidRequest("request.malformed", f"no {method.input_type.name}")
        except Exception as error:
            found = told(error)
        telemetry.failed(method.name, found.code)
        await context.abort(grpc_status(found), str(found), metadata_of(found))
        return b""  # abort has raised

    return grpc.unary_unary_rpc_method_handler(call)


def _carrier(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


class GrpcServer:
    """The service with health and reflection on one address."""

    def __init__(self, servicer: TokenizerServicer, address: str) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        methods = {method.name: _rpc(servicer, method) for method in _DESCRIPTOR.methods}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )
        self.port = self._server.add_insecure_port(address)

    async def start(self) -> None:
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Tell `NOT_SERVING`, take no new calls, let the running ones end within `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
