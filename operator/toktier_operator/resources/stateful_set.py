"""The StatefulSet of a TokTier."""

from __future__ import annotations

from ..api.group import GROUP
from ..api.toktier_spec import TokTierSpec
from . import names
from .owned import Json, Owner, digest

TEMPLATE = f"{GROUP}/template"
"""Annotation: digest of the pods' template that was applied last, whatever the API server made of it."""

REVISIONS = 3


def replicas_of(spec: TokTierSpec) -> int:
    """Within the autoscaler's bounds where there is one; 0 stays: that is how it is switched off."""
    scaling = spec.autoscaling
    if scaling is None or spec.replicas == 0:
        return spec.replicas
    return min(max(spec.replicas, scaling.min_replicas), scaling.max_replicas)


def stateful_set(owner: Owner, spec: TokTierSpec, template: Json, *, partition: int) -> Json:
    """Pods start and end in parallel; updates are one after the other, from the highest ordinal down to `partition`."""
    manifest = owner.manifest("apps/v1", "StatefulSet", owner.name, {TEMPLATE: digest(template)})
    manifest["spec"] = {
        "replicas": replicas_of(spec),
        "serviceName": names.headless_service(owner.name),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": REVISIONS,
        "selector": {"matchLabels": names.tier_selector(owner.name)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "template": template,
    }
    return manifest
