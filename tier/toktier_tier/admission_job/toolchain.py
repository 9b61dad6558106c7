"""What decides a verdict beside the tokenizer itself: the libraries and this code's own derivation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..admission.compiled import DERIVER_VERSION
from ..encoders.candidates import encoder_version
from ..encoders.reference import REFERENCE_VERSION


def toolchain_of(encoders: Sequence[str]) -> dict[str, Any]:
    """Equal to an earlier one exactly if a campaign would be run by the same code. A missing library has version ""."""
    return {
        "reference": REFERENCE_VERSION,
        "deriver": str(DERIVER_VERSION),
        "encoders": {name: plain_version(encoder_version(name)) for name in sorted(encoders)},
    }


def plain_version(requirement: str) -> str:
    """`0.10.0` of `gigatoken==0.10.0`."""
    return requirement.partition("==")[2]
