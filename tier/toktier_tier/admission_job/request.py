"""What a Job is asked for: the JSON object of TOKTIER_ADMISSION_REQUEST (docs/decisions/0008-operator.md)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InvalidRequest
from ..core.snapshot import SpecialTokenPolicy

MAX_BUDGET_S = 24 * 3600.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,38}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Known:
    """What is admitted already."""

    sha256: str
    policy: str
    toolchain: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """`source_path` or `source_spec` is set, not both. `reference_version` is empty for the image's own."""

    id: str
    name: str
    namespace: str
    uid: str
    run: int
    source_path: str
    source_spec: str
    policy: SpecialTokenPolicy
    reference_version: str
    encoders: tuple[str, ...]
    budget_s: float
    seed: int
    corpora: tuple[Path, ...]
    known: Known | None
    previous: Path | None
    image: str


def read_request(text: str) -> AdmissionRequest:
    """Raises `InvalidRequest` (`admission.bad_request`)."""
    try:
        given = json.loads(text)
        source = given["source"]
        request = AdmissionRequest(
            id=_text(given["id"]),
            name=_matching(_NAME, given["name"]),
            namespace=_matching(_NAMESPACE, given["namespace"]),
            uid=_text(given["uid"]),
            run=_integer(given["run"], least=1),
            source_path=_text(source.get("path") or ""),
            source_spec=_text(source.get("spec") or ""),
            policy=SpecialTokenPolicy(given["policy"]),
            reference_version=_text(given.get("reference_version") or ""),
            encoders=tuple(map(_text, given["encoders"])),
            budget_s=_seconds(given["budget_s"]),
            seed=_integer(given["seed"]),
            corpora=tuple(Path(_text(each)) for each in given.get("corpora") or ()),
            known=_known(given.get("known")),
            previous=Path(_text(given["previous"])) if given.get("previous") else None,
            image=_text(given.get("image") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the request isn't one: {type(error).__name__}: {error}"[:300]
        raise InvalidRequest("admission.bad_request", message) from None
    if request.id != f"{request.name}-{request.run}":
        raise InvalidRequest("admission.bad_request", "the id isn't of that name and run")
    if bool(request.source_path) == bool(request.source_spec):
        raise InvalidRequest("admission.bad_request", "a source is a path or a specification")
    return request


def _known(given: Any) -> Known | None:
    if given is None:
        return None
    return Known(_text(given["sha256"]), _text(given["policy"]), dict(given["toolchain"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_text(value)):
        raise ValueError("a name that Kubernetes wouldn't take")
    return str(value)


def _integer(value: Any, *, least: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise TypeError("expected a whole number")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or not 0 < seconds <= MAX_BUDGET_S:
        raise ValueError(f"budget_s isn't between 0 and {MAX_BUDGET_S:g}")
    return seconds
