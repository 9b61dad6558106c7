"""The device at the service of tokenizers, as far as it was admitted for each and is the faster one there.

Guarantees: what keeps a tokenizer from the device is one event with a code, and the CPU path. Only a device that
doesn't work at all, where one is required, is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from .admission.campaign import admit_gpu
from .admission.compiled import CompiledSnapshot, EncoderVerdict, Verdict
from .core.errors import EncoderUnavailable, TierError, UnsupportedTokenizer
from .encoders.gpu import GpuEncoder
from .encoders.gpu_device import (
    DEFAULT_DEVICE,
    Backend,
    TritonBackend,
    agrees,
    measure_threshold,
    open_gpu_encoder,
    typical_texts,
)
from .encoders.gpu_tables import check_pipeline
from .encoders.reference import Reference
from .encoders.snapshot_encoder import SnapshotEncoder
from .ports import TextEncoder
from .tokenizer import Accelerate

OFF, PREFERRED, REQUIRED = "off", "preferred", "required"
MAKE_BACKEND: Callable[[str, int], Backend] = TritonBackend
PROBE_CHARS = 20_000
log = logging.getLogger("toktier")


class Gpu:
    """A device that works.

    required         where it fails for a tokenizer later on, that is an error too
    threshold_chars  texts of as many characters go to the device; 0: measured for each tokenizer
    admission_s      budget of the campaign for a tokenizer whose compiled snapshot has no verdict; 0: none is run
    """

    def __init__(
        self, backend: Backend, *, required: bool = False, threshold_chars: int = 0, admission_s: float = 10.0
    ) -> None:
        self.backend = backend
        self._required, self._threshold_chars, self._admission_s = required, threshold_chars, admission_s

    def examined(self, reference: Reference, compiled: CompiledSnapshot, *, seed: int = 1) -> CompiledSnapshot:
        """`compiled` with a verdict for this device and these libraries; as it is where it can't get one."""
        if compiled.verdict is not Verdict.ADMITTED or compiled.gpu(self.backend.version) or not self._admission_s:
            return compiled
        try:
            check_pipeline(reference, compiled.rule, compiled.settled_points())
        except UnsupportedTokenizer:
            return compiled  # no campaign would find anything else
        return admit_gpu(reference, compiled, self.backend, budget_s=self._admission_s, seed=seed)

    def accelerate(self, name: str, reference: Reference, compiled: CompiledSnapshot) -> Accelerate:
        """For `TierTokenizer`. Raises `EncoderUnavailable` there, where the device fails and is required."""
        return partial(self._accelerate, name, reference, compiled)

    def _accelerate(
        self,
        name: str,
        reference: Reference,
        compiled: CompiledSnapshot,
        inner: TextEncoder,
        staged: SnapshotEncoder,
    ) -> GpuEncoder | None:
        encoder: GpuEncoder | None = None
        settled = compiled.settled_points()
        try:
            check_pipeline(reference, compiled.rule, settled)
            verdict = self._verdict(compiled)
            unsafe = verdict.unsafe_points()
            encoder = open_gpu_encoder(self.backend, reference, compiled.rule, settled, inner, staged, unsafe)
            self._begin(name, reference, encoder)
        except (UnsupportedTokenizer, EncoderUnavailable) as error:
            if encoder is not None:
                encoder.close()
            if self._required and isinstance(error, EncoderUnavailable) and error.code not in _NOT_THE_DEVICES:
                raise
            log.warning("tokenizer %s: the CPU serves long texts too: %s", name, error)
            return None
        return encoder

    def _verdict(self, compiled: CompiledSnapshot) -> EncoderVerdict:
        found = compiled.gpu(self.backend.version)
        if found is None:
            raise EncoderUnavailable("kernels.not_admitted", "no admission of the GPU path for these libraries")
        if found.verdict is not Verdict.ADMITTED:
            raise EncoderUnavailable("kernels.not_admitted", f"the GPU path isn't admitted: {found.reason}")
        return found

    def _begin(self, name: str, reference: Reference, encoder: GpuEncoder) -> None:
        """Compare a probe, and set the threshold."""
        text_of = typical_texts(reference.snapshot)
        if not agrees(encoder, text_of(PROBE_CHARS)):
            why = encoder.common_fallback() or "it gives other IDs than the CPU"
            raise EncoderUnavailable("kernels.probe", f"the device doesn't answer the probe: {why}")
        threshold = self._threshold_chars or measure_threshold(encoder, text_of)
        if threshold is None:
            raise EncoderUnavailable("kernels.slower", "the device is no faster at any length of text")
        encoder.begin(threshold)
        log.info("tokenizer %s: texts of %s characters and more go to the device", name, threshold)


_NOT_THE_DEVICES = frozenset(("kernels.not_admitted", "kernels.slower"))
"""What doesn't mean that the device is broken."""


def open_gpu(
    mode: str,
    *,
    device: str = "",
    threshold_chars: int = 0,
    memory_bytes: int = 0,
    admission_s: float = 10.0,
) -> Gpu | None:
    """None where the mode is off, or `preferred` and there is no device that works: that is one event.

    Raises `EncoderUnavailable` (`kernels.not_installed`, `kernels.no_device`) where one is required.
    """
    if mode == OFF:
        return None
    try:
        backend = MAKE_BACKEND(device or DEFAULT_DEVICE, memory_bytes)
    except EncoderUnavailable as error:
        if mode == REQUIRED:
            raise _required(error) from None
        log.warning("no GPU, the CPU serves everything: %s", error)
        return None
    return Gpu(backend, required=mode == REQUIRED, threshold_chars=threshold_chars, admission_s=admission_s)


def _required(error: TierError) -> EncoderUnavailable:
    return EncoderUnavailable(error.code, f"a GPU is required, and none works: {error.message}", **error.details)
