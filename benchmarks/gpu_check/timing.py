"""Times on one GPU: whole calls by the host's clock, steps by CUDA events.

A call's time is from UTF-8 to the delivered IDs: the copy into page-locked memory, upload, all steps, and the wait for
what is delivered. What `str.encode` takes stands beside it. The same text runs again and again: nothing here is cached
by text.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from toktier_kernels import compact, decode, lookup, merge, report, split

LEAST, MOST, SECONDS = 12, 300, 0.5
"""Repetitions of a cell: at most `MOST`, and as many as fit into `SECONDS`, but `LEAST` anyway."""
WARM_UPS = 3
"""Launch by launch, captured, replayed."""
HELD_CYCLES = 20_000_000
"""How long the device is kept busy, some 10 ms, while the host launches the steps that are timed."""
PARTS = (
    (decode, "clear"),
    (decode, "mark"),
    (decode, "decode"),
    (decode, "unsettle"),
    (compact, "compact_mask"),
    (split, "walk"),
    (lookup, "lookup"),
    (merge, "merge"),
    (report, "bounds"),
    (compact, "compact_tokens"),
    (report, "first_tokens"),
)


@dataclass(frozen=True)
class Cell:
    """`mode`: eager or graph. `delivery`: device (a tensor there), array (NumPy on the host), list (of Python ints)."""

    family: str
    text: str
    chars: int
    mode: str
    delivery: str
    ends: bool


@dataclass(frozen=True)
class Latency:
    """utf8_ms           `str.encode`, at the median
    waits             for the device in a call
    normalized_bytes, overlong_bytes   of the text, by the CPU
    """

    cell: Cell
    bytes: int
    tokens: int
    n: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    utf8_ms: float
    waits: int
    normalized_bytes: int
    overlong_bytes: int


def latency(cell: Cell, engine: Any, text: str, *, least: int = LEAST, seconds: float = SECONDS) -> Latency:
    data = text.encode()
    ends = "uint32" if cell.ends else None
    on_host = cell.delivery != "device"

    def call() -> Any:
        found = engine.encode([data], ends=ends, host=on_host)
        if cell.delivery == "list":
            found.tolist()
        elif not on_host:
            _wait(engine)
        return found

    for _ in range(WARM_UPS):
        found = call()
    times = _times(call, least, seconds)
    p50, p90, p99 = (float(np.percentile(times, q)) * 1e3 for q in (50, 90, 99))
    fresh = data.decode()  # a string that no library has made keep its UTF-8
    utf8 = float(np.median(_times(fresh.encode, min(least, 5), seconds / 5))) * 1e3
    facts = found.facts
    return Latency(
        cell,
        len(data),
        len(found),
        len(times),
        p50,
        p90,
        p99,
        utf8,
        facts.synchronizations,
        facts.normalized_bytes,
        facts.overlong_bytes,
    )


@dataclass(frozen=True)
class Bulk:
    """Many documents in one call, to NumPy arrays; `gb_per_s` of UTF-8 at the median."""

    family: str
    documents: int
    bytes: int
    n: int
    p50_ms: float
    gb_per_s: float


def bulk(family: str, engine: Any, documents: Sequence[bytes], *, least: int = 5, seconds: float = 2.0) -> Bulk:
    def call() -> Any:
        return engine.encode(documents, host=True)

    for _ in range(WARM_UPS):
        call()
    times = _times(call, least, seconds)
    middle, size = float(np.median(times)), sum(map(len, documents))
    return Bulk(family, len(documents), size, len(times), middle * 1e3, size / middle / 1e9)


class HostEvent:
    """In a CUDA event's place where there is no GPU."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: HostEvent) -> float:
        return (other.at - self.at) * 1e3


def step_times(run: Callable[[], object], *, rounds: int = 20, on_gpu: bool = True) -> dict[str, float]:
    """Microseconds of each step on the device, in order, the median of `rounds`; `run` launches step by step.

    The device is held up first, so that the steps are there before the first one starts: what is measured isn't how
    fast the host launches.
    """
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with _recorded(on_gpu) as steps:
            run()
            if on_gpu:
                torch.cuda.synchronize()
        for name, begun, ended in steps:
            found.setdefault(name, []).append(begun.elapsed_time(ended) * 1e3)
    return {name: float(np.median(times)) for name, times in found.items()}


@contextmanager
def _recorded(on_gpu: bool) -> Iterator[list[tuple[str, Any, Any]]]:
    """Events around every launcher that `steps.launch` calls."""
    steps: list[tuple[str, Any, Any]] = []

    def recording(name: str, launcher: Callable[..., None]) -> Callable[..., None]:
        def launched(*arguments: Any, **options: Any) -> None:
            if on_gpu and not steps:
                torch.cuda._sleep(HELD_CYCLES)
            begun, ended = (torch.cuda.Event(enable_timing=True) if on_gpu else HostEvent() for _ in range(2))
            begun.record()
            launcher(*arguments, **options)
            ended.record()
            count = sum(known.partition(" ")[0] == name for known, _, _ in steps)
            steps.append((f"{name} {count + 1}" if count else name, begun, ended))

        return launched

    with ExitStack() as stack:
        for module, name in PARTS:
            stack.enter_context(mock.patch.object(module, name, recording(name, getattr(module, name))))
        yield steps


def _times(call: Callable[[], object], least: int, seconds: float) -> list[float]:
    times: list[float] = []
    gc.collect()
    gc.disable()
    try:
        begun = time.perf_counter()
        while len(times) < least or (len(times) < MOST and time.perf_counter() - begun < seconds):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return times


def _wait(engine: Any) -> None:
    if engine.device.type == "cuda":
        torch.cuda.current_stream(engine.device).synchronize()
