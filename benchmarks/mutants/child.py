"""Runs tests on another copy of the tree, in a process that has loaded nothing of ours yet."""

from __future__ import annotations

import os
import sys

PASSED, FAILED, OTHER_FILES = 100, 101, 170
"""Exit statuses; what isn't one of these is no answer. Pytest's own are counted from 100 on."""


def run(root: str, tree: str, tests: tuple[str, ...]) -> None:
    """Ends the process: pytest's status on `tests` under `tree`, no module of which comes from `root`."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.chdir(tree)
    os.environ["TOKTIER_EXAMPLES"] = "0.2"
    ours = [os.path.join(tree, name) for name in ("tier", "operator", "kernels", "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join(ours)
    sys.path[:] = ours + [p for p in sys.path if "site-packages" in p or not p.startswith(root + os.sep)]
    import pytest

    code = PASSED + int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    import toktier_tier

    if not str(toktier_tier.__file__).startswith(tree):
        code = OTHER_FILES
    os._exit(code)
