"""Admission, and the first load of a tokenizer.json, in a process of its own with limits.

Libraries that are given a file for the first time may end the process they are in, or take all its memory: no exception
tells of that. Here it ends a child. What that child's memory grew to goes with it.

Guarantees: a candidate that ended the child is left out when the admission is run again, and its verdict says so
(`encoder.killed_process`); if it is the reference that did, the file is refused by name (`tokenizer.kills_process`).
Neither is concluded where somebody else killed the child (`admission.process_killed`).
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..children import Child, Ended, Limits
from ..core import errors
from ..core.boundaries import BoundaryRule
from ..core.errors import EnvironmentFault, TierError, UnsupportedTokenizer
from ..core.snapshot import Snapshot
from ..encoders.candidates import CANDIDATES
from . import apart_worker as worker
from .campaign import Admission
from .comparisons import Progress
from .transfer import unpack_admission, unpack_rule

KILLS_PROCESS = "tokenizer.kills_process"
NO_PROCESS, PROCESS_FAILED, PROCESS_KILLED = (
    "admission.no_process",
    "admission.process_failed",
    "admission.process_killed",
)
MACHINE_FAULTS = frozenset((NO_PROCESS, PROCESS_FAILED, PROCESS_KILLED))
"""Codes that say nothing about the file."""
COMMAND = (sys.executable, "-m", worker.__name__)


@dataclass(frozen=True, slots=True)
class Apart:
    """What the child may do, and the command that it runs: by default `COMMAND`."""

    limits: Limits = field(default_factory=Limits)
    command: Sequence[str] = ()


class ChildFailed(RuntimeError):
    """A defect of the tier's own in the child; its type and places are told, its message isn't."""


class _Died(Exception):
    """candidate: in whose code, empty for the reference's; built: whether any candidate was there by then."""

    def __init__(self, why: str, candidate: str, built: bool) -> None:
        super().__init__(why)
        self.why, self.candidate, self.built = why, candidate, built


def load_apart(snapshot: Snapshot, apart: Apart | None = None) -> None:
    """Whether the reference loads the file and encodes a probe without ending its process.

    Raises what `open_reference` raises, `UnsupportedTokenizer` (`tokenizer.kills_process`), `EnvironmentFault`.
    """
    run_apart(snapshot, {"what": worker.LOAD}, apart or Apart())


def derive_apart(snapshot: Snapshot, apart: Apart | None = None) -> BoundaryRule:
    """`campaign.derive_rule`. Raises as `load_apart`."""
    (rule,) = run_apart(snapshot, {"what": worker.DERIVE}, apart or Apart())
    return unpack_rule(rule)


def admit_apart(
    snapshot: Snapshot,
    *,
    budget_s: float = 60.0,
    seed: int = 1,
    candidates: Sequence[str] = tuple(CANDIDATES),
    corpus: Sequence[str] = (),
    progress: Progress | None = None,
    apart: Apart | None = None,
) -> Admission:
    """`campaign.admit`, once more for every candidate that ends the child. Raises as `load_apart`."""
    apart = apart or Apart()
    asked = {"what": worker.ADMIT, "budget_s": budget_s, "seed": seed, "candidates": list(candidates)}
    killed: dict[str, str] = {}
    while True:
        try:
            parts = _run(snapshot, {**asked, "killed": killed}, apart, corpus, progress)
            return unpack_admission(snapshot, parts)
        except _Died as died:
            left = [name for name in candidates if name not in killed]
            if died.candidate in left:
                killed[died.candidate] = f"the process that tried it {died.why}"
            elif died.built and left:  # what a candidate left behind shows in other code: its memory, for one
                killed |= dict.fromkeys(left, f"the process that tried it, among others, {died.why}")
            else:
                _refuse(died)


def run_apart(snapshot: Snapshot, asked: Mapping[str, Any], apart: Apart, corpus: Sequence[str] = ()) -> list[bytes]:
    """The outcome of a task in which no candidate has a part. Raises as `load_apart`."""
    try:
        return _run(snapshot, {**asked, "killed": {}}, apart, corpus)
    except _Died as died:
        _refuse(died)


def _refuse(died: _Died) -> NoReturn:
    why = (
        f"the process in which the reference tried it {died.why}; raise that limit if the file is genuine, or repair it"
    )
    raise UnsupportedTokenizer(KILLS_PROCESS, why) from None


# --- the child -------------------------------------------------------------------------------------------------


def _run(
    snapshot: Snapshot,
    asked: Mapping[str, Any],
    apart: Apart,
    corpus: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[bytes]:
    """The parts of the outcome. Raises `_Died`, what the child raised, `EnvironmentFault` or `ChildFailed`."""
    memory_bytes = apart.limits.allowed_bytes()
    descriptor = os.memfd_create("mark")
    try:
        os.ftruncate(descriptor, worker.SHARED_BYTES)
        task = {
            **asked,
            "policy": snapshot.policy.value,
            "memory_bytes": memory_bytes,
            "parent": os.getpid(),
            "mark": descriptor,
        }
        messages = (json.dumps(task).encode(), snapshot.data, json.dumps(list(corpus)).encode())
        with mmap.mmap(descriptor, worker.SHARED_BYTES) as mark:
            try:
                kind, body = _answer(apart, memory_bytes, descriptor, messages, progress)
                if kind == worker.NO_MEMORY:
                    raise Ended("memory", "")
            except Ended as ended:
                _tell_end(ended, memory_bytes, mark[:])
    finally:
        os.close(descriptor)
    return _outcome(kind, body)


def _answer(
    apart: Apart,
    memory_bytes: int,
    descriptor: int,
    messages: Sequence[bytes],
    progress: Progress | None,
) -> tuple[int, bytes]:
    try:
        child = Child(apart.command or COMMAND, alone=True, pass_fds=(descriptor,))
    except OSError as error:
        raise EnvironmentFault(NO_PROCESS, f"no process can be started: {error.strerror}") from None
    try:
        with suppress(BrokenPipeError):  # then it has ended, and how is found out below
            child.send(*messages)
        while True:
            kind, body = child.progressing(apart.limits, memory_bytes)
            if kind != worker.PROGRESS:
                return kind, body
            if progress is not None:
                told = json.loads(body)
                progress(told["phase"], told["done"])
    finally:
        child.end()


def _tell_end(ended: Ended, memory_bytes: int, mark: bytes) -> NoReturn:
    if ended.how == "killed":
        raise EnvironmentFault(PROCESS_KILLED, f"the process that tries a tokenizer {ended}") from None
    if ended.how == "exit":
        raise EnvironmentFault(PROCESS_FAILED, f"the process that tries a tokenizer {ended}") from None
    candidate = mark[: worker.MARK_BYTES].rstrip(b"\0").decode()
    raise _Died(_in_words(ended.how, ended.why, memory_bytes), candidate, bool(mark[worker.MARK_BYTES])) from None


def _in_words(how: str, why: str, memory_bytes: int) -> str:
    return f"took more than the {memory_bytes:,} bytes of memory that it may have" if how == "memory" else why


def _outcome(kind: int, body: bytes) -> list[bytes]:
    if kind == worker.REFUSED:
        told = json.loads(body)
        found = getattr(errors, told["kind"], TierError)
        raise found(told["code"], told["message"], **told["details"])
    if kind == worker.FAILED:
        told = json.loads(body)
        raise ChildFailed("\n  ".join((f"{told['type']} in the process that tries a tokenizer, at", *told["places"])))
    sizes, _, rest = body.partition(b"\n")
    parts: list[bytes] = []
    for size in json.loads(sizes):
        parts.append(rest[:size])
        rest = rest[size:]
    return parts
