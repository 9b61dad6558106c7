"""What torch, Triton and CUDA raise becomes an error with a code, and nothing else does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources  # noqa: E402

from toktier_kernels.errors import DeviceFault, OutOfMemory  # noqa: E402
from toktier_kernels.faults import translated  # noqa: E402

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def raised(error: BaseException, device: torch.device) -> tuple[BaseException, list[bool]]:
    """What comes out of `translated` for `error`, and how recovery was called."""
    recovered: list[bool] = []
    with pytest.raises(BaseException) as caught, translated(device, recovered.append):  # noqa: PT011
        raise error
    return caught.value, recovered


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_no_memory(error: BaseException, device: torch.device) -> None:
    found, recovered = raised(error, device)
    assert isinstance(found, OutOfMemory)
    assert (found.code, found.details, recovered) == ("kernels.out_of_memory", {"device": str(device)}, [False])
    assert found.__cause__ is error


def test_memory_that_torch_itself_can_not_get() -> None:
    with pytest.raises(OutOfMemory), translated(CPU, lambda _: None):
        torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device answers")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: invalid device context"),
        OutOfResources(300_000, 232_448, "shared memory"),
    ],
)
def test_a_device_that_no_longer_answers_is_lost(error: BaseException) -> None:
    found, recovered = raised(error, GPU)
    assert isinstance(found, DeviceFault)
    assert (found.code, found.details["sticky"], recovered) == ("kernels.device", True, [True])


@pytest.mark.parametrize("error", [RuntimeError("something else"), ValueError("CUDA"), KeyboardInterrupt()])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_is_not_the_devices_comes_through(error: BaseException, device: torch.device) -> None:
    assert raised(error, device) == (error, [])


def test_a_cpu_has_no_cuda_faults() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert raised(error, CPU) == (error, [])
