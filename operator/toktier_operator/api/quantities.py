"""Durations ("500ms", "1h30m") and quantities ("64Ki", "1.5Gi", 1000000) as numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
QUANTITY_PATTERN: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_SCALES: Final = {
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** -power for power, letter in enumerate("mun", 1)},
}


def duration_s(text: object) -> float:
    """Seconds. Raises `ValueError`."""
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError("is a duration like 500ms, 30s, 5m or 1h30m")
    return math.fsum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


def quantity(value: object) -> Decimal:
    """As Kubernetes reads it, but never negative. Raises `ValueError`."""
    found = None
    if isinstance(value, str | int) and not isinstance(value, bool):
        found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError("is a quantity like 500m, 2, 64Ki or 1.5Gi")
    number, suffix = found[1], found[2] or ""
    if suffix not in _SCALES:
        return Decimal(f"{number}{suffix}")
    return Decimal(number) * _SCALES[suffix]


def quantity_bytes(value: object) -> int:
    """A whole number, rounded up. Raises `ValueError`."""
    return math.ceil(quantity(value))
