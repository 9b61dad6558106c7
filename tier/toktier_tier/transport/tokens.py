"""The bearer tokens that are let in: a file of their digests, read again when it changes.

A line of the file: the SHA-256 of a token in hex, its tenant, and `user` (the default) or `peer`; `#` begins a comment.

    # printf %s "$TOKEN" | sha256sum
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  team-a
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752  tier  peer

Guarantees: the tokens themselves aren't in the file; how long a look-up takes says nothing of the digests on file,
since they are found by a hash under a key of this process, and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InvalidRequest, TierError
from .tenants import check_tenant, is_peer
from .watched import Watched

MAX_FILE_BYTES = 8 << 20
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class TokenOwner(NamedTuple):
    digest: bytes
    tenant: str
    peer: bool


class TokenFile(Watched):
    """Raises `InvalidRequest` (`tokens.*`, `auth.bad_tenant`, `auth.bad_role`) for a file that can't be used at first.

    A file without any token is refused: it is more often half written than meant.
    """

    def __init__(self, path: str) -> None:
        self._key = secrets.token_bytes(32)
        self._owners: dict[bytes, TokenOwner] = {}
        super().__init__("the tokens' file", [path])

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, token: str) -> TokenOwner | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        owner = self._owners.get(self._slot(digest))
        return owner if owner is not None and hmac.compare_digest(owner.digest, digest) else None

    def load(self) -> None:
        try:
            with Path(self._paths[0]).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                "tokens.unreadable", f"the tokens' file can't be read: {type(error).__name__}"
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest("tokens.too_large", "the tokens' file is too large", limit=MAX_FILE_BYTES)
        owners: dict[bytes, TokenOwner] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                owner = _owner(words, number)
                if owners.setdefault(self._slot(owner.digest), owner) is not owner:
                    raise InvalidRequest("tokens.repeated", f"line {number}: the token stands there twice", line=number)
        if not owners:
            raise InvalidRequest("tokens.none", "the tokens' file holds none")
        self._owners = owners

    def _slot(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")


def _owner(words: list[str], number: int) -> TokenOwner:
    if not 2 <= len(words) <= 3 or _HEX.fullmatch(words[0]) is None:
        raise InvalidRequest("tokens.malformed", f"line {number}: SHA-256 in hex, tenant, role", line=number)
    try:
        return TokenOwner(bytes.fromhex(words[0]), check_tenant(words[1]), len(words) == 3 and is_peer(words[2]))
    except TierError as error:
        raise InvalidRequest(error.code, f"line {number}: {error.message}", line=number) from None
