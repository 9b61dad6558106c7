"""Both addresses over TLS and mutual TLS, with certificates that change while the tier serves."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from certificates import Authority, Pair
from servers import WholeTier, whole_tier
from toktier_tier.client import AsyncTierClient, TierClient, Tls
from toktier_tier.core.errors import EnvironmentFault, InvalidRequest, SessionNotFound
from toktier_tier.sessions.lives import changes_of
from toktier_tier.settings import ClientSettings, SecuritySettings, TlsSettings
from toktier_tier.transport.status import Unauthenticated
from toktier_tier.transport.tls import ServerTls
from toktier_tier.transport.v1 import toktier_pb2 as pb
from workshop import family_tier

IDS = family_tier("gpt2-novelai").ids


class Files:
    """An authority with a server's certificate, in files, and clients of it."""

    def __init__(self, directory: Path, name: str = "tier") -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.authority = directory, Authority(f"authority of {name}")
        self.ca = self._write("ca.pem", self.authority.certificate)
        self.server = self.pair("server", "tier")

    def pair(self, file: str, common_name: str, *uris: str) -> tuple[Path, Path]:
        issued: Pair = self.authority.issue(common_name, *uris)
        return self._write(f"{file}.pem", issued.certificate), self._write(f"{file}.key", issued.key)

    def client(self, file: str, common_name: str, *uris: str) -> Tls:
        certificate, key = self.pair(file, common_name, *uris)
        return Tls(ca=self.ca, certificate=certificate, key=key)

    def _write(self, name: str, data: bytes) -> Path:
        fresh, path = self.directory / f"{name}.new", self.directory / name
        fresh.write_bytes(data)
        fresh.replace(path)
        return path

    def settings(self, **more: Any) -> TlsSettings:
        certificate, key = self.server
        return TlsSettings(str(certificate), str(key), **more)


def web(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context


def get(server: WholeTier, path: str, tls: Tls) -> httpx.Response:
    return httpx.get(f"https://{server.http}{path}", verify=web(tls), trust_env=False)


def render(server: WholeTier, tls: Tls, text: str, **headers: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}]}
    url = f"https://{server.http}/v1/chat/completions/render"
    return httpx.post(url, json=body, headers=headers, verify=web(tls), trust_env=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WholeTier, Files]]:
    """TLS and a token."""
    directory = tmp_path_factory.mktemp("tls")
    files = Files(directory / "files")
    tokens = directory / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'secret').hexdigest()} a\n")
    with whole_tier(directory, security=SecuritySettings(tokens=str(tokens), tls=files.settings())) as server:
        yield server, files


def test_both_addresses_serve_over_tls_with_a_token(plain: tuple[WholeTier, Files]) -> None:
    server, files = plain
    tls = Tls(ca=files.ca)
    with TierClient(server.grpc, token="secret", tls=tls) as client:
        assert changes_of(client.open("s", "Hello").append(" there").revision) == 1
    assert get(server, "/health", tls).status_code == 200
    assert render(server, tls, "x").status_code == 401
    assert render(server, tls, "x", authorization="Bearer secret").status_code == 200


def test_the_async_client_shows_its_token_over_tls(plain: tuple[WholeTier, Files]) -> None:
    server, files = plain

    async def talk() -> None:
        async with AsyncTierClient(server.grpc, token="secret", tls=Tls(ca=files.ca)) as client:
            session = await client.open("async", "Hello")
            await session.append(" world")
            assert session.ids.tolist() == IDS("Hello world")
        async with AsyncTierClient(server.grpc, token="other", tls=Tls(ca=files.ca)) as client:
            with pytest.raises(Unauthenticated) as caught:
                await client.encode("x")
            assert caught.value.code == "auth.unknown"

    asyncio.run(talk())


def test_nobody_talks_to_another_tier_or_without_tls(plain: tuple[WholeTier, Files], tmp_path: Path) -> None:
    server, _ = plain
    for tls in (Tls(ca=Files(tmp_path / "others").ca), None):
        with TierClient(server.grpc, token="secret", tls=tls, timeout_s=5) as client, pytest.raises(EnvironmentFault):
            client.encode("x")
    with pytest.raises(httpx.TransportError):
        get(server, "/health", Tls(ca=Files(tmp_path / "others").ca))


def test_what_a_client_cannot_use_is_told_by_code(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TierClient("127.0.0.1:1", tls=Tls(ca=tmp_path / "none"))
    assert caught.value.code == "client.tls"
    for token in ("two words", "naïve", "line\nbreak"):
        with pytest.raises(InvalidRequest) as caught:
            TierClient("127.0.0.1:1", token=token)
        assert caught.value.code == "client.token"


def test_a_server_name_may_differ_from_the_address(plain: tuple[WholeTier, Files]) -> None:
    server, files = plain
    address = server.grpc.replace("127.0.0.1", "localhost")  # the certificate names the number only
    tls = Tls(ca=files.ca)
    with TierClient(address, token="secret", tls=tls, timeout_s=5) as client, pytest.raises(EnvironmentFault):
        client.encode("x")
    with TierClient(address, token="secret", tls=Tls(ca=files.ca, server_name="127.0.0.1")) as client:
        assert client.encode("x").tolist() == IDS("x")


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WholeTier, Files]]:
    """Client certificates: by URI, but for those listed; tokens too."""
    directory = tmp_path_factory.mktemp("mtls")
    files = Files(directory / "files")
    tokens = directory / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'secret').hexdigest()} by-token\n")
    clients = (ClientSettings("the pods", "pods", ("peer",)), ClientSettings("an agent", "listed"))
    tls = files.settings(client_ca=str(files.ca), tenant_from="uri", clients=clients)
    with whole_tier(directory, security=SecuritySettings(tokens=str(tokens), tls=tls)) as server:
        yield server, files


def test_the_tenant_comes_from_the_client_certificate(mutual: tuple[WholeTier, Files]) -> None:
    server, files = mutual
    one, two = files.client("one", "x", "spiffe://t/one"), files.client("two", "x", "spiffe://t/two")
    with TierClient(server.grpc, tls=one) as a, TierClient(server.grpc, tls=two) as b:
        a.open("mine", "Hello there")
        with pytest.raises(SessionNotFound):
            b.call(b._stub.GetSession, pb.GetSessionRequest(session="mine"))
    text = "equal text of two certificates " * 30
    reasons = [render(server, tls, text).json()["reason"] for tls in (one, two, one)]
    assert reasons == ["session.opened", "session.opened", "none"]
    assert changes_of(server.sessions.info("spiffe://t/one", "mine").revision) == 0


def test_a_listed_name_is_mapped_and_a_token_wins(mutual: tuple[WholeTier, Files]) -> None:
    server, files = mutual
    agent = files.client("agent", "an agent")
    with TierClient(server.grpc, tls=agent) as client:
        client.open("by certificate", "x")
    with TierClient(server.grpc, tls=agent, token="secret") as client:
        client.open("by token", "x")
    assert changes_of(server.sessions.info("listed", "by certificate").revision) == 0
    assert changes_of(server.sessions.info("by-token", "by token").revision) == 0
    pods = files.client("pods", "the pods")
    with TierClient(server.grpc, tls=pods) as client:
        asked = pb.OpenSessionRequest(session="for another", text="x")
        client._stub.OpenSession(asked, timeout=10, metadata=(("x-toktier-tenant", "someone"),))
    assert changes_of(server.sessions.info("someone", "for another").revision) == 0


def test_without_a_certificate_of_the_authority_there_is_only_health(
    mutual: tuple[WholeTier, Files], tmp_path: Path
) -> None:
    server, files = mutual
    none = Tls(ca=files.ca)
    others = Files(tmp_path / "others").client("x", "an agent")
    stranger = Tls(ca=files.ca, certificate=others.certificate, key=others.key)
    for tls in (none, stranger):
        with TierClient(server.grpc, tls=tls, token="secret", timeout_s=5) as client, pytest.raises(EnvironmentFault):
            client.encode("x")
    assert get(server, "/ready", none).json() == {"ready": True}
    answer = render(server, none, "x", authorization="Bearer secret")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "auth.no_certificate")
    with pytest.raises(httpx.TransportError):
        render(server, stranger, "x", authorization="Bearer secret")
    unnamed = files.client("unnamed", "nobody")
    answer = render(server, unnamed, "x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "auth.certificate")
    with TierClient(server.grpc, tls=unnamed) as client, pytest.raises(Unauthenticated):
        client.encode("x")


def test_new_certificates_and_a_new_authority_are_taken_into_use(tmp_path: Path) -> None:
    files = Files(tmp_path / "files", "the old authority")
    tls = files.settings(client_ca=str(files.ca), tenant_from="cn")
    with whole_tier(tmp_path, security=SecuritySettings(tls=tls)) as server:

        async def refresh() -> None:
            server.tier.security.refresh()

        old = files.client("client", "client")
        old_files = Files(tmp_path / "kept")  # a copy: the files below are written over
        for name in ("ca.pem", "client.pem", "client.key"):
            old_files._write(name, (files.directory / name).read_bytes())
        kept = old_files.directory
        old = Tls(ca=kept / "ca.pem", certificate=kept / "client.pem", key=kept / "client.key")
        assert render(server, old, "x").status_code == 200
        files.server[1].write_bytes(b"half a key")
        server.run(refresh())
        assert server.tier.security.tls is not None
        assert server.tier.security.tls.reloads == {"loaded": 0, "refused": 1}
        assert render(server, old, "x").status_code == 200
        new = Files(files.directory, "the new authority")
        server.run(refresh())
        assert server.tier.security.tls.reloads == {"loaded": 1, "refused": 1}
        client = new.client("client", "client")
        assert render(server, client, "x").status_code == 200
        with TierClient(server.grpc, tls=client) as found:
            assert found.encode("x").tolist() == IDS("x")
        mixed = Tls(ca=new.ca, certificate=old.certificate, key=old.key)
        for tls in (old, mixed):  # neither trusts the new server, nor is trusted by it
            with pytest.raises(httpx.TransportError):
                render(server, tls, "x")
            with TierClient(server.grpc, tls=tls, timeout_s=5) as found, pytest.raises(EnvironmentFault):
                found.encode("x")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda files: files._write("server.key", b"no key"), "tls.unusable"),
        (lambda files: files._write("server.key", files.authority.issue("other").key), "tls.unusable"),
        (lambda files: files._write("ca.pem", b""), "tls.un"),
        (lambda files: files.server[0].unlink(), "tls.unreadable"),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path, change: Any, code: str) -> None:
    files = Files(tmp_path)
    change(files)
    with pytest.raises(InvalidRequest) as caught:
        ServerTls(str(files.server[0]), str(files.server[1]), str(files.ca))
    assert caught.value.code.startswith(code)
