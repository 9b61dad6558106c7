"""Who calls, by tokens and certificates: nothing but the credential tells."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.transport.identity import MAX_KNOWN, NO_NAMES, CertificateTenants, Identities
from toktier_tier.transport.status import Unauthenticated
from toktier_tier.transport.tenants import TENANT_KEY, ClientNames, Identity
from toktier_tier.transport.tokens import TokenFile


def line(token: str, *words: str) -> str:
    return " ".join((hashlib.sha256(token.encode()).hexdigest(), *words)) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(
        "# who is let in\n\n" + line("one", "a") + line("two", "b", "user # of team b") + line("pod", "t", "peer")
    )
    return path


def replace(path: Path, text: str) -> None:
    """As a mounted Secret changes: another file in the place of the old one."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    os.replace(fresh, path)


def of(identities: Identities, authorization: str | None, tenant: str | None = None) -> Identity:
    return identities.of(authorization, tenant, lambda: NO_NAMES)


def test_a_token_tells_the_tenant_and_nothing_else_does(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    for _ in range(2):  # the second time remembered
        assert of(identities, "Bearer one", "b") == Identity("a")
        assert of(identities, "bearer  two", None) == Identity("b")
    assert identities.anonymous is None


def test_a_peer_may_name_the_tenant_it_calls_for(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    assert of(identities, "Bearer pod", "a") == Identity("a", True)
    assert of(identities, "Bearer pod") == Identity("t", True)
    assert of(identities, "Bearer pod", "b") == Identity("b", True)
    with pytest.raises(InvalidRequest) as caught:
        of(identities, "Bearer pod", "(tier)")
    assert caught.value.code == "auth.bad_tenant"


def test_metadata_is_read_as_headers_are(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    metadata: list[tuple[str, str | bytes]] = [("x-bin", b"\xff"), (TENANT_KEY, "b"), ("authorization", "Bearer one")]
    assert identities.of_call(metadata, dict) == Identity("a")
    with pytest.raises(Unauthenticated):
        identities.of_call(None, dict)


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "auth.missing"),
        ("", "auth.scheme"),
        ("Basic one", "auth.scheme"),
        ("one", "auth.scheme"),
        ("Bearer", "auth.unknown"),
        ("Bearer onE", "auth.unknown"),
        ("Bearer one two", "auth.unknown"),
        ("Bearer " + hashlib.sha256(b"one").hexdigest(), "auth.unknown"),
        ("Bearer " + "x" * 100_000, "auth.unknown"),
        ("Bearer \udcff", "auth.unknown"),
    ],
)
def test_whatever_isnt_a_known_token_is_refused_and_counted(path: Path, authorization: str | None, code: str) -> None:
    identities = Identities(TokenFile(str(path)))
    for _ in range(2):
        with pytest.raises(Unauthenticated) as caught:
            of(identities, authorization, "a")
        assert caught.value.code == code
    assert identities.refused == {code: 2}


def test_what_is_remembered_of_headers_is_bounded(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    for blanks in range(1, MAX_KNOWN + 10):
        assert of(identities, "Bearer" + " " * blanks + "one") == Identity("a")
    assert len(identities._known) <= MAX_KNOWN


def test_a_new_file_is_taken_into_use_and_old_tokens_end_with_it(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    assert of(identities, "Bearer one") == Identity("a")
    identities.refresh()
    assert identities.reloads() == {"loaded": 0, "refused": 0}
    replace(path, line("three", "a") + line("two", "c"))
    identities.refresh()
    assert of(identities, "Bearer three") == Identity("a")
    assert of(identities, "Bearer two") == Identity("c")
    with pytest.raises(Unauthenticated):
        of(identities, "Bearer one")
    assert identities.reloads() == {"loaded": 1, "refused": 0}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "tokens.none"),
        ("# nobody", "tokens.none"),
        ("one a", "tokens.malformed"),
        (line("one"), "tokens.malformed"),
        (line("one", "a", "user", "more"), "tokens.malformed"),
        (line("one", "a", "root"), "auth.bad_role"),
        (line("one", "(tier)"), "auth.bad_tenant"),
        (line("one", "a" * 257), "auth.bad_tenant"),
        (line("one", "a") + line("one", "b"), "tokens.repeated"),
        ("\udcff", "tokens.unreadable"),
    ],
)
def test_a_broken_file_is_refused_and_the_old_one_stays(
    path: Path, text: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    identities = Identities(TokenFile(str(path)))
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidRequest) as caught:
        TokenFile(str(path))
    assert caught.value.code == code
    with caplog.at_level(logging.DEBUG):
        identities.refresh()
        identities.refresh()  # told once
    assert [code in record.getMessage() for record in caplog.records] == [True]
    assert identities.reloads() == {"loaded": 0, "refused": 1}
    assert of(identities, "Bearer one") == Identity("a")


def test_a_file_that_is_gone_leaves_the_old_one_in_use(path: Path) -> None:
    identities = Identities(TokenFile(str(path)))
    path.unlink()
    identities.refresh()
    assert of(identities, "Bearer one") == Identity("a")
    path.write_text(line("four", "d"))
    identities.refresh()
    assert of(identities, "Bearer four") == Identity("d")
    assert identities.reloads() == {"loaded": 1, "refused": 1}


def test_a_certificate_tells_the_tenant_where_there_is_no_token(path: Path) -> None:
    listed = {"spiffe://x/pod": Identity("tier", True), "an agent": Identity("a")}
    certificates = CertificateTenants("uri", listed)
    both = Identities(TokenFile(str(path)), certificates)

    def by(names: ClientNames, authorization: str | None = None, tenant: str | None = None) -> Identity:
        return both.of(authorization, tenant, lambda: names)

    assert by(ClientNames(("an agent",), ())) == Identity("a")
    assert by(ClientNames((), ("spiffe://x/pod",)), None, "b") == Identity("b", True)
    assert by(ClientNames(("cn",), ("spiffe://x/other",)), None, "b") == Identity(
        "spiffe://x/other".replace("//", "//")
    )
    assert by(ClientNames(("an agent",), ()), "Bearer two") == Identity("b")  # the token wins
    for names in (
        NO_NAMES,
        ClientNames(("unknown",), ()),
        ClientNames((), ("spiffe://a", "spiffe://b")),  # which?
        ClientNames((), ("spiffe://" + "a" * 300,)),
        ClientNames((), ("(tier)",)),
    ):
        with pytest.raises(Unauthenticated) as caught:
            by(names)
        assert caught.value.code == "auth.certificate"
    with pytest.raises(Unauthenticated):  # and isn't made up for
        by(ClientNames(("an agent",), ()), "Bearer wrong")


def test_without_credentials_configured_everybody_is_one_tenant() -> None:
    identities = Identities(anonymous_tenant="all")
    assert identities.anonymous == Identity("all")
    assert of(identities, "Bearer anything", "other") == Identity("all")


class Shared:
    """The token that pods share, as it is on file at the moment."""

    token = b"Bearer pods"

    def __call__(self) -> bytes:
        return self.token


def by_call(identities: Identities, **metadata: str) -> Identity:
    return identities.of_call([(key.replace("_", "-"), value) for key, value in metadata.items()], dict)


def test_the_token_that_pods_share_makes_a_peer_over_grpc_alone(path: Path) -> None:
    shared = Shared()
    everybody = Identities(anonymous_tenant="all", pods=shared)
    listed = Identities(TokenFile(str(path)), pods=shared)
    certified = Identities(None, CertificateTenants("cn", {}), pods=shared)
    for identities in (everybody, listed, certified):
        assert identities.knows_pods
        assert identities.unasked is None
        assert by_call(identities, authorization="Bearer pods", x_toktier_tenant="a") == Identity("a", True)
        assert by_call(identities, authorization="Bearer pods").peer
        with pytest.raises(InvalidRequest):
            by_call(identities, authorization="Bearer pods", x_toktier_tenant="(tier)")
    assert of(everybody, "Bearer pods", "a") == Identity("all")
    with pytest.raises(Unauthenticated):
        of(listed, "Bearer pods", "a")
    for shown in ("Bearer pod", "bearer pods", "Bearer pods ", "pods", "Bearer \ud800"):
        assert by_call(everybody, authorization=shown, x_toktier_tenant="a") == Identity("all")
    assert by_call(listed, authorization="Bearer pod", x_toktier_tenant="a") == Identity("a", True)  # also listed ones
    for identities in (listed, certified):
        with pytest.raises(Unauthenticated):
            by_call(identities, authorization="Bearer nobody's", x_toktier_tenant="a")
    shared.token = b"Bearer next"
    assert not by_call(everybody, authorization="Bearer pods").peer
    assert by_call(everybody, authorization="Bearer next").peer


def test_without_a_shared_token_nobody_is_asked_where_everybody_is_one() -> None:
    identities = Identities(anonymous_tenant="all")
    assert (identities.unasked, identities.knows_pods) == (Identity("all"), False)
