"""The plugin in SGLang's process, and the tier that it asks, as a process of its own that can be killed.

    folder = installed(Path(...))     # the project's wheel and nothing else, for PYTHONPATH
    with serve(model_dir, env=environment(folder, tier.address)) as sglang: ...

SGLang's environment stays as it is: the wheel is unpacked beside it, its entry point found on the path.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from harness import SHIM, free_port

ROOT = Path(__file__).parents[2]
START_S = 180
_METRIC = re.compile(r'^toktier_plugin_requests_total\{answer="(\w+)",path="(\w+)",reason="([\w.]+)"\} (\S+)$', re.M)


def installed(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, ROOT]
    subprocess.run([str(part) for part in pip], check=True)
    return folder


def environment(folder: Path, address: str = "", **settings: str) -> dict[str, str]:
    """Of an SGLang with the plugin; without an address the plugin is there and does nothing."""
    told = {
        "TOKTIER_ADDRESS": address,
        "TOKTIER_MIN_CHARS": "0",
        "TOKTIER_SHADOW_RATE": "1",
        "TOKTIER_TIMEOUT_MS": "20000",  # a busy machine's own delays are no failures of the tier
    }
    return {"PYTHONPATH": f"{SHIM}:{folder}", **told, **settings}


class TierProcess:
    """`start`, `kill` (at once, nothing is said to clients) and `start` again at the same address."""

    def __init__(self, model_dir: Path, folder: Path) -> None:
        self.address, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._url = f"http://{http}"
        self._settings = folder / "tier.yaml"
        settings = {
            "grpc": self.address,
            "http": http,
            "admission_s": 10,
            "compiled_dir": str(folder),
            "tokenizers": [{"name": "tiny", "source": str(model_dir / "tokenizer.json"), "models": [str(model_dir)]}],
            "shadow": {"rate": 1.0},
        }
        self._settings.write_text(json.dumps(settings), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "toktier_tier", "serve", str(self._settings)])
        deadline = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the tier didn't start")
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def counted(url: str) -> Counter[tuple[str, str, str]]:
    """(path, answer, reason) → requests, as SGLang's own /metrics tells them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    totals: Counter[tuple[str, str, str]] = Counter()
    for how, path, reason, count in _METRIC.findall(page):
        totals[path, how, reason] += int(float(count))
    return totals
