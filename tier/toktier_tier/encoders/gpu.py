"""Long texts on a device, everything else and every failure on the CPU path.

Guarantees: whatever the device does, the answer is the CPU path's or one that admission vouches for. A text that is
shorter than the threshold, holds an unsafe code point or meets an error of any sort goes to the CPU path, counted by
reason. IDs are the host's own arrays: nothing of the device is kept.

The added tokens of a text are found here, by the search that the CPU path uses, and given to the device as spans. The
text of a session is cut where the CPU path cuts it; the device gets the chunks as documents of one batch, which is
right because they end at boundaries of the rule, and gives back the tokens of each.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toktier_kernels.errors import KernelsError

from ..core.classes import Bools
from ..core.pipeline import Position
from ..core.trust import Spans
from ..ports import Encoder, Ids, TextEncoder
from .snapshot_encoder import EMPTY, Found, SnapshotEncoder
from .whole import AsEncoder

OFF = sys.maxsize
"""A threshold that no text reaches."""
log = logging.getLogger("toktier")

Positions = NDArray[np.int64]
ByteSpans = tuple[Positions, Positions, Positions]
"""(starts, ends, ids) of added tokens, positions in the UTF-8 of all documents together."""


class Encoded(Protocol):
    """What an engine gives: IDs of all documents in order, and how many each has."""

    @property
    def document_tokens(self) -> NDArray[np.int64]: ...

    def numpy(self) -> Ids: ...


class Engine(Protocol):
    """`toktier_kernels.engine.Engine`, or the twins in its place. Thread-safe; raises `KernelsError`."""

    def encode(self, documents: Sequence[bytes], *, spans: ByteSpans | None = None) -> Encoded: ...

    def close(self) -> None: ...


Normalize = Callable[[bytes], bytes]
EncodeOverlong = Callable[[Sequence[bytes]], Sequence[Ids]]
OpenEngine = Callable[[Normalize | None, EncodeOverlong], Engine]
"""Given what the CPU does for the device: the normalizer, None where there is none, and the encoding of stretches of
normalized text that are too long for it."""


class GpuEncoder:
    """`ports.TextEncoder`. Thread-safe. Raises what `open_engine` raises.

    inner            the CPU path; it is `staged` or wraps it
    threshold_chars  texts of as many characters go to the device
    normalize        the reference's normalizer, None where there is none
    unsafe           code points that stay with the CPU path
    fallbacks        counts by reason: a code of `toktier_kernels.errors` without its prefix, `unsafe_code_point`,
                     `exception`, `quarantined`
    encoded          how many calls the device answered
    """

    def __init__(
        self,
        inner: TextEncoder,
        staged: SnapshotEncoder,
        open_engine: OpenEngine,
        *,
        threshold_chars: int,
        normalize: Callable[[str], str] | None,
        unsafe: Bools | None = None,
    ) -> None:
        self.inner, self.staged = inner, staged
        self.threshold_chars = threshold_chars
        self.reference = AsEncoder("cpu", inner)
        self.fallbacks: Counter[str] = Counter()
        self.encoded = 0
        self._planted: Encoder | None = None
        self._unsafe: Bools | None = None
        self.leave_to_cpu(unsafe)
        self._engine: Engine | None = open_engine(
            of_bytes(normalize) if normalize is not None else None, self._encode_overlong
        )

    # --- ports.TextEncoder ----------------------------------------------------------------------------------------

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Ids:
        if len(text) < self.threshold_chars:
            return self.inner.encode(text, position)
        found = self._on_device([text], None)
        return found[0] if found is not None else self.inner.encode(text, position)

    def encode_full(self, text: str) -> Ids:
        if len(text) < self.threshold_chars:
            return self.inner.encode_full(text)
        found = self._on_device([text], None)
        return found[0] if found is not None else self.inner.encode_full(text)

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Ids]]:
        if len(text) >= self.threshold_chars:
            chunks = self.staged.cut(text)
            found = self._on_device(chunks, None)
            if found is not None:
                return list(zip(chunks, found, strict=True))
        return self.inner.encode_chunks(text, position)

    def encode_untrusted(self, text: str, untrusted: Spans, position: Position = Position.TEXT_START) -> Ids:
        if len(text) >= self.threshold_chars:
            found = self._on_device([text], self.staged.recognized(text, untrusted))
            if found is not None:
                return found[0]
        return self.inner.encode_untrusted(text, untrusted, position)

    def encode_untrusted_chunks(
        self, text: str, untrusted: Spans, position: Position = Position.TEXT_START
    ) -> list[tuple[str, Ids]]:
        if len(text) >= self.threshold_chars:
            chunks = self.staged.cut(text)
            found = self._on_device(chunks, self.staged.recognized(text, untrusted))
            if found is not None:
                return list(zip(chunks, found, strict=True))
        return self.inner.encode_untrusted_chunks(text, untrusted, position)

    def on_device(self, text: str) -> Ids | None:
        """What the device makes of `text`, however short; None where it leaves it to the CPU path."""
        found = self._on_device([text], None)
        return found[0] if found is not None else None

    def leave_to_cpu(self, unsafe: Bools | None) -> None:
        """From the next call on, texts with one of these code points stay with the CPU path."""
        self._unsafe = unsafe if unsafe is not None and unsafe.any() else None

    def begin(self, threshold_chars: int) -> None:
        """Serve with this threshold, and count from zero."""
        self.threshold_chars, self.encoded = threshold_chars, 0
        self.fallbacks.clear()

    def counts(self) -> dict[str, int]:
        """`fallbacks`, and `encoded`."""
        return {"encoded": self.encoded, **self.fallbacks}

    def common_fallback(self) -> str:
        """The reason that was counted most; empty if none was."""
        return next((reason for reason, _ in self.fallbacks.most_common(1)), "")

    # --- switching off --------------------------------------------------------------------------------------------

    @property
    def is_off(self) -> bool:
        """Whether every answer comes from the CPU path."""
        return self._engine is None

    def quarantine(self) -> None:
        """Serve by the CPU path only, from the next call on."""
        if self._switch_off():
            self.fallbacks["quarantined"] += 1

    def close(self) -> None:
        """Give the device back."""
        self._switch_off()

    def replace(self, candidate: Encoder) -> None:
        """Serve by another encoder in the device's place (tests plant faulty ones)."""
        self._planted = candidate

    def _switch_off(self) -> bool:
        """Whether it was on. Calls under way end as they may: a closed engine refuses them by name."""
        engine, self._engine = self._engine, None
        self.threshold_chars = OFF
        if engine is not None:  # that waits for the text at work
            threading.Thread(target=engine.close, name="toktier-gpu-close", daemon=True).start()
        return engine is not None

    # --- the device -----------------------------------------------------------------------------------------------

    def _on_device(self, parts: Sequence[str], recognized: Found | None) -> list[Ids] | None:
        """The IDs of each part, or None and a reason counted. `recognized`: added tokens, positions in all parts
        together; None: those that the search finds without untrusted spans."""
        engine = self._engine
        if engine is None:
            return None
        text = parts[0] if len(parts) == 1 else "".join(parts)
        if self._unsafe is not None and _holds(text, self._unsafe):
            self.fallbacks["unsafe_code_point"] += 1
            return None
        try:
            if self._planted is not None:
                return self._by_planted(self._planted, parts, text, recognized)
            documents = [part.encode() for part in parts]
            spans = byte_spans(text, sum(map(len, documents)), self._recognized(text, recognized))
            encoded = engine.encode(documents, spans=spans)
            ids = _split(encoded.numpy(), encoded.document_tokens)
        except KernelsError as error:
            self._failed(error)
            return None
        except BaseException as error:  # Rust panics aren't Exceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self.fallbacks["exception"] += 1
            return None
        self.encoded += 1
        return ids

    def _recognized(self, text: str, recognized: Found | None) -> Found:
        return self.staged.recognized(text) if recognized is None else recognized

    def _by_planted(
        self, planted: Encoder, parts: Sequence[str], text: str, recognized: Found | None
    ) -> list[Ids] | None:
        if recognized is not None and recognized != self.staged.recognized(text):
            return None
        return [planted.encode(part) for part in parts]

    def _failed(self, error: KernelsError) -> None:
        self.fallbacks[error.code.removeprefix("kernels.")] += 1
        if error.details.get("sticky") and self._switch_off():
            log.error("%s: the device is lost to this process, the CPU serves from now on", error.code)

    def _encode_overlong(self, stretches: Sequence[bytes]) -> list[Ids]:
        """Normalized text between two boundaries, in which no added token stands: by the CPU's own stages."""
        encode = self.staged.encode_recognized
        return [encode(stretch.decode(), [], Position.CONTINUATION) for stretch in stretches]


def of_bytes(normalize: Callable[[str], str]) -> Normalize:
    """The same of UTF-8."""
    return lambda data: normalize(data.decode()).encode()


def _holds(text: str, unsafe: Bools) -> bool:
    return bool(unsafe.take(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)).any())


def _split(ids: Ids, counts: NDArray[np.int64]) -> list[Ids]:
    """`ids` by documents, copied: what they came in may be page-locked, and is the engine's kind of memory."""
    if len(counts) == 1:
        return [ids.copy()] if len(ids) else [EMPTY]
    edges = [0, *accumulate(counts.tolist())]
    return [ids[start:stop].copy() for start, stop in pairwise(edges)]


def byte_spans(text: str, size_bytes: int, found: Found) -> ByteSpans | None:
    """`found` as (starts, ends, ids), positions in the UTF-8 of `text`, which has `size_bytes` bytes."""
    if not found:
        return None
    array: Any = np.array(found, dtype=np.int64)
    ids, starts, ends = array.T
    if size_bytes != len(text):
        edges = array[:, 1:].ravel().tolist()
        lengths = [len(text[a:b].encode()) for a, b in zip([0, *edges[:-1]], edges, strict=True)]
        positions = np.cumsum(lengths, dtype=np.int64)
        starts, ends = positions[::2], positions[1::2]
    return starts, ends, ids
