"""The device without a device: the kernels' NumPy twins as an engine, real but slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toktier_kernels.batch import Spans
from toktier_kernels.errors import Closed
from toktier_kernels.tables import Tables
from toktier_kernels.twins import pipeline
from toktier_tier.encoders.gpu import EncodeOverlong, Normalize
from toktier_tier.encoders.gpu_device import version_with
from toktier_tier.ports import Ids


class Answer:
    """`toktier_kernels.delivery.Encoded`, as far as the tier looks at it."""

    def __init__(self, found: pipeline.Encoding) -> None:
        self.ids, self.document_tokens = found.ids, found.document_tokens

    def numpy(self) -> Ids:
        return self.ids


class TwinEngine:
    """`toktier_kernels.engine.Engine` by the twins; `failing` is raised by every call, `calls` notes what came."""

    def __init__(self, tables: Tables, normalize: Normalize | None, encode_overlong: EncodeOverlong, **limits: int):
        self.tables, self.limits = tables, limits
        self._callables: dict[str, Any] = {"normalize": normalize, "encode_overlong": encode_overlong}
        self.failing: BaseException | None = None
        self.closed = False
        self.calls: list[tuple[Sequence[bytes], Spans | None]] = []

    def encode(self, documents: Sequence[bytes], *, spans: Spans | None = None) -> Answer:
        self.calls.append((documents, spans))
        if self.failing is not None:
            raise self.failing
        if self.closed:
            raise Closed("kernels.closed", "the engine is closed")
        return Answer(pipeline.encode(self.tables, documents, spans=spans, **self._callables, **self.limits))

    def close(self) -> None:
        self.closed = True


class TwinBackend:
    """`encoders.gpu_device.Backend`. `opened` are its engines; `wrap` may put something else in their place."""

    def __init__(self, wrap: Callable[[TwinEngine], Any] = lambda engine: engine, **limits: int) -> None:
        self.version = version_with("numpy")
        self.opened: list[TwinEngine] = []
        self._wrap, self._limits = wrap, limits

    def open(self, tables: Tables, normalize: Normalize | None, encode_overlong: EncodeOverlong) -> Any:
        self.opened.append(TwinEngine(tables, normalize, encode_overlong, **self._limits))
        return self._wrap(self.opened[-1])
