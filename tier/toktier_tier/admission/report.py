"""What a campaign did and found: counts per phase, divergences with the strings that show them, verdicts.

The report holds no clock reading, so the same seed gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.boundaries import BoundaryRule
from ..core.proof import Proof
from ..core.snapshot import Snapshot
from .compiled import EncoderVerdict, TrustVerdict, Verdict

REPORT_FORMAT = "toktier-admission/1"
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 200


@dataclass
class Phase:
    """One comparison: how often it was made, over how many characters, and what it contradicted."""

    name: str
    checks: int = 0
    characters: int = 0
    divergences: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def passed(self, checks: int, characters: int) -> None:
        """Count comparisons that were made at once and found equal."""
        self.checks += checks
        self.characters += characters

    def compare(self, equal: bool, text: str, position: int | None = None) -> None:
        self.checks += 1
        self.characters += len(text)
        if equal:
            return
        self.divergences += 1
        if len(self.examples) < MAX_EXAMPLES:
            shown = text if position is None else text[max(position - 100, 0) : position + 100]
            self.examples.append({"text": shown[:MAX_EXAMPLE_CHARS], "position_chars": position, "chars": len(text)})


@dataclass(frozen=True)
class Report:
    snapshot: Snapshot
    rule: BoundaryRule
    proof: Proof | None
    seed: int
    budget_s: float
    phases: tuple[Phase, ...]
    encoders: Mapping[str, EncoderVerdict]
    verdict: Verdict
    reason: str
    encoder: str
    trust: TrustVerdict
    compiled_digest: str

    @property
    def checks(self) -> int:
        others = sum(e.checks for e in self.encoders.values()) + self.trust.checks
        return sum(phase.checks for phase in self._own()) + others

    @property
    def divergences(self) -> int:
        """Of the rule and the pipeline; a rejected candidate's, and those of trust, are with their own verdicts."""
        return sum(phase.divergences for phase in self._own())

    def _own(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.name.partition(":")[0] not in (*self.encoders, "trust")]

    def to_document(self) -> dict[str, Any]:
        boundary, pairs = self.rule.pairs()
        snapshot = self.snapshot
        return {
            "format": REPORT_FORMAT,
            "seed": self.seed,
            "budget_s": self.budget_s,
            "snapshot": {
                "sha256": snapshot.sha256,
                "fingerprint": snapshot.fingerprint,
                "reference": snapshot.reference_version,
                "policy": snapshot.policy.value,
                "model": snapshot.model["type"],
                "vocabulary": len(snapshot.model["vocab"]),
                "added_tokens": len(snapshot.added_tokens),
                "notes": list(snapshot.notes),
            },
            "rule": {
                "kind": self.rule.kind,
                "digest": self.rule.digest,
                "class_pairs": pairs,
                "boundary_pairs": boundary,
                "adjacent_pairs": len(self.rule.adjacent),
                "reason": self.rule.reason,
                "detail": self.rule.detail,
                "stages": [
                    {"name": s.name, "source": s.source, "atoms": s.atoms, "covered": s.covered}
                    for s in self.rule.stages
                ],
            },
            "proof": self.proof.to_document() if self.proof is not None else None,
            "phases": [vars(phase) for phase in self.phases],
            "encoders": {
                name: {
                    "version": found.version,
                    "verdict": found.verdict.value,
                    "reason": found.reason,
                    "checks": found.checks,
                    "divergences": found.divergences,
                    "unsafe_code_points": sum(last - first + 1 for first, last in found.unsafe),
                    "unsafe": [[first, last] for first, last in found.unsafe[:200]],
                }
                for name, found in sorted(self.encoders.items())
            },
            "trust": {**vars(self.trust), "verdict": self.trust.verdict.value},
            "verdict": self.verdict.value,
            "reason": self.reason,
            "encoder": self.encoder,
            "compiled": self.compiled_digest,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_document(), indent=1, sort_keys=True) + "\n"
