"""Credentials and limits as the settings give them, for both of the tier's addresses."""

from __future__ import annotations

from collections.abc import Mapping

from .core.errors import InvalidRequest
from .pods.credentials import PeerToken
from .settings import TierSettings, TlsSettings
from .transport.http_admission import HttpRules
from .transport.identity import CertificateTenants, Identities
from .transport.limits import Bounds, Limits
from .transport.listener import PortBounds
from .transport.tenants import Identity, check_tenant, is_peer
from .transport.tls import ServerTls
from .transport.tokens import TokenFile
from .transport.watched import secret_word


class Security:
    """Belongs to the tier's event loop. Raises `InvalidRequest` (`settings.*`, `tokens.*`, `tls.*`, `auth.*`,
    `pods.token`).
    """

    def __init__(self, settings: TierSettings) -> None:
        given, self._limits = settings.security, settings.limits
        tls = given.tls
        self.tls = ServerTls(tls.certificate, tls.key, tls.client_ca) if tls.certificate else None
        tokens = TokenFile(given.tokens) if given.tokens else None
        pods = self._pods = PeerToken(settings.pods.token_file) if settings.pods.token_file else None
        self.identities = Identities(
            tokens,
            _certificates(tls),
            anonymous_tenant=given.anonymous_tenant,
            pods=(lambda: pods.shown) if pods is not None else None,
        )
        limits = settings.limits
        self.limits = Limits(Bounds(limits.requests, limits.tenant_requests, limits.tenant_bytes))
        self.http_rules = HttpRules(
            body_bytes=limits.body_bytes,
            body_s=limits.body_s,
            ids_s=limits.ids_s,
            open_metrics=given.open_metrics,
            pass_authorization=tokens is None or settings.upstream.pass_authorization,
            client_certificates=bool(tls.client_ca),
        )

    def port_bounds(self, stop_s: int) -> PortBounds:
        limits = self._limits
        return PortBounds(limits.connections, limits.header_bytes, limits.header_s, limits.keep_alive_s, stop_s)

    def refresh(self, *, force: bool = False) -> None:
        """Read again what has changed on disk, or all of it."""
        self.identities.refresh(force=force)
        if self._pods is not None:
            self._pods.refresh(force=force)
        if self.tls is not None:
            self.tls.refresh(force=force)

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """What was refused and read again, by kind and reason."""
        return {
            "auth": self.identities.refused,
            "limits": self.limits.refused,
            "tokens": self.identities.reloads(),
            "tls": self.tls.reloads if self.tls is not None else {},
            "pods": self._pods.reloads if self._pods is not None else {},
        }

    def requests(self) -> int:
        """Under way."""
        return self.limits.requests


def _certificates(tls: TlsSettings) -> CertificateTenants | None:
    if not tls.tenant_from and not tls.clients:
        return None
    clients: dict[str, Identity] = {}
    for client in tls.clients:
        if client.name in clients:
            raise InvalidRequest("settings.value", f"security.tls.clients has {client.name[:200]!r} twice")
        peer = [is_peer(role) for role in client.roles]
        clients[client.name] = Identity(check_tenant(client.tenant), True in peer)
    return CertificateTenants(tls.tenant_from, clients)


def api_key_headers(path: str) -> tuple[tuple[str, str], ...]:
    """What is sent to SGLang with every request. Raises `InvalidRequest` (`settings.api_key`)."""
    if not path:
        return ()
    key = secret_word(path, "settings.api_key", "the API key")
    return (("authorization", f"Bearer {key}"),)
