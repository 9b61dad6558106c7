"""All objects of a TokTier together, in the order in which they are to be applied."""

from __future__ import annotations

from dataclasses import dataclass

from ..api.rollout import Composition
from ..api.toktier_spec import TokTierSpec
from . import access, messages, network, scaling
from .owned import Json, Owner, digest
from .pods import pod_template
from .settings import settings_config_map


def surroundings(owner: Owner, spec: TokTierSpec) -> list[Json]:
    """What a TokTier has whatever its tokenizers; without `T-control` and `T-peers`, which have a time of their own."""
    always = [
        access.service_account(owner),
        access.role(owner),
        access.role_binding(owner),
        messages.reports(owner),
        network.headless_service(owner),
        network.service(owner, spec),
    ]
    return always + [each for each in optional(owner, spec).values() if each is not None]


def optional(owner: Owner, spec: TokTierSpec) -> dict[str, Json | None]:
    """By kind; None for what the spec doesn't ask for."""
    return {
        "NetworkPolicy": network.network_policy(owner, spec),
        "PodDisruptionBudget": scaling.disruption_budget(owner, spec),
        "HorizontalPodAutoscaler": scaling.autoscaler(owner, spec),
        "HTTPRoute": network.http_route(owner, spec),
    }


@dataclass(frozen=True, slots=True)
class Made:
    """What pods are made of: their settings, their template, and the digest that tells templates apart."""

    settings: Json
    template: Json
    digest: str

    @classmethod
    def of(cls, owner: Owner, spec: TokTierSpec, composition: Composition, pull_policy: str) -> Made:
        settings = settings_config_map(owner, spec, composition)
        template = pod_template(owner, spec, composition, settings["metadata"]["name"], pull_policy)
        return cls(settings, template, digest(template))
