"""SGLang for a machine without a GPU: `environment()` gives a virtual environment with exactly the pinned packages.

It is made under `~/.cache/toktier` on the first call (2 GB with torch's CPU build, 6 GB with its CUDA build, which pip
is left with where it finds no other; a few minutes). SGLang's own files stay as they are; what only a GPU could serve
is left out, and `shim/` stands in for it.

    python e2e/sglang/install.py    # prints the environment's Python
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from pinned import Freezes, pinned_environment

HERE = Path(__file__).parent
VERSION = "0.5.23"
# Without "+cpu" PyPI's CUDA build of that version fits too.
FREEZES = Freezes(HERE / "freeze-cpu.txt", HERE / "freeze-cuda.txt", cpu_torch="torch==2.13.0+cpu")


def environment() -> Path:
    """The folder of the complete environment; its interpreter is `bin/python`."""
    return pinned_environment(f"sglang-{VERSION}", FREEZES)


if __name__ == "__main__":
    print(environment() / "bin" / "python")
