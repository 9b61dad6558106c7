"""What a proof says: a verdict, exact counts of pairs of code points, and what contradicts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Contradiction:
    """A claimed pair that isn't proved.

    condition   straddles, sees or joins (see `stages`), left_character or right_character (normalizer or added tokens
                forbid it on that side), added_token (a literal holds the pair), adjacent (a vocabulary entry does)
    stage       the step in which it fails; empty where no step is to blame
    text        a text that ought to show it, cut before character `position`; empty where none was constructed
    confirmed   whether the reference shows it on `text`; None where it wasn't asked
    """

    a: str
    b: str
    condition: str
    stage: str = ""
    text: str = ""
    position: int = 0
    confirmed: bool | None = None


@dataclass(frozen=True)
class Counts:
    """Pairs of code points, none of them a surrogate.

    claimed    pairs for which the rule holds
    unproved   those of them that the proof doesn't cover
    complete   all pairs that the proof covers
    missed     those of them that the rule doesn't claim
    """

    claimed: int = 0
    unproved: int = 0
    complete: int = 0
    missed: int = 0


@dataclass(frozen=True)
class Proof:
    """The verdict on a rule.

    status     proved: every claimed pair is a boundary in every context; refuted: some aren't shown to be;
               unavailable: `reason` says why nothing was decided
    examples   some missed pairs, the lowest first
    """

    kind: str
    status: Literal["proved", "refuted", "unavailable"]
    reason: str = ""
    detail: str = ""
    counts: Counts = Counts()
    examples: tuple[str, ...] = ()
    contradiction: Contradiction | None = None

    def to_document(self) -> dict[str, Any]:
        """For the report: JSON values only."""
        found = vars(self.contradiction) if self.contradiction is not None else None
        counts, examples = vars(self.counts), list(self.examples)
        return {**vars(self), "counts": counts, "examples": examples, "contradiction": found}


def unavailable(kind: str, reason: str, detail: str) -> Proof:
    return Proof(kind, "unavailable", reason, detail)
