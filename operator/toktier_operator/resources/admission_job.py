"""The objects of an admission's runs: a Job a run, and the account that its `publish` container acts by. Pure.

The campaign reads a stranger's tokenizer: it has no token and no API access. What it found, `publish` carries to the
API server, and may do nothing there but create and get ConfigMaps of its namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api.admission_spec import AdmissionSpec, Source
from ..api.references import Resources
from . import names
from .restricted import restricted_container, restricted_pod

Json = dict[str, Any]
REQUEST_VARIABLE = "TOKTIER_ADMISSION_REQUEST"
SOURCE, PREVIOUS, CORPORA, WORK = "/source", "/previous", "/corpora", "/work"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
BACKOFF_LIMIT = 2
CAMPAIGN_REQUESTS = {"cpu": "500m", "memory": "1Gi"}
PUBLISH_RESOURCES = {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


@dataclass(frozen=True, slots=True)
class Run:
    """What a Job is made of beside the admission itself.

    known: of the request. previous: ConfigMaps of the bundle that serves, in order. image: of the run.
    """

    number: int
    image: str
    pull_policy: str = "IfNotPresent"
    known: Mapping[str, Any] | None = None
    previous: tuple[str, ...] = ()


def owner_of(body: Mapping[str, Any]) -> Json:
    """Reference to a custom resource as the controller of what is made for it; it never holds up a deletion."""
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def account_objects(body: Mapping[str, Any]) -> tuple[Json, ...]:
    """ServiceAccount, Role and RoleBinding `A-admit`."""
    metadata = _metadata(body, names.admission_account(body["metadata"]["name"]))
    rbac = "rbac.authorization.k8s.io"
    name, namespace = metadata["name"], metadata["namespace"]
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]}],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )


def admission_job(body: Mapping[str, Any], spec: AdmissionSpec, run: Run) -> Json:
    """Job `A-admit-n`."""
    admission = body["metadata"]["name"]
    metadata = _metadata(body, names.admission_job(admission, run.number))
    metadata["labels"] = {**metadata["labels"], names.RUN: str(run.number)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": max(int(spec.job.active_deadline_s), 1),
            "ttlSecondsAfterFinished": int(spec.job.ttl_s),
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": _pod(body, spec, run)},
        },
    }


def request_of(body: Mapping[str, Any], spec: AdmissionSpec, run: Run) -> Json:
    """TOKTIER_ADMISSION_REQUEST as an object."""
    metadata = body["metadata"]
    return {
        "id": names.admission_id(metadata["name"], run.number),
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "run": run.number,
        "source": _source_of(spec.source),
        "policy": spec.special_token_policy.value,
        "reference_version": spec.reference_version,
        "encoders": list(spec.encoders),
        "budget_s": spec.campaign.budget_s,
        "seed": spec.campaign.seed,
        "corpora": [_joined(f"{CORPORA}/{index}", path) for index, path in enumerate(_corpus_paths(spec))],
        "known": dict(run.known) if run.known is not None else None,
        "previous": PREVIOUS if run.previous else None,
        "image": run.image,
    }


def _metadata(body: Mapping[str, Any], name: str) -> Json:
    return {
        "name": name,
        "namespace": body["metadata"]["namespace"],
        "labels": names.admission_labels(body["metadata"]["name"]),
        "ownerReferences": [owner_of(body)],
    }


def _source_of(source: Source) -> Json:
    for mounted in (source.config_map, source.secret):
        if mounted is not None:
            return {"path": f"{SOURCE}/{mounted.key}"}
    if source.persistent_volume_claim is not None:
        return {"path": _joined(SOURCE, source.persistent_volume_claim.path)}
    if source.https is not None:
        return {"spec": f"{source.https.url}#sha256={source.https.sha256}"}
    if source.hugging_face is not None:
        return {"spec": f"hf:{source.hugging_face.repo}@{source.hugging_face.revision}"}
    assert source.sglang is not None
    return {"spec": f"sglang-grpc://{source.sglang.address}"}


def _joined(folder: str, path: str) -> str:
    return f"{folder}/{path.strip('/')}" if path.strip("/") else folder


def _corpus_paths(spec: AdmissionSpec) -> list[str]:
    claims = (corpus.persistent_volume_claim for corpus in spec.campaign.corpora)
    return [claim.path if claim is not None else "" for claim in claims]


def _pod(body: Mapping[str, Any], spec: AdmissionSpec, run: Run) -> Json:
    job = spec.job
    request = json.dumps(request_of(body, spec, run), sort_keys=True, separators=(",", ":"))
    inputs = _inputs(spec, run)
    common = {
        "image": run.image,
        "imagePullPolicy": job.image_pull_policy or run.pull_policy,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": restricted_container(),
    }
    environment = [{"name": REQUEST_VARIABLE, "value": request}, {"name": "HOME", "value": "/tmp"}]
    scratch = [{"name": "work", "mountPath": WORK}, {"name": "tmp", "mountPath": "/tmp"}]
    pod: Json = {
        "restartPolicy": "Never",
        "serviceAccountName": names.admission_account(body["metadata"]["name"]),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted_pod(),
        "initContainers": [
            {
                "name": "campaign",
                **common,
                "command": ["toktierctl", "admission", "run"],
                "env": [*environment, *_token_variables(spec.source), *map(dict, job.env)],
                "resources": _resources(job.resources),
                "volumeMounts": [
                    *scratch,
                    *({"name": each["name"], "mountPath": path, "readOnly": True} for path, each in inputs),
                ],
            }
        ],
        "containers": [
            {
                "name": "publish",
                **common,
                "command": ["toktierctl", "admission", "publish"],
                "env": environment,
                "resources": PUBLISH_RESOURCES,
                "volumeMounts": [*scratch, {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True}],
            }
        ],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "token", "projected": {"sources": _TOKEN_SOURCES}},
            *(volume for _, volume in inputs),
        ],
    }
    optional = {
        "imagePullSecrets": [{"name": each.name} for each in job.image_pull_secrets],
        "nodeSelector": dict(job.node_selector),
        "tolerations": [dict(each) for each in job.tolerations],
        "affinity": dict(job.affinity) if job.affinity else None,
        "priorityClassName": job.priority_class_name,
    }
    return pod | {key: value for key, value in optional.items() if value}


_TOKEN_SOURCES = [
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {
        "downwardAPI": {
            "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
        }
    },
]


def _resources(asked: Resources) -> Json:
    """Without any, a request that a scheduler can do something with."""
    given = {"requests": dict(asked.requests), "limits": dict(asked.limits)}
    found = {key: value for key, value in given.items() if value}
    return found or {"requests": CAMPAIGN_REQUESTS}


def _token_variables(source: Source) -> list[Json]:
    hub = source.hugging_face
    if hub is None or hub.token_secret is None:
        return []
    reference = {"name": hub.token_secret.name, "key": hub.token_secret.key}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def _inputs(spec: AdmissionSpec, run: Run) -> list[tuple[str, Json]]:
    """(where it is mounted, volume). What isn't there is an empty folder: the campaign then says what it missed."""
    inputs: list[tuple[str, Json]] = []
    source = spec.source
    if source.config_map is not None:
        inputs.append((SOURCE, _config_map("source", source.config_map.name)))
    elif source.secret is not None:
        inputs.append((SOURCE, {"name": "source", "secret": {"secretName": source.secret.name, "optional": True}}))
    elif source.persistent_volume_claim is not None:
        inputs.append((SOURCE, _claim("source", source.persistent_volume_claim.claim_name)))
    for index, corpus in enumerate(spec.campaign.corpora):
        name = f"corpus-{index}"
        if corpus.config_map is not None:
            inputs.append((f"{CORPORA}/{index}", _config_map(name, corpus.config_map.name)))
        elif corpus.persistent_volume_claim is not None:
            inputs.append((f"{CORPORA}/{index}", _claim(name, corpus.persistent_volume_claim.claim_name)))
    if run.previous:
        inputs.append((PREVIOUS, {"name": "previous", "projected": {"sources": _chunks(run.previous)}}))
    return inputs


def _config_map(volume: str, name: str) -> Json:
    return {"name": volume, "configMap": {"name": name, "optional": True}}


def _claim(volume: str, claim: str) -> Json:
    return {"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _chunks(config_maps: Sequence[str]) -> list[Json]:
    return [{"configMap": {"name": name, "optional": True}} for name in config_maps]
