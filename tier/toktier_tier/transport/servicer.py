"""The calls of `toktier.v1.TokenizerService`, each for a tenant: what comes is a message, what goes is one.

Guarantees: every answer carries revision, route, reason and certificate; a call that fails has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from ..core.errors import InvalidRequest
from ..core.values import Patch
from ..sessions.lookup import unpacked
from ..sessions.registry import Registry, Served
from ..telemetry import Telemetry, silent
from .elsewhere import Elsewhere
from .identity import Identities
from .limits import Limits
from .messages import bytes_of, fill, ids_of, ranges_of
from .prompts import Prompts
from .v1 import toktier_pb2 as pb
from .work import Work


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

        def get() -> pb.GetSessionResponse:
            info, ids, state = served.sessions.read(
                tenant, request.session, ids=request.include_ids, exported=request.include_state
            )
            return pb.GetSessionResponse(
                revision=info.revision,
                text_chars=info.chars,
                tokens=info.tokens,
                state_bytes=info.state_bytes,
                ids=bytes_of(ids) if ids is not None else b"",
                state=state or b"",
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
        info = await self.work.run(
            served, len(request.state), lambda wait: served.sessions.restore(tenant, request.session, request.state)
        )
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
