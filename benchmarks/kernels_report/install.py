"""torch and Triton for a machine without a GPU: `environment()` gives a virtual environment of the pinned packages.

It is made under `~/.cache/toktier` on the first call (1.5 GB with torch's CPU build, 5.5 GB with its CUDA build, which
pip is left with where it finds no other; a few minutes), once for each state of the freeze files. The project itself
isn't in it: `PYTHONPATH` says which checkout runs.

    python -m kernels_report.install    # prints the environment's Python
"""

from __future__ import annotations

from pathlib import Path

from pinned import Freezes, digest, pinned_environment

HERE = Path(__file__).parent
FREEZES = Freezes(HERE / "freeze-cpu.txt", HERE / "freeze-cuda.txt", cpu_torch="torch==2.14.1+cpu")


def environment() -> Path:
    """The folder of the complete environment; its interpreter is `bin/python`."""
    return pinned_environment(f"kernels-{digest(*FREEZES.files)[:12]}", FREEZES)


if __name__ == "__main__":
    print(environment() / "bin" / "python")
