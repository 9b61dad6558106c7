"""Who calls: the tenant and the role behind a credential.

Rules:
 1. A tenant comes from the credential alone: the token's, else the client certificate's. What a caller says of itself
    (metadata, headers, members, session names) counts for nothing.
 2. Only a peer, another pod of the tier, may name the tenant that it calls for. The token that the pods share makes a
    peer over gRPC, and nobody over HTTP.
 3. With neither tokens nor client certificates configured, everybody else is one tenant; otherwise who has no
    credential, or a wrong one, is refused. A wrong token isn't made up for by a certificate.
 4. No token, and no part of one, is told or logged.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from .status import Unauthenticated
from .tenants import ANONYMOUS_TENANT, NO_TENANT, TENANT_KEY, ClientNames, Identity, check_tenant, is_tenant
from .tokens import TokenFile

MAX_KNOWN = 4_096
"""Headers whose identity is remembered."""
NO_NAMES = ClientNames()


class CertificateTenants:
    """tenant_from: `cn` or `uri` names the tenant of any client, '' only what `clients` lists."""

    def __init__(self, tenant_from: str, clients: Mapping[str, Identity]) -> None:
        self._from, self._clients = tenant_from, dict(clients)

    def find(self, names: ClientNames) -> Identity | None:
        for name in (*names.uris, *names.common_names):
            listed = self._clients.get(name)
            if listed is not None:
                return listed
        own = {"cn": names.common_names, "uri": names.uris}.get(self._from, ())
        # More than one name: it can't be told which is meant.
        return Identity(own[0]) if len(own) == 1 and is_tenant(own[0]) else None


class Identities:
    """Belongs to one event loop.

    anonymous   everybody's identity where nobody has to show a credential, else None
    unasked     the same over gRPC, where it is left to nobody else: None also where pods share a token
    refused     refusals by code

    `pods`: the `Authorization` that pods send each other, as bytes, asked for with each call.
    """

    def __init__(
        self,
        tokens: TokenFile | None = None,
        certificates: CertificateTenants | None = None,
        *,
        anonymous_tenant: str = ANONYMOUS_TENANT,
        pods: Callable[[], bytes] | None = None,
    ) -> None:
        open_to_all = tokens is None and certificates is None
        self.anonymous = Identity(check_tenant(anonymous_tenant)) if open_to_all else None
        self._pods = pods
        self.unasked = self.anonymous if pods is None else None
        self._unnamed = Identity(self.anonymous.tenant, True) if self.anonymous is not None else NO_TENANT
        self.refused: Counter[str] = Counter()
        self._tokens, self._certificates = tokens, certificates
        self._known: dict[str, Identity] = {}

    @property
    def checks_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def knows_pods(self) -> bool:
        """Whether pods share a token: then who hasn't got it, and isn't a peer otherwise, is none."""
        return self._pods is not None

    def of_call(
        self,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        auth: Callable[[], Mapping[str, Iterable[bytes]]],
    ) -> Identity:
        """Of a gRPC call. Raises `Unauthenticated`, and `InvalidRequest` for a tenant that can't be."""
        authorization: str | None = None
        tenant: str | None = None
        for key, value in metadata or ():
            if isinstance(value, str):
                if key == "authorization":
                    authorization = value
                elif key == TENANT_KEY:
                    tenant = value
        if self._pods is not None and authorization is not None:
            shown = authorization.encode("utf-8", "surrogatepass")
            if hmac.compare_digest(shown, self._pods()):
                return self._unnamed if tenant is None else Identity(check_tenant(tenant), True)
        return self.of(authorization, tenant, lambda: _names_of_call(auth()))

    def of(self, authorization: str | None, tenant: str | None, names: Callable[[], ClientNames]) -> Identity:
        """`tenant` is the one that the caller names, `names` the client certificate's. Raises as `of_call`."""
        who = self.anonymous
        if who is not None:
            return who
        if self._tokens is not None and (authorization is not None or self._certificates is None):
            who = self._known.get(authorization) if authorization is not None else None
            if who is None:
                who = self._by_token(self._tokens, authorization)
        else:
            who = self._by_certificate(names())
        if who.peer and tenant is not None:
            return Identity(check_tenant(tenant), True)
        return who

    def refresh(self, *, force: bool = False) -> None:
        """Read the tokens again if their file has changed, or anyway."""
        if self._tokens is not None and self._tokens.refresh(force=force):
            self._known.clear()

    def reloads(self) -> Mapping[str, int]:
        return self._tokens.reloads if self._tokens is not None else {}

    def _by_token(self, tokens: TokenFile, authorization: str | None) -> Identity:
        if authorization is None:
            raise self._refusal("auth.missing", "a bearer token is needed")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise self._refusal("auth.scheme", "a bearer token is needed")
        found = tokens.find(token.strip())
        if found is None:
            raise self._refusal("auth.unknown", "the token isn't known")
        who = Identity(found.tenant, found.peer)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[authorization] = who
        return who

    def _by_certificate(self, names: ClientNames) -> Identity:
        assert self._certificates is not None
        found = self._certificates.find(names)
        if found is None:
            raise self._refusal("auth.certificate", "no client certificate that is known")
        return found

    def _refusal(self, code: str, message: str) -> Unauthenticated:
        self.refused[code] += 1
        return Unauthenticated(code, message)


def _names_of_call(auth: Mapping[str, Iterable[bytes]]) -> ClientNames:
    """From gRPC's auth context, which is filled from a certificate that the handshake has verified."""

    def read(key: str) -> tuple[str, ...]:
        return tuple(value.decode("utf-8", "replace") for value in auth.get(key, ()))

    return ClientNames(
        read("x509_common_name"), tuple(name for name in read("x509_subject_alternative_name") if "://" in name)
    )
