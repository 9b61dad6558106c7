"""TokTiers and admissions for tests, as the API server would have them."""

from __future__ import annotations

from typing import Any

from toktier_operator.api.admission_status import AdmissionStatus, Bundle, Quarantine, Snapshot
from toktier_operator.api.rollout import Composition, Served
from toktier_operator.api.toktier_spec import TokTierSpec
from toktier_operator.resources.owned import Owner

Json = dict[str, Any]
IMAGE = "registry.example/toktier:1"
OWNER = Owner("chat", "prod", "11111111-2222-3333-4444-555555555555")


def snapshot(id_: str, *, image: str = IMAGE, verdict: str = "Admitted", template: bool = True) -> Snapshot:
    admission, _, number = id_.rpartition("-")
    letter = f"{int(number):x}"[-1]
    return Snapshot(
        id=id_,
        run=int(number),
        sha256=letter * 64,
        fingerprint=letter * 64,
        policy="none",
        verdict=verdict,
        reason="" if verdict == "Admitted" else "nothing faster was proven",
        encoder="gigatoken",
        chat_template=template,
        image=image,
        bundle=Bundle(sha256="b" * 63 + letter, size_bytes=9, config_maps=(f"{admission}-{'b' * 15}{letter}-0",)),
    )


def admitted(id_: str, *, quarantined: bool = False, image: str = IMAGE, verdict: str = "Admitted") -> AdmissionStatus:
    quarantine = Quarantine(id=id_, since="2026-01-01T00:00:00Z") if quarantined else None
    return AdmissionStatus(current=snapshot(id_, image=image, verdict=verdict), quarantine=quarantine)


def served(id_: str, *, image: str = IMAGE, **changes: Any) -> Served:
    """As `choose` makes it of `snapshot(id_)` for a tokenizer without settings of its own."""
    found, admission = snapshot(id_, image=image), id_.rpartition("-")[0]
    assert found.bundle is not None
    values: Json = {
        "name": admission,
        "admission": admission,
        "id": id_,
        "bundle": found.bundle.sha256,
        "config_maps": found.bundle.config_maps,
        "sha256": found.sha256,
        "fingerprint": found.fingerprint,
        "policy": found.policy,
        "template": True,
    }
    return Served(**values | changes)


def composition(*ids: str, image: str = IMAGE) -> Composition:
    return Composition(image, tuple(served(each) for each in ids))


def spec_of(**keys: Any) -> TokTierSpec:
    return TokTierSpec.of(toktier(**keys))


def toktier(**keys: Any) -> Json:
    """`keys`: of the spec."""
    return {
        "apiVersion": "toktier.dev/v1alpha1",
        "kind": "TokTier",
        "metadata": {"name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "generation": 1},
        "spec": {"tokenizers": [{"admission": "qwen"}], **keys},
    }


FULL_SPEC: Json = {
    "tokenizers": [
        {
            "admission": "qwen",
            "name": "qwen3",
            "models": ["Qwen/Qwen3-8B", "qwen"],
            "untrustedRoles": ["tool"],
            "reasoningParser": "qwen3",
            "toolCallParser": "qwen25",
        },
        {"admission": "llama", "chat": False},
    ],
    "unadmitted": "Refuse",
    "upstream": {
        "service": {"name": "sglang", "port": 30000, "namespace": "models"},
        "protocol": "HTTP",
        "authSecret": {"name": "sglang-key", "key": "api-key"},
        "timeouts": {"connect": "2s", "firstByte": "5m", "idle": "90s", "total": "1h"},
    },
    "replicas": 3,
    "autoscaling": {
        "minReplicas": 2,
        "maxReplicas": 10,
        "targetCPUUtilizationPercentage": 60,
        "metric": {"name": "toktier_waiting", "averageValue": "8"},
    },
    "resources": {"requests": {"cpu": "1000m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
    "gpu": {"mode": "Required", "resourceName": "nvidia.com/gpu", "count": 1},
    "sessions": {"ttl": "30m", "budget": "2Gi", "tenantBudget": "512Mi", "keepText": False},
    "shadow": {"rate": 0.1, "queue": 64, "queueBytes": "64Mi", "samples": True, "redact": True, "process": False},
    "routing": {"threads": 2, "waiting": 32},
    "limits": {"requests": 100, "bodyTimeout": "30s", "keepAlive": "60s"},
    "telemetry": {"otlpEndpoint": "collector.monitoring:4317", "otlpInsecure": True, "traceRatio": 0.5},
    "security": {
        "tokensSecret": {"name": "tokens", "key": "digests"},
        "openMetrics": False,
        "anonymousTenant": "nobody",
        "tls": {
            "secretName": "chat-tls",
            "clientCA": {"configMap": {"name": "clients", "key": "ca.crt"}},
            "tenantFrom": "uri",
            "clients": [{"name": "spiffe://prod/chat", "tenant": "tier", "roles": ["peer"]}],
            "serverName": "tier.example",
        },
    },
    "service": {
        "type": "LoadBalancer",
        "annotations": {"example.com/internal": "true"},
        "sessionAffinity": "ClientIP",
        "ports": {"http": 80, "grpc": 50051},
    },
    "gateway": {"parentRefs": [{"name": "public", "namespace": "gateways"}], "hostnames": ["chat.example"]},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "agents"}}}]},
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": "25%"},
    "topologySpread": {"mode": "Hard", "topologyKey": "topology.kubernetes.io/zone"},
    "priorityClassName": "serving",
    "rollout": {"canary": True, "canaryHold": "1m"},
    "drain": {"handOver": "30s", "linger": "7s"},
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "podTemplate": {
        "metadata": {"labels": {"team": "serving"}, "annotations": {"example.com/scrape": "yes"}},
        "env": [{"name": "MALLOC_ARENA_MAX", "value": "2"}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "runtimeClassName": "nvidia",
    },
}
