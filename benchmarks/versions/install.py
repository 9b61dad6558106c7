"""The releases that the comparison needs beside the reference, put under `~/.cache/toktier` if they aren't there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pinned import CACHE
from toktier_tier.encoders.beside import FOLDER_VARIABLE, installed_version, pinned_releases

ROOT = Path(__file__).resolve().parents[2]


def ensure_releases() -> None:
    """Raises `CalledProcessError` where they can't be fetched."""
    if all(map(installed_version, pinned_releases())):
        return
    folder = CACHE / "tokenizers"
    subprocess.run([ROOT / ".ci" / "releases", sys.executable, folder], check=True)
    os.environ[FOLDER_VARIABLE] = str(folder)
