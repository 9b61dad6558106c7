"""`spec` of a TokTier: which tokenizers, in front of which SGLang, by how many pods and how.

Defaults are those of `manifests/crds/toktiers.yaml`; a test compares them. What becomes the pods' settings is in
`tier_settings`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .references import NameReference, Raw, Resources
from .structure import SpecError, duration, read
from .tier_settings import Limits, Routing, Security, Sessions, Shadow, Telemetry, Upstream

DEFAULT_CPU_PERCENT = 70
MAX_REPLICAS = 128


class Unadmitted(enum.StrEnum):
    """What pods do with a tokenizer that isn't admitted: serve it by the reference alone, or don't start."""

    REFERENCE_ONLY = "ReferenceOnly"
    REFUSE = "Refuse"


class GpuMode(enum.StrEnum):
    """PREFERRED: pods run on GPU nodes where there is room, and without one elsewhere. REQUIRED: with a claim on it.

    `None` in manifests, since YAML 1.1 takes `Off` for a boolean.
    """

    OFF = "None"
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class SpreadMode(enum.StrEnum):
    SOFT = "Soft"
    HARD = "Hard"
    OFF = "None"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer by its admission; `served_name` and `models` are what requests call it.

    chat: whether chats are rendered here, where the admitted snapshot has a template.
    The parsers are those that SGLang was started with.
    """

    admission: str
    name: str = ""
    models: tuple[str, ...] = ()
    untrusted_roles: tuple[str, ...] = ()
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    chat: bool = True

    @property
    def served_name(self) -> str:
        return self.name or self.admission


@dataclass(frozen=True, slots=True)
class QueueMetric:
    """A pods metric of the custom metrics API, by default requests under way; average_value: of each pod."""

    average_value: int | str
    name: str = "toktier_requests"


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """By `metric`, or by CPU. Then `replicas` is the autoscaler's business."""

    max_replicas: int
    min_replicas: int = 2
    target_cpu: int | None = field(default=None, metadata={"key": "targetCPUUtilizationPercentage"})
    metric: QueueMetric | None = None

    @property
    def cpu_percent(self) -> int | None:
        """Of what is requested; None where another metric counts."""
        return self.target_cpu if self.metric else self.target_cpu or DEFAULT_CPU_PERCENT


@dataclass(frozen=True, slots=True)
class Gpu:
    mode: GpuMode = GpuMode.OFF
    resource_name: str = "nvidia.com/gpu"
    count: int = 1


@dataclass(frozen=True, slots=True)
class ServicePorts:
    http: int = 8080
    grpc: int = 50051


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    type: str = "ClusterIP"
    annotations: Mapping[str, str] = field(default_factory=dict)
    session_affinity: str = "ClientIP"
    ports: ServicePorts = field(default_factory=ServicePorts)


@dataclass(frozen=True, slots=True)
class Gateway:
    """An HTTPRoute to the Service; parent_refs: as in one."""

    parent_refs: tuple[Raw, ...]
    hostnames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """peers: who may connect, as `from` in a NetworkPolicy; without any, all pods of the namespace."""

    enabled: bool = True
    peers: tuple[Raw, ...] = field(default=(), metadata={"key": "from"})


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """max_unavailable: pods, or a share like 25%."""

    enabled: bool = True
    max_unavailable: int | str = 1


@dataclass(frozen=True, slots=True)
class TopologySpread:
    mode: SpreadMode = SpreadMode.SOFT
    topology_key: str = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """canary_hold_s: how long the canary is Ready without a report before the others follow."""

    canary: bool = True
    canary_hold_s: float = duration("canaryHold", 30.0)


@dataclass(frozen=True, slots=True)
class Drain:
    """hand_over_s: how long a leaving pod may take to hand sessions over; linger_s: how long it serves on at least."""

    hand_over_s: float = duration("handOver", 20.0)
    linger_s: float = duration("linger", 5.0)


@dataclass(frozen=True, slots=True)
class TemplateMetadata:
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Added to the pods as it is; env and volume_mounts go to the container `tier`."""

    metadata: TemplateMetadata = field(default_factory=TemplateMetadata)
    env: tuple[Raw, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Raw, ...] = ()
    affinity: Raw | None = None
    topology_spread_constraints: tuple[Raw, ...] = ()
    volumes: tuple[Raw, ...] = ()
    volume_mounts: tuple[Raw, ...] = ()
    runtime_class_name: str = ""


@dataclass(frozen=True, slots=True)
class TokTierSpec:
    tokenizers: tuple[Tokenizer, ...]
    unadmitted: Unadmitted = Unadmitted.REFERENCE_ONLY
    upstream: Upstream | None = None
    replicas: int = 2
    autoscaling: Autoscaling | None = None
    resources: Resources = field(default_factory=Resources)
    gpu: Gpu = field(default_factory=Gpu)
    sessions: Sessions = field(default_factory=Sessions)
    shadow: Shadow = field(default_factory=Shadow)
    routing: Routing = field(default_factory=Routing)
    limits: Limits = field(default_factory=Limits)
    telemetry: Telemetry = field(default_factory=Telemetry)
    security: Security = field(default_factory=Security)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    gateway: Gateway | None = None
    network_policy: NetworkPolicy = field(default_factory=NetworkPolicy)
    pod_disruption_budget: DisruptionBudget = field(default_factory=DisruptionBudget)
    topology_spread: TopologySpread = field(default_factory=TopologySpread)
    priority_class_name: str = ""
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    drain: Drain = field(default_factory=Drain)
    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: tuple[NameReference, ...] = ()
    pod_template: PodTemplate = field(default_factory=PodTemplate)

    def __post_init__(self) -> None:
        if not self.tokenizers:
            raise SpecError("spec.tokenizers", "has at least one")

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> TokTierSpec:
        """Of the object as the API server has it. Raises `SpecError`."""
        return read(cls, body.get("spec"), "spec")
