"""The HTTP interface, described: `openapi.yaml` beside this file, served as `/openapi.json`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def description() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("openapi.yaml").read_bytes())
    return found
