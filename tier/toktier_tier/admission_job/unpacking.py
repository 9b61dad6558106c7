"""The bundles of a pod's tokenizers, from their chunks to folders that `open_tokenizer` takes.

Guarantees: nothing is written for a bundle before its SHA-256 holds; a folder appears whole, by rename, in place of
what an earlier start of the pod left there.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import InvalidRequest
from .bundle import joined, unpack, verify

_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_bundles(text: str) -> dict[str, str]:
    """TOKTIER_BUNDLES: SHA-256 by admission id. Raises `InvalidRequest` (`bundle.bad_request`)."""
    try:
        given = json.loads(text)
        bundles = {str(id): str(sha256) for id, sha256 in given.items()}
    except (ValueError, AttributeError):
        bundles = {"": ""}
    if not all(_ID.fullmatch(id) and _SHA256.fullmatch(sha256) for id, sha256 in bundles.items()):
        raise InvalidRequest("bundle.bad_request", "TOKTIER_BUNDLES is a JSON object {admission id: sha256}")
    return bundles


def unpack_all(bundles: Mapping[str, str], source: Path, target: Path) -> list[Path]:
    """`source/<id>/` to `target/<id>/`. Raises `StateCorrupt` (`bundle.*`)."""
    return [_unpack_one(source / id, target / id, sha256) for id, sha256 in sorted(bundles.items())]


def _unpack_one(source: Path, target: Path, sha256: str) -> Path:
    bundle = joined(source)
    verify(bundle, sha256)
    content = unpack(bundle)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as scratch:
        folder = Path(scratch) / target.name
        for name, data in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    return target
