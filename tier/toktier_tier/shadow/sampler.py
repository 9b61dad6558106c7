"""Which live answers are checked: each with the same probability, drawn independently.

Guarantee: an answer that isn't drawn costs one random number; one that is costs references to the session's segments
and a copy of its tail. Nothing here waits, encodes, or looks at the text.
"""

from __future__ import annotations

import random

from ..core.errors import InvalidRequest
from ..core.session import SessionState
from ..core.trust import NO_SPANS, Spans
from ..core.values import Ids, Patch, Route
from .sample import sample_change, sample_encoding
from .verifier import Verifier

DEFAULT_RATE = 0.05


class Sampler:
    """`ports.Observer` that hands a share `rate` (0 to 1) of the answers to `verifier`.

    The reference's own answers aren't checked against it: a tokenizer that is served by reference only costs nothing.
    """

    def __init__(self, verifier: Verifier, *, rate: float = DEFAULT_RATE, randomness: random.Random) -> None:
        if not 0 <= rate <= 1:
            raise InvalidRequest("shadow.rate", "the share of answers to check is from 0 to 1", rate=rate)
        self._verifier, self._rate, self._draw = verifier, rate, randomness.random

    def changed(self, patch: Patch, state: SessionState) -> None:
        if self._draw() >= self._rate or patch.route is Route.REFERENCE:
            return
        if state.has_text():
            self._verifier.offer(sample_change(patch, state))
        else:
            self._verifier.skip()

    def encoded(self, text: str, ids: Ids, route: Route, untrusted: Spans = NO_SPANS) -> None:
        if self._draw() >= self._rate or route is Route.REFERENCE:
            return
        self._verifier.offer(sample_encoding(text, ids, route, untrusted))
