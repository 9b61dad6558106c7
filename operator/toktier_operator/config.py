"""The operator's environment, read once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Config:
    """docs/decisions/0008-operator.md lists the variables.

    namespaces: empty for all. peering: empty for none; two processes of one `priority` in it pause each other.
    webhook_dir: None for no webhooks.
    """

    tier_image: str
    image_pull_policy: str = "IfNotPresent"
    namespaces: tuple[str, ...] = ()
    peering: str = ""
    priority: int = 0
    webhook_dir: Path | None = None
    webhook_port: int = 9443
    metrics_port: int = 9090
    health_port: int = 8081
    workers: int = 8
    resync_s: float = 600.0


def read(environ: Mapping[str, str]) -> Config:
    """ValueError with the variable's name if one is missing or makes no sense."""
    image = environ.get("TOKTIER_TIER_IMAGE", "").strip()
    if not image:
        raise ValueError("TOKTIER_TIER_IMAGE must name the image of pods and Jobs")
    pull_policy = environ.get("TOKTIER_IMAGE_PULL_POLICY", "").strip() or "IfNotPresent"
    if pull_policy not in ("Always", "IfNotPresent", "Never"):
        raise ValueError(f"TOKTIER_IMAGE_PULL_POLICY must be Always, IfNotPresent or Never, not {pull_policy!r}")
    webhook_dir = environ.get("TOKTIER_WEBHOOK_DIR", "").strip()
    namespaces = {name.strip() for name in environ.get("TOKTIER_NAMESPACES", "").split(",")} - {""}
    return Config(
        tier_image=image,
        image_pull_policy=pull_policy,
        namespaces=tuple(sorted(namespaces)),
        peering=environ.get("TOKTIER_PEERING", "").strip(),
        priority=_whole(environ, "TOKTIER_PRIORITY", random.SystemRandom().randrange(1, 2**31), minimum=-(2**31)),
        webhook_dir=Path(webhook_dir) if webhook_dir else None,
        webhook_port=_whole(environ, "TOKTIER_WEBHOOK_PORT", 9443),
        metrics_port=_whole(environ, "TOKTIER_METRICS_PORT", 9090),
        health_port=_whole(environ, "TOKTIER_HEALTH_PORT", 8081),
    )


def _whole(environ: Mapping[str, str], name: str, default: int, minimum: int = 0) -> int:
    written = environ.get(name, "").strip()
    if not written:
        return default
    try:
        value = int(written)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {written!r}") from None
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
    return value
