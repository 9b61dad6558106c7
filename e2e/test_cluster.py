"""The cluster of these tests is a real Kubernetes: it runs pods of our image, balances, validates, survives."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from onenode.api_tier import ApiTier
from onenode.cluster import Cluster
from onenode.kubernetes import CommandFailed, Kubernetes

CONFINED = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
VOCABULARY = {"[UNK]": 0, "hello": 1, "world": 2}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "[UNK]"},
}


def pod(name: str, image: str, command: list[str], **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    container |= {"securityContext": CONFINED} | more.pop("container", {})
    spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1} | more
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def service(name: str, port: int) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": port, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def definition(group: str) -> dict[str, Any]:
    rule = {"rule": "self.most >= self.least", "message": "most must be at least least"}
    numbers = {"type": "object", "properties": {each: {"type": "integer"} for each in ("least", "most")}}
    schema = {"type": "object", "properties": {"spec": numbers | {"x-kubernetes-validations": [rule]}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "ranges", "singular": "range", "kind": "Range"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"ranges.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def refuses_by_cel(kubernetes: Kubernetes) -> None:
    group = "e2e.toktier.dev"
    kubernetes.apply(definition(group))
    try:
        kubernetes.kubectl("wait", "--for=condition=Established", f"crd/ranges.{group}", "--timeout=30s")

        def custom(least: int, most: int) -> dict[str, Any]:
            spec = {"least": least, "most": most}
            return {"apiVersion": f"{group}/v1", "kind": "Range", "metadata": {"name": "r"}, "spec": spec}

        with pytest.raises(CommandFailed, match="most must be at least least"):
            kubernetes.apply(custom(2, 1))
        kubernetes.apply(custom(1, 2))
    finally:
        kubernetes.kubectl("delete", "crd", f"ranges.{group}")


def test_a_pod_of_our_image_runs_confined_and_knows_its_commands(
    cluster: Kubernetes, image: str, namespace: str, step: Callable[[str], Any]
) -> None:
    tokenizer = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tokenizer"}}
    tokenizer |= {"data": {"tokenizer.json": json.dumps(TOKENIZER)}}
    script = (
        "id -u; touch /written 2>/dev/null && echo writable; toktier-operator 2>&1 | grep -o ^toktier-operator:; "
        "toktierctl explain /source/tokenizer.json"
    )
    volume = {"name": "source", "configMap": {"name": "tokenizer"}}
    mount = {"name": "source", "mountPath": "/source", "readOnly": True}
    explain = pod(
        "explain",
        image,
        ["sh", "-c", script],
        restartPolicy="Never",
        volumes=[volume],
        container={"volumeMounts": [mount]},
    )
    with step("pod of our image: applied to ended"):
        cluster.apply(tokenizer, explain, namespace=namespace)
        cluster.kubectl(
            *("wait", f"--namespace={namespace}", "pod/explain", "--timeout=60s"),
            "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}=0",
        )
    said = cluster.kubectl("logs", f"--namespace={namespace}", "explain").splitlines()
    assert said[:2] == ["65532", "toktier-operator:"]
    assert len(said) > 2


def test_a_service_balances_over_its_pods_by_address_and_by_name(
    cluster: Kubernetes, image: str, namespace: str, step: Callable[[str], Any]
) -> None:
    serve = (
        "import http.server, socket\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(socket.gethostname().encode())\n"
        "http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()\n"
    )
    probed = {"readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}}
    servers = [pod(name, image, ["python", "-c", serve], container=probed) for name in ("a", "b")]
    for each in servers:
        each["metadata"]["labels"] = {"app": "names"}
    headless = service("headless", 8000)
    headless["spec"] |= {"clusterIP": "None", "selector": {"app": "names"}}
    with step("two pods and a Service: applied to Ready"):
        cluster.apply(*servers, service("names", 8000), headless, namespace=namespace)
        cluster.kubectl("wait", f"--namespace={namespace}", "pod/a", "pod/b", "--for=condition=Ready", "--timeout=60s")

    with cluster.reach(namespace, "service/names", 8000) as address, step("both pods answered through the Service"):
        answered, deadline = set[bytes](), time.monotonic() + 20
        while len(answered) < (2 if cluster.direct else 1):
            assert time.monotonic() < deadline, answered
            answered.add(urllib.request.urlopen(f"http://{address}/", timeout=5).read())
    assert answered <= {b"a", b"b"}

    ask = f"import socket; print(len(socket.gethostbyname_ex('headless.{namespace}.svc')[2]), end=' ')\n"
    ask += "import urllib.request; print(urllib.request.urlopen('http://names:8000/', timeout=5).read().decode())"
    inside = cluster.kubectl("exec", f"--namespace={namespace}", "a", "--", "python", "-c", ask)
    assert inside.split()[0] == "2"
    assert inside.split()[1] in {"a", "b"}


def test_a_custom_resource_that_breaks_a_rule_is_refused(cluster: Kubernetes) -> None:
    refuses_by_cel(cluster)


def test_the_api_server_comes_back_with_everything(
    cluster: Kubernetes, own_cluster: Cluster | None, namespace: str, step: Callable[[str], Any]
) -> None:
    if own_cluster is None:
        pytest.skip("the API server is the user's")
    with step("API server restarted"):
        own_cluster.restart_api_server()
    assert cluster.get("namespace", namespace)["status"]["phase"] == "Active"


def test_the_api_tier_controls_validates_and_restarts(api_tier: ApiTier, step: Callable[[str], Any]) -> None:
    kubernetes = api_tier.kubernetes
    containers = [{"name": "main", "image": "none"}]
    template = {"metadata": {"labels": {"app": "many"}}, "spec": {"containers": containers}}
    spec = {"replicas": 20, "serviceName": "many", "podManagementPolicy": "Parallel", "template": template}
    spec |= {"selector": {"matchLabels": {"app": "many"}}}
    many = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "many"}, "spec": spec}
    job_spec = {"template": {"spec": {"containers": containers, "restartPolicy": "Never"}}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"}, "spec": job_spec}
    with step("API tier: 20 pods of a StatefulSet Ready"):
        kubernetes.apply(many, service("many", 80), job)
        kubernetes.kubectl("rollout", "status", "statefulset/many", "--timeout=60s")
    kubernetes.kubectl("wait", "job/once", "--for=condition=Complete", "--timeout=60s")
    refuses_by_cel(kubernetes)
    with step("API tier: API server restarted"):
        api_tier.restart_api_server()
    kubernetes.kubectl("scale", "statefulset/many", "--replicas=0")
    deadline = time.monotonic() + 60
    while kubernetes.get("pods", "--selector=app=many")["items"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
