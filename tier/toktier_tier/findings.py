"""What this pod found wrong by itself: who quarantined which tokenizer, and why.

Guarantees: a subscriber hears of everything, also of what was found before it came; nothing told holds text; whatever
a subscriber does, the finder goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .shadow.evidence import Divergence
from .tokenizer import TierTokenizer

log = logging.getLogger("toktier")
SHADOW, WITNESS, PROBE = "shadow", "witness", "probe"


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: shadow (the verifier), witness (of a repair) or probe (at the start)
    encoder: which was admitted for the tokenizer
    digest, text_chars, position: the SHA-256 and length of the text and the first token that differs, where known
    """

    tokenizer: TierTokenizer
    kind: str
    encoder: str
    digest: str = ""
    text_chars: int | None = None
    position: int | None = None


Told = Callable[[Finding], None]


class Findings:
    """Thread-safe; subscribers are called in the finder's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Finding] = []
        self._told: list[Told] = []

    def probe_failed(self, tokenizer: TierTokenizer) -> None:
        self._note(Finding(tokenizer, PROBE, tokenizer.compiled.encoder))

    def witness_failed(self, tokenizer: TierTokenizer) -> None:
        self._note(Finding(tokenizer, WITNESS, tokenizer.compiled.encoder))

    def diverged(self, tokenizer: TierTokenizer, found: Divergence) -> None:
        self._note(
            Finding(
                tokenizer,
                SHADOW,
                tokenizer.compiled.encoder,
                found.text_sha256,
                found.text_chars,
                found.first_difference,
            )
        )

    def subscribe(self, told: Told) -> None:
        with self._lock:
            self._told.append(told)
            before = list(self._found)
        for finding in before:
            self._tell(told, finding)

    def _note(self, finding: Finding) -> None:
        with self._lock:
            self._found.append(finding)
            told = list(self._told)
        for each in told:
            self._tell(each, finding)

    @staticmethod
    def _tell(told: Told, finding: Finding) -> None:
        try:
            told(finding)
        except Exception as error:
            log.error("a finding (%s) wasn't told: %s", finding.kind, type(error).__name__)
