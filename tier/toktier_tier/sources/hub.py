"""A model repository: what the hub's own client has cached, or the hub's HTTP API.

A commit is asked for once and then kept; a branch or tag that is in the hub client's cache stands for the commit that
it was there. With the companions, the hub is always asked which files the revision has, so that none is missed.

The hub's variables are read here: `HF_ENDPOINT`, `HF_TOKEN` and where its cache is. They belong to its client, so
`settings` has no twin of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from toktier_tier.core.errors import SourceUnavailable

from .bounds import DIGEST, bad_spec, verify
from .cache import write_by_rename
from .files import TOKENIZER, TokenizerFiles, is_companion
from .local import companions_in, read_file
from .web import fetch

ENDPOINT = "https://huggingface.co"
_HF = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?)@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*)"
    rf"(?:{DIGEST})?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def load_from_hub(spec: str, cache_dir: Path, offline: bool, *, beside: bool) -> TokenizerFiles:
    match = _HF.fullmatch(spec)
    if match is None or ".." in PurePosixPath(match["revision"]).parts:
        raise bad_spec(spec)
    repository = _Repository(match["repo"], match["revision"], cache_dir)
    folder = repository.cached()
    if folder is None and offline:
        raise SourceUnavailable("source.offline", f"{spec} isn't in the local hub cache", spec=spec)
    if folder is not None and (offline or not beside):
        files = {TOKENIZER: read_file(str(folder / TOKENIZER))} | (companions_in(str(folder)) if beside else {})
    else:
        files = repository.fetched(beside=beside)
    if match["sha256"]:
        verify(files[TOKENIZER], match["sha256"].lower(), spec)
    return TokenizerFiles(files, spec)


@dataclass(frozen=True, slots=True)
class _Repository:
    name: str
    revision: str
    cache_dir: Path

    def cached(self) -> Path | None:
        """The folder of a cached snapshot with a tokenizer.json: of a commit, or of a branch or tag by its ref."""
        for root in self._roots():
            commits = [self.revision]
            # A commit has no ref, and a damaged ref names no commit.
            with contextlib.suppress(OSError, UnicodeDecodeError):
                commits.append((root / "refs" / self.revision).read_text(encoding="ascii").strip())
            for commit in commits:
                folder = root / "snapshots" / commit
                if _SNAPSHOT.fullmatch(commit) and os.path.isfile(folder / TOKENIZER):
                    return folder
        return None

    def fetched(self, *, beside: bool) -> dict[str, bytes]:
        """The files of the revision as the hub has it now, those of a cached commit from there."""
        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
        token = os.environ.get("HF_TOKEN", "").strip()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        about = fetch(f"{endpoint}/api/models/{self.name}/revision/{quote(self.revision, safe='')}", headers)
        commit, names = self._read(about)
        if TOKENIZER not in names:
            raise SourceUnavailable("source.not_found", f"hf:{self.name} has no {TOKENIZER} at {self.revision}")
        wanted = [name for name in names if name == TOKENIZER or (beside and is_companion(name))]
        return {name: self._file(f"{endpoint}/{self.name}/resolve", commit, name, headers) for name in wanted}

    def _read(self, about: bytes) -> tuple[str, list[str]]:
        try:
            document = json.loads(about)
            commit, names = document["sha"], [each["rfilename"] for each in document["siblings"]]
            if not _COMMIT.fullmatch(commit) or not all(isinstance(name, str) for name in names):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            message = f"the hub's answer about {self.name} isn't one"
            raise SourceUnavailable("source.fetch_failed", message) from error
        return commit, names

    def _file(self, address: str, commit: str, name: str, headers: dict[str, str]) -> bytes:
        for root in self._roots():
            path = str(root / "snapshots" / commit / name)
            if os.path.isfile(path):
                return read_file(path)
        data = fetch(f"{address}/{commit}/{quote(name)}", headers)
        with contextlib.suppress(OSError):  # a pod has nowhere to keep it
            kept = self._own() / "snapshots" / commit / name
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_by_rename(kept, data)
        return data

    def _roots(self) -> Iterator[Path]:
        yield _hub_cache_dir() / self._folder()
        yield self._own()

    def _own(self) -> Path:
        return self.cache_dir / "hub" / self._folder()

    def _folder(self) -> str:
        return f"models--{self.name.replace('/', '--')}"


def _hub_cache_dir() -> Path:
    """As the hub's client finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return Path(value).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"
