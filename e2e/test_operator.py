"""The operator on a real Kubernetes: real API server, real kubelet, real tier pods, traffic all the while.

One cluster, one installation by the README's own commands; the tests go through its life in order.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent / "operated"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from catalog import path_of
from controller.wrong_manifests import wrong_manifests
from installing import IMAGE, OPERATOR_NAMESPACE, ROOT, install, is_installed, readme_commands
from kube import (
    Json,
    admitted,
    apply,
    cluster_ip,
    condition,
    events,
    get,
    helm,
    items,
    kubectl,
    pods,
    rolled_out,
    until,
)
from onenode.cluster import Cluster
from onenode.kubernetes import CommandFailed, Kubernetes
from toktier_tier.client import TierClient
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from traffic import Traffic

NAMESPACE = "default"
ADMISSION, TOKTIER = "my-model", "chat"
GENUINE = path_of("gpt2-novelai")
CHART = ("toktier-operator", str(ROOT / "helm" / "toktier-operator"), "--namespace", OPERATOR_NAMESPACE)

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("installed")]


def reference_of(data: bytes) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))


def upgraded(word: str) -> bytes:
    """The genuine file with one more added token: other bytes and, in texts with the word, other IDs."""
    document = json.loads(GENUINE.read_bytes())
    fresh = copy.deepcopy(document["added_tokens"][-1])
    number = max([*document["model"]["vocab"].values(), *(each["id"] for each in document["added_tokens"])]) + 1
    fresh |= {"id": number, "content": word, "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    document["added_tokens"].append(fresh)
    return json.dumps(document, ensure_ascii=False).encode()


def put_source(data: bytes) -> None:
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tokenizer"}}
    # Not `apply`: its annotation holds the whole object, and that is too large for one.
    text = json.dumps(manifest | {"binaryData": {"tokenizer.json.gz": packed}})
    kubectl("replace", "--force", "--namespace", NAMESPACE, "--filename", "-", stdin=text)


@pytest.fixture(scope="module")
def installed(
    cluster: Kubernetes, own_cluster: Cluster | None, image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The README's commands, run by a shell where the project's files are, with the image that was loaded."""
    if not cluster.direct:
        pytest.skip(
            "pods and Services must be reached by their addresses from here: TOKTIER_E2E_DIRECT=1 says they are"
        )
    if is_installed():
        return  # a kept cluster that has it already
    folder = tmp_path_factory.mktemp("readme")
    (folder / "tokenizer.json").write_bytes(GENUINE.read_bytes())
    assert install(readme_commands(), folder, image, own_cluster).rstrip().endswith("exact: True")


def traffic(**references: bytes) -> Traffic:
    address = cluster_ip(TOKTIER, NAMESPACE)
    url = f"http://{address}:8080"
    return Traffic(f"{address}:50051", url, ADMISSION, {name: reference_of(data) for name, data in references.items()})


def current_id() -> str:
    found = get("tokenizeradmission", ADMISSION, NAMESPACE)
    assert found is not None
    return str(found["status"]["current"]["id"])


def run_number(id_: str) -> int:
    return int(id_.rpartition("-")[2])


def patch(kind: str, name: str, body: Json, namespace: str = NAMESPACE) -> None:
    kubectl("patch", kind, name, "--namespace", namespace, "--type", "merge", "--patch", json.dumps(body))


# --- the first TokTier ------------------------------------------------------------------------------------------


def test_what_the_readme_installs_serves_exactly() -> None:
    found = admitted(ADMISSION, NAMESPACE)
    assert found["status"]["current"]["verdict"] == "Admitted"
    tier = rolled_out(TOKTIER, NAMESPACE)
    assert {each["state"] for each in tier["status"]["snapshots"]} == {"Serving"}
    reference, text = reference_of(GENUINE.read_bytes()), "def main():\r\n    return 'naïve 中文 🙂'\n" * 50
    with TierClient(f"{cluster_ip(TOKTIER, NAMESPACE)}:50051") as client:
        session = client.open("first", text)
        patch_ = session.append(" and more's")
        assert patch_.route.value == "repair"
        assert session.ids.tolist() == reference.encode_text(text + " and more's").tolist()
    with traffic(old=GENUINE.read_bytes()).running() as seen:
        time.sleep(3)
    assert seen.clean(), seen
    assert seen.answers["old"] > 20, seen


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    for pod in pods(TOKTIER, NAMESPACE):
        for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"]["drop"] == ["ALL"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    who = f"--as=system:serviceaccount:{NAMESPACE}:{TOKTIER}"
    for verb, what, allowed in (
        ("watch", "endpointslices.discovery.k8s.io", True),
        ("get", f"configmaps/{TOKTIER}-control", True),
        ("patch", f"configmaps/{TOKTIER}-reports", True),
        ("patch", f"configmaps/{TOKTIER}-control", False),
        ("get", "secrets", False),
        ("list", "pods", False),
        ("get", "configmaps", False),
        ("create", "pods", False),
    ):
        assert may(who, verb, what, NAMESPACE) is allowed, (verb, what)
    account = kubectl(
        "get",
        "deployment",
        "--namespace",
        OPERATOR_NAMESPACE,
        "--output",
        "jsonpath={.items[0].spec.template.spec.serviceAccountName}",
    )
    who = f"--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{account}"
    for verb, what in (
        ("delete", "nodes"),
        ("get", "nodes"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
        ("delete", "namespaces"),
        ("delete", "tokenizeradmissions.toktier.dev"),
        ("delete", "toktiers.toktier.dev"),
        ("escalate", "roles.rbac.authorization.k8s.io"),
        ("impersonate", "users"),
        ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
    ):
        assert not may(who, verb, what, NAMESPACE), (verb, what)


def may(who: str, verb: str, what: str, namespace: str) -> bool:
    answer = kubectl("auth", "can-i", verb, what, who, "--namespace", namespace, check=False).strip()
    assert answer in ("yes", "no"), answer
    return answer == "yes"


# --- rollouts ---------------------------------------------------------------------------------------------------


def test_an_upgraded_tokenizer_is_admitted_tried_and_rolled_out_without_a_failed_request() -> None:
    old, new = GENUINE.read_bytes(), upgraded("function")
    before = current_id()
    patch("toktier", TOKTIER, {"spec": {"rollout": {"canaryHold": "5s"}}})  # for this and what follows
    stages: set[str] = set()
    with traffic(old=old, new=new).running() as seen, watching(lambda: stages.add(stage())):
        put_source(new)
        fresh = f"{ADMISSION}-{run_number(before) + 1}"
        found = admitted(ADMISSION, NAMESPACE, id_=fresh)
        rolled_out(TOKTIER, NAMESPACE, id_=fresh)
        seen.answers.clear()
        time.sleep(3)
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])
    assert seen.answers["new"] > 20
    assert not seen.answers["old"]
    assert "Canary" in stages
    (past, *_) = found["status"]["history"]
    assert past["id"] == before
    assert found["status"]["lastRun"]["diff"]["differing"] > 0


def stage() -> str:
    found = get("toktier", TOKTIER, NAMESPACE) or {}
    return str(((found.get("status") or {}).get("rollout") or {}).get("stage", ""))


class watching:
    """Calls `look` all the time beside what is done."""

    def __init__(self, look: Any) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(look,), daemon=True)

    def _run(self, look: Any) -> None:
        while not self._ended.wait(0.3):
            try:
                look()
            except CommandFailed:
                continue

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_a_bad_upgrade_never_serves() -> None:
    """Bytes that no reference takes, and then the right ones again: no pod is touched."""
    before, good = current_id(), upgraded("function")
    uids = {pod["metadata"]["uid"] for pod in pods(TOKTIER, NAMESPACE)}
    document = json.loads(good)
    document["model"]["vocab"] = {"broken": 1}
    with traffic(new=good).running() as seen:
        put_source(json.dumps(document).encode())
        found = until(lambda: refused_upgrade(), 180, "an upgrade that failed")
        assert found["status"]["current"]["id"] == before
        assert condition(found, "Admitted")["status"] == "True"
        put_source(good)
        until(
            lambda: condition(get("tokenizeradmission", ADMISSION, NAMESPACE), "UpToDate").get("status") == "True",
            180,
            "UpToDate",
        )
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])
    assert {pod["metadata"]["uid"] for pod in pods(TOKTIER, NAMESPACE)} == uids


def refused_upgrade() -> Json | None:
    found = get("tokenizeradmission", ADMISSION, NAMESPACE)
    return found if condition(found, "UpToDate").get("reason") in ("UpgradeFailed", "UpgradeRejected") else None


def test_scaling_rolling_and_the_operators_own_restart_fail_no_request() -> None:
    with traffic(new=upgraded("function")).running() as seen:
        kubectl("scale", f"toktier/{TOKTIER}", "--namespace", NAMESPACE, "--replicas", "3")
        until(lambda: ready_replicas() == 3, 120, "three pods")
        kubectl("scale", f"toktier/{TOKTIER}", "--namespace", NAMESPACE, "--replicas", "2")
        until(lambda: len(pods(TOKTIER, NAMESPACE)) == 2 and ready_replicas() == 2, 180, "two pods")
        patch("toktier", TOKTIER, {"spec": {"podTemplate": {"metadata": {"annotations": {"rolled": "once"}}}}})
        until(
            lambda: all(pod["metadata"]["annotations"].get("rolled") for pod in pods(TOKTIER, NAMESPACE)),
            240,
            "new pods",
        )
        rolled_out(TOKTIER, NAMESPACE)
        kubectl("rollout", "restart", "deployment", "--namespace", OPERATOR_NAMESPACE)
        kubectl("rollout", "status", "deployment", "--namespace", OPERATOR_NAMESPACE, "--timeout", "120s")
        rolled_out(TOKTIER, NAMESPACE)
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])


def test_an_upgrade_of_the_chart_admits_anew_and_rolls_without_a_failed_request(own_cluster: Cluster | None) -> None:
    """Another image, with the same libraries in it: once a Job has found that, what is admitted is so there, too."""
    if own_cluster is None:
        pytest.skip("a second name for the image can be given in a cluster of our own only")
    own_cluster.name_image(f"{IMAGE}:0.1.0", f"{IMAGE}:0.1.1")
    before = current_id()
    given = ["--set", "image.tag=0.1.1", "--set", f"tests.toktier={TOKTIER}", "--set", f"tests.namespace={NAMESPACE}"]
    with traffic(old=GENUINE.read_bytes(), new=upgraded("function")).running() as seen:
        helm("upgrade", *CHART, "--reuse-values", "--wait", *given)
        until(lambda: images() == {f"{IMAGE}:0.1.1"}, 300, "pods of the new image")
        rolled_out(TOKTIER, NAMESPACE, id_=before)
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])
    told = helm("test", "toktier-operator", "--namespace", OPERATOR_NAMESPACE, "--logs", within_s=300)
    assert "Succeeded" in told


def images() -> set[str]:
    return {each["image"] for pod in pods(TOKTIER, NAMESPACE) for each in pod["spec"]["containers"]}


def ready_replicas() -> int:
    return int(((get("toktier", TOKTIER, NAMESPACE) or {}).get("status") or {}).get("readyReplicas", 0))


# --- quarantine -------------------------------------------------------------------------------------------------


def test_a_divergence_takes_every_pod_to_the_reference_until_a_new_admission() -> None:
    """One pod gives wrong IDs (planted, and asked alone); the others never saw a wrong one, and follow."""
    data, before = upgraded("function"), current_id()
    planted = [{"name": "TOKTIER_ALLOW_FAULTS", "value": "1"}, {"name": "TOKTIER_FAULT_RATE", "value": "1"}]
    patch("toktier", TOKTIER, {"spec": {"shadow": {"rate": 1}, "podTemplate": {"env": planted}}})
    until(lambda: all(env_of(pod).get("TOKTIER_FAULT_RATE") for pod in pods(TOKTIER, NAMESPACE)), 240, "planted faults")
    rolled_out(TOKTIER, NAMESPACE)
    first, *others = [pod["status"]["podIP"] for pod in pods(TOKTIER, NAMESPACE)]
    assert others
    httpx.post(f"http://{first}:8080/tokenize", json={"prompt": "wrong on purpose " * 200}, timeout=20, trust_env=False)
    seen_at = until(lambda: time.monotonic() if quarantined(first) else None, 60, "the pod's own quarantine")
    for other in others:
        until(lambda other=other: quarantined(other), 30, "another pod's quarantine")
    took_s = time.monotonic() - seen_at
    print(f"\nquarantine: every pod on the reference {took_s:.2f} s after the first")
    assert took_s <= 5.0
    found = until(lambda: phase("Quarantined"), 10, "phase Quarantined")
    assert condition(found, "Quarantined")["reason"] == "DivergenceReported"
    until(lambda: events(NAMESPACE, ADMISSION, "Divergence"), 10, "an Event")
    assert divergences_told() >= 1
    patch("toktier", TOKTIER, {"spec": {"shadow": {"rate": 0.05}, "podTemplate": {"env": None}}})
    with traffic(new=data).running() as seen:
        time.sleep(2)
        kubectl(
            "annotate",
            "tokenizeradmission",
            ADMISSION,
            "--namespace",
            NAMESPACE,
            "toktier.dev/readmit=mended",
            "--overwrite",
        )
        fresh = until(
            lambda: (
                (get("tokenizeradmission", ADMISSION, NAMESPACE) or {})["status"]["phase"] == "Admitted"
                and current_id()
            ),
            240,
            "lifted",
        )
        assert run_number(fresh) > run_number(before)
        rolled_out(TOKTIER, NAMESPACE, id_=fresh)
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])
    for pod in pods(TOKTIER, NAMESPACE):
        assert not quarantined(pod["status"]["podIP"])


def env_of(pod: Json) -> dict[str, str]:
    tier = next(each for each in pod["spec"]["containers"] if each["name"] == "tier")
    return {each["name"]: each.get("value", "") for each in tier.get("env", [])}


def quarantined(address: str) -> bool:
    with TierClient(f"{address}:50051", timeout_s=5) as client:
        return all(snapshot.quarantined for snapshot in client.snapshots())


def phase(wanted: str) -> Json | None:
    found = get("tokenizeradmission", ADMISSION, NAMESPACE)
    return found if ((found or {}).get("status") or {}).get("phase") == wanted else None


def divergences_told() -> float:
    (pod,) = items("pods", OPERATOR_NAMESPACE, "--field-selector", "status.phase=Running")
    metrics = httpx.get(f"http://{pod['status']['podIP']}:9090/metrics", timeout=10, trust_env=False).text
    lines = [line for line in metrics.splitlines() if line.startswith("toktier_operator_divergences_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


# --- robustness -------------------------------------------------------------------------------------------------


def second(name: str, *, replicas: int = 1) -> tuple[Json, Json]:
    admission = {
        "apiVersion": "toktier.dev/v1alpha1",
        "kind": "TokenizerAdmission",
        "metadata": {"name": name},
        "spec": {
            "source": {"configMap": {"name": "tokenizer", "key": "tokenizer.json.gz"}},
            "encoders": [],
            "campaign": {"budget": "1s"},
        },
    }
    toktier = {
        "apiVersion": "toktier.dev/v1alpha1",
        "kind": "TokTier",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "tokenizers": [{"admission": name}]},
    }
    return admission, toktier


def owned(name: str) -> list[str]:
    """Whatever exists of a TokTier and an admission of that name."""
    kinds = (
        "statefulset,service,configmap,secret,serviceaccount,role,rolebinding,poddisruptionbudget,networkpolicy,job,pod"
    )
    return sorted(
        f"{each['kind']}/{each['metadata']['name']}"
        for each in items(kinds, NAMESPACE, "--selector", f"app.kubernetes.io/instance={name}")
    )


def test_edits_by_others_are_put_right() -> None:
    wanted = get("statefulset", TOKTIER, NAMESPACE)
    assert wanted is not None
    patch("statefulset", TOKTIER, {"spec": {"replicas": 1}})
    kubectl("delete", "service", TOKTIER, "--namespace", NAMESPACE)
    kubectl("delete", "poddisruptionbudget", TOKTIER, "--namespace", NAMESPACE)
    until(
        lambda: (get("statefulset", TOKTIER, NAMESPACE) or {})["spec"]["replicas"] == wanted["spec"]["replicas"],
        30,
        "replicas",
    )
    until(lambda: get("service", TOKTIER, NAMESPACE), 30, "the Service")
    until(lambda: get("poddisruptionbudget", TOKTIER, NAMESPACE), 30, "the PodDisruptionBudget")
    rolled_out(TOKTIER, NAMESPACE)


def test_what_is_deleted_midway_leaves_nothing_behind() -> None:
    for wait_s in (0.3, 2.0, 6.0):
        apply(*second("brief"), namespace=NAMESPACE)
        time.sleep(wait_s)
        kubectl("delete", "toktier,tokenizeradmission", "brief", "--namespace", NAMESPACE, "--wait=false")
        until(lambda: not owned("brief"), 90, "nothing is left")


def kills(count: int) -> None:
    """The operator is killed `count` times at random points while objects are made, changed and deleted."""
    chooser = random.Random(1)
    for number in range(count):
        name = f"killed-{number % 3}"
        if number % 6 < 3:
            applied(name)
        else:
            kubectl(
                "delete",
                "toktier,tokenizeradmission",
                name,
                "--namespace",
                NAMESPACE,
                "--wait=false",
                "--ignore-not-found",
            )
        time.sleep(chooser.uniform(0.0, 3.0))
        kubectl("delete", "pod", "--all", "--namespace", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
        kubectl("rollout", "status", "deployment", "--namespace", OPERATOR_NAMESPACE, "--timeout", "120s")
    for number in range(3):
        applied(f"killed-{number}")
    for number in range(3):
        name = f"killed-{number}"
        admitted(name, NAMESPACE)
        rolled_out(name, NAMESPACE)
        runs = [each for each in owned(name) if re.fullmatch(rf"Job/{name}-admit-\d+", each)]
        assert len(runs) <= 1 + count, runs
        settings = [each for each in owned(name) if each.startswith(f"ConfigMap/{name}-settings-")]
        assert len(settings) == 1, settings
        assert len([each for each in owned(name) if each.startswith("StatefulSet/")]) == 1
    for number in range(3):
        name = f"killed-{number}"
        kubectl("delete", "toktier,tokenizeradmission", name, "--namespace", NAMESPACE, "--wait=false")
        until(lambda name=name: not owned(name), 120, f"nothing is left of {name}")


def applied(name: str) -> None:
    """Tried again for as long as no operator is there whose webhooks could be asked."""

    def tried() -> bool:
        apply(*second(name), namespace=NAMESPACE)
        return True

    until(tried, 60, f"{name} applied")


def test_an_operator_that_is_killed_again_and_again_converges() -> None:
    kills(4)


@pytest.mark.slow
def test_an_operator_that_is_killed_fifty_times_converges() -> None:
    kills(50)


@pytest.mark.slow
def test_of_two_operators_one_works_and_the_other_follows() -> None:
    """Both answer webhooks; the one at work is killed, and what is amiss afterwards is put right by the other."""
    helm("upgrade", *CHART, "--reuse-values", "--wait", "--set", "replicas=2")
    until(lambda: sorted(operators_frozen().values()) == [False, True], 90, "one of two at work")
    service_is_put_right()
    for _ in range(2):
        (working,) = (name for name, frozen in operators_frozen().items() if not frozen)
        kubectl("delete", "pod", working, "--namespace", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
        until(webhooks_answer, 15, "webhooks of the one that is left")
        service_is_put_right()
        until(lambda: sorted(operators_frozen().values()) == [False, True], 120, "one of two at work")
    helm("upgrade", *CHART, "--reuse-values", "--wait", "--set", "replicas=1")
    until(lambda: list(operators_frozen().values()) == [False], 90, "the only one at work")
    service_is_put_right()


def operators_frozen() -> dict[str, bool]:
    """Whether each operator's pod that is there and answers leaves the work to another one."""
    found = {}
    for pod in items("pods", OPERATOR_NAMESPACE, "--selector", "app.kubernetes.io/component=operator"):
        if "deletionTimestamp" in pod["metadata"]:
            continue
        try:
            metrics = httpx.get(f"http://{pod['status'].get('podIP')}:9090/metrics", trust_env=False).text
        except (httpx.TransportError, httpx.InvalidURL):
            return {}
        found[pod["metadata"]["name"]] = "\ntoktier_operator_frozen 1" in metrics
    return found


def webhooks_answer() -> bool:
    known = next(wrong for wrong in wrong_manifests() if wrong.layer == "webhook")
    try:
        apply(known.manifest(known.spec), namespace=NAMESPACE)
    except CommandFailed as error:
        return "denied the request" in str(error)
    raise AssertionError("a wrong manifest was taken")


def service_is_put_right() -> None:
    kubectl("delete", "service", TOKTIER, "--namespace", NAMESPACE)
    until(lambda: get("service", TOKTIER, NAMESPACE), 90, "the Service")


def test_nothing_fails_while_the_api_server_restarts(own_cluster: Cluster | None) -> None:
    if own_cluster is None:
        pytest.skip("this cluster's API server isn't ours to restart")
    with traffic(new=upgraded("function")).running() as seen:
        own_cluster.restart_api_server()
        time.sleep(3)
    assert seen.clean(), (seen.failures[:5], seen.wrong[:5])
    patch("toktier", TOKTIER, {"spec": {"drain": {"linger": "6s"}}})
    rolled_out(TOKTIER, NAMESPACE)
