"""The processes of a cluster: each has a log and a file with its process id, so that another run can find it again."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOG_CHARS = 4_000  # of its end, told with an error
POLL_S = 0.05
STOP_S = 15


class ClusterFailed(RuntimeError):
    """A part of the cluster ended or wasn't ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Processes:
    """`folder` gets `NAME.log` and `NAME.pid`."""

    folder: Path
    keep: bool = False
    """They outlive this process; else they end with the thread that started them."""
    lock: int | None = None
    """File descriptor of the place's lock: those that are kept hold it too."""

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock,) if self.keep and self.lock is not None else (),
                preexec_fn=None if self.keep else die_with_parent,
            )
        (self.folder / f"{name}.pid").write_text(str(process.pid))

    def stop(self, name: str, *, how: signal.Signals = signal.SIGTERM, within_s: float = STOP_S) -> None:
        """End it; if it doesn't within `within_s`, kill it. Without effect on one that has ended."""
        process = self.id_of(name)
        if process is None:
            return
        deadline = time.monotonic() + within_s
        with suppress(ProcessLookupError):
            os.kill(process, how)
            while self.is_running(name):
                if time.monotonic() > deadline:
                    os.kill(process, signal.SIGKILL)
                time.sleep(POLL_S)
        (self.folder / f"{name}.pid").unlink()

    def wait(self, name: str, ready: Callable[[], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not ready():
            if not self.is_running(name):
                raise ClusterFailed(f"{name} ended\n{self.end_of_log(name)}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{name} wasn't ready in {within_s:g} s\n{self.end_of_log(name)}")
            time.sleep(POLL_S)

    def is_running(self, name: str) -> bool:
        process = self.id_of(name)
        if process is None:
            return False
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)  # or it would stay as a zombie, if it's our child
        return Path(f"/proc/{process}/cmdline").exists()

    def id_of(self, name: str) -> int | None:
        path = self.folder / f"{name}.pid"
        return int(path.read_text()) if path.exists() else None

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.pid"))

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def end_of_log(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-LOG_CHARS:]


def die_with_parent() -> None:
    """Linux: even a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
