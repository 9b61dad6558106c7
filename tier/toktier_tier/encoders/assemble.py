"""From a reference, a rule and a choice of encoder to the text encoder of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..core.boundaries import BoundaryRule
from ..core.classes import Bools, Settled, is_scalar
from ..core.errors import UnsupportedTokenizer
from ..core.pipeline import Pipeline, Position, PreTokenizerStep
from ..ports import Encoder
from .candidates import build_candidate
from .guarded import DEFAULT_MEMORY_BYTES, Guarded
from .reference import Reference, ReferenceProbe, character_tests, core_document
from .snapshot_encoder import Normalize, SnapshotEncoder, literal_normalizer


class Cores:
    """The core encoders of one snapshot by position; positions that need the same tokenizer share one object."""

    def __init__(
        self,
        reference: Reference,
        encoder: str = "reference",
        unsafe: Bools | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        wrap: Callable[[Encoder], Encoder] | None = None,
    ) -> None:
        self.unsafe = unsafe
        self.by_position: dict[Position, Guarded] = {}
        for position, document in core_documents(reference).items():
            known = next((self.by_position[p] for p, d in _shared(reference, position) if p in self.by_position), None)
            self.by_position[position] = known or self._build(reference, document, encoder, unsafe, memory_bytes, wrap)

    @staticmethod
    def _build(
        reference: Reference,
        document: dict[str, Any],
        encoder: str,
        unsafe: Bools | None,
        memory_bytes: int,
        wrap: Callable[[Encoder], Encoder] | None,
    ) -> Guarded:
        core = reference.core(document["pre_tokenizer"])
        if encoder == "reference":
            return Guarded(None, core)
        candidate = build_candidate(encoder, document)
        if wrap is not None:
            candidate = wrap(candidate)
        rebuild = partial(build_candidate, encoder, document)
        return Guarded(candidate, core, unsafe, rebuild=rebuild, memory_bytes=memory_bytes)

    def quarantine(self) -> None:
        for core in set(self.by_position.values()):
            core.quarantine()

    def fallbacks(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for core in set(self.by_position.values()):
            for reason, count in core.fallbacks.items():
                counts[reason] = counts.get(reason, 0) + count
        return counts


def _pipeline(reference: Reference) -> Pipeline:
    pipeline = reference.snapshot.pipeline
    if pipeline is None:
        raise reference.snapshot.unsupported or UnsupportedTokenizer("pipeline.unknown", "no pipeline")
    return pipeline


def rewrite_step(pipeline: Pipeline) -> tuple[bool, PreTokenizerStep | None]:
    """(whether the pre-tokenizer never cuts, its Metaspace step): such a pre-tokenizer is two string operations."""
    metaspace: PreTokenizerStep | None = None
    for step in pipeline.pre_tokenizer:
        if step.kind == "metaspace" and not step.cuts and metaspace is None:
            metaspace = step
        else:
            return False, None
    return True, metaspace


def core_documents(reference: Reference) -> dict[Position, dict[str, Any]]:
    """The core tokenizer.json per position."""
    pipeline = _pipeline(reference)
    never_cuts, _ = rewrite_step(pipeline)
    return {
        position: core_document(reference.snapshot, None if never_cuts else pipeline.pre_tokenizer_documents[position])
        for position in Position
    }


def _shared(reference: Reference, position: Position) -> list[tuple[Position, Any]]:
    pipeline = _pipeline(reference)
    never_cuts, _ = rewrite_step(pipeline)
    own = pipeline.pre_tokenizer_documents[position]
    return [
        (other, document)
        for other, document in pipeline.pre_tokenizer_documents.items()
        if never_cuts or document == own
    ]


def build_text_encoder(
    reference: Reference,
    rule: BoundaryRule,
    cores: Cores,
    *,
    settled: Settled | None = None,
    pool: ThreadPoolExecutor | None = None,
    workers: int = 1,
) -> SnapshotEncoder:
    """Raises `UnsupportedTokenizer` for a snapshot without a modelled pipeline. `settled`: see
    `settled_points`; None normalizes every text."""
    pipeline = _pipeline(reference)
    _, rewrite = rewrite_step(pipeline)
    normalize: dict[Position, Normalize | None] = {}
    for position in Position:
        if pipeline.normalizer_documents[position] is None:
            normalize[position] = None
        else:
            normalize[position] = literal_normalizer(pipeline, position) or reference.normalizer(position)
    return SnapshotEncoder(
        rule=rule,
        added_tokens=reference.added_tokens(),
        tests=character_tests(),
        cores=cores.by_position,
        unsafe=cores.unsafe,
        normalize=normalize,
        settled=settled,
        rewrite=rewrite,
        rewrite_prefixes=_rewrite_prefixes(pipeline, rewrite),
        normalize_literal=_whole_normalizer(reference),
        pool=pool,
        workers=workers,
    )


def _whole_normalizer(reference: Reference) -> Normalize:
    """What the reference applies to the literals of `normalized` added tokens: the whole normalizer."""
    normalize = reference.normalizer(Position.TEXT_START)
    return normalize if normalize is not None else str


def _rewrite_prefixes(pipeline: Pipeline, rewrite: PreTokenizerStep | None) -> Mapping[Position, bool]:
    if rewrite is None:
        return dict.fromkeys(Position, False)
    scheme: dict[Position, bool] = {}
    for position, document in pipeline.pre_tokenizer_documents.items():
        head = document["pretokenizers"][0] if document["type"] == "Sequence" else document
        scheme[position] = str(head.get("prepend_scheme", "always")).lower() != "never" and head.get(
            "add_prefix_space", True
        )
    return scheme


def settled_points(reference: Reference) -> Settled | None:
    """What the normalizer leaves as it is, if it is one Unicode normalization form; None if it does anything else."""
    pipeline = _pipeline(reference)
    if not pipeline.normalizer or any(step.kind != "unicode" for step in pipeline.normalizer):
        return None
    probe = ReferenceProbe(reference)
    unchanged = is_scalar()
    unchanged[[point for point, image in enumerate(probe.images()) if image is not None]] = False
    joining = {ord(char) for decomposed in probe.decompositions() if decomposed for char in decomposed[1:]}
    unchanged[list(joining)] = False
    moving = probe.reorders()
    settled = Settled(unchanged & ~moving, unchanged & moving)
    return settled if settled.always[:0x80].all() else None
