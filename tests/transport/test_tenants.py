"""Tenants over both addresses: equal texts and names meet nobody else's state; nothing but the credential counts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from servers import Engine, OnThread, WholeTier, rendered, whole_tier
from toktier_tier.client import TierClient
from toktier_tier.core.errors import SessionNotFound
from toktier_tier.core.values import Reason, Route
from toktier_tier.sessions.lives import changes_of
from toktier_tier.settings import SecuritySettings, SessionSettings, UpstreamSettings
from toktier_tier.transport.status import PermissionDenied, Unauthenticated
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import family_tier, sample_text

TENANTS = ("a", "b", "pods", *(f"{side}{number}" for side in "cd" for number in range(10)))
TOKENS = {tenant: f"token-of-{tenant}" for tenant in TENANTS}
TEXT = sample_text(12_000)


def token_lines() -> str:
    def line(tenant: str) -> str:
        role = "peer" if tenant == "pods" else "user"
        return f"{hashlib.sha256(TOKENS[tenant].encode()).hexdigest()} {tenant} {role}\n"

    return "".join(map(line, TENANTS))


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Engine, str]]:
    engine = Engine()
    served = OnThread(engine.app)
    yield engine, served.url
    served.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engine: tuple[Engine, str]) -> Iterator[WholeTier]:
    directory = tmp_path_factory.mktemp("tier")
    tokens, key = directory / "tokens", directory / "key"
    tokens.write_text(token_lines())
    key.write_text("sglangs-own-key\n")
    with whole_tier(
        directory,
        security=SecuritySettings(tokens=str(tokens), open_metrics=False),
        upstream=UpstreamSettings(urls=(engine[1],), api_key_file=str(key)),
    ) as found:
        yield found


def client_of(server: WholeTier, tenant: str) -> TierClient:
    return TierClient(server.grpc, token=TOKENS[tenant])


def post(server: WholeTier, tenant: str, path: str, body: Any, **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKENS[tenant]}", **headers}
    return httpx.post(f"http://{server.http}{path}", json=body, headers=headers, trust_env=False, timeout=30)


def test_equal_text_under_an_equal_name_is_another_session_over_grpc(server: WholeTier) -> None:
    with client_of(server, "a") as a, client_of(server, "b") as b:
        a.open("shared", TEXT)
        again = a.open("other", TEXT).full_text(TEXT)
        assert again.route is Route.UNCHANGED  # the same tenant's hit
        with pytest.raises(SessionNotFound):
            b.call(b._stub.Append, pb.AppendRequest(session="shared", delta="x"))
        with pytest.raises(SessionNotFound):
            b.call(b._stub.GetSession, pb.GetSessionRequest(session="shared", include_ids=True, include_state=True))
        assert not b.call(b._stub.CloseSession, pb.CloseSessionRequest(session="shared")).closed
        encoded = b.call(b._stub.Encode, pb.EncodeRequest(session="shared", text=TEXT)).patch
        assert (encoded.keep, encoded.resume, encoded.reason) == (0, 0, Reason.OPENED.value)
        assert changes_of(encoded.revision) == 0
        hit = a.call(a._stub.Encode, pb.EncodeRequest(session="shared", text=TEXT + " more")).patch
        assert hit.route == pb.ROUTE_REPAIR
        b.call(b._stub.Edit, pb.EditRequest(session="shared", start_chars=0, stop_chars=5, replacement="b was here"))
        found = a.call(a._stub.GetSession, pb.GetSessionRequest(session="shared", include_ids=True))
        assert (changes_of(found.revision), found.text_chars) == (1, len(TEXT) + 5)
        assert list(memoryview(found.ids).cast("I")) == family_tier("gpt2-novelai").ids(TEXT + " more")


@pytest.mark.parametrize(("number", "named"), [(8, {"x-toktier-session": "mine"}), (9, {})])
def test_equal_chats_share_no_state_over_http(server: WholeTier, number: int, named: dict[str, str]) -> None:
    a, b = f"c{number}", f"d{number}"
    chat = {"messages": [{"role": "user", "content": TEXT}]}
    turns = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]
    more = {"messages": [*chat["messages"], *turns]}

    def ask(tenant: str, body: Any) -> tuple[str, str, int]:
        answer = post(server, tenant, "/v1/chat/completions/render", body, **named)
        assert answer.json()["token_ids"] == family_tier("gpt2-novelai").ids(rendered(body["messages"]))
        return answer.json()["route"], answer.json()["reason"], changes_of(answer.json()["revision"])

    opened = ("encode", "session.opened", 0)
    assert ask(a, chat) == opened
    assert ask(b, chat) == opened  # as if the other had never been
    assert ask(a, more)[0] == "repair"
    assert ask(b, more)[0] == "repair"


NAMES_OF_OTHERS = [
    "a/shared",
    "../a/shared",
    "named/mine",
    "named/../a",
    "prompt_cache_key/mine",
    "content/1",
    "a\nnamed/mine",
    "a\0shared",
    "default/shared",
]


@pytest.mark.parametrize("name", NAMES_OF_OTHERS)
def test_no_session_name_reaches_across(server: WholeTier, name: str) -> None:
    """Over gRPC, where a session may have any name, with all of a's at hand."""
    with client_of(server, "a") as a, client_of(server, "b") as b:
        a.open("shared", TEXT)
        post(server, "a", "/generate", {"text": TEXT, "session_id": "mine"})
        with pytest.raises(SessionNotFound):
            b.call(b._stub.GetSession, pb.GetSessionRequest(session=name))
        patch = b.call(b._stub.Encode, pb.EncodeRequest(session=name, text=TEXT)).patch
        assert (patch.keep, changes_of(patch.revision), patch.reason) == (0, 0, Reason.OPENED.value)
        assert b.call(b._stub.CloseSession, pb.CloseSessionRequest(session=name)).closed


@pytest.mark.parametrize(
    ("number", "more"),
    [
        *enumerate(
            (
                {"tenant": "c0"},
                {"user": "c1"},
                {"x-toktier-tenant": "c2"},
                {"metadata": {"tenant": "c3"}},
                {"prompt_cache_key": "../c4/mine"},
                {"session_id": "c5/mine"},
                {"session_id": "mine"},
            )
        )
    ],
)
def test_no_member_or_header_reaches_across(server: WholeTier, number: int, more: dict[str, Any]) -> None:
    a, b = f"c{number}", f"d{number}"
    body = {"model": "a/model", "messages": [{"role": "user", "content": TEXT}]}
    post(server, a, "/v1/chat/completions/render", {**body, "session_id": "mine"})
    post(server, a, "/v1/chat/completions/render", body)
    before = server.sessions.counts()
    claims = {"x-toktier-tenant": a, "x-tenant": a}
    answer = post(server, b, "/v1/chat/completions/render", {**body, **more}, **claims)
    assert (answer.json()["route"], answer.json()["reason"]) == ("encode", "session.opened")
    after = server.sessions.counts()
    assert after["route.encode"] == before["route.encode"] + 1
    assert after.get("route.unchanged", 0) == before.get("route.unchanged", 0)


def test_only_a_peer_may_name_a_tenant_and_hand_sessions_over(server: WholeTier) -> None:
    with client_of(server, "a") as a, client_of(server, "b") as b, client_of(server, "pods") as pods:
        a.open("as a", TEXT)
        request = pb.GetSessionRequest(session="as a", include_state=True)
        for_a = (("x-toktier-tenant", "a"),)

        def call(client: TierClient, method: Any, asked: Any, more: Any) -> Any:
            return method(asked, timeout=10, metadata=(*client._metadata, *more))

        with pytest.raises(grpc.RpcError):
            call(b, b._stub.GetSession, request, for_a)
        with pytest.raises(grpc.RpcError):
            call(pods, pods._stub.GetSession, request, ())
        state = call(pods, pods._stub.GetSession, request, for_a).state
        handed = pb.HandoffRequest(session="handed", state=state)
        with pytest.raises(PermissionDenied) as caught:
            a.call(a._stub.Handoff, handed)
        assert caught.value.code == "auth.peers_only"
        call(pods, pods._stub.Handoff, handed, for_a)
        assert a.call(a._stub.Append, pb.AppendRequest(session="handed", delta=" x")).patch.route == pb.ROUTE_REPAIR
        with pytest.raises(SessionNotFound):
            b.call(b._stub.Append, pb.AppendRequest(session="handed", delta=" x"))


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_a_known_token_nothing_is_served_but_health(server: WholeTier, token: str) -> None:
    code = "auth.unknown" if token else "auth.missing"
    with TierClient(server.grpc, token=token) as client:
        for call in (lambda: client.encode("x"), lambda: client.open("s"), client.snapshots):
            with pytest.raises(Unauthenticated) as caught:
                call()
            assert caught.value.code == code
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=f"http://{server.http}", headers=headers, trust_env=False) as web:
        for path in ("/v1/chat/completions", "/tokenize", "/generate", "/v1/messages"):
            answer = web.post(path, content=b"not even JSON")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
            assert answer.headers["www-authenticate"] == "Bearer"
        assert web.get("/v1/models").status_code == web.get("/metrics").status_code == 401
        assert web.get("/health").status_code == web.get("/ready").status_code == 200
    authorized = {"authorization": f"Bearer {TOKENS['a']}"}
    page = httpx.get(f"http://{server.http}/metrics", headers=authorized, trust_env=False)
    assert page.status_code == 200
    assert re.search(rf'toktier_security_events\{{kind="auth",.*reason="{code}"\}} [1-9]', page.text)


def test_the_engine_gets_its_own_key_and_never_a_clients_token(server: WholeTier, engine: tuple[Engine, str]) -> None:
    post(
        server,
        "a",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}]},
        **{"x-toktier-tenant": "b"},
    )
    headers = engine[0].requests[-1][2]
    assert headers["authorization"] == "Bearer sglangs-own-key"
    assert "x-toktier-tenant" not in headers
    assert not any("token-of" in value for value in headers.values())


@pytest.mark.parametrize("passed", [False, True])
def test_a_clients_authorization_goes_on_only_where_that_is_asked_for(
    tmp_path: Path, engine: tuple[Engine, str], passed: bool
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(token_lines())
    upstream = UpstreamSettings(urls=(engine[1],), pass_authorization=passed)
    with whole_tier(tmp_path, security=SecuritySettings(tokens=str(tokens)), upstream=upstream) as server:
        post(server, "a", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        assert engine[0].requests[-1][2].get("authorization") == (f"Bearer {TOKENS['a']}" if passed else None)


def test_a_tenant_over_its_budget_loses_its_own_sessions_only(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(token_lines())
    sessions = SessionSettings(tenant_budget_bytes=1 << 20)
    security = SecuritySettings(tokens=str(tokens))
    with whole_tier(tmp_path, security=security, sessions=sessions) as server:  # noqa: SIM117
        with client_of(server, "a") as a, client_of(server, "b") as b:
            kept = b.open("kept", TEXT)
            for number in range(60):
                a.open(f"s{number}", TEXT)
            assert kept.append(" x").route is Route.REPAIR
            assert server.sessions.counts()["evicted.tenant_bytes"] > 10
            with pytest.raises(SessionNotFound):
                a.call(a._stub.GetSession, pb.GetSessionRequest(session="s0"))


def test_tokens_are_read_again_while_the_tier_serves(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(token_lines())
    with whole_tier(tmp_path, security=SecuritySettings(tokens=str(tokens))) as server:
        with client_of(server, "a") as a, TierClient(server.grpc, token="new") as new:
            a.encode("x")
            (tmp_path / "fresh").write_text(f"{hashlib.sha256(b'new').hexdigest()} a\n")
            (tmp_path / "fresh").replace(tokens)

            async def refresh() -> None:
                server.tier.security.refresh()

            server.run(refresh())
            new.encode("x")
            with pytest.raises(Unauthenticated):
                a.encode("x")
        assert re.search(r'toktier_security_events\{kind="tokens",.*reason="loaded"\} 1', server.page())
