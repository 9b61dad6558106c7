"""Jobs of admissions: what a stranger's tokenizer gets to see, and what the request says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toktier_operator.api.admission_spec import AdmissionSpec
from toktier_operator.resources.admission_job import Run, account_objects, admission_job

BODY: dict[str, Any] = {
    "apiVersion": "toktier.dev/v1alpha1",
    "kind": "TokenizerAdmission",
    "metadata": {"name": "a", "namespace": "n", "uid": "u"},
}
SOURCES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"configMap": {"name": "s", "key": "t.json"}}, {"path": "/source/t.json"}),
    ({"secret": {"name": "s", "key": "t.json"}}, {"path": "/source/t.json"}),
    ({"persistentVolumeClaim": {"claimName": "c", "path": "models/x/"}}, {"path": "/source/models/x"}),
    ({"persistentVolumeClaim": {"claimName": "c"}}, {"path": "/source"}),
    ({"https": {"url": "https://h/t.json", "sha256": "ab"}}, {"spec": "https://h/t.json#sha256=ab"}),
    ({"huggingFace": {"repo": "o/m", "revision": "main"}}, {"spec": "hf:o/m@main"}),
    ({"sglang": {"address": "worker:30000"}}, {"spec": "sglang-grpc://worker:30000"}),
]


def job_of(spec: dict[str, Any], run: Run | None = None) -> dict[str, Any]:
    body = {**BODY, "spec": spec}
    return admission_job(body, AdmissionSpec.of(body), run or Run(3, "image:1"))


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def request_in(job: dict[str, Any]) -> dict[str, Any]:
    pod = pod_of(job)
    texts = {
        each["value"]
        for container in (*pod["initContainers"], *pod["containers"])
        for each in container["env"]
        if each["name"] == "TOKTIER_ADMISSION_REQUEST"
    }
    (text,) = texts
    request: dict[str, Any] = json.loads(text)
    return request


@pytest.mark.parametrize(("source", "asked"), SOURCES)
def test_each_source_is_mounted_or_named(source: dict[str, Any], asked: dict[str, str]) -> None:
    job = job_of({"source": source})
    request = request_in(job)
    assert request["source"] == asked
    mounts = {each["mountPath"]: each["name"] for each in pod_of(job)["initContainers"][0]["volumeMounts"]}
    assert ("/source" in mounts) == ("path" in asked)
    volumes = {each["name"] for each in pod_of(job)["volumes"]}
    assert set(mounts.values()) <= volumes


def test_the_request_says_all_that_the_contract_has() -> None:
    known = {"sha256": "s", "policy": "none", "toolchain": {}}
    spec = {
        "source": SOURCES[0][0],
        "encoders": ["fastokens"],
        "campaign": {
            "budget": "90s",
            "seed": 7,
            "corpora": [
                {"configMap": {"name": "texts"}},
                {"persistentVolumeClaim": {"claimName": "c", "path": "p"}},
            ],
        },
    }
    request = request_in(job_of(spec, Run(3, "image:1", known=known, previous=("a-0-0", "a-0-1"))))
    assert request == {
        "id": "a-3",
        "name": "a",
        "namespace": "n",
        "uid": "u",
        "run": 3,
        "source": {"path": "/source/t.json"},
        "policy": "none",
        "reference_version": "",
        "encoders": ["fastokens"],
        "budget_s": 90.0,
        "seed": 7,
        "corpora": ["/corpora/0", "/corpora/1/p"],
        "known": known,
        "previous": "/previous",
        "image": "image:1",
    }


def test_the_bundle_that_serves_lies_in_one_folder() -> None:
    job = job_of({"source": SOURCES[0][0]}, Run(1, "i", previous=("a-0-0", "a-0-1")))
    volume = next(each for each in pod_of(job)["volumes"] if each["name"] == "previous")
    names = [each["configMap"]["name"] for each in volume["projected"]["sources"]]
    assert names == ["a-0-0", "a-0-1"]


def test_only_publish_has_a_token_and_nothing_runs_as_root_or_writes_to_its_root() -> None:
    pod = pod_of(job_of({"source": SOURCES[0][0]}))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (campaign,), (publish,) = pod["initContainers"], pod["containers"]
    for container in (campaign, publish):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
    assert "token" not in {each["name"] for each in campaign["volumeMounts"]}
    assert {each["name"] for each in publish["volumeMounts"]} == {"work", "tmp", "token"}
    assert campaign["command"] == ["toktierctl", "admission", "run"]
    assert publish["command"] == ["toktierctl", "admission", "publish"]


def test_the_hub_token_goes_to_the_campaign_alone() -> None:
    hub = {"repo": "o/m", "revision": "main", "tokenSecret": {"name": "hub", "key": "token"}}
    pod = pod_of(job_of({"source": {"huggingFace": hub}, "job": {"env": [{"name": "HTTPS_PROXY", "value": "p"}]}}))
    campaign = {each["name"] for each in pod["initContainers"][0]["env"]}
    publish = {each["name"] for each in pod["containers"][0]["env"]}
    assert campaign - publish == {"HF_TOKEN", "HTTPS_PROXY"}


def test_what_the_spec_says_of_jobs_gets_into_the_pod() -> None:
    job = job_of(
        {
            "source": SOURCES[0][0],
            "job": {
                "ttl": "10m",
                "activeDeadline": "5m",
                "nodeSelector": {"a": "b"},
                "priorityClassName": "low",
                "imagePullSecrets": [{"name": "pull"}],
                "resources": {"limits": {"memory": "2Gi"}},
            },
        }
    )
    assert (job["spec"]["ttlSecondsAfterFinished"], job["spec"]["activeDeadlineSeconds"]) == (600, 300)
    pod = pod_of(job)
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["priorityClassName"] == "low"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["initContainers"][0]["resources"] == {"limits": {"memory": "2Gi"}}


def test_the_account_may_create_and_get_config_maps_and_nothing_else() -> None:
    account, role, binding = account_objects(BODY)
    assert account["automountServiceAccountToken"] is False
    assert role["rules"] == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]}]
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == "a-admit"
    for item in (account, role, binding, job_of({"source": SOURCES[0][0]})):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"], owner["controller"]) == ("u", "TokenizerAdmission", True)
        assert item["metadata"]["labels"]["toktier.dev/admission"] == "a"
