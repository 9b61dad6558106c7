"""One device as an engine sees it: a stream, copies to and from the host, waiting (counted), and faults translated.

On "cpu" there is no stream and nothing is page-locked: copies are what they are anywhere, and the counter counts the
same waits, so that tests see what a GPU's host would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from triton import knobs

from .errors import InvalidArgument, NotInstalled
from .faults import translated


class Device:
    """Not thread-safe. `recover(sticky)` is called once anything has failed within `work()`."""

    def __init__(self, name: str, recover: Callable[[bool], None]) -> None:
        self.torch = torch.device(name)
        self.waits = 0
        self._recover = recover
        self.stream: Any = None
        if self.on_gpu:
            if not torch.cuda.is_available():
                raise NotInstalled("kernels.not_installed", "torch finds no CUDA device")
            if self.torch.index is None:
                self.torch = torch.device("cuda", torch.cuda.current_device())
            if self.torch.index >= torch.cuda.device_count():
                raise NotInstalled("kernels.not_installed", f"{name} isn't one of {torch.cuda.device_count()} devices")
            with translated(self.torch, recover):
                self.stream = torch.cuda.Stream(self.torch)
        elif self.torch.type != "cpu":
            raise InvalidArgument("kernels.invalid_argument", f"kernels run on cuda devices, not on {name}")
        elif not knobs.runtime.interpret:
            raise InvalidArgument("kernels.invalid_argument", "on a CPU kernels run under TRITON_INTERPRET=1 only")

    @property
    def on_gpu(self) -> bool:
        return bool(self.torch.type == "cuda")

    @contextmanager
    def work(self) -> Iterator[None]:
        """The device and the stream are current; what they raise becomes `OutOfMemory` or `DeviceFault`."""
        with translated(self.torch, self._recover):
            if not self.on_gpu:
                yield
                return
            with torch.cuda.device(self.torch), torch.cuda.stream(self.stream):
                yield

    def wait(self) -> None:
        """Until everything launched so far is done."""
        self.waits += 1
        if self.on_gpu:
            self.stream.synchronize()

    def host_array(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self.on_gpu)

    def to_host(self, array: torch.Tensor) -> torch.Tensor:
        """A copy that is there after the next `wait`."""
        copy = self.host_array(array)
        copy.copy_(array, non_blocking=True)
        return copy

    def to_device(self, array: NDArray[Any]) -> torch.Tensor:
        """A copy for what is launched later."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        if not self.on_gpu:
            return source
        return source.pin_memory().to(self.torch, non_blocking=True)

    def hand_over(self, *results: torch.Tensor | None) -> None:
        """The stream that is current now goes on once `results` are there; they stay until it has used them."""
        if not self.on_gpu:
            return
        theirs = torch.cuda.current_stream(self.torch)
        theirs.wait_stream(self.stream)
        for result in results:
            if result is not None:
                result.record_stream(theirs)
