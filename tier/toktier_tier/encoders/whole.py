"""The whole-file form of a candidate: built from the whole tokenizer.json but its normalizer, given whole texts.

One call for a text instead of one for each stretch between added tokens. It is admitted by itself, apart from the
core form (see `admission.whole`), and only where the position of a stretch doesn't matter. The library never
normalizes: a text with a character on which the reference's normalizer could act is encoded stage by stage, as is
whatever else the form may not answer (an unsafe code point, an exception, quarantine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.classes import CODE_POINTS, Bools, Settled, is_scalar
from ..core.pipeline import Position
from ..core.trust import Spans
from ..ports import Encoder, Ids, TextEncoder
from .candidates import build_candidate
from .guarded import Guarded
from .reference import Reference
from .snapshot_encoder import EMPTY, SnapshotEncoder, encode_cut


def whole_document(reference: Reference) -> dict[str, Any]:
    """The snapshot's tokenizer.json without its normalizer and without what acts on IDs or on their number only."""
    return {
        **reference.snapshot.document(),
        "normalizer": None,
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "decoder": None,
    }


def build_whole(reference: Reference, name: str) -> Encoder:
    """Raises `EncoderUnavailable` if the library isn't installed or refuses the file."""
    return build_candidate(name, whole_document(reference))


def left_to_the_stages(differs: Bools | None, settled: Settled | None) -> Bools:
    """Code points that the whole-file form may not see: those on which the candidate `differs`, and those that the
    normalizer could change, move or join with others; `settled`: None if there is no normalizer."""
    points = np.zeros(CODE_POINTS, dtype=bool) if differs is None else differs.copy()
    return points if settled is None else points | (is_scalar() & ~settled.always)


class AsEncoder:
    """A text encoder behind the encoder protocol: what a guard falls back to."""

    version = ""

    def __init__(self, name: str, encoder: TextEncoder) -> None:
        self.name = name
        self.encode = encoder.encode


class WholeEncoder:
    """`ports.TextEncoder` by one call a text. Thread-safe.

    unsafe    see `left_to_the_stages`; None: no code point
    rebuild   makes a fresh candidate once this one has grown past the memory budget
    """

    def __init__(
        self,
        staged: SnapshotEncoder,
        candidate: Encoder,
        unsafe: Bools | None,
        rebuild: Callable[[], Encoder] | None = None,
    ) -> None:
        self.staged = staged
        self.guarded = Guarded(candidate, AsEncoder("staged", staged), unsafe, rebuild=rebuild)
        self._encode = self.guarded.encode

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Ids:
        return self._encode(text) if text else EMPTY

    def encode_full(self, text: str) -> Ids:
        return self.encode(text)

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Ids]]:
        if self.guarded.is_reference:
            return self.staged.encode_chunks(text, position)
        return [(chunk, self.encode(chunk)) for chunk in self.staged.cut(text)]

    def encode_untrusted(self, text: str, untrusted: Spans, position: Position = Position.TEXT_START) -> Ids:
        """One call where the spans hide no added token, else stage by stage."""
        found = self.staged.recognized(text, untrusted)
        if found == self.staged.recognized(text):
            return self.encode(text, position)
        return self.staged.encode_recognized(text, found, position)

    def encode_untrusted_chunks(
        self, text: str, untrusted: Spans, position: Position = Position.TEXT_START
    ) -> list[tuple[str, Ids]]:
        return encode_cut(self.encode_untrusted, self.staged.cut(text), untrusted, position)
