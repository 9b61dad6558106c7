"""Helm itself, fetched once and kept under ~/.cache, and what it makes of the chart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "toktier-operator"
Manifest = dict[str, Any]
Rendered = list[Manifest]


class Refused(Exception):
    """Helm's own words."""


class Helm:
    def __init__(self, version: str) -> None:
        command = [sys.executable, str(ROOT / ".ci" / "helm"), version]
        self.folder = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())

    def run(self, *arguments: str, program: str = "helm", given: str = "") -> str:
        command = [str(self.folder / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, input=given, timeout=120)
        if done.returncode:
            raise Refused(done.stderr)
        return done.stdout

    def template(self, values: dict[str, Any] | None = None, *arguments: str) -> Rendered:
        """Of release `toktier-operator` in `toktier-system`. Raises `Refused`."""
        command = ("template", "toktier-operator", str(CHART), "--namespace", "toktier-system", "--values", "-")
        text = self.run(*command, *arguments, given=json.dumps(values or {}))
        return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="session", params=["3", "4"])
def helm(request: pytest.FixtureRequest) -> Helm:
    """Both versions that are in use."""
    return Helm(request.param)


@pytest.fixture(scope="session")
def helm4() -> Helm:
    return Helm("4")


@pytest.fixture(scope="session")
def rendered(helm4: Helm) -> Callable[..., Rendered]:
    return helm4.template


@pytest.fixture(scope="session")
def one_of() -> Callable[[Rendered, str], Manifest]:
    """The only object of a kind."""

    def find(found: Rendered, kind: str) -> Manifest:
        (only,) = (each for each in found if each["kind"] == kind)
        return only

    return find
