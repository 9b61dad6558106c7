"""Processes of the tier's own in which other people's code may die: started, spoken with, limited, ended.

Guarantees: a child that was started with limits takes no more memory than those allow, writes no core dump, is the
first that the kernel ends where memory runs out, and doesn't outlive the thread that started it. How one ended is
known: by itself, by a signal, or because it made no progress. What it wrote to standard error goes nowhere.

A message to a child is its length (8 bytes, little-endian) and its bytes; one from a child has a byte before them that
says what it is. This module is both ends, and imports nothing but the standard library: children start fast.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HEAD_BYTES = 8
DEFAULT_MEMORY_BYTES = 8 << 30
SHARE_OF_FREE = 0.9
FILE_BYTES = 1 << 30
"""Files in memory aren't private: what a child writes is bounded too."""
SHARED_BYTES = 512 << 20
"""Of libraries' code and the like, which counts as resident and isn't private."""
POLL_S = 0.2
READ_BYTES = 1 << 20
ERROR_BYTES = 4_096
NO_MEMORY = (b"memory allocation of", b"bad_alloc", b"MemoryError")
"""What is left on standard error where an allocation failed."""
_PR_SET_PDEATHSIG = 1


# --- the child's end ------------------------------------------------------------------------------------------


def read_message(source: BinaryIO) -> bytes | None:
    """None at the end, also in the middle of a message: the tier was killed while it wrote."""
    head = source.read(HEAD_BYTES)
    size = int.from_bytes(head, "little")
    data = source.read(size)
    return data if len(head) == HEAD_BYTES and len(data) == size else None


def write_answer(target: BinaryIO, kind: int, data: bytes) -> None:
    try:
        target.write(bytes([kind]) + len(data).to_bytes(HEAD_BYTES, "little"))
        target.write(data)
        target.flush()
    except BrokenPipeError:  # the tier has ended meanwhile: nobody is left to tell
        os._exit(0)


def ignore_interrupts() -> None:
    """A terminal sends them to the tier too, which then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def confine(memory_bytes: int, parent: int) -> None:
    """Limit this process, before it has loaded anything: `memory_bytes` of private writable memory.

    That is `RLIMIT_DATA`, not `RLIMIT_AS`: threads and allocators reserve address space by the number of cores.
    """
    limits = ((resource.RLIMIT_DATA, memory_bytes), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0))
    for what, most in limits:
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(0)


# --- the tier's end -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """memory_bytes   0: `DEFAULT_MEMORY_BYTES`, or most of what is free if that is less
    stall_cpu_s       how much time of processors a child may take without a sign of progress
    stall_s           how long it may be without one, whatever it takes
    """

    memory_bytes: int = 0
    stall_cpu_s: float = 600.0
    stall_s: float = 3_600.0

    def allowed_bytes(self) -> int:
        return self.memory_bytes or min(DEFAULT_MEMORY_BYTES, int(SHARE_OF_FREE * free_bytes()))


class Ended(Exception):
    """A child ended without an answer.

    how     memory: it was refused some; stalled: it made no progress; signal: by one of its own; killed: by a SIGKILL
            that wasn't the tier's; exit: by itself
    """

    def __init__(self, how: str, why: str) -> None:
        super().__init__(why)
        self.how, self.why = how, why


class Child:
    """A process that runs `command`, for one thread at a time; `end` may be called by any, and more than once.

    `alone`: in a session of its own, so that `end` takes its descendants along and a terminal's signals don't reach it;
    its standard error is kept from the tier's. Raises `OSError` where no process can be started.
    """

    def __init__(self, command: Sequence[str], *, alone: bool = False, pass_fds: Sequence[int] = ()) -> None:
        self._alone = alone
        self._errors = os.fdopen(os.memfd_create("errors"), "rb") if alone else None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=alone,
            pass_fds=tuple(pass_fds),
        )
        self.pid = self._process.pid
        self._read = bytearray()

    def send(self, *messages: bytes) -> None:
        """Raises `OSError` where it has ended."""
        stdin = self._process.stdin
        assert stdin is not None
        for data in messages:
            stdin.write(len(data).to_bytes(HEAD_BYTES, "little"))
            stdin.write(data)
        stdin.flush()

    def receive(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """(what it is, its bytes) of the next answer; None if there is none yet. Raises `EOFError` where it ended."""
        stdout = self._process.stdout
        assert stdout is not None
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        while (found := self._answer()) is None:
            if not ready.poll(None if timeout_s is None else 1_000 * timeout_s):
                return None
            data = os.read(stdout.fileno(), READ_BYTES)
            if not data:
                raise EOFError
            self._read += data
        return found

    def _answer(self) -> tuple[int, bytes] | None:
        """Out of what was read, if it is whole."""
        head = 1 + HEAD_BYTES
        if len(self._read) < head:
            return None
        size = int.from_bytes(self._read[1:head], "little")
        if len(self._read) < head + size:
            return None
        kind, body = self._read[0], bytes(self._read[head : head + size])
        del self._read[: head + size]
        return kind, body

    def progressing(self, limits: Limits, memory_bytes: int) -> tuple[int, bytes]:
        """The next answer. Raises `Ended`, also where it was ended for what it took; the child is gone then.

        It keeps to `memory_bytes` by itself (see `confine`): that is looked at for kernels that don't see to it.
        """
        since, spent_s = time.monotonic(), cpu_seconds(self.pid)
        while True:
            try:
                found = self.receive(POLL_S)
            except EOFError:
                raise self._ended() from None
            if found is not None:
                return found
            if resident_bytes(self.pid) > memory_bytes + SHARED_BYTES:
                self.end()
                raise Ended("memory", "took more memory than it is allowed")
            if cpu_seconds(self.pid) - spent_s > limits.stall_cpu_s or time.monotonic() - since > limits.stall_s:
                self.end()
                raise Ended("stalled", f"made no progress in {limits.stall_cpu_s:g} s of processor time")

    def _ended(self) -> Ended:
        with suppress(subprocess.TimeoutExpired):  # its end of the pipe may be closed a little earlier
            self._process.wait(10)
        code = self._process.returncode
        told = self._told()
        self.end()
        if any(words in told for words in NO_MEMORY):
            return Ended("memory", "took more memory than it is allowed")
        if code is None or code >= 0:
            return Ended("exit", f"ended with exit status {code}")
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return Ended("killed", "was killed from outside: the machine may be out of memory")
        return Ended("signal", f"was ended by {name}")

    def _told(self) -> bytes:
        """The end of its standard error: never shown, since it may hold what was encoded."""
        if self._errors is None:
            return b""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), ERROR_BYTES, max(size - ERROR_BYTES, 0))

    def end(self) -> None:
        """At once, whatever it is doing."""
        if self._alone and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                with suppress(OSError):
                    file.close()


def cpu_seconds(pid: int) -> float:
    """What a process has taken of the processors, all its threads together; 0 where that isn't known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """What of a process lies in memory; 0 where that isn't known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free_bytes() -> int:
    """Of memory: on this machine, or within what this container may have, whichever is less."""
    found = [_number_in("/proc/meminfo", "MemAvailable:", DEFAULT_MEMORY_BYTES >> 10) << 10]
    for folder, limit, used, reclaimable in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # no such control group, or "max"
            taken = int(Path(folder, used).read_text()) - _number_in(f"{folder}/memory.stat", reclaimable, 0)
            found.append(int(Path(folder, limit).read_text()) - taken)
    return max(min(found), 0)


def _number_in(path: str, name: str, default: int) -> int:
    """The number behind `name` on a line of its own."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return default
