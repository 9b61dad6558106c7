"""Virtual environments apart from `.venv` that hold exactly the packages of a committed freeze file.

`pinned_environment` makes one under `~/.cache/toktier` on the first call. A later call finds it complete, or goes on
where one was cut off. Two calls at once: one installs, the other waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache" / "toktier"


@dataclass(frozen=True)
class Freezes:
    """The packages, with torch's CPU build where the indexes have it and else with PyPI's CUDA build (6 GB).

    cpu, cuda   requirements files that name every package there is, with its version
    cpu_torch   the requirement that tells which of the two can be installed
    """

    cpu: Path
    cuda: Path
    cpu_torch: str

    @property
    def files(self) -> Sequence[Path]:
        return (self.cpu, self.cuda)


def pinned_environment(name: str, freezes: Freezes) -> Path:
    """The folder of the complete environment `name`; its interpreter is `bin/python`."""
    place = CACHE / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / "installed"
        if not stamp.exists() or stamp.read_text() not in {digest(freeze) for freeze in freezes.files}:
            stamp.unlink(missing_ok=True)
            freeze = _install(place, freezes)
            stamp.write_text(digest(freeze))
    return place


def digest(*paths: Path) -> str:
    """Of the files' bytes, one behind the other."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _install(place: Path, freezes: Freezes) -> Path:
    """Bring `place` to the state of a freeze file, whatever it is in, and return that file."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    has_cpu_build = subprocess.run([*pip, "--dry-run", freezes.cpu_torch], capture_output=True, check=False)
    freeze = freezes.cuda if has_cpu_build.returncode else freezes.cpu
    print(f"Installing {place.name} into {place}, by {freeze.name}", file=sys.stderr)
    subprocess.run([*pip, "--requirement", freeze], check=True)  # --no-deps: the file names every package there is
    # Compiled once here, or the first start would take minutes.
    subprocess.run([python, "-m", "compileall", "-q", "-j", "1", place / "lib"], stdout=subprocess.DEVNULL, check=False)
    return freeze
