"""The reference in a process of its own, at the lowest priority.

In this process every million characters would hold the interpreter's lock for some 30 ms: the library lets go of it
while it encodes, not while it makes the list of IDs, and an append takes 0.1 ms.

Guarantee: `encode` gives what the reference gives, `None` where the reference refuses, or raises `ReferenceLost`; then
the next call starts a new process.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from ..children import Child
from ..core.snapshot import Snapshot
from ..core.values import Ids
from . import apart_worker


class ReferenceLost(Exception):
    """The process ended, or couldn't be started."""


class ReferenceApart:
    """`encode` is for one thread at a time; `close` may be called by any."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._data = snapshot.data
        self._process: Child | None = None
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self.started = 0

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def encode(self, text: str) -> Ids | None:
        """The IDs of `text`, without the template's."""
        process = self._process or self._start()
        try:
            answer = _ask(process, text.encode())
        except (OSError, ValueError, EOFError) as error:
            self._end(process)
            raise ReferenceLost(repr(error)) from None
        return np.frombuffer(answer, dtype=np.uint32) if answer is not None else None

    def close(self) -> None:
        """End the process, also in the middle of a text."""
        with self._starting:
            self._closed.set()
        if self._process is not None:
            self._end(self._process)

    def _start(self) -> Child:
        with self._starting:
            if self._closed.is_set():
                raise ReferenceLost("closed")
            try:
                process = Child([sys.executable, "-m", apart_worker.__name__])
            except OSError as error:
                raise ReferenceLost(repr(error)) from None
            self._process = process
            self.started += 1
        try:
            _ask(process, self._data)
        except (OSError, ValueError, EOFError) as error:
            self._end(process)
            raise ReferenceLost(repr(error)) from None
        return process

    def _end(self, process: Child) -> None:
        self._process = None
        process.end()


def _ask(process: Child, data: bytes) -> bytes | None:
    process.send(data)
    answer = process.receive()
    assert answer is not None  # it is waited for
    kind, body = answer
    return body if kind == apart_worker.ENCODED else None
