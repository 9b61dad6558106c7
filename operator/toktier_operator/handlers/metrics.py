"""The operator's own metrics, each with its labels; a registry of one's own in tests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.reconciles = Counter(
            "toktier_operator_reconciles",
            "Reconciles by kind and result: ok, or what went wrong.",
            ("kind", "result"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "toktier_operator_reconcile_seconds",
            "How long a reconcile took.",
            ("kind",),
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "toktier_operator_queue_length", "Objects that are to be looked at, now or later.", registry=self.registry
        )
        self.divergences = Counter(
            "toktier_operator_divergences",
            "Reports of pods that named the admission that was in use: one a pod and admission id.",
            ("namespace", "admission"),
            registry=self.registry,
        )
        self.runs = Counter(
            "toktier_operator_admission_runs",
            "Finished runs of admissions by outcome.",
            ("namespace", "admission", "outcome"),
            registry=self.registry,
        )
        self.frozen = Gauge(
            "toktier_operator_frozen",
            "1 while another operator of the peering has precedence and this one does nothing.",
            registry=self.registry,
        )

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        self.reconciles.labels(kind, result).inc()
        self.seconds.labels(kind).observe(seconds)
