"""Where the API server is, and who asks: what a pod or a Job of this project needs to call it by HTTP.

It knows no resource and nothing of the tier.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 10.0
"""How long a request may take that isn't a watch."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The token is read for each request: it is renewed in place."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], account: Path = ACCOUNT) -> ApiServer:
        """As Kubernetes tells its pods. Raises `KeyError` outside of one."""
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", account / "token", account / "ca.crt")

    def headers(self) -> dict[str, str]:
        """Raises `OSError` and `ValueError` for a token that can't be read."""
        if self.token_file is None:
            return {}
        return {"authorization": f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"}

    def client(self) -> httpx.AsyncClient:
        """Raises `OSError` for a certificate authority that can't be read."""
        verify = ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file is not None else True
        transport = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, socket_options=_PROBED)
        return httpx.AsyncClient(base_url=self.url, transport=transport, timeout=REQUEST_S, trust_env=False)


_PROBED = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""A watch says nothing for minutes: a server that vanished without a word is missed within some 6 s."""
