"""A run's bundle: what a pod needs to serve a snapshot, as one gzipped tar, and cut into chunks.

Guarantees: the same files give the same bytes (with the same zlib); only names of this format go in or come out, as
plain files, so no archive writes elsewhere; reading is bounded by `MAX_CONTENT_BYTES`, whatever the archive says.

    snapshot/tokenizer.json and its companions
    compiled/                as `admission.compiled` keeps it
    report.json              of the campaign

What can't be read raises `StateCorrupt`: `bundle.bad_archive`, `bundle.bad_member`, `bundle.too_large`,
`bundle.missing`, `bundle.digest_mismatch`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..admission.compiled import CompiledSnapshot, save
from ..core.errors import InvalidRequest, StateCorrupt
from ..sources import TokenizerFiles
from ..sources.files import TOKENIZER, is_companion

CHUNK_BYTES = 900_000
"""Of one ConfigMap, which holds at most 1 MiB."""
MAX_CHUNKS = 100
MAX_BUNDLE_BYTES = MAX_CHUNKS * CHUNK_BYTES
MAX_CONTENT_BYTES = 320 << 20
MAX_MEMBERS = 100
REPORT = "report.json"
SNAPSHOT, COMPILED = "snapshot", "compiled"
_COMPILED = re.compile(COMPILED + r"/[0-9a-f]{64}\.(compiled\.json|ref)")
_CHUNK_KEY = re.compile(r"bundle\.[0-9]{3}")


def bundle_files(files: TokenizerFiles, compiled: CompiledSnapshot, report: str) -> dict[str, bytes]:
    """The content of a bundle by name."""
    content = {f"{SNAPSHOT}/{name}": data for name, data in files.files.items()}
    with tempfile.TemporaryDirectory() as folder:
        save(compiled, Path(folder))
        content |= {f"{COMPILED}/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}
    return content | {REPORT: report.encode()}


def tokenizer_files(content: Mapping[str, bytes], origin: str) -> TokenizerFiles:
    """The snapshot's own files out of a bundle's content."""
    prefix = f"{SNAPSHOT}/"
    found = {name.removeprefix(prefix): data for name, data in content.items() if name.startswith(prefix)}
    return TokenizerFiles(found, origin)


def pack(content: Mapping[str, bytes]) -> bytes:
    """Raises `InvalidRequest` (`bundle.too_large`) for more than a pod could be given."""
    if any(not _may_hold(name) for name in content) or sum(map(len, content.values())) > MAX_CONTENT_BYTES // 2:
        raise InvalidRequest("bundle.too_large", "the files are more than a bundle holds")
    stream = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in sorted(content):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content[name]), 0o644
            archive.addfile(member, io.BytesIO(content[name]))
    bundle = stream.getvalue()
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise InvalidRequest("bundle.too_large", f"a bundle of {len(bundle)} bytes, {MAX_BUNDLE_BYTES} at most")
    return bundle


def unpack(bundle: bytes) -> dict[str, bytes]:
    """The content by name, checked to be a bundle's."""
    content: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_decompressed(bundle)), mode="r:") as archive:
            for member in archive:
                plain = member.isreg() and not member.issparse()  # a sparse one unpacks to any size
                if not plain or not _may_hold(member.name) or member.name in content:
                    raise StateCorrupt("bundle.bad_member", f"{member.name[:100]!r} has no place in a bundle")
                if len(content) == MAX_MEMBERS:
                    raise StateCorrupt("bundle.too_large", f"more than {MAX_MEMBERS} files")
                stream = archive.extractfile(member)
                data = content[member.name] = stream.read() if stream is not None else b""
                if len(data) != member.size:
                    raise StateCorrupt("bundle.bad_archive", f"{member.name} is cut off")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise StateCorrupt("bundle.bad_archive", f"no readable tar: {error}"[:200]) from error
    if f"{SNAPSHOT}/{TOKENIZER}" not in content or REPORT not in content:
        raise StateCorrupt("bundle.bad_archive", f"there is no {TOKENIZER} or no {REPORT} in it")
    return content


def _decompressed(bundle: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(bundle, MAX_CONTENT_BYTES + 1)
    except zlib.error as error:
        raise StateCorrupt("bundle.bad_archive", f"not gzipped: {error}"[:200]) from error
    if len(data) > MAX_CONTENT_BYTES:
        raise StateCorrupt("bundle.too_large", f"more than {MAX_CONTENT_BYTES} bytes unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise StateCorrupt("bundle.bad_archive", "cut off, or something follows it")
    return data


def _may_hold(name: str) -> bool:
    if name == REPORT or _COMPILED.fullmatch(name):
        return True
    folder, _, rest = name.partition("/")
    return folder == SNAPSHOT and (rest == TOKENIZER or is_companion(rest))


# --- chunks ---------------------------------------------------------------------------------------------------


def chunks_of(bundle: bytes) -> list[tuple[str, bytes]]:
    """(key, bytes) in order."""
    starts = range(0, len(bundle), CHUNK_BYTES)
    return [(f"bundle.{index:03}", bundle[at : at + CHUNK_BYTES]) for index, at in enumerate(starts)]


def chunk_names(admission: str, sha256: str, count: int) -> list[str]:
    """The ConfigMaps that hold them, in the same order."""
    return [f"{admission}-{sha256[:16]}-{index}" for index in range(count)]


def joined(folder: Path) -> bytes:
    """The bundle whose chunks lie in `folder` under their keys; what else a mounted volume holds is passed over."""
    try:
        keys = sorted(path.name for path in folder.iterdir() if _CHUNK_KEY.fullmatch(path.name))
        if not keys or keys != [f"bundle.{index:03}" for index in range(len(keys))]:
            raise StateCorrupt("bundle.missing", f"{folder} holds {_listed(keys)}, not all chunks of a bundle")
        if sum((folder / key).stat().st_size for key in keys) > MAX_BUNDLE_BYTES:
            raise StateCorrupt("bundle.too_large", f"more than {MAX_BUNDLE_BYTES} bytes")
        return b"".join((folder / key).read_bytes() for key in keys)
    except OSError as error:
        raise StateCorrupt("bundle.missing", f"can't read {folder}: {error.strerror}") from error


def _listed(keys: Sequence[str]) -> str:
    return f"{len(keys)} from {keys[0]} to {keys[-1]}" if keys else "no chunk"


def verify(bundle: bytes, sha256: str) -> None:
    actual = hashlib.sha256(bundle).hexdigest()
    if actual != sha256:
        raise StateCorrupt("bundle.digest_mismatch", f"the chunks have sha256 {actual[:16]}…, not {sha256[:16]}…")
