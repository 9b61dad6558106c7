"""The engines that run in the bench's own process, each by its fastest public full encode.

Every engine gets the whole tokenizer.json. What an engine answers with is turned into an array outside the timed
section, where its own call doesn't give one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toktier_tier.admission.compiled import Verdict
from toktier_tier.app import open_tokenizer
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.ports import Ids
from toktier_tier.tokenizer import TierTokenizer

from .results import Unequal
from .timing import PRIMER

TIER, GIGATOKEN, FASTOKENS, REFERENCE = "tier", "gigatoken", "fastokens", "reference"
WORKERS = os.cpu_count() or 1


class NotAdmitted(Exception):
    """Admission didn't accept the tokenizer, so the tier has nothing to be measured by."""


@dataclass(frozen=True, slots=True)
class FullEncoder:
    """`encode` is what is timed; `as_ids` makes the array of its answer, untimed."""

    engine: str
    encode: Callable[[str], Any]
    as_ids: Callable[[Any], Ids]


class Engines:
    """The tier's tokenizer, and fresh encoder objects of every engine.

    tier    the long-lived one that sessions are opened on
    """

    def __init__(self, tokenizer_json: Path, *, compiled_dir: Path | None, budget_s: float) -> None:
        self._document = tokenizer_json.read_text(encoding="utf-8")
        self.tier = open_tokenizer(tokenizer_json, compiled_dir=compiled_dir, budget_s=budget_s)
        compiled = self.tier.compiled
        if compiled.verdict is not Verdict.ADMITTED:
            raise NotAdmitted(f"admission says {compiled.verdict.value}: {compiled.reason}")
        self._pool = ThreadPoolExecutor(max(WORKERS - 1, 1), thread_name_prefix="bench-encode")

    def literals(self) -> tuple[str, ...]:
        """The added tokens' literals, longest first."""
        found = (token.content for token in self.tier.reference.added_tokens())
        return tuple(sorted(found, key=len, reverse=True))

    def reference_ids(self, text: str) -> Ids:
        """What is right for `text`."""
        return self.tier.reference.encode(text)

    def versions(self) -> dict[str, str]:
        return {
            "reference": self.tier.compiled.reference_version,
            "tier's encoder": self.tier.compiled.encoder,
            "gigatoken": encoder_version("gigatoken"),
            "fastokens": encoder_version("fastokens"),
        }

    def check_trusted(self) -> None:
        """Raises `Unequal` if the tier has stopped trusting its fast paths in the meantime."""
        if self.tier.quarantined:
            raise Unequal("a witness failed while the tier was measured, and it quarantined itself")

    def fallbacks(self) -> str:
        """How often the tier's encoder had to leave a text to the reference, by reason; `rebuilt` counts rebuilds."""
        counts = self.tier.fallbacks()
        return ", ".join(f"{reason}: {count}" for reason, count in counts.items()) or "none"

    def fresh(self, engine: str, *, workers: int = WORKERS) -> FullEncoder:
        """An encoder object that has encoded nothing but `PRIMER`."""
        encoder = self._build(engine, workers)
        encoder.encode(PRIMER)
        return encoder

    def _build(self, engine: str, workers: int) -> FullEncoder:
        if engine == TIER:
            tier = TierTokenizer(self.tier.reference, self.tier.compiled, workers=workers, pool=self._pool)
            return FullEncoder(engine, tier.encode, np.asarray)
        if engine == GIGATOKEN:
            import gigatoken

            return FullEncoder(engine, gigatoken.Tokenizer.from_json(self._document).backend.encode, np.asarray)
        if engine == FASTOKENS:
            import fastokens

            encode_flat = fastokens.Tokenizer.from_json_str(self._document).encode_batch_flat
            return FullEncoder(engine, lambda text: encode_flat([text]), _ids_of_flat)
        tokenizer = self.tier.reference.tokenizer
        return FullEncoder(engine, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, _ids_of_list)


def _ids_of_flat(answer: Any) -> Ids:
    return np.frombuffer(answer[0], dtype=np.uint32)


def _ids_of_list(answer: Any) -> Ids:
    return np.array(answer, dtype=np.uint32)
