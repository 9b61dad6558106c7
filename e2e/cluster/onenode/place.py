"""Where a cluster lives: a folder and, of the same name that no other run has, a network namespace and cgroups.

A place belongs to whoever holds the lock on its file `lock`: a test run or, where it is kept, the cluster's processes.
The kernel drops the lock with its last holder, so a place without one is a crashed run's, and `sweep` removes it, with
every process in it. Nothing outside a place is touched, and a place is never used twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "TOKTIER_E2E_PLACE"
"""In the environment of what runs in a place: its folder."""
OUTSIDE = "TOKTIER_E2E_OUTSIDE"
"""There too: the network namespace that was left, from which the internet can be reached."""
PARENT = Path("/var/tmp")  # a disk: overlayfs doesn't stack on every tmpfs
PREFIX = "toktier-e2e-"
NAMESPACES = Path("/run/netns")
CGROUPS = Path("/sys/fs/cgroup")
KILL_S = 20


@dataclass(frozen=True, slots=True)
class Place:
    path: Path
    lock: int | None = field(default=None, compare=False)
    """File descriptor of the lock, where this process holds it."""

    @classmethod
    def make(cls, *, network: bool) -> Place:
        """With `network`, which needs root, it has a network namespace, in which only loopback is up."""
        with _making():
            path = PARENT / f"{PREFIX}{secrets.token_hex(3)}"
            path.mkdir(mode=0o755)
            place = cls(path, _locked(path))
        if network:
            subprocess.run(["ip", "netns", "add", path.name], check=True)
            subprocess.run([*place.entered, "ip", "link", "set", "lo", "up"], check=True)
        return place

    @property
    def namespace(self) -> Path:
        return NAMESPACES / self.path.name

    @staticmethod
    def outside() -> list[str]:
        """Put before a command, it runs where a command that was `entered` has come from."""
        left = os.environ.get(OUTSIDE)
        return ["nsenter", f"--net={left}", "--"] if left else []

    @property
    def entered(self) -> list[str]:
        """Put before a command, it runs in the network namespace. (`ip netns exec` would also remount /sys.)"""
        return ["nsenter", f"--net={self.namespace}", "--"] if self.namespace.exists() else []

    def remove(self) -> None:
        """End every process in it and remove all traces. Of a place half made or half removed too."""
        deadline = time.monotonic() + KILL_S
        while found := {*_started_in(self.path), *_processes_in(self.namespace), *_processes_of(self.path.name)}:
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path}: processes {sorted(found)} don't end")
            time.sleep(0.05)
        for cgroup in _cgroups(self.path.name):
            with suppress(FileNotFoundError):
                cgroup.rmdir()
        if self.namespace.exists():
            subprocess.run(["ip", "netns", "del", self.path.name], check=True)
        # Mounts were in a mount namespace that ended with its processes: what is left is this disk's.
        subprocess.run(["rm", "-rf", "--one-file-system", self.path], check=True)
        if self.lock is not None:
            os.close(self.lock)


def sweep() -> list[str]:
    """Remove this user's places that nobody holds any more; their names."""
    removed = []
    with _making():
        for path in sorted(PARENT.glob(f"{PREFIX}*/")):
            if path.stat().st_uid == os.geteuid() and (lock := _locked(path)) is not None:
                Place(path, lock).remove()
                removed.append(path.name)
    return removed


@contextmanager
def _making() -> Iterator[None]:
    """Between a folder's making and its lock nobody else makes or sweeps."""
    with (PARENT / f"{PREFIX}lock-{os.geteuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(path: Path) -> int | None:
    lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _started_in(path: Path) -> Iterator[int]:
    """By the notes of `Processes`, as far as they still hold: a process id may have become another's."""
    for note in path.glob("*.pid"):
        with suppress(FileNotFoundError, ValueError):
            process = int(note.read_text())
            if str(path) in Path(f"/proc/{process}/cmdline").read_text():
                yield process


def _processes_in(namespace: Path) -> Iterator[int]:
    if not namespace.exists():
        return
    wanted = namespace.stat()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found = entry.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield int(entry.parts[2])


def _processes_of(name: str) -> Iterator[int]:
    """Those in pods: each pod has a network namespace of its own, below the cgroup of the place."""
    for cgroup in _cgroups(name):
        with suppress(FileNotFoundError, OSError):
            yield from map(int, (cgroup / "cgroup.procs").read_text().split())


def _cgroups(name: str) -> list[Path]:
    """Innermost first, of every hierarchy: version 1 has one for each controller, version 2 one in all."""
    roots = [root for root in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if root.is_dir()]
    return [Path(folder) for root in roots for folder, _, _ in os.walk(root, topdown=False)]
