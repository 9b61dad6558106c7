"""Whether there is a device that works, under which version, and from which length of text on it is the faster one.

Guarantees: torch and Triton are imported by `TritonBackend` and nothing else; whatever is missing or broken there is
one `EncoderUnavailable` with a code (`kernels.*`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any, Protocol

from toktier_kernels.errors import KernelsError
from toktier_kernels.tables import Stage, Tables
from toktier_kernels.vocabulary import Vocabulary

from ..core.boundaries import BoundaryRule
from ..core.classes import Bools, Settled, byte_characters
from ..core.errors import EncoderUnavailable
from ..core.pipeline import Position
from ..core.snapshot import Snapshot
from ..ports import TextEncoder
from .candidates import GPU_NAME
from .gpu import EncodeOverlong, Engine, GpuEncoder, Normalize, OpenEngine
from .gpu_tables import build_tables
from .reference import Reference
from .snapshot_encoder import SnapshotEncoder

DISTRIBUTION = "toktier-operator"
DEFAULT_DEVICE = "cuda:0"
SIZES_CHARS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)
ROUNDS = 3
SLOW_S = 0.2
"""What takes longer than this is measured once."""


class Backend(Protocol):
    """What makes engines. `version` names all that an admission holds for."""

    @property
    def version(self) -> str: ...

    def open(self, tables: Tables, normalize: Normalize | None, encode_overlong: EncodeOverlong) -> Engine:
        """Raises `EncoderUnavailable`."""


def tables_format() -> str:
    """A digest of what the tables consist of: an admission doesn't outlive a change of them."""
    fields = [
        (kind.__name__, f.name, str(f.type)) for kind in (Tables, Stage, Vocabulary) for f in dataclasses.fields(kind)
    ]
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:12]


def version_with(*libraries: str) -> str:
    """`toktier-kernels==...` with the libraries below it and the tables' format."""
    parts = [f"{GPU_NAME}=={_version(DISTRIBUTION)}", *(f"{name}=={_version(name)}" for name in libraries)]
    return " ".join([*parts, f"tables=={tables_format()}"])


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


class TritonBackend:
    """Engines on one device. Raises `EncoderUnavailable` (`kernels.not_installed`, `kernels.no_device`) at once where
    torch, Triton or the device doesn't work.

    device        as torch names it; `cpu` is Triton's interpreter, for tests
    memory_bytes  what one tokenizer's engine may take of the device for a text; 0: as the engine sees fit
    """

    def __init__(self, device: str = DEFAULT_DEVICE, memory_bytes: int = 0) -> None:
        self._device = device
        try:
            import torch

            from toktier_kernels import engine
        except Exception as error:  # a broken installation fails in every way there is
            raise EncoderUnavailable("kernels.not_installed", _why(error)) from None
        try:
            if device != "cpu":
                torch.zeros(1, device=device)
        except Exception as error:
            raise EncoderUnavailable("kernels.no_device", _why(error), device=device) from None
        limits: Mapping[str, Any] = {"memory_bytes": memory_bytes} if memory_bytes else {}
        make: Callable[..., Engine] = engine.Engine
        self._make = partial(make, device=device, **limits)
        self.version = version_with("torch", "triton")

    def open(self, tables: Tables, normalize: Normalize | None, encode_overlong: EncodeOverlong) -> Engine:
        try:
            return self._make(tables, normalize=normalize, encode_overlong=encode_overlong)
        except KernelsError as error:
            raise EncoderUnavailable(error.code, error.message, **error.details) from None
        except Exception as error:
            raise EncoderUnavailable("kernels.device", _why(error), device=self._device) from None


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


# --- the encoder of a snapshot ----------------------------------------------------------------------------------------


def open_gpu_encoder(
    backend: Backend,
    reference: Reference,
    rule: BoundaryRule,
    settled: Settled | None,
    inner: TextEncoder,
    staged: SnapshotEncoder,
    unsafe: Bools | None = None,
) -> GpuEncoder:
    """An encoder that gives the device every text, until another threshold is set.

    Raises `UnsupportedTokenizer` for a snapshot that the device can't do, `EncoderUnavailable` where the device fails.
    """
    return gpu_encoder(reference, inner, staged, partial(backend.open, build_tables(reference, rule, settled)), unsafe)


def gpu_encoder(
    reference: Reference,
    inner: TextEncoder,
    staged: SnapshotEncoder,
    open_engine: OpenEngine,
    unsafe: Bools | None = None,
) -> GpuEncoder:
    normalize = reference.normalizer(Position.CONTINUATION)
    return GpuEncoder(inner, staged, open_engine, threshold_chars=1, normalize=normalize, unsafe=unsafe)


# --- from which length on ---------------------------------------------------------------------------------------------


def agrees(encoder: GpuEncoder, text: str) -> bool:
    """Whether the device itself answers `text`, and as the CPU path does."""
    ids = encoder.on_device(text)
    return ids is not None and ids.tobytes() == encoder.inner.encode_full(text).tobytes()


def measure_threshold(
    encoder: GpuEncoder,
    text_of: Callable[[int], str],
    *,
    sizes_chars: tuple[int, ...] = SIZES_CHARS,
    clock: Callable[[], float] = time.perf_counter,
) -> int | None:
    """The least of `sizes_chars` from which on the device is the faster one at every size; None if it isn't at the
    largest. A size that the device doesn't answer counts as slower."""
    found: int | None = None
    for size in reversed(sizes_chars):
        text = text_of(size)
        if encoder.on_device(text) is None:  # compiles, captures, grows
            break
        device_s, cpu_s = _best(encoder.on_device, text, clock), _best(encoder.inner.encode_full, text, clock)
        if device_s >= cpu_s:
            break
        found = size
    return found


def _best(encode: Callable[[str], object], text: str, clock: Callable[[], float]) -> float:
    best = math.inf
    for _ in range(ROUNDS):
        start = clock()
        encode(text)
        best = min(best, clock() - start)
        if best > SLOW_S:
            break
    return best


def typical_texts(snapshot: Snapshot, seed: int = 1) -> Callable[[int], str]:
    """Texts by length in characters: vocabulary entries, the common ones more often, as in what people write."""
    byte_of = {chr(point): byte for byte, point in enumerate(byte_characters())}
    entries = sorted(snapshot.model["vocab"], key=snapshot.model["vocab"].__getitem__)
    random_ = random.Random(seed)

    def text_of(chars: int) -> str:
        parts: list[str] = []
        size = 0
        while size < chars:
            rank = int(len(entries) ** random_.random())  # each magnitude of rank as often as the next
            spelled = bytes(byte_of.get(char, 0x20) for char in entries[min(rank, len(entries) - 1)])
            parts.append(spelled.decode("utf-8", "ignore"))
            size += len(parts[-1])
        return "".join(parts)[:chars]

    return text_of
