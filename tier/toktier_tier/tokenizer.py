"""One tokenizer, ready to serve: reference, rule, encoder and repair, put together as admission allows.

Guarantee: `encode` and every session give the reference's IDs. What isn't admitted isn't used: without a compiled
snapshot that fits exactly, and after `quarantine`, everything is encoded whole by the reference. A text with untrusted
spans gets the IDs of `encoders.trust`, by the fast path where admission has tried it with such texts.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

from .admission.compiled import CompiledSnapshot, Verdict
from .core.errors import StateCorrupt
from .core.repair import Repairer, TemplateIds, WitnessMismatch
from .core.snapshot import Snapshot
from .core.trust import NO_SPANS, Spans, check_spans
from .core.values import check_text
from .core.witness import CutWitness
from .encoders.assemble import Cores, build_text_encoder
from .encoders.candidates import encoder_version
from .encoders.gpu import GpuEncoder
from .encoders.reference import CoreReference, Reference
from .encoders.snapshot_encoder import SnapshotEncoder
from .encoders.trust import TrustReference
from .encoders.whole import WholeEncoder, build_whole, left_to_the_stages
from .ports import Ids, TextEncoder

Accelerate = Callable[[TextEncoder, SnapshotEncoder], GpuEncoder | None]
"""Puts a device around the CPU path (the second argument are its stages), or not."""


class TierTokenizer:
    """A snapshot in service. Thread-safe.

    staged          the fast path stage by stage, without whole-file form or device; None where `text_encoder` is
    repairer        None where every change costs a full encode: no rule, not admitted, or quarantined
    trust_admitted  whether fast paths serve texts with untrusted spans, as long as there are any
    cuts            checks where long texts are cut; None where there is no rule
    accelerate      asked once, where fast paths serve
    randomness      which cuts are checked
    """

    def __init__(
        self,
        reference: Reference,
        compiled: CompiledSnapshot,
        *,
        workers: int | None = None,
        pool: ThreadPoolExecutor | None = None,
        accelerate: Accelerate | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        check_fit(reference.snapshot, compiled)
        self.reference, self.compiled = reference, compiled
        self.fingerprint = compiled.fingerprint
        self.template = TemplateIds(reference.prefix_ids, reference.suffix_ids)
        self.quarantined = False
        self.trust_admitted = False
        self._quarantine_lock = threading.Lock()
        self.cores: Cores | None = None
        self.whole: WholeEncoder | None = None
        self.gpu: GpuEncoder | None = None
        self.text_encoder: TextEncoder | None = None
        self.staged: SnapshotEncoder | None = None
        self.repairer: Repairer | None = None
        self.cuts: CutWitness | None = None
        if compiled.verdict is not Verdict.ADMITTED:
            return
        workers = workers or os.cpu_count() or 1
        if pool is None and workers > 1:
            pool = ThreadPoolExecutor(workers - 1, thread_name_prefix="toktier-encode")
        self.cores = Cores(reference, compiled.encoder, compiled.unsafe)
        encoder = build_text_encoder(
            reference, compiled.rule, self.cores, settled=compiled.settled_points(), pool=pool, workers=workers
        )
        self.text_encoder = self.staged = encoder
        if compiled.whole is not None:
            rebuild = partial(build_whole, reference, compiled.encoder)
            unsafe = left_to_the_stages(compiled.whole.unsafe_points(), compiled.settled_points())
            self.text_encoder = self.whole = WholeEncoder(encoder, rebuild(), unsafe, rebuild)
        if accelerate is not None:
            self.gpu = accelerate(self.text_encoder, encoder)
            self.text_encoder = self.gpu or self.text_encoder
        self.trust_admitted = compiled.trust_admitted
        trusting = self.text_encoder if self.trust_admitted else None
        if compiled.rule.kind != "none":
            cuts = self.cuts = CutWitness(
                rule=compiled.rule,
                encode=self.encode_by_reference,
                overlap_chars=compiled.longest_entry_chars + 1,
                draw=(randomness or random.Random()).randrange,
            )
            encoder.check_cuts = cuts.check
            self.repairer = Repairer(
                fingerprint=self.fingerprint,
                rule=compiled.rule,
                encode=self.text_encoder.encode,
                encode_chunks=cuts.over(self.text_encoder.encode_chunks),
                overlap_chars=compiled.longest_entry_chars + 1,
                template=self.template,
                encode_untrusted=trusting.encode_untrusted if trusting else None,
                encode_untrusted_chunks=cuts.over_untrusted(trusting.encode_untrusted_chunks) if trusting else None,
            )

    @property
    def keeps_lock(self) -> bool:
        """Whether what encodes long texts keeps the interpreter's lock: candidates do, reference and devices don't."""
        return self.text_encoder is not None and self.gpu is None and self.compiled.encoder != CoreReference.name

    def encode(self, text: str, untrusted: Sequence[tuple[int, int]] = NO_SPANS) -> Ids:
        """All IDs of `text`, template tokens included where the policy asks for them.

        `untrusted`: ranges of characters (start, stop), in order, in which no added token is recognized. Raises
        `InvalidRequest` for ranges that aren't (`trust.*`) and `UnsupportedTokenizer` (`trust.unsupported`).
        """
        return self.template.around(self.encode_text(text, untrusted))

    def encode_text(self, text: str, untrusted: Sequence[tuple[int, int]] = NO_SPANS) -> Ids:
        """The IDs of `text` without template tokens, by the fastest admitted way."""
        check_text(text)
        encoder = self.text_encoder
        spans = check_spans(untrusted, len(text)) if untrusted else NO_SPANS
        if spans:
            if encoder is None or not self.trust_admitted:
                return self.trust.encode(text, spans)
            return encoder.encode_untrusted(text, spans)
        if encoder is None:
            return self.reference.encode_text_apart(text)
        try:
            return encoder.encode_full(text)
        except WitnessMismatch:
            self.quarantine()
            return self.encode_by_reference(text)

    def encode_by_reference(self, text: str, untrusted: Spans = NO_SPANS) -> Ids:
        """`encode_text` without any fast path; `untrusted` is in canonical form."""
        return self.trust.encode(text, untrusted) if untrusted else self.reference.encode_text_apart(text)

    @cached_property
    def trust(self) -> TrustReference:
        """What defines the IDs of texts with untrusted spans.

        Raises `UnsupportedTokenizer` (`trust.unsupported`) where nothing does.
        """
        return TrustReference(self.reference)

    def quarantine(self) -> bool:
        """From now on the reference only, for as long as this object lives; whether this call made it so."""
        with self._quarantine_lock:
            first, self.quarantined = not self.quarantined, True
        self.repairer, self.text_encoder, self.staged = None, None, None
        if self.cores is not None:
            self.cores.quarantine()
        if self.whole is not None:
            self.whole.guarded.quarantine()
        if self.gpu is not None:
            self.gpu.quarantine()
        return first

    def fallbacks(self) -> dict[str, int]:
        """How often each guard sent text to slower work, by reason; `whole.` is the whole-file form's, `gpu.` the
        device's, with `gpu.encoded` for what it answered."""
        counts = self.cores.fallbacks() if self.cores is not None else {}
        if self.whole is not None:
            counts.update({f"whole.{reason}": count for reason, count in self.whole.guarded.fallbacks.items()})
        if self.gpu is not None:
            counts.update({f"gpu.{reason}": count for reason, count in self.gpu.counts().items()})
        return counts


def check_fit(snapshot: Snapshot, compiled: CompiledSnapshot) -> None:
    """Raises `StateCorrupt` (`compiled.*`) unless `compiled` was made for this snapshot and these libraries."""
    if compiled.fingerprint != snapshot.fingerprint:
        raise StateCorrupt("compiled.fingerprint", "the compiled snapshot is another tokenizer's")
    if compiled.reference_version != snapshot.reference_version:
        raise StateCorrupt("compiled.reference", "the compiled snapshot was made with another reference")
    chosen = compiled.encoders.get(compiled.encoder)
    if chosen is not None and chosen.version != encoder_version(compiled.encoder):
        raise StateCorrupt("compiled.encoder", "the admitted encoder is installed in another version")
