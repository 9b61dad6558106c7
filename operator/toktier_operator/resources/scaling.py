"""How many pods there are, and how many may be away at a time."""

from __future__ import annotations

from ..api.group import API_VERSION, TOKTIER
from ..api.toktier_spec import TokTierSpec
from . import names
from .owned import Json, Owner


def disruption_budget(owner: Owner, spec: TokTierSpec) -> Json | None:
    budget = spec.pod_disruption_budget
    if not budget.enabled:
        return None
    return owner.manifest("policy/v1", "PodDisruptionBudget", owner.name) | {
        "spec": {
            "maxUnavailable": budget.max_unavailable,
            "selector": {"matchLabels": names.tier_selector(owner.name)},
        }
    }


def autoscaler(owner: Owner, spec: TokTierSpec) -> Json | None:
    """It scales the TokTier, which scales its StatefulSet."""
    scaling = spec.autoscaling
    if scaling is None:
        return None
    metrics: list[Json] = []
    if scaling.metric is not None:
        target = {"type": "AverageValue", "averageValue": str(scaling.metric.average_value)}
        metrics.append({"type": "Pods", "pods": {"metric": {"name": scaling.metric.name}, "target": target}})
    if scaling.cpu_percent is not None:
        target_cpu = {"type": "Utilization", "averageUtilization": scaling.cpu_percent}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target_cpu}})
    return owner.manifest("autoscaling/v2", "HorizontalPodAutoscaler", owner.name) | {
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": TOKTIER.kind, "name": owner.name},
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": metrics,
        }
    }
