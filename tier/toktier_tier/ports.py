"""What the inner layers ask of the outer ones, as protocols defined where they are consumed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .core.pipeline import Position
from .core.session import SessionState
from .core.trust import NO_SPANS, Spans
from .core.values import Patch, Route

Ids = NDArray[np.uint32]


class Encoder(Protocol):
    """A library that encodes ordinary text: no added tokens, already normalized, one position.

    `encode` is thread-safe, keeps no reference to its result, and may raise anything: the caller falls back.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def encode(self, text: str) -> Ids: ...


class TextEncoder(Protocol):
    """The full encoding of a stretch of text, without the template's tokens."""

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Ids: ...

    def encode_full(self, text: str) -> Ids:
        """`encode` of a whole text, by several workers where that pays."""

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Ids]]:
        """Like `encode`, as (text, ids) chunks that end at boundaries; their concatenation is the encoding."""

    def encode_untrusted(self, text: str, untrusted: Spans, position: Position = Position.TEXT_START) -> Ids:
        """`encode` without the added tokens that touch `untrusted` spans (docs/decisions/0007-untrusted-spans.md)."""

    def encode_untrusted_chunks(
        self, text: str, untrusted: Spans, position: Position = Position.TEXT_START
    ) -> list[tuple[str, Ids]]:
        """`encode_untrusted` as `encode_chunks` gives it."""


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds since a fixed point, never going back."""


class Observer(Protocol):
    """Sees live answers. Called in the request's own thread: it returns at once, never waits for anything, and copies
    what it wants to keep. What it raises is counted, and goes no further."""

    def changed(self, patch: Patch, state: SessionState) -> None:
        """`patch` is about to leave and led to `state`. The session's lock is held: nobody else changes it."""

    def encoded(self, text: str, ids: Ids, route: Route, untrusted: Spans = NO_SPANS) -> None:
        """`ids`, template tokens included, are about to leave as the encoding of `text` without a session."""
