"""An answer as it left, with what it takes to check it later: taken in O(1) per segment, encoded by nobody yet.

Guarantee: nothing in a sample changes afterwards. Sealed segments never do and are shared with the session; what may
is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..core.session import SESSION_OVERHEAD_BYTES, SPAN_BYTES, Segment, SessionState
from ..core.trust import NO_SPANS, Spans
from ..core.values import Ids, Patch, Reason, Route


@dataclass(frozen=True, slots=True)
class Sample:
    """`segments` and `tail` hold the text and, for a session, the IDs that its state holds for it.

    keep, ids, total    what the patch said, template tokens counted; keep is 0 for an answer without a session
    revision            None for an answer without a session
    untrusted           spans of the text in which no added token is recognized
    bytes_              memory that the sample keeps from being freed, about
    """

    segments: tuple[Segment, ...] = field(repr=False)
    tail: str = field(repr=False)
    tail_ids: Ids | None = field(repr=False)
    keep: int
    ids: Ids = field(repr=False)
    total: int
    route: Route
    reason: Reason
    revision: int | None
    bytes_: int
    untrusted: Spans = NO_SPANS

    def text(self) -> str:
        return "".join([*(segment.decoded() for segment in self.segments), self.tail])

    def stored(self) -> Ids | None:
        """The IDs of the session's state, without template tokens; None for an answer without a session."""
        if self.tail_ids is None:
            return None
        return np.concatenate([*(segment.ids for segment in self.segments), self.tail_ids])


def sample_change(patch: Patch, state: SessionState) -> Sample:
    """The caller holds the session's lock, and `state.has_text()`."""
    return Sample(
        segments=tuple(state.segments),
        tail=state.tail,
        tail_ids=state.tail_ids.copy(),
        keep=patch.keep,
        ids=patch.ids.copy(),
        total=patch.total,
        route=patch.route,
        reason=patch.reason,
        revision=patch.revision,
        bytes_=state.state_bytes() + patch.ids.nbytes,
        untrusted=state.untrusted,
    )


def sample_encoding(text: str, ids: Ids, route: Route, untrusted: Spans = NO_SPANS) -> Sample:
    """`ids` with the template's tokens."""
    return Sample(
        segments=(),
        tail=text,
        tail_ids=None,
        keep=0,
        ids=ids.copy(),
        total=len(ids),
        route=route,
        reason=Reason.NONE,
        revision=None,
        bytes_=text.__sizeof__() + ids.nbytes + SPAN_BYTES * len(untrusted) + SESSION_OVERHEAD_BYTES,
        untrusted=untrusted,
    )
