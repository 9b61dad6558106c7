"""The fixtures of `cluster/`, for all end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

import fixtures


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(fixtures, "toktier-cluster")  # pytest has a plugin "fixtures"
