"""Whole tiers as their settings describe them: who calls whom, with which credential, and what moves along."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from catalog import path_of
from certificates import Authority
from servers import FAMILY, WholeTier, free_port, rendered, whole_tier
from toktier_tier.client import TierClient, Tls
from toktier_tier.core.errors import InvalidRequest
from toktier_tier.pods.drain import HandoverReport
from toktier_tier.pods.forward import FORWARDED
from toktier_tier.pods.router import Pods
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import (
    ClientSettings,
    EndpointSliceSettings,
    PeerTlsSettings,
    PodSettings,
    SecuritySettings,
    TlsSettings,
    TokenizerSettings,
)
from toktier_tier.transport.status import PermissionDenied
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import family_tier, sample_text

NAMES = ("a", "b")
RENDER = "/v1/chat/completions/render"


class Two:
    """Two pods of one tier."""

    def __init__(self, stack: ExitStack, place: Path, **settings: Any) -> None:
        security = settings.get("security", {})
        more, apart = settings.get("pods", {}), settings.get("apart", {})
        ports = [free_port() for _ in NAMES]
        peers = tuple(f"{name}=127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True))
        self.tiers: dict[str, WholeTier] = {}
        for name, port in zip(NAMES, ports, strict=True):
            pods = PodSettings(
                **{
                    "name": name,
                    "peers": peers,
                    "health_s": 0.1,
                    "answer_s": 20.0,
                    "linger_s": 0,
                    **more,
                    **apart.get(name, {}),
                }
            )
            given = {"grpc": f"127.0.0.1:{port}", "pods": pods, **settings.get("tiers", {}).get(name, {})}
            if security:
                given["security"] = SecuritySettings(**security)
            self.tiers[name] = stack.enter_context(whole_tier(place / name, **given))
        until(lambda: all(len(self.pods(name).ring) == 2 for name in NAMES))

    def pods(self, name: str) -> Pods:
        neighbours = self.tiers[name].tier.neighbours
        assert neighbours is not None
        return neighbours.pods

    def owner(self, key: str, tenant: str = "default") -> str:
        found = self.pods("a").ring.owner(tenant, key)
        assert found is not None
        return found.name

    def sessions(self, name: str) -> set[str]:
        return {key.session for key in self.tiers[name].sessions._table}


def until(true: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def conversation(seed: int, turns: int) -> list[dict[str, str]]:
    first = {"role": "user", "content": sample_text(20_000, seed=seed)}
    more = [{"role": ("assistant", "user")[i % 2], "content": f"turn {i}"} for i in range(2 * turns)]
    return [first, *more]


def render(
    tier: WholeTier, messages: list[dict[str, str]], token: str = "", family: str = FAMILY, **more: Any
) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = httpx.post(
        f"http://{tier.http}{RENDER}", json={"messages": messages, **more}, headers=headers, trust_env=False, timeout=30
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["token_ids"] == family_tier(family).ids(rendered(messages))
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(stack, tmp_path_factory.mktemp("two"))


def test_a_conversation_is_kept_at_one_pod_whichever_is_asked(two: Two) -> None:
    for seed in range(6):
        before = {name: two.sessions(name) for name in NAMES}
        for turn in range(4):
            found = render(two.tiers[NAMES[(seed + turn) % 2]], conversation(seed, turn))
            assert (found["route"], found["reason"]) != ("encode", "none")
            if turn:
                assert found["route"] == "repair"
        (fresh,) = [session for name in NAMES for session in two.sessions(name) - before[name]]
        (holder,) = [name for name in NAMES if fresh in two.sessions(name)]
        assert two.owner(fresh.rpartition("/")[0]) == holder
    counts = two.pods("a").counts + two.pods("b").counts
    assert counts["forwarded"] > 0


def test_a_session_that_a_request_names_is_kept_at_one_pod_and_short_texts_stay(two: Two) -> None:
    messages = [{"role": "user", "content": "a named one"}]
    for turn in range(4):
        messages = [*messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": f"{turn}"}]
        found = render(two.tiers[NAMES[turn % 2]], messages, session_id="mine")
        assert (found["route"] == "repair") == (turn > 0)
    session = "named/session_id/mine"
    assert [name for name in NAMES if session in two.sessions(name)] == [two.owner(session)]
    forwarded = two.pods("a").counts["forwarded"]
    render(two.tiers["a"], [{"role": "user", "content": "short, and of no name"}])
    assert two.pods("a").counts["forwarded"] == forwarded


def test_what_became_of_requests_is_metered(two: Two) -> None:
    with TierClient(two.tiers["a"].grpc) as client:
        for number in range(20):
            client.open(f"metered-{number}", "x")
    page = two.tiers["a"].page()
    assert 'toktier_pods_events{event="forwarded",kind="request"' in page
    assert "toktier_pods_ready" in page
    assert 'event="health.serving",kind="membership"' in page


def test_a_pod_that_leaves_is_not_ready_serves_on_and_takes_everything_along(tmp_path: Path) -> None:
    with ExitStack() as stack:
        two = Two(stack, tmp_path)
        a = two.tiers["a"]
        for seed in range(8):
            render(a, conversation(seed, 0))
        with TierClient(a.grpc) as client, grpc.insecure_channel(a.grpc) as channel:
            opened = [client.open(f"s{number}", sample_text(3_000, seed=number)) for number in range(10)]
            assert two.sessions("a")
            a.run(a.tier.leave())
            assert two.sessions("a") == set()
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert httpx.get(f"http://{a.http}/ready", trust_env=False).status_code == 503
            for number, session in enumerate(opened):  # nothing is opened again
                session.append(" goes on")
                assert session.ids.tolist() == family_tier(FAMILY).ids(sample_text(3_000, seed=number) + " goes on")
        for seed in range(8):
            for name in NAMES:
                found = render(two.tiers[name], conversation(seed, 1 + NAMES.index(name)))
                assert (seed, name, found["route"], found["reason"]) == (seed, name, "repair", "none")
        until(lambda: [peer.name for peer in two.pods("b").ring.peers] == ["b"])


def test_pods_show_a_peers_token_and_act_for_the_tenant(tmp_path: Path) -> None:
    lines = [(b"pods", "tier peer"), (b"one", "one"), (b"two", "two")]
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{hashlib.sha256(token).hexdigest()} {rest}\n" for token, rest in lines))
    shared = {name: tmp_path / f"token-{name}" for name in NAMES}
    for file in shared.values():
        file.write_text("pods\n")
    with ExitStack() as stack:
        apart = {name: {"token_file": str(file)} for name, file in shared.items()}
        two = Two(stack, tmp_path, security={"tokens": str(tokens)}, apart=apart)
        for token in ("one", "two"):
            with TierClient(two.tiers["a"].grpc, token=token) as client:
                for number in range(8):
                    session = client.open(f"s{number}", f"of {token}")
                    session.append("!")
                    assert session.ids.tolist() == family_tier(FAMILY).ids(f"of {token}!")
            for turn in range(4):
                found = render(two.tiers[NAMES[turn % 2]], conversation(1, turn), token)
                assert (found["route"] == "repair") == (turn > 0)
                assert found["reason"] != "none" or turn
        keys = [key for name in NAMES for key in two.tiers[name].sessions._table]
        assert {key.tenant for key in keys} == {"one", "two"}
        assert sum(key.session == "s0" for key in keys) == 2
        assert two.pods("a").counts["forwarded"] > 0
        with TierClient(two.tiers["a"].grpc, token="one") as client, pytest.raises(PermissionDenied):
            client.call(client._stub.EncodeAll, pb.EncodeAllRequest(text="x", session="s"))
        two.tiers["a"].run(two.tiers["a"].tier.leave())
        assert {key.tenant for key in two.tiers["b"].sessions._table} == {"one", "two"}
        # b has heard of another token, and the old one is on no list: a isn't believed any more, and serves by itself.
        tokens.write_text("".join(f"{hashlib.sha256(token).hexdigest()} {rest}\n" for token, rest in lines[1:]))
        shared["b"].write_text("another\n")
        two.tiers["b"].tier.security.refresh(force=True)
        with TierClient(two.tiers["a"].grpc, token="one") as client:
            assert client.open("later", "x").ids.tolist() == family_tier(FAMILY).ids("x")
        assert two.pods("a").counts["fallback.unauthorized"] > 0


def test_pods_share_a_token_that_no_list_names_while_everybody_else_is_anonymous(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-the-pods\n")
    with ExitStack() as stack:
        two = Two(stack, tmp_path, pods={"token_file": str(tmp_path / "token")})
        with TierClient(two.tiers["a"].grpc) as client:
            sessions = [client.open(f"s{number}", sample_text(2_000, seed=number)) for number in range(8)]
            for turn in range(3):
                render(two.tiers[NAMES[turn % 2]], conversation(2, turn))
            assert two.pods("a").counts["forwarded"] > 0
            assert two.sessions("b")
            state = pb.HandoffRequest(session="mine", state=b"x")
            placed = pb.EncodeAllRequest(text="x", session="s")
            for call, request in ((client._stub.Handoff, state), (client._stub.EncodeAll, placed)):
                with pytest.raises(PermissionDenied) as caught:
                    client.call(call, request)
                assert caught.value.code == "auth.peers_only"
            named = pb.EncodeRequest(session="s", text="x")
            for more in ((), (("authorization", "Bearer of nobody"),)):
                marked = ((FORWARDED, "b"), *more)
                with pytest.raises(grpc.RpcError) as refused:
                    client._stub.Encode(named, timeout=20, metadata=marked)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            marked = ((FORWARDED, "b"), ("authorization", "Bearer of-the-pods"))
            client._stub.Encode(named, timeout=20, metadata=marked)
            two.tiers["a"].run(two.tiers["a"].tier.leave())
            assert two.sessions("a") == set()
            assert two.pods("a").handover.counts["moved"] > 0
            for number, session in enumerate(sessions):
                session.append("!")
                assert session.ids.tolist() == family_tier(FAMILY).ids(sample_text(2_000, seed=number) + "!")


OTHER = "llama3-novelai"


def test_pods_of_two_snapshots_serve_the_same_model_each_by_its_own(tmp_path: Path) -> None:
    """As in a rolling update to another tokenizer."""
    chat = str(tmp_path / "b" / "chat")
    upgraded = TokenizerSettings("m", str(path_of(OTHER)), ("a/model",), chat_template=chat)
    tiers = {"b": {"tokenizers": (upgraded,), "unadmitted": "reference"}}
    families = {"a": FAMILY, "b": OTHER}
    with ExitStack() as stack:
        two = Two(stack, tmp_path, tiers=tiers)
        clients = {name: stack.enter_context(TierClient(two.tiers[name].grpc, model="a/model")) for name in NAMES}
        for name, family in families.items():
            for number in range(8):
                text = sample_text(2_000, seed=number)
                session = clients[name].open(f"s{number}", text)
                session.append(" and on")
                assert session.ids.tolist() == family_tier(family).ids(text + " and on")
            for turn in range(3):
                for seed in range(8):  # texts, too, that another pod would be asked for
                    render(two.tiers[name], conversation(seed, turn), family=family)
        assert {two.owner(f"s{number}") for number in range(8)} == {"a", "b"}
        for name in NAMES:
            counts = two.pods(name).counts
            assert counts["fallback.other_snapshot"] > 0
            assert counts["other_snapshot"] > 0
            assert (counts["forwarded"], counts["refused"]) == (0, 0)
        # A session of the old snapshot isn't taken by the new one.
        report = two.tiers["a"].run(leave(two.pods("a")))
        assert report.counts["refused.pods.other_snapshot"] > 0
        assert set(report.counts) <= {"refused.pods.other_snapshot"}
        fingerprint = family_tier(OTHER).compiled.fingerprint
        assert {key.fingerprint for key in two.tiers["b"].served.sessions._table} == {fingerprint}


async def leave(pods: Pods) -> HandoverReport:
    return await pods.drain(10.0)


def test_pods_show_a_certificate(tmp_path: Path) -> None:
    authority = Authority()
    for name in ("pod", "one"):
        issued = authority.issue(name, f"spiffe://x/{name}")
        (tmp_path / f"{name}.crt").write_bytes(issued.certificate)
        (tmp_path / f"{name}.key").write_bytes(issued.key)
    (tmp_path / "ca").write_bytes(authority.certificate)
    tls: dict[str, Any] = {
        "certificate": str(tmp_path / "pod.crt"),
        "key": str(tmp_path / "pod.key"),
        "client_ca": str(tmp_path / "ca"),
        "tenant_from": "cn",
    }
    clients = (ClientSettings("spiffe://x/pod", "tier", ("peer",)),)
    with ExitStack() as stack:
        two = Two(stack, tmp_path, security={"tls": TlsSettings(**tls, clients=clients)})
        mine = Tls(ca=tmp_path / "ca", certificate=tmp_path / "one.crt", key=tmp_path / "one.key")
        with TierClient(two.tiers["a"].grpc, tls=mine) as client:
            for number in range(8):
                client.open(f"s{number}", "text").append("!")
        assert {key.tenant for name in NAMES for key in two.tiers[name].sessions._table} == {"one"}
        assert two.pods("a").counts["forwarded"] > 0


def test_one_pod_by_itself_has_nothing_of_all_this(tmp_path: Path) -> None:
    with whole_tier(tmp_path) as alone:
        assert alone.tier.neighbours is None
        assert alone.tier.servicer.pods is None
        assert type(alone.sessions) is SessionService


@pytest.mark.parametrize(
    ("pods", "security", "code"),
    [
        ({"name": "x", "peers": ("a=h:1",)}, {}, "pods.name"),
        ({"name": "a", "peers": ("a=h",)}, {}, "settings.value"),
        ({"dns": "nowhere"}, {}, "pods.name"),
        ({"name": "a", "dns": "nowhere"}, {}, "settings.value"),
        ({"name": "a", "endpoint_slices": EndpointSliceSettings("n", "s")}, {}, "pods.not_in_cluster"),
        ({"name": "a", "peers": ("a=h:1",), "token_file": "/no/such"}, {}, "pods.token"),
        ({"name": "a", "peers": ("a=h:1",)}, {"tokens": True}, "pods.credential"),
        ({"name": "a", "peers": ("a=h:1",), "tls": PeerTlsSettings(ca="/no/such")}, {"tls": True}, "pods.tls"),
    ],
)
def test_pods_that_cant_be_are_refused_at_once(
    pods: dict[str, Any], security: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POD_IP", "POD_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    given: dict[str, Any] = {}
    if "tokens" in security:
        (tmp_path / "tokens").write_text(f"{hashlib.sha256(b'x').hexdigest()} a\n")
        given["tokens"] = str(tmp_path / "tokens")
    if "tls" in security:
        issued = Authority().issue("a")
        (tmp_path / "crt").write_bytes(issued.certificate)
        (tmp_path / "key").write_bytes(issued.key)
        given["tls"] = TlsSettings(str(tmp_path / "crt"), str(tmp_path / "key"))
    with pytest.raises(InvalidRequest) as caught:
        WholeTier(tmp_path, pods=PodSettings(**pods), security=SecuritySettings(**given))
    assert caught.value.code == code
