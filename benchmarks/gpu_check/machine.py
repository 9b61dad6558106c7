"""What was measured on: card, driver, versions, date."""

from __future__ import annotations

import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata

import torch

from processors import processor_names


def machine(device: str) -> dict[str, str]:
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": "none",
        "driver": "",
        "memory_gib": "",
        "capability": "",
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "host": f"{platform.machine()}, {_processor()}",
    }
    for name in ("torch", "triton", "tokenizers", "numpy"):
        found[name] = metadata.version(name)
    if torch.device(device).type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found["card"], found["capability"] = card.name, f"sm_{card.major}{card.minor}"
        found["memory_gib"] = f"{card.total_memory / 2**30:.1f}"
        found["driver"] = _driver()
    return found


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[0].strip() or "unknown"


def _processor() -> str:
    names = processor_names()
    return f"{len(names)} x {names[0]}" if names else platform.processor()
