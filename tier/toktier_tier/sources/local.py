"""Files on this machine."""

from __future__ import annotations

import os
import re

from toktier_tier.core.errors import SourceUnavailable

from .bounds import bad_spec, read_bounded, unpacked
from .files import COMPANIONS, NAMED_TEMPLATES, TOKENIZER, TokenizerFiles, is_companion


def load_path(spec: str, *, beside: bool) -> TokenizerFiles:
    """A tokenizer.json, or the one in a folder, where `tokenizer.json.gz` comes second."""
    path = os.path.expanduser(spec)
    # os.path, unlike pathlib, takes a path that no file can have for one that isn't there.
    if os.path.isdir(path):
        path = os.path.join(path, TOKENIZER)
        if not os.path.exists(path) and os.path.exists(f"{path}.gz"):
            path += ".gz"
    if not spec or (re.match(r"[a-z][a-z0-9+.-]+:", spec) and not os.path.exists(path)):
        raise bad_spec(spec)
    if not os.path.isfile(path):
        raise SourceUnavailable("source.not_found", f"no file {path!r}", spec=spec)
    files = {TOKENIZER: unpacked(read_file(path), path)}
    if beside:
        # Where `path` is a link, as in a hub's cache, the companions are where the link is.
        files |= companions_in(os.path.dirname(path))
    return TokenizerFiles(files, os.path.realpath(path))


def companions_in(folder: str) -> dict[str, bytes]:
    """The companions that lie in `folder`, by name."""
    names = list(COMPANIONS)
    try:
        names += [f"{NAMED_TEMPLATES}/{name}" for name in sorted(os.listdir(os.path.join(folder, NAMED_TEMPLATES)))]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise SourceUnavailable("source.fetch_failed", f"can't list {NAMED_TEMPLATES}: {error.strerror}") from error
    found = {name: os.path.join(folder, name) for name in names if is_companion(name)}
    return {name: read_file(file) for name, file in found.items() if os.path.isfile(file)}


def read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return read_bounded(stream, path)
    except OSError as error:
        raise SourceUnavailable("source.fetch_failed", f"can't read {path}: {error.strerror}", path=path) from error
