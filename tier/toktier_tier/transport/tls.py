"""TLS for both of the tier's addresses: certificates from files, read again when they change.

Guarantees: a handshake uses one certificate with its own key; what can't be used doesn't replace what can. With a
client authority, gRPC takes no connection without a certificate of it, and HTTP serves nothing but the open routes.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from ..core.errors import InvalidRequest
from .tenants import ClientNames
from .watched import Watched


class ServerTls(Watched):
    """Raises `InvalidRequest` (`tls.unreadable`, `tls.unusable`) for files that can't be used at first."""

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        super().__init__("the TLS certificate", [certificate, key, client_ca])

    @property
    def wants_clients(self) -> bool:
        """Whether clients have to show a certificate."""
        return bool(self._client_ca)

    def load(self) -> None:
        try:
            key, certificate = Path(self._key).read_bytes(), Path(self._certificate).read_bytes()
            client_ca = Path(self._client_ca).read_bytes() if self._client_ca else None
            context = self._made()  # reads the files again, and checks what gRPC only finds out in a handshake
        except ssl.SSLError as error:
            raise InvalidRequest("tls.unusable", f"the certificate, key or authority: {error.reason}") from None
        except (OSError, ValueError) as error:
            raise InvalidRequest("tls.unreadable", f"the TLS files can't be read: {type(error).__name__}") from None
        self._context = context
        self._configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """They follow the files: asked for anew on every connection."""
        return grpc.dynamic_ssl_server_credentials(self._configuration, lambda: self._configuration, self.wants_clients)

    def context(self) -> ssl.SSLContext:
        """For HTTP, likewise. Clients may come without a certificate, for the routes that are open to everybody."""
        made = self._made()

        def follow(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._context

        made.sni_callback = follow  # called for each handshake, also where the client names no server
        return made

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        context.set_alpn_protocols(["http/1.1"])
        if self._client_ca:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(self._client_ca)
        return context


def client_names(certificate: dict[str, Any] | None) -> ClientNames | None:
    """Of a verified certificate as `SSLObject.getpeercert` gives it; None without one."""
    if not certificate:
        return None
    common = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return ClientNames(tuple(common), tuple(uris))


def _no_password() -> str:
    """Else OpenSSL asks for it at the terminal."""
    return ""
