"""The real SGLang on this machine's CPU: `serve` starts it, waits until it answers, and surely ends it.

    with serve(model_dir, "--enable-cache-report") as sglang:
        httpx.get(sglang.url + "/health")

`prompts_of` asks SGLang's classes alone, which is faster. SGLang's files are unchanged; `shim/` stands in for what
only a GPU has. A start takes about half a minute of an idle machine and the server some 2 to 3 GB of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from install import environment

SHIM = Path(__file__).parent / "shim"
START_S = 600
STOP_S = 10
LOG_CHARS = 4_000  # of its end, told when the server fails


class SglangFailed(RuntimeError):
    """It ended or wasn't ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Sglang:
    """A running server. `grpc` is `host:port` where SGLang serves gRPC beside or in place of HTTP."""

    url: str
    port: int
    process_id: int
    log: Path
    grpc: str | None = None


def variables(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which SGLang's Python runs here."""
    given = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    }
    settings = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SMG_SGLANG_SERVICER_WARMUP": "off",  # it sends IDs beyond a small vocabulary, which ends the scheduler
        "PYTHONPATH": str(SHIM),
    }
    return given | settings | dict(extra or {})


def command(model_dir: Path, port: int, *flags: str) -> list[str]:
    python = environment() / "bin" / "python"
    fixed = (
        *("--model-path", str(model_dir), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
        *("--mem-fraction-static", "0.1", "--max-total-tokens", "40000", "--disable-overlap-schedule"),
        *("--enable-metrics", "--enable-cache-report"),
    )
    return [str(python), "-m", "sglang.launch_server", *fixed, *flags]


@contextlib.contextmanager
def serve(
    model_dir: Path,
    *flags: str,
    port: int = 0,
    grpc_port: int | None = None,
    env: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> Iterator[Sglang]:
    """`flags` are further flags of SGLang's. A port of 0 is a free one; `grpc_port`: SGLang's native gRPC too.

    With `--smg-grpc-mode` among the flags the port is the gRPC server's, and readiness is that it accepts.
    The server and all its processes are ended on leaving, whatever happened. Raises SglangFailed.
    """
    port = port or free_port()
    if grpc_port is not None:
        grpc_port = grpc_port or free_port()
        flags = (*flags, "--grpc-port", str(grpc_port))
    only_grpc = "--smg-grpc-mode" in flags
    with tempfile.TemporaryDirectory(prefix="sglang-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command(model_dir, port, *flags),
                env=variables(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the scheduler and the others can then be ended with it
                preexec_fn=_die_with_parent,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(
                process, log, start_s, url=None if only_grpc else url, ports=[port, *([grpc_port] if grpc_port else [])]
            )
            grpc = grpc_port if grpc_port is not None else port if only_grpc else None
            yield Sglang(url, port, process.pid, log, None if grpc is None else f"127.0.0.1:{grpc}")
        finally:
            _end(process)


def _die_with_parent() -> None:
    """Linux: even a test run that is killed leaves no server behind (its workers do the same with it)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], log: Path, start_s: float, *, url: str | None, ports: list[int]) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SglangFailed(f"SGLang ended with {process.returncode}\n{_end_of(log)}")
        if all(map(_accepts, ports)) and (url is None or _answers(url)):
            return
        time.sleep(0.25)
    raise SglangFailed(f"SGLang wasn't ready in {start_s:g} s\n{_end_of(log)}")


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    # The leader is gone; SIGKILL was sent to its whole group either way.


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS:]


@dataclass(frozen=True, slots=True)
class Task:
    """A model's folder, fields of SGLang's ServerArgs, and chat bodies as JSON."""

    model: Path
    bodies: Sequence[str]
    settings: Mapping[str, object] = field(default_factory=dict)


def prompts_of(tasks: Sequence[Task]) -> list[list[dict[str, Any]]]:
    """What SGLang's own classes make of each body (see `oracle.py`), without starting a server."""
    asked = [{"model": str(task.model), "bodies": list(task.bodies), "settings": dict(task.settings)} for task in tasks]
    done = subprocess.run(
        [environment() / "bin" / "python", Path(__file__).with_name("oracle.py")],
        input=json.dumps(asked),
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SglangFailed(done.stderr[-LOG_CHARS:])
    answers: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return answers
