"""CUDA graphs of an engine: the whole chain of launches as one, a graph a bucket.

A bucket's first text runs launch by launch, which compiles and loads what isn't yet; the second one is captured; from
then on there is one launch. A graph holds addresses, so all of them go when the arena does. Once a capture has failed
everything runs launch by launch: that is slower, and as right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .buckets import Bucket

MOST_GRAPHS = 64


class Graphs:
    """Not thread-safe. `run` and what it launches happen on the current stream, the same one every time."""

    def __init__(self) -> None:
        self._graphs: dict[Bucket, Any] = {}
        self.failed = False

    def run(self, bucket: Bucket, launch: Callable[[], None]) -> None:
        """`launch`, by the bucket's graph from its second time on."""
        if self.failed:
            launch()
            return
        if bucket not in self._graphs:
            if len(self._graphs) >= MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            launch()
            self._graphs[bucket] = None
            return
        if self._graphs[bucket] is None:
            self.failed = True
            self._graphs[bucket] = self._captured(launch)
            self.failed = False
        self._graphs[bucket].replay()

    def _captured(self, launch: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
        return graph

    def clear(self) -> None:
        self._graphs.clear()
