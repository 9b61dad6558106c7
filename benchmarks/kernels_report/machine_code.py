"""Ahead-of-time compilation, in a process of its own: where kernels are interpreted none can be compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from kernels_report.columns import columns

Row = dict[str, Any]
"""As `toktier_kernels.ahead.Row`."""


def start_compiling() -> subprocess.Popen[str]:
    """Runs beside what needs the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "toktier_kernels.ahead"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def compiled_rows(process: subprocess.Popen[str]) -> list[Row]:
    """Raises RuntimeError if it ended without rows; a row that is red is no error here."""
    output, _ = process.communicate()
    try:
        rows: list[Row] = json.loads(output)
    except ValueError:
        raise RuntimeError(f"ahead-of-time compilation ended with status {process.returncode}") from None
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line a kernel: registers of a thread on each target, and the most of what should be little."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    by_kernel: dict[str, list[Row]] = {}
    for row in rows:
        by_kernel.setdefault(row["kernel"], []).append(row)
    lines = [
        [
            kernel,
            "hot" if found[0]["hot"] else "",
            found[0]["threads"],
            *(row["registers"] if row["compiled"] else "failed" for row in found),
            max(row["spills"] for row in found),
            max(row["local_bytes"] for row in found),
            max(row["shared_bytes"] for row in found),
            "RED" if any(row["red"] for row in found) else "",
        ]
        for kernel, found in by_kernel.items()
    ]
    header = ["kernel", "", "threads", *targets, "spills", "local B", "shared B", ""]
    return "Registers of a thread by target\n" + columns(header, lines)
