"""The template of a tier's pods: what docs/decisions/0008-operator.md says under "Pods"."""

from __future__ import annotations

import copy
import json
import math

from ..api.group import GROUP
from ..api.rollout import Composition
from ..api.toktier_spec import GpuMode, SpreadMode, TokTierSpec
from . import names, paths
from .owned import Json, Owner
from .restricted import restricted_container, restricted_pod
from .volumes import Volumes, pod_volumes

ADMISSIONS = f"{GROUP}/admissions"
"""Annotation of a pod: the admission ids that it was made with, by commas."""

STOP_S, MARGIN_S = 15.0, 5.0
"""How long a pod's servers may take to end once sessions are handed over, and some more."""
STARTUP_S, EVERY_S = 600, 2


def pod_template(
    owner: Owner, spec: TokTierSpec, composition: Composition, settings_name: str, pull_policy: str
) -> Json:
    extra = spec.pod_template
    volumes = pod_volumes(owner, spec, composition, settings_name)
    pod: Json = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(spec.drain.hand_over_s + spec.drain.linger_s + STOP_S + MARGIN_S),
        "securityContext": restricted_pod(),
        "initContainers": [_snapshots(spec, composition, volumes, pull_policy)],
        "containers": [_tier(spec, composition, volumes, pull_policy)],
        "volumes": volumes.volumes,
    }
    spread = _spread(owner, spec)
    affinity = _affinity(spec)
    optional: Json = {
        "imagePullSecrets": [{"name": each.name} for each in spec.image_pull_secrets],
        "priorityClassName": spec.priority_class_name,
        "nodeSelector": dict(extra.node_selector),
        "tolerations": [dict(each) for each in extra.tolerations],
        "affinity": affinity,
        "topologySpreadConstraints": spread,
        "runtimeClassName": extra.runtime_class_name,
    }
    pod |= {key: value for key, value in optional.items() if value}
    metadata: Json = {
        "labels": {**extra.metadata.labels, **names.tier_labels(owner.name)},
        "annotations": {
            **extra.metadata.annotations,
            ADMISSIONS: ",".join(sorted(composition.ids)),
            "kubectl.kubernetes.io/default-container": "tier",
        },
    }
    return {"metadata": metadata, "spec": pod}


def _snapshots(spec: TokTierSpec, composition: Composition, volumes: Volumes, pull_policy: str) -> Json:
    bundles = {each.id: each.bundle for each in composition.tokenizers}
    return {
        "name": "snapshots",
        "image": composition.image,
        "imagePullPolicy": spec.image_pull_policy or pull_policy,
        "command": ["toktierctl"],
        "args": ["snapshots", "unpack", paths.BUNDLES, paths.SNAPSHOTS],
        "env": [{"name": "TOKTIER_BUNDLES", "value": json.dumps(bundles, sort_keys=True)}],
        "resources": _resources(spec, gpu=False),
        "securityContext": restricted_container(),
        "volumeMounts": volumes.snapshots,
    }


def _tier(spec: TokTierSpec, composition: Composition, volumes: Volumes, pull_policy: str) -> Json:
    return {
        "name": "tier",
        "image": composition.image,
        "imagePullPolicy": spec.image_pull_policy or pull_policy,
        "command": ["toktierctl"],
        "args": ["serve", f"{paths.SETTINGS}/{names.SETTINGS_KEY}"],
        "ports": [
            {"name": "http", "containerPort": paths.HTTP_PORT, "protocol": "TCP"},
            {"name": "grpc", "containerPort": paths.GRPC_PORT, "protocol": "TCP"},
        ],
        "env": [
            _from_pod("POD_NAME", "metadata.name"),
            _from_pod("POD_NAMESPACE", "metadata.namespace"),
            _from_pod("POD_IP", "status.podIP"),
            *_gpu_env(spec),
            *(dict(each) for each in spec.pod_template.env),
        ],
        "resources": _resources(spec, gpu=True),
        "securityContext": restricted_container(),
        "startupProbe": _probe(spec, "/health", failures=STARTUP_S // EVERY_S),
        "livenessProbe": _probe(spec, "/health", failures=6, every_s=10, timeout_s=5),
        "readinessProbe": _probe(spec, "/ready", failures=3, timeout_s=5),
        "volumeMounts": volumes.tier,
    }


def _from_pod(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _gpu_env(spec: TokTierSpec) -> list[Json]:
    """Kernels are compiled on the pod, and a home it has not."""
    return [] if spec.gpu.mode is GpuMode.OFF else [{"name": "TRITON_CACHE_DIR", "value": f"{paths.TMP}/triton"}]


def _probe(spec: TokTierSpec, path: str, *, failures: int, every_s: int = EVERY_S, timeout_s: int = 3) -> Json:
    scheme = "HTTPS" if spec.security.tls is not None else "HTTP"
    return {
        "httpGet": {"path": path, "port": "http", "scheme": scheme},
        "periodSeconds": every_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _resources(spec: TokTierSpec, *, gpu: bool) -> Json:
    limits, requests = dict(spec.resources.limits), dict(spec.resources.requests)
    if gpu and spec.gpu.mode is GpuMode.REQUIRED:
        limits[spec.gpu.resource_name] = str(spec.gpu.count)
    if not gpu:  # unpacking needs no device, whoever asked for it
        limits.pop(spec.gpu.resource_name, None)
        requests.pop(spec.gpu.resource_name, None)
    found = {"limits": limits, "requests": requests}
    return {key: {name: str(value) for name, value in each.items()} for key, each in found.items() if each}


def _affinity(spec: TokTierSpec) -> Json:
    """The spec's own, and with it a preference for nodes with a GPU where one is preferred.

    A claim can't be optional, so such a pod has none; nodes are told by the label that GPU feature discovery gives
    them, `nvidia.com/gpu.present` for `nvidia.com/gpu`.
    """
    affinity: Json = copy.deepcopy(dict(spec.pod_template.affinity or {}))
    if spec.gpu.mode is GpuMode.PREFERRED:
        expression = {"key": f"{spec.gpu.resource_name}.present", "operator": "In", "values": ["true"]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [expression]}}
        node = affinity.setdefault("nodeAffinity", {})
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        node[key] = [*(node.get(key) or ()), preferred]
    return affinity


def _spread(owner: Owner, spec: TokTierSpec) -> list[Json]:
    own: list[Json] = []
    spread = spec.topology_spread
    if spread.mode is not SpreadMode.OFF:
        own.append(
            {
                "maxSkew": 1,
                "topologyKey": spread.topology_key,
                "whenUnsatisfiable": "ScheduleAnyway" if spread.mode is SpreadMode.SOFT else "DoNotSchedule",
                "labelSelector": {"matchLabels": names.tier_selector(owner.name)},
            }
        )
    return own + [dict(each) for each in spec.pod_template.topology_spread_constraints]
