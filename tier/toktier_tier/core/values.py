"""Frozen values that cross module borders: routes, reasons, patches, certificates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidRequest, InvalidText, StateCorrupt

Ids = NDArray[np.uint32]


class Route(StrEnum):
    """How the IDs of an answer came about."""

    REPAIR = "repair"  # a window around the change was encoded again
    ENCODE = "encode"  # the whole text, by an admitted encoder
    REFERENCE = "reference"  # the whole text, by the reference
    UNCHANGED = "unchanged"  # nothing had to be encoded


class Reason(StrEnum):
    """Why not something cheaper. Append-only; every step down from a plain repair has one."""

    NONE = "none"
    OPENED = "session.opened"
    WIDENED = "repair.widened"  # no boundary near the change: the window was longer than planned
    NO_RULE = "rule.none"
    TEXT_NOT_KEPT = "session.text_not_kept"  # the edit lies in text of which only a digest is left
    UNRELATED_TEXT = "session.unrelated_text"  # a full text that shares too little with the state
    WITNESS_MISMATCH = "repair.witness_mismatch"  # known text, or that around a cut, gave other IDs
    QUARANTINED = "snapshot.quarantined"
    TRUST_NOT_ADMITTED = "trust.not_admitted"  # the text has untrusted spans, which no fast path was admitted for


class Certificate(NamedTuple):
    """Why a patch is right. All positions are in characters of the text.

    Everything left of `boundary_chars` keeps its IDs because the rule named by `rule_digest` holds there, in the old
    text and in the new one; so does everything right of `resume_chars` of the new text (its end for an append). The
    window from `window_chars` on was encoded again, and its first `overlap_tokens` IDs, which lie left of the
    boundary, came out as stored: `overlap_digest` is BLAKE2b-128 over them as little-endian uint32.
    """

    fingerprint: str
    rule_digest: str
    window_chars: int
    boundary_chars: int
    resume_chars: int
    text_chars: int
    overlap_tokens: int
    overlap_digest: bytes


@dataclass(frozen=True, slots=True)
class Patch:
    """new = old[:keep] ‖ ids ‖ old[resume:]. `resume` counts in the old IDs; `total` is the length of the new ones.

    A patch that opens a session replaces nothing: keep and resume are 0 and `old` is empty.

    `certificate` is None where everything was encoded anew (then keep is 0) and where nothing changed. `whole` are all
    the new IDs, where the caller asked for them: those of this very revision, whatever has happened since.
    """

    keep: int
    ids: Ids
    resume: int
    total: int
    revision: int
    route: Route
    reason: Reason
    certificate: Certificate | None = None
    whole: Ids | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= self.resume or self.total < self.keep + len(self.ids) or self.revision < 0:
            raise InvalidRequest("patch.out_of_range", "a patch keeps, replaces and resumes in order")

    def apply(self, old: Ids) -> Ids:
        """The new IDs; raises `StateCorrupt` if `old` isn't what the patch was made for."""
        new = np.concatenate([old[: self.keep], self.ids, old[self.resume :]])
        if len(new) != self.total or self.resume > len(old):
            raise StateCorrupt("patch.wrong_base", "the IDs at hand aren't those that the patch was made for")
        return new


def check_text(text: str) -> None:
    """Refuse what no UTF-8 encoder accepts, naming the offset of the first lone surrogate in characters."""
    if not isinstance(text, str):
        raise InvalidText("text.not_a_string", f"text is {type(text).__name__}, not str")
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText("text.lone_surrogate", "text holds a lone surrogate", offset_chars=error.start) from None
