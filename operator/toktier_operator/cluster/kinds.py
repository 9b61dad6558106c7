"""The kinds of objects that the operator reads or writes, and where their API is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..api import group

Json = dict[str, Any]
Jsons = list[Json]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of one API version. `group` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of the object; of the list without a name; of all namespaces without a namespace."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


TOKENIZER_ADMISSION, TOKTIER = (
    Kind(group.GROUP, group.VERSION, each.plural, each.kind) for each in (group.TOKENIZER_ADMISSION, group.TOKTIER)
)

CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
SECRET = Kind("", "v1", "secrets", "Secret")
SERVICE = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
POD = Kind("", "v1", "pods", "Pod")
EVENT = Kind("", "v1", "events", "Event")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
JOB = Kind("batch", "v1", "jobs", "Job")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
HORIZONTAL_POD_AUTOSCALER = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")

CONFIG_MAP_SOURCE = Kind("", "v1", "configmaps", "ConfigMapMetadata")
SECRET_SOURCE = Kind("", "v1", "secrets", "SecretMetadata")
"""What is known of sources is their metadata alone; in `observed` they are kinds of their own."""
KOPF_PEERING = Kind("kopf.dev", "v1", "kopfpeerings", "KopfPeering")
CLUSTER_KOPF_PEERING = Kind("kopf.dev", "v1", "clusterkopfpeerings", "ClusterKopfPeering", namespaced=False)

KINDS: tuple[Kind, ...] = (
    TOKENIZER_ADMISSION,
    TOKTIER,
    CONFIG_MAP,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    POD,
    EVENT,
    NAMESPACE,
    STATEFUL_SET,
    JOB,
    POD_DISRUPTION_BUDGET,
    HORIZONTAL_POD_AUTOSCALER,
    NETWORK_POLICY,
    ENDPOINT_SLICE,
    ROLE,
    ROLE_BINDING,
    HTTP_ROUTE,
)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(manifest: Json) -> Kind:
    """KeyError if the operator doesn't know such a kind."""
    return _BY_NAME[str(manifest.get("apiVersion")), str(manifest.get("kind"))]
