"""The paper authors' `toktier` 0.3.0 as a peer: its own virtual environment, its own process, its own clock.

Guarantee: what is timed is the peer's public call inside its process; texts go through files and answers through a
pipe, both outside every timed section.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from toktier_tier.ports import Ids
from toktier_tier.sources import default_cache_dir

VERSION = "0.3.0"
ENGINE = f"toktier-{VERSION}"


class PeerFailed(Exception):
    """The peer couldn't be installed, started, or raised something: its own words."""


def environment() -> Path:
    """The peer's Python interpreter, installed on first use (about 330 MB)."""
    folder = default_cache_dir() / "peers" / ENGINE
    python, done = folder / "bin" / "python", folder / ".installed"
    if done.exists() and python.exists():
        return python
    venv.create(folder, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"toktier=={VERSION}"]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        raise PeerFailed(f"pip can't install toktier=={VERSION}: {installed.stderr.strip()[-600:]}")
    done.touch()
    return python


@dataclass(frozen=True, slots=True)
class Timed:
    """Nanoseconds per call, and the route that the peer says it took last."""

    times_ns: list[int]
    route: str


class Peer:
    """A running peer. A context manager; not thread-safe.

    pending   how many of the deltas last sent are in the session, as `timing.Appender` counts them
    """

    def __init__(self, tokenizer_json: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="bench-peer-"))
        benchmarks = Path(__file__).parents[1]
        home = default_cache_dir() / "peers" / f"{ENGINE}-home"
        home.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [environment(), "-m", "bench.peer_worker", tokenizer_json, self._scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(benchmarks), "TOKTIER_HOME": str(home)},
            text=True,
        )
        self.pending = 0
        self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def open(self, context: str) -> None:
        """Start a session of `context`."""
        self._call("open", context=self._file("context", context.encode()))

    def append(self, deltas: Sequence[str]) -> Timed:
        """Append each to the open session, which may be opened anew in between: see `timing.Appender`."""
        answer = self._call("append", deltas=self._file("deltas", json.dumps(list(deltas)).encode()))
        self.pending = answer["pending"]
        return Timed(answer["times_ns"], answer["route"])

    def ids(self) -> Ids:
        """All IDs of the open session."""
        return self._ids("ids")

    def encode(self, text: str, count: int, *, fresh: bool) -> tuple[Timed, Ids]:
        """`count` full encodes of `text`, in a tokenizer object made for it if `fresh`; the IDs of the last one."""
        out = self._scratch / "ids.npy"
        path = self._file("text", text.encode())
        answer = self._call("encode", text=path, out=str(out), count=count, fresh=fresh)
        return Timed(answer["times_ns"], answer["route"]), _loaded(out)

    def _ids(self, call: str) -> Ids:
        out = self._scratch / "ids.npy"
        self._call(call, out=str(out))
        return _loaded(out)

    def _file(self, name: str, content: bytes) -> str:
        path = self._scratch / name
        path.write_bytes(content)
        return str(path)

    def _call(self, call: str, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"call": call, **arguments}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"the peer's process ended (exit status {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer


def _loaded(path: Path) -> Ids:
    ids: Ids = np.load(path)
    return ids
