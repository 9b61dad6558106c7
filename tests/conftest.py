"""Shared by all tests: the workshop on the path, Hypothesis's profile, tiers of genuine files as a fixture."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from workshop import FACTOR, Tier, family_tier

# Reproducible by default, exploring when asked for more examples than that.
settings.register_profile(
    "toktier",
    deadline=None,
    database=None,
    derandomize=FACTOR <= 1,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("toktier")


@pytest.fixture(scope="session")
def tier_tokenizer() -> Callable[..., Tier]:
    """(family, encoder="reference", policy=NONE) → its `Tier`, built once a run."""
    return family_tier
