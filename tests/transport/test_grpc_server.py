"""The gRPC service over a real socket: the reference's IDs, coded errors, nothing changed by what fails."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from servers import GrpcTier, grpc_tier
from toktier_tier.client import AsyncTierClient, TierClient
from toktier_tier.core.certificate import verify_certificate
from toktier_tier.core.errors import (
    EnvironmentFault,
    InvalidRequest,
    Overloaded,
    RevisionConflict,
    SessionNotFound,
    SnapshotNotFound,
    StateError,
    TierError,
)
from toktier_tier.core.values import Reason, Route
from toktier_tier.sessions.lives import changes_of
from toktier_tier.transport.interface import METHODS, SERVICE, path_of
from toktier_tier.transport.status import error_of
from toktier_tier.transport.tenants import ANONYMOUS_TENANT
from toktier_tier.transport.v1 import toktier_pb2 as pb
from toktier_tier.transport.work import INLINE_CHARS, Work
from workshop import examples, family_tier, random_text, sample_text, text_parts

FAMILY = "gpt2-novelai"


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcTier]:
    with grpc_tier() as found:
        yield found


@pytest.fixture
def client(server: GrpcTier) -> Iterator[TierClient]:
    with TierClient(server.address) as found:
        yield found


def test_a_session_follows_every_change_with_the_references_ids(server: GrpcTier, client: TierClient) -> None:
    chooser = random.Random(3)
    parts = text_parts(server.tier)
    text = sample_text(20_000)
    session = client.open("follows", text)
    assert session.ids.tolist() == server.tier.ids(text)
    for _ in range(examples(40)):
        piece = random_text(chooser, parts, 0, 8)
        old_text, old_ids = text, session.ids.copy()
        kind = chooser.randrange(3)
        if kind == 0:
            text += piece
            patch = session.append(piece)
        elif kind == 1:
            start = chooser.randint(0, len(text))
            stop = min(start + chooser.choice([0, 3, 400]), len(text))
            text = text[:start] + piece + text[stop:]
            patch = session.edit(start, stop, piece)
        else:
            text = text[: -chooser.randint(1, 50)] + piece
            patch = session.full_text(text)
        assert session.ids.tolist() == server.tier.ids(text)
        if patch.certificate is not None:
            fingerprint, rule = server.tier.tokenizer.fingerprint, server.tier.rule
            verify_certificate(
                patch, fingerprint=fingerprint, rule=rule, old_text=old_text, new_text=text, old_ids=old_ids
            )
    assert session.close()
    assert not session.close()


def test_the_async_client_does_the_same(server: GrpcTier) -> None:
    async def talk() -> None:
        async with AsyncTierClient(server.address) as client:
            session = await client.open("async", "Hello")
            await session.append(" world")
            await session.edit(0, 5, "Goodbye")
            patch = await session.full_text("Goodbye world!")
            assert (patch.route, changes_of(session.revision)) == (Route.REPAIR, 3)
            assert session.ids.tolist() == server.tier.ids("Goodbye world!")
            assert (await client.encode("by itself")).tolist() == server.tier.ids("by itself")
            assert await client.decode(session.ids) == "Goodbye world!"
            assert [each.name for each in await client.snapshots()] == [FAMILY]
            assert await session.close()
            with pytest.raises(SessionNotFound):
                await session.append("x")

    asyncio.run(talk())


def test_large_texts_go_to_threads_and_give_the_same(server: GrpcTier, client: TierClient) -> None:
    text = sample_text(3 * INLINE_CHARS)
    assert client.encode(text).tolist() == server.tier.ids(text)
    session = client.open("large", "a")
    session.append(text)
    assert session.ids.tolist() == server.tier.ids("a" + text)


def test_the_snapshot_says_what_is_served(server: GrpcTier, client: TierClient) -> None:
    (found,) = client.snapshots()
    compiled = server.served[0].tokenizer.compiled
    assert (found.fingerprint, found.verdict, found.quarantined) == (compiled.fingerprint, "Admitted", False)
    assert (list(found.models), found.rule_digest) == ([f"models/{FAMILY}"], compiled.rule.digest)


def test_a_session_is_told_of_with_ids_and_state(server: GrpcTier, client: TierClient) -> None:
    session = client.open("told", "some text of twelve tokens or so")
    answer = client.call(
        client._stub.GetSession, pb.GetSessionRequest(session="told", include_ids=True, include_state=True)
    )
    assert np.frombuffer(answer.ids, "<u4").tolist() == session.ids.tolist()
    assert (answer.revision, answer.text_chars, answer.tokens) == (session.revision, 32, len(session.ids))
    with grpc_tier() as other, TierClient(other.address) as there:
        taken = there.call(there._stub.Handoff, pb.HandoffRequest(session="told", state=answer.state))
        assert (taken.revision, taken.text_chars, taken.tokens) == (session.revision, 32, len(session.ids))
        append = pb.AppendRequest(session="told", delta="!", expected_revision=session.revision)
        patch = there.call(there._stub.Append, append).patch
        assert patch.route == pb.ROUTE_REPAIR
        assert patch.revision != session.append("?").revision  # the same state before, two different ones now
        with pytest.raises(StateError) as caught:
            there.call(there._stub.Handoff, pb.HandoffRequest(session="x", state=answer.state[:-1] + b"?"))
        assert caught.value.code == "handoff.digest"


@pytest.mark.parametrize(
    ("request_", "method", "kind", "code"),
    [
        (pb.AppendRequest(session="nobody", delta="x"), "Append", SessionNotFound, "session.not_found"),
        (pb.AppendRequest(session="", delta="x"), "Append", InvalidRequest, "session.bad_name"),
        (pb.AppendRequest(session="s" * 513, delta="x"), "Append", InvalidRequest, "session.bad_name"),
        (pb.AppendRequest(model="no/such", session="s"), "Append", SnapshotNotFound, "snapshot.not_found"),
        (
            pb.AppendRequest(session="kept", expected_revision=7),
            "Append",
            RevisionConflict,
            "session.revision_conflict",
        ),
        (pb.EditRequest(session="kept", start_chars=3, stop_chars=2), "Edit", InvalidRequest, "edit.out_of_range"),
        (pb.EditRequest(session="kept", stop_chars=2**63), "Edit", InvalidRequest, "edit.out_of_range"),
        (
            pb.EncodeRequest(session="gone", text="x", expected_revision=0),
            "Encode",
            SessionNotFound,
            "session.not_found",
        ),
        (pb.DecodeRequest(ids=b"\0\0\0"), "Decode", InvalidRequest, "ids.not_whole"),
        (pb.DecodeRequest(ids=b"\xff" * 4), "Decode", InvalidRequest, "ids.unknown"),
        (pb.HandoffRequest(session="kept", state=b"junk"), "Handoff", StateError, "handoff.not_a_state"),
    ],
)
def test_what_is_wrong_has_a_code_and_changes_nothing(
    server: GrpcTier, client: TierClient, request_: Any, method: str, kind: type[TierError], code: str
) -> None:
    kept = client.open("kept", "kept text")
    with pytest.raises(kind) as caught:
        client.call(getattr(client._stub, method), request_)
    assert caught.value.code == code
    assert kept.append("").route is Route.UNCHANGED
    assert kept.ids.tolist() == server.tier.ids("kept text")


def test_bytes_that_are_no_request_are_refused_and_the_server_lives(server: GrpcTier, client: TierClient) -> None:
    chooser = random.Random(11)
    with grpc.insecure_channel(server.address) as channel:
        for method in METHODS:
            call = channel.unary_unary(path_of(method.name))
            for size in (1, 7, 60):
                with suppress(grpc.RpcError):
                    call(chooser.randbytes(size), timeout=10)
            with pytest.raises(grpc.RpcError) as refused:
                call(b"\x0a\xff", timeout=10)  # a string that is longer than the message
            assert error_of(refused.value).code == "request.malformed"
        with pytest.raises(grpc.RpcError) as refused:  # a surrogate's bytes where a string should be
            channel.unary_unary(path_of("Append"))(b"\x12\x03\xed\xa0\x80", timeout=10)
        assert error_of(refused.value).code == "request.malformed"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path_of("Nothing"))(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
    assert client.encode("alive").tolist() == server.tier.ids("alive")


def test_a_bug_of_ours_is_told_without_its_text(
    server: GrpcTier, client: TierClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("the user's text")

    monkeypatch.setattr(server.sessions, "append", broken)
    with pytest.raises(EnvironmentFault) as caught:
        client.call(client._stub.Append, pb.AppendRequest(session="s", delta="x"))
    assert caught.value.code == "internal"
    assert "user's" not in caught.value.message


def test_more_long_calls_than_the_bound_are_turned_away() -> None:
    with grpc_tier(work=Work(threads=1, waiting=0)) as server, TierClient(server.address) as client:
        assert changes_of(client.open("short", "x").revision) == 0
        with pytest.raises(Overloaded) as caught:
            client.encode("x " * INLINE_CHARS)
        assert (caught.value.code, caught.value.details) == ("tier.overloaded", {"limit": 0})


def test_a_held_session_keeps_nobody_else_waiting(server: GrpcTier, client: TierClient) -> None:
    client.open("held", "text")
    live = server.sessions._find(server.sessions._key(ANONYMOUS_TENANT, "held"))
    answers: list[Any] = []
    with live.lock:  # as a long call on another thread would
        waiting = client._stub.Append.future(pb.AppendRequest(session="held", delta=" more"), timeout=30)
        answers.append(client.encode("meanwhile"))
    assert answers[0].tolist() == server.tier.ids("meanwhile")
    assert changes_of(waiting.result().patch.revision) == 1


def test_several_tokenizers_are_told_apart_by_model() -> None:
    with grpc_tier(FAMILY, "llama-3.1") as server:
        for name in (FAMILY, "models/llama-3.1", server.served[1].tokenizer.fingerprint):
            with TierClient(server.address, model=name) as client:
                expected = family_tier(FAMILY if name == FAMILY else "llama-3.1").ids("Which one? 12345")
                assert client.encode("Which one? 12345").tolist() == expected
        with TierClient(server.address) as client, pytest.raises(SnapshotNotFound) as caught:
            client.encode("x")
        assert caught.value.code == "snapshot.name_required"


def test_after_a_quarantine_the_reference_answers() -> None:
    with grpc_tier() as server, TierClient(server.address) as client:
        session = client.open("q", "Hello there")
        server.served[0].tokenizer.quarantine()
        patch = session.append(" and more")
        assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.QUARANTINED)
        assert session.ids.tolist() == server.tier.ids("Hello there and more")
        assert client.snapshots()[0].quarantined


def test_health_and_reflection_are_served(server: GrpcTier) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_a_server_that_is_gone_is_an_error_with_a_code() -> None:
    with grpc_tier() as server:
        address = server.address
    with TierClient(address, timeout_s=5) as client, pytest.raises(EnvironmentFault) as caught:
        client.encode("x")
    assert caught.value.code == "grpc.unavailable"


def test_answers_and_errors_are_metered_without_text_or_names(server: GrpcTier, client: TierClient) -> None:
    client.open("a name", "some text").append(" more")
    with pytest.raises(SessionNotFound):
        client.call(client._stub.Append, pb.AppendRequest(session="nobody", delta="x"))
    told = server.telemetry.page().decode()
    labels = 'method="Append",reason="none",route="repair",tokenizer="gpt2-novelai"'
    for name in ("tokenize_duration_seconds", "text_delta_characters", "context_tokens"):
        assert f"toktier_{name}_count{{{labels}}}" in told
    assert 'code="session.not_found"' in told
    assert "a name" not in told
    assert "some text" not in told


# --- the interface itself, by the rules that `buf lint` calls STANDARD --------------------------------------------


def test_the_interface_is_named_by_the_rules() -> None:
    assert pb.DESCRIPTOR.package == "toktier.v1"
    for service in pb.DESCRIPTOR.services_by_name.values():
        assert service.name.endswith("Service")
        for method in service.methods:
            assert re.fullmatch(r"[A-Z][A-Za-z]+", method.name)
            assert (method.input_type.name, method.output_type.name) == (
                f"{method.name}Request",
                f"{method.name}Response",
            )
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert enum.values[0].name == f"{enum.name.upper()}_UNSPECIFIED"
        assert all(value.name.startswith(f"{enum.name.upper()}_") for value in enum.values)
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)


def test_ids_travel_as_packed_bytes_everywhere() -> None:
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            if field.name == "ids":
                assert field.type == FieldDescriptor.TYPE_BYTES
            assert not (field.is_repeated and field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64))
