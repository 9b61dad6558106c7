"""What runs in `apart`'s process: a task and a tokenizer.json on standard input, progress and an outcome on its output.

Messages are those of `children`: the task (JSON), the tokenizer.json, the corpus (a JSON list of texts). Answers, of
which all but the first end it:

    PROGRESS   {"phase", "done"}
    DONE       the size of each part of the outcome (JSON), then the parts
    REFUSED    a coded error: {"kind", "code", "message", "details"}
    NO_MEMORY  an allocation of Python's failed
    FAILED     any other exception: {"type", "places"}, never its message

While a candidate is at work, its name stands in memory that both processes share: if this one dies, the other knows in
whose code.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from ..children import confine, ignore_interrupts, read_message, write_answer
from ..core.errors import EncoderUnavailable, TierError
from ..core.snapshot import SpecialTokenPolicy
from ..encoders import candidates
from ..encoders.reference import Reference, open_reference
from ..ports import Encoder, Ids
from .campaign import admit, derive_rule
from .transfer import pack_admission, pack_rule

PROGRESS, DONE, REFUSED, NO_MEMORY, FAILED = range(5)
LOAD, DERIVE, ADMIT = "load", "derive", "admit"
MARK_BYTES = 64
SHARED_BYTES = MARK_BYTES + 1
"""The name of the candidate that is at work, then whether any has been built."""
PROGRESS_EVERY_S = 0.05
PLACES = 12
PROBE = "def hello(name):\n    return f'Hi {name}, naïve 中文 🙂!'  # 12345\r\n\n\n  <|im_start|>user\n" * 8
"""What every tokenizer encodes before it serves."""


def main(tasks: Mapping[str, Task] | None = None) -> None:
    """`tasks`: further ones, by what they are asked as."""
    TASKS.update(tasks or {})
    ignore_interrupts()
    messages = [read_message(sys.stdin.buffer) for _ in range(3)]
    task, data, corpus = messages
    if task is None or data is None or corpus is None:
        return
    # Only these messages go to the tier: what a library prints goes where it is kept from everybody.
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = json.loads(task)
    confine(asked["memory_bytes"], asked["parent"])
    with mmap.mmap(asked["mark"], SHARED_BYTES) as mark:
        watch_candidates(mark, asked["killed"])
        write_answer(target, *outcome(asked, data, json.loads(corpus), Teller(partial(write_answer, target, PROGRESS))))


class Teller:
    """Progress that is worth a message."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write, self._phase, self._at = write, "", 0.0

    def __call__(self, phase: str, done: float) -> None:
        now = time.monotonic()
        if phase != self._phase or now - self._at >= PROGRESS_EVERY_S:
            self._phase, self._at = phase, now
            self._write(json.dumps({"phase": phase, "done": done}).encode())


def outcome(asked: Mapping[str, Any], data: bytes, corpus: Sequence[str], tell: Teller) -> tuple[int, bytes]:
    try:
        parts = run_task(asked, data, corpus, tell)
        return DONE, b"".join((json.dumps([len(part) for part in parts]).encode(), b"\n", *parts))
    except MemoryError:
        return NO_MEMORY, b""
    except TierError as error:
        told = {"kind": type(error).__name__, "code": error.code, "message": error.message, "details": error.details}
        return REFUSED, json.dumps(told, default=str).encode()
    except Exception as error:
        places = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_tb(error.__traceback__)]
        return FAILED, json.dumps({"type": type(error).__name__, "places": places[-PLACES:]}).encode()


def run_task(asked: Mapping[str, Any], data: bytes, corpus: Sequence[str], tell: Teller) -> Sequence[bytes]:
    tell("load", 0.0)
    reference = open_reference(data, SpecialTokenPolicy(asked["policy"]))
    _try_out(reference)
    return TASKS[asked["what"]](asked, reference, corpus, tell)


def _load(asked: Mapping[str, Any], reference: Reference, corpus: Sequence[str], tell: Teller) -> Sequence[bytes]:
    return ()


def _derive(asked: Mapping[str, Any], reference: Reference, corpus: Sequence[str], tell: Teller) -> Sequence[bytes]:
    tell("rule: derive", 0.0)
    return (pack_rule(reference.snapshot, derive_rule(reference)),)


def _admit(asked: Mapping[str, Any], reference: Reference, corpus: Sequence[str], tell: Teller) -> Sequence[bytes]:
    options = {key: asked[key] for key in ("budget_s", "seed", "candidates")}
    return pack_admission(admit(reference, corpus=corpus, progress=tell, **options))


Task = Callable[[Mapping[str, Any], Reference, Sequence[str], Teller], Sequence[bytes]]
TASKS: dict[str, Task] = {LOAD: _load, DERIVE: _derive, ADMIT: _admit}


def _try_out(reference: Reference) -> None:
    """What a tier does with every tokenizer at its start, whatever comes of it."""
    with suppress(TierError):
        reference.encode_text(PROBE)
    with suppress(TierError):
        reference.fixed_template()


# --- whose code is running --------------------------------------------------------------------------------------


def mark_of(name: str) -> bytes:
    return name.encode()[:MARK_BYTES].ljust(MARK_BYTES, b"\0")


def watch_candidates(mark: mmap.mmap, killed: Mapping[str, str]) -> None:
    """From now on, candidates are built watched, and those in `killed` (why, by name) not at all."""
    factories = cast(dict[str, Callable[[Mapping[str, Any]], Encoder]], candidates.CANDIDATES)
    for name, make in list(factories.items()):
        factories[name] = partial(_build_watched, mark, name, make, killed.get(name))


def _build_watched(
    mark: mmap.mmap,
    name: str,
    make: Callable[[Mapping[str, Any]], Encoder],
    killed: str | None,
    document: Mapping[str, Any],
) -> Encoder:
    if killed is not None:
        raise EncoderUnavailable("encoder.killed_process", killed)
    with_name, without = mark_of(name), mark_of("")
    mark[MARK_BYTES] = 1
    mark[:MARK_BYTES] = with_name
    try:
        candidate = make(document)
    finally:
        mark[:MARK_BYTES] = without
    encode = candidate.encode

    def watched(text: str) -> Ids:
        mark[:MARK_BYTES] = with_name
        try:
            return encode(text)
        finally:
            mark[:MARK_BYTES] = without

    candidate.encode = watched  # type: ignore[method-assign]
    return candidate


if __name__ == "__main__":
    main()
