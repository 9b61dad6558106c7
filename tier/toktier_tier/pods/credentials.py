"""What this pod shows to the others, from files that are read again once they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from ..core.errors import InvalidRequest
from ..transport.watched import Watched, secret_word


class PeerToken(Watched):
    """The bearer token that pods share: sent as `metadata`, known again by `shown`. Raises `InvalidRequest`
    (`pods.token`) for a file that can't be used at first.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__("the pods' token", [path])

    def load(self) -> None:
        token = secret_word(self._path, "pods.token", "the pods' token")
        authorization = f"Bearer {token}"
        self.metadata = (("authorization", authorization),)
        self.shown = authorization.encode()


class PeerTls(Watched):
    """`ca`: of the other pods' certificates; `certificate` and `key`: this pod's own, if it shows one. Raises
    `InvalidRequest` (`pods.tls`).
    """

    def __init__(self, ca: str, certificate: str = "", key: str = "", server_name: str = "") -> None:
        self._files = (ca, key, certificate)
        self.options: tuple[tuple[str, Any], ...] = (
            (("grpc.ssl_target_name_override", server_name),) if server_name else ()
        )
        super().__init__("the pods' TLS files", self._files)

    def load(self) -> None:
        try:
            ca, key, certificate = (Path(path).read_bytes() if path else None for path in self._files)
        except OSError as error:
            raise InvalidRequest("pods.tls", f"the pods' TLS files can't be read: {error.strerror}") from None
        self._credentials = grpc.ssl_channel_credentials(ca, key, certificate)

    def credentials(self) -> grpc.ChannelCredentials:
        return self._credentials
