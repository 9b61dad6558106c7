"""What the processors of this machine are called."""

from __future__ import annotations

from pathlib import Path


def processor_names() -> list[str]:
    """One for each, as Linux tells them; none where it doesn't."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
