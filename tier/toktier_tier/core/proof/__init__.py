"""Proof that a boundary rule is right, independent of its derivation, and what it misses.

Guarantees: `prove_rule` answers `proved` only if every pair of code points that the rule claims is a boundary in every
context, whatever stands left and right of it, under the assumptions of docs/decisions/0010-proof-of-the-rule.md;
`refuted` names a claimed pair for which that isn't shown. It never raises for a tokenizer that it can't handle: the
answer is then `unavailable` with a reason code.

A class rule is checked by a product construction over the split automata (`stages`, `classes`), an adjacency rule
exhaustively over the vocabulary (`adjacency`); `characters` does normalizer and added tokens for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..added_tokens import AddedToken
from ..boundaries import BoundaryRule
from ..classes import Probe
from ..errors import TierError
from ..pipeline import Pipeline
from .adjacency import prove_adjacency
from .characters import allowed_characters
from .classes import provable_pairs, prove_classes
from .result import Contradiction, Proof, unavailable
from .stages import build_stages

__all__ = ["Contradiction", "Proof", "prove_rule", "unavailable"]


def prove_rule(
    rule: BoundaryRule,
    pipeline: Pipeline,
    model: Mapping[str, Any],
    tokens: Iterable[AddedToken],
    normalize: Callable[[str], str],
    probe: Probe,
) -> Proof:
    """The verdict on `rule`; `normalize` is the whole normalizer, as it is applied to normalized added tokens."""
    if rule.kind == "none":
        return unavailable(rule.kind, rule.reason, rule.detail)
    try:
        characters = allowed_characters(pipeline, tokens, normalize, probe)
        if rule.kind == "adjacency":
            return prove_adjacency(rule, pipeline, model, characters, probe)
        return prove_classes(rule, provable_pairs(build_stages(pipeline, probe), characters))
    except TierError as error:
        return unavailable(rule.kind, error.code, error.message)
