"""SGLang for a machine without a GPU: `environment()` gives a virtual environment with exactly the pinned packages.

It is made under `~/.cache/toktier` on the first call (2 GB with torch's CPU build, 6 GB with its CUDA build, which pip
is left with where it finds no other; a few minutes). A later call finds it complete, or goes on where one was cut off.
Two calls at once: one installs, the other waits. SGLang's own files stay as they are; what only a GPU could serve is
left out, and `shim/` stands in for it.

    python e2e/sglang/install.py    # prints the environment's Python
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

VERSION = "0.5.23"
HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "toktier"
CPU_TORCH = "torch==2.13.0+cpu"  # without "+cpu" PyPI's CUDA build of that version fits too


def environment() -> Path:
    """The folder of the complete environment; its interpreter is `bin/python`."""
    place = CACHE / f"sglang-{VERSION}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / "installed"
        if not stamp.exists() or stamp.read_text() not in {digest(freeze) for freeze in HERE.glob("freeze-*.txt")}:
            stamp.unlink(missing_ok=True)
            freeze = install(place)
            stamp.write_text(digest(freeze))
    return place


def install(place: Path) -> Path:
    """Bring `place` to the state of a freeze file, whatever it is in, and return that file."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    has_cpu_build = subprocess.run([*pip, "--dry-run", CPU_TORCH], capture_output=True, check=False).returncode == 0
    freeze = HERE / ("freeze-cpu.txt" if has_cpu_build else "freeze-cuda.txt")
    print(f"Installing SGLang {VERSION} into {place}, by {freeze.name}", file=sys.stderr)
    subprocess.run([*pip, "--requirement", freeze], check=True)  # --no-deps: the file names every package there is
    # Compiled once here, or the first start would take minutes.
    subprocess.run([python, "-m", "compileall", "-q", "-j", "1", place / "lib"], stdout=subprocess.DEVNULL, check=False)
    return freeze


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    print(environment() / "bin" / "python")
