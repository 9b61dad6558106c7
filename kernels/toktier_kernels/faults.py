"""What torch, Triton and CUDA raise, as this package's errors: translated in one place.

Guarantee: an exception that isn't known to come from the device or its memory goes on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from triton.errors import TritonError

from .errors import DeviceFault, EnvironmentFault, OutOfMemory

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def translated(device: torch.device, recover: Callable[[bool], None]) -> Iterator[None]:
    """Calls `recover(sticky)` before it raises `OutOfMemory` or `DeviceFault`."""
    try:
        yield
    except (RuntimeError, MemoryError, TritonError) as error:
        fault = _translate(error, device)
        if fault is None:
            raise
        recover(bool(fault.details.get("sticky", False)))
        raise fault from error


def _translate(error: Exception, device: torch.device) -> EnvironmentFault | None:
    words = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(w in words.lower() for w in _OUT_OF_MEMORY):
        return OutOfMemory("kernels.out_of_memory", f"no memory on {device}", device=str(device))
    if device.type == "cuda" and ("cuda" in words.lower() or isinstance(error, TritonError)):
        sticky = _is_lost(device)
        return DeviceFault("kernels.device", f"{device} failed: {words}"[:300], device=str(device), sticky=sticky)
    return None


def _is_lost(device: torch.device) -> bool:
    """Whether every further call would fail too: so it is after an illegal address, not after a bad launch."""
    with suppress(RuntimeError):
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device)
        return False
    return True
