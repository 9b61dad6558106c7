"""The campaign of the GPU path: may a device encode texts in the place of the admitted CPU path?

The device is given whole texts: it decodes, cuts, splits, looks up and merges by tables of its own, and has its added
tokens and its normalizer from outside. So it gets what a whole-file form gets (see `whole`), every code point too,
and besides: each chunk of a long text by itself, as sessions keep them, and texts with untrusted spans where the CPU
path is admitted for them. Faults are planted in the engine's place, those of spans, normalizer and chunks included.

A text that the device leaves to the CPU is right and proves nothing: if most are left, nothing is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..core.classes import Bools, points_of
from ..core.errors import EncoderUnavailable, InvalidText, UnsupportedTokenizer
from ..encoders.candidates import GPU_NAME
from ..encoders.gpu import ByteSpans, Engine, GpuEncoder, OpenEngine
from ..encoders.gpu_device import Backend, gpu_encoder, open_gpu_encoder
from ..encoders.reference import class_members, encode_of, load_tokenizer
from ..encoders.snapshot_encoder import SnapshotEncoder
from ..encoders.trust import TrustReference
from ..encoders.whole import whole_document
from ..ports import Ids, TextEncoder
from .comparisons import LONG_TEXT_CHARS, Campaign, check_encoder, check_history, check_ids
from .compiled import EncoderVerdict, Verdict
from .faults import ENCODER_FAULTS, FAULT_HISTORIES, FAULT_TEXTS, Encode
from .normalizing import check_sequences
from .probe import probe_encoders
from .report import Phase
from .trust import SESSIONS_PER_S as TRUST_SESSIONS_PER_S
from .trust import TEXTS_PER_S as TRUST_TEXTS_PER_S
from .trust import check_texts, check_trust_sessions
from .whole import check_literals

LONG_TEXTS_PER_S = 0.5
FAULT_LONG_TEXTS = 2


def try_gpu(
    campaign: Campaign, backend: Backend, inner: TextEncoder, staged: SnapshotEncoder, *, trusting: bool
) -> EncoderVerdict:
    """The verdict on the device around the CPU path `inner`. `trusting`: that is admitted for untrusted spans."""

    def refuse(reason: str) -> EncoderVerdict:
        return EncoderVerdict(GPU_NAME, backend.version, Verdict.REFERENCE_ONLY, reason)

    reference = campaign.reference
    try:
        encoder = open_gpu_encoder(backend, reference, campaign.rule, campaign.settled, inner, staged)
    except (UnsupportedTokenizer, EncoderUnavailable) as error:
        return refuse(f"{error.code}: {error.message}")
    try:
        probed = probe_encoders(
            {GPU_NAME: partial(_by_device, encoder)},
            reference.encode_text,
            ~class_members(r"\p{Cn}"),
            partial(campaign.progress, f"{GPU_NAME}: every code point"),
        )[GPU_NAME]
        if probed.too_many:
            return EncoderVerdict(
                GPU_NAME,
                backend.version,
                Verdict.REJECTED,
                "encoder.too_many_unsafe",
                probed.checks,
                probed.points,
                probed.unsafe,
            )
        if _planted(campaign, inner, staged):
            return refuse("campaign.void")
        unsafe = points_of(probed.unsafe) if probed.unsafe else None
        phases, answered, left = _phases(campaign, encoder, unsafe, trusting)
    finally:
        encoder.close()
    campaign.phases += phases
    divergences = sum(phase.divergences for phase in phases)
    checks = probed.checks + sum(phase.checks for phase in phases)
    if divergences:
        return EncoderVerdict(
            GPU_NAME, backend.version, Verdict.REJECTED, "encoder.divergence", checks, divergences, probed.unsafe
        )
    if left >= answered:
        return refuse(f"kernels.left_to_cpu: {left} of {answered + left} texts, {encoder.common_fallback()} mostly")
    return EncoderVerdict(GPU_NAME, backend.version, Verdict.ADMITTED, "", checks, 0, probed.unsafe)


def _by_device(encoder: GpuEncoder, text: str) -> Ids:
    """What the device itself makes of `text`; raises `InvalidText` (`kernels.left_to_cpu`)."""
    ids = encoder.on_device(text)
    if ids is None:
        raise InvalidText("kernels.left_to_cpu", "the device left the text to the CPU")
    return ids


def _phases(
    campaign: Campaign, encoder: GpuEncoder, unsafe: Bools | None, trusting: bool
) -> tuple[list[Phase], int, int]:
    """(phases, texts that the device answered in them, texts that it left to the CPU)."""
    encoder.leave_to_cpu(unsafe)
    answered, left = encoder.encoded, sum(encoder.fallbacks.values())
    phases = [
        check_sequences(campaign, encoder, f"{GPU_NAME}: combining sequences"),
        check_literals(campaign, encoder, f"{GPU_NAME}: added tokens"),
        check_chunks(campaign, encoder, f"{GPU_NAME}: chunks", campaign.count(LONG_TEXTS_PER_S)),
        *check_encoder(campaign, encoder, GPU_NAME),
    ]
    if trusting:
        oracle = TrustReference(campaign.reference)
        texts, sessions = campaign.count(TRUST_TEXTS_PER_S), campaign.count(TRUST_SESSIONS_PER_S)
        phases += [
            check_texts(campaign, oracle, encoder, texts, f"{GPU_NAME}: untrusted texts"),
            check_trust_sessions(campaign, oracle, encoder, sessions, f"{GPU_NAME}: untrusted sessions"),
        ]
    return phases, encoder.encoded - answered, sum(encoder.fallbacks.values()) - left


def check_chunks(campaign: Campaign, encoder: TextEncoder, name: str, count: int) -> Phase:
    """Each chunk's own IDs: what a session keeps must be right piece by piece, not only in sum."""
    phase = Phase(name)
    encode = campaign.reference.encode_text
    for index in range(count):
        campaign.progress(name, index / count)
        make = (campaign.texts.mixed, campaign.texts.natural)[index % 2]
        for chunk, ids in encoder.encode_chunks(make(LONG_TEXT_CHARS)):
            phase.compare(ids.tobytes() == encode(chunk).tobytes(), chunk)
    return phase


# --- planted faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    ids: Ids
    document_tokens: NDArray[np.int64]

    def numpy(self) -> Ids:
        return self.ids


class FaultyEngine:
    """An engine that encodes each document by `encode`; `shift` moves the border between two documents by a token."""

    def __init__(self, encode: Encode, shift: int = 0) -> None:
        self._encode, self._shift = encode, shift

    def encode(self, documents: Sequence[bytes], *, spans: ByteSpans | None = None) -> _Answer:
        parts = [self._encode(document.decode()) for document in documents]
        counts = np.array([len(part) for part in parts], dtype=np.int64)
        if self._shift and len(counts) > 1 and counts[1] > 1:
            counts[:2] += (self._shift, -self._shift)
        return _Answer(np.concatenate(parts), counts)

    def close(self) -> None:
        pass


def _planted(campaign: Campaign, inner: TextEncoder, staged: SnapshotEncoder) -> bool:
    """Whether a planted fault goes uncaught by the phases of the device."""
    phase = Phase("planted faults: device")
    reference = campaign.reference
    document = whole_document(reference)
    honest: Encode = reference.encode_text
    faulty: dict[str, Engine] = {name: FaultyEngine(lie(honest)) for name, lie in ENCODER_FAULTS.items()}
    faulty["chunk_border_moved"] = FaultyEngine(honest, shift=1)
    if campaign.texts.literals:
        faulty["spans_unseen"] = FaultyEngine(encode_of(load_tokenizer({**document, "added_tokens": []})))
    if reference.snapshot.pipeline and reference.snapshot.pipeline.normalizer:
        faulty["not_normalized"] = FaultyEngine(encode_of(load_tokenizer({**document, "normalizer": None})))
    for name, engine in faulty.items():
        encoder = gpu_encoder(reference, inner, staged, _opened(engine))
        checks: list[Callable[[], Phase]] = [
            partial(check_ids, campaign, encoder, f"planted: {name}", FAULT_TEXTS),
            partial(check_history, campaign, encoder, f"planted: {name}", FAULT_HISTORIES),
            partial(check_chunks, campaign, encoder, f"planted: {name}", FAULT_LONG_TEXTS),
            partial(check_sequences, campaign, encoder, f"planted: {name}"),
            partial(check_literals, campaign, encoder, f"planted: {name}"),
        ]
        phase.compare(any(check().divergences for check in checks), name)
    campaign.phases.append(phase)
    return phase.divergences > 0


def _opened(engine: Engine) -> OpenEngine:
    return lambda normalize, encode_overlong: engine
