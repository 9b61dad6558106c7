"""Tokenizers on this machine, each under its digest."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from toktier_tier.core.errors import SourceUnavailable

from . import bounds
from .bounds import digest_of


def default_cache_dir() -> Path:
    return Path.home() / ".cache" / "toktier"


def tokenizer_path(sha256: str, *, cache_dir: Path | None = None) -> Path:
    """Where the cache keeps the tokenizer.json with this digest, whether or not it is there."""
    return (cache_dir or default_cache_dir()) / "tokenizers" / sha256 / "tokenizer.json"


def cached_tokenizer(sha256: str, *, cache_dir: Path | None = None) -> bytes | None:
    """The cached bytes whose digest was just found to be `sha256`; None where they are missing, damaged or too big."""
    try:
        with tokenizer_path(sha256, cache_dir=cache_dir).open("rb") as stream:
            data = stream.read(bounds.MAX_MEMBER_BYTES + 1)
    except OSError:
        return None
    return data if digest_of(data) == sha256 else None


def store_tokenizer(data: bytes, *, cache_dir: Path | None = None) -> Path:
    """Put `data` into the cache under its digest, by rename; returns its path."""
    path = tokenizer_path(digest_of(data), cache_dir=cache_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_by_rename(path, data)
    except OSError as error:
        raise SourceUnavailable("source.cache_failed", f"can't write {path}: {error.strerror}") from error
    return path


def write_by_rename(path: Path, data: bytes) -> None:
    """Into a folder that is there."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
            # A cache filled by one user (an image build) is read by another.
            os.chmod(temporary.name, 0o644)
            os.replace(temporary.name, path)
        except BaseException:
            os.unlink(temporary.name)
            raise
