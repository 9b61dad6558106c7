"""Splits that are dropped since no normalized text holds what they look for."""

from __future__ import annotations

import pytest

from toktier_tier.core.pipeline import literal_never_occurs, parse_pipeline
from workshop import Json, normalizers, replace

LOWER: Json = {"type": "Lowercase"}
MARK_FIRST: Json = {"type": "Prepend", "prepend": "▁"}


@pytest.mark.parametrize(
    ("normalizer", "literal", "never"),
    [
        (replace(" ", "▁"), " ", True),
        (replace(" ", "▁"), "a b", True),
        (replace(" ", "▁"), "▁", False),
        (replace(" ", "▁"), "ab", False),
        (normalizers(replace(" ", "▁"), replace("_", " ")), " ", False),
        (normalizers(replace("_", " "), replace(" ", "▁")), "_", True),
        (normalizers(MARK_FIRST, replace("▁", "_")), "▁", False),
        (replace("ab", "c"), "ab", False),
        (None, " ", False),
    ],
)
def test_a_literal_never_occurs_only_if_a_character_of_it_is_replaced_and_never_written(
    normalizer: Json, literal: str, never: bool
) -> None:
    steps = parse_pipeline(normalizer, None).normalizer
    assert literal_never_occurs(literal, steps) is never


def test_other_normalizers_may_write_anything() -> None:
    assert not literal_never_occurs(" ", (*parse_pipeline(replace(" ", "▁"), None).normalizer, *_steps(LOWER)))


def _steps(normalizer: Json) -> tuple[Json, ...]:
    return parse_pipeline(normalizer, None).normalizer
