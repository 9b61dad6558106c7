"""One named member of an archive, bounded in size; links and other paths are not followed."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from toktier_tier.core.errors import InvalidRequest, SourceUnavailable

from .bounds import check_size, read_bounded

UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    NotImplementedError,  # zipfile: a compression method it doesn't know
    RuntimeError,  # zipfile: an encrypted member
)


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one member of a wheel (zip) or of a .tgz or .tar.gz; `!` goes on into a zip inside it.

    Inside a .tgz or .tar.gz `member` is relative to the archive's single top folder, as npm and sdists have one.
    """
    check_member(member)
    outer, *nested = member.split("!")
    try:
        if archive.name.endswith((".tgz", ".tar.gz")):
            data = _read_tar_member(archive, outer)
        else:
            data = read_zip_member(archive, outer)
        for inner in nested:
            data = read_zip_member(io.BytesIO(data), inner)
    except (*UNREADABLE, OSError) as error:
        message = f"can't read {member} of {archive.name}: {error}"
        raise SourceUnavailable("source.bad_archive", message, archive=archive.name) from error
    return data


def check_member(member: str) -> None:
    for part in member.split("!"):
        path = PurePosixPath(part)
        plain = part and "\\" not in part and part.isprintable() and str(path) == part
        if not plain or path.is_absolute() or ".." in path.parts:
            raise InvalidRequest("source.bad_spec", f"{part!r} is no plain path inside an archive", member=member)


def read_zip_member(archive: Path | IO[bytes], member: str) -> bytes:
    with zipfile.ZipFile(archive) as opened:
        try:
            info = opened.getinfo(member)
        except KeyError:
            raise SourceUnavailable("source.not_found", f"no member {member} in the archive", member=member) from None
        check_size(info.file_size, member)
        with opened.open(info) as stream:
            return read_bounded(stream, member)


def _read_tar_member(archive: Path, member: str) -> bytes:
    with tarfile.open(archive, "r:gz") as opened:
        for info in opened:
            if info.name.removeprefix("./").partition("/")[2] != member:
                continue
            # A link would be followed by extractfile, to a member that wasn't asked for.
            stream = opened.extractfile(info) if info.isreg() else None
            if stream is None:
                raise SourceUnavailable("source.bad_archive", f"{member} is not a plain file", member=member)
            check_size(info.size, member)
            with stream:
                return read_bounded(stream, member)
    raise SourceUnavailable("source.not_found", f"no member {member} in {archive.name}", member=member)
