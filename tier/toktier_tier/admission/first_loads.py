"""What came of the first load of a tokenizer.json that wasn't admitted here: kept beside the compiled snapshots.

A file that ended the process is refused again without another try, as long as the reference is the same and the process
would get no more memory; one that loaded needs no process of its own the next time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import UnsupportedTokenizer
from ..core.snapshot import Snapshot
from ..sources.cache import write_by_rename
from .apart import KILLS_PROCESS


def recall(directory: Path, snapshot: Snapshot, memory_bytes: int) -> bool:
    """Whether the file is known to load. Raises `UnsupportedTokenizer` (`tokenizer.kills_process`)."""
    try:
        found: dict[str, Any] = json.loads(_path(directory, snapshot).read_bytes())
        if found["reference"] != snapshot.reference_version:
            return False
        killed, allowed = found["killed"], int(found["memory_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if isinstance(killed, str) and killed and memory_bytes <= allowed:
        raise UnsupportedTokenizer(KILLS_PROCESS, f"{killed} (found before, and kept)")
    return bool(killed == "")


def remember(directory: Path, snapshot: Snapshot, memory_bytes: int, killed: str = "") -> None:
    """`killed`: why it is refused; empty where it loaded. Raises `OSError`."""
    document = {"reference": snapshot.reference_version, "memory_bytes": memory_bytes, "killed": killed}
    directory.mkdir(parents=True, exist_ok=True)
    write_by_rename(_path(directory, snapshot), json.dumps(document).encode())


def _path(directory: Path, snapshot: Snapshot) -> Path:
    return directory / f"{snapshot.sha256}.{snapshot.policy.value}.load.json"
