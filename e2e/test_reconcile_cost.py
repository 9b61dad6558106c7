"""What many custom resources in one namespace cost: the time until all is as it should be, and the CPU from then on.

A real control plane and the operator's own process. The node is a fake one, whose Jobs publish by the tier's own code a
result that was made up: no pod unpacks it. Figures are in build/reconcile-cost.json, by the number of resources.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent / "cluster"))
sys.path.insert(0, str(Path(__file__).parent / "operated"))

from fixtures import started_api_tier
from kube import condition
from onenode.api_tier import free_ports
from onenode.fake_node import FakeNode, client
from onenode.kubernetes import Kubernetes
from toktier_operator.config import Config
from toktier_tier.admission_job.bundle import pack
from toktier_tier.admission_job.publishing import objects_of
from toktier_tier.admission_job.request import AdmissionRequest, read_request
from toktier_tier.admission_job.result import bundle_document, result_document
from toktier_tier.admission_job.running import BUNDLE, RESULT

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "build" / "reconcile-cost.json"
NAMESPACE = "many"
SOURCES = 20
CONVERGE_S = 600.0
QUIET_S = 5.0
STEADY_SHARE = 0.01
"""Of one core."""
RESYNC_S = Config("").resync_s
SHORT_RESYNC_S = 25.0
START = """
import dataclasses, sys
from toktier_operator import __main__ as program
read = program.read
program.read = lambda environ: dataclasses.replace(read(environ), resync_s=float(sys.argv[1]))
sys.exit(program.main())
"""
"""`python -m toktier_operator`, but for how often it lists everything, which its users have no setting for."""
TICKS = os.sysconf("SC_CLK_TCK")
RESOURCES = {"tokenizeradmissions": "TokenizerAdmission", "toktiers": "TokTier"}


@dataclass(frozen=True)
class Operator:
    process: subprocess.Popen[bytes]
    metrics: int
    log: Path

    @property
    def cpu_s(self) -> float:
        """User and system time of all its threads."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    @property
    def listed(self) -> int:
        """How often it has listed everything."""
        return self.log.read_text().count("listed everything")

    @property
    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def reconciles(self) -> dict[str, int]:
        """By result, of both kinds, since its start. None before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        found: dict[str, int] = {}
        for line in lines:
            if line.startswith("toktier_operator_reconciles_total{"):
                result = line.partition('result="')[2].partition('"')[0]
                found[result] = found.get(result, 0) + int(float(line.rpartition(" ")[2]))
        return found


@contextmanager
def operator(kubernetes: Kubernetes, log: Path, resync_s: float = RESYNC_S) -> Iterator[Operator]:
    metrics, health = free_ports(2)
    environment = kubernetes.environment() | {
        "TOKTIER_TIER_IMAGE": "toktier:none",
        "TOKTIER_METRICS_PORT": str(metrics),
        "TOKTIER_HEALTH_PORT": str(health),
    }
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(resync_s)], env=environment, stdout=stream, stderr=stream
        )
    try:
        yield Operator(process, metrics, log)
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(timeout=30)


@dataclass(frozen=True)
class Publisher:
    """What a pod of an admission's Job leaves behind."""

    api: httpx.Client

    def __call__(self, pod: Json) -> bool:
        containers = pod["spec"]["containers"]
        variables = {each["name"]: each.get("value") for each in containers[0]["env"]}
        request = read_request(str(variables["TOKTIER_ADMISSION_REQUEST"]))
        with tempfile.TemporaryDirectory() as folder:
            found(request, Path(folder))
            objects = objects_of(request, Path(folder))
        for document in objects:
            path = f"/api/v1/namespaces/{request.namespace}/configmaps"
            answer = self.api.post(path, params={"fieldManager": "toktier-admission"}, json=document)
            if answer.status_code not in (201, 409):
                answer.raise_for_status()
        return True


def found(request: AdmissionRequest, work: Path) -> None:
    """A verdict for a tokenizer that nobody loads, as `toktierctl admission run` would leave it in `work`."""
    tokenizer = json.dumps({"made up for": request.name}).encode()
    bundle = pack({"snapshot/tokenizer.json": tokenizer, "report.json": b"{}"})
    sha256 = hashlib.sha256(tokenizer).hexdigest()
    encoder = {"name": "gigatoken", "version": "0", "verdict": "Admitted", "reason": "", "checks": 1000}
    rest = {
        "verdict": "Admitted",
        "sha256": sha256,
        "fingerprint": sha256,
        "encoder": encoder["name"],
        "rule": {"kind": "classes", "digest": sha256, "summary": "made up"},
        "encoders": [encoder | {"divergences": 0, "unsafeCodePoints": 0}],
        "checks": 1000,
        "characters": 100_000,
        "bundle": bundle_document(request.name, bundle),
    }
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = result_document(request, outcome="Completed", error=None, rest=rest, started=now, finished=now)
    (work / BUNDLE).write_bytes(bundle)
    (work / RESULT).write_text(json.dumps(result))


def manifests(count: int) -> Iterator[Json]:
    for index in range(count):
        source = {"configMap": {"name": f"source-{index % SOURCES}", "key": "tokenizer.json"}}
        yield custom("TokenizerAdmission", f"a{index}", {"source": source})
        yield custom("TokTier", f"t{index}", {"replicas": 1, "tokenizers": [{"admission": f"a{index}"}]})


def custom(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "toktier.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def settled(body: Mapping[str, Any]) -> bool:
    """Whether it is Admitted, or rolled out, at its present generation."""
    status, spec = body.get("status") or {}, body["spec"]
    if status.get("observedGeneration") != body["metadata"]["generation"]:
        return False
    if "source" in spec:
        return status.get("phase") == "Admitted" and status.get("run") is None
    said = {kind: condition(dict(body), kind).get("status") for kind in ("Available", "Progressing", "Degraded")}
    everything = status.get("readyReplicas") == status.get("updatedReplicas") == spec["replicas"]
    return everything and said == {"Available": "True", "Progressing": "False", "Degraded": "False"}


def wait_until_settled(api: httpx.Client, count: int, began: float, running: Operator) -> dict[str, float]:
    """Seconds since `began` until all of a kind were, by kind."""
    taken: dict[str, float] = {}
    while len(taken) < len(RESOURCES):
        time.sleep(0.5)
        assert running.process.poll() is None, running.log.read_text()
        for plural, kind in RESOURCES.items():
            if kind in taken:
                continue
            path = f"/apis/toktier.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}"
            items = api.get(path).raise_for_status().json()["items"]
            done = sum(map(settled, items))
            if done == count:
                taken[kind] = round(time.monotonic() - began, 1)
            assert time.monotonic() - began < CONVERGE_S, (
                f"{done} of {count} {plural}; {running.log.read_text()[-5000:]}"
            )
    return taken


def wait_for_quiet(running: Operator, within_s: float = 120.0) -> None:
    """Until the second look after the start is over, and nothing was listed or reconciled for some seconds."""
    began = since = time.monotonic()
    seen = running.listed, running.reconciles()
    while seen[0] < 2 or time.monotonic() - since < QUIET_S:
        assert time.monotonic() - began < within_s, f"no rest: {seen}; {running.log.read_text()[-5000:]}"
        time.sleep(0.5)
        if (now := (running.listed, running.reconciles())) != seen:
            seen, since = now, time.monotonic()


def steady_state(running: Operator, window_s: float) -> Json:
    before, cpu_s, began = sum(running.reconciles().values()), running.cpu_s, time.monotonic()
    time.sleep(window_s)
    used_s, elapsed_s = running.cpu_s - cpu_s, time.monotonic() - began
    after = sum(running.reconciles().values())
    return {
        "share_of_a_core": round(used_s / elapsed_s, 5),
        "cpu_s": round(used_s, 2),
        "window_s": round(elapsed_s, 1),
        "reconciles": after - before,
        "resident_mib": round(running.resident_mib),
    }


def resyncs(running: Operator) -> Json:
    """What one of them costs, of a process that does one every `SHORT_RESYNC_S`, and what its start did."""
    wait_for_quiet(running, CONVERGE_S)
    figures: Json = {"start_cpu_s": round(running.cpu_s, 2)}
    cpu_s, reconciles, done = running.cpu_s, sum(running.reconciles().values()), running.listed
    deadline = time.monotonic() + 4 * SHORT_RESYNC_S + 60
    while running.listed < done + 2:
        assert time.monotonic() < deadline, running.log.read_text()[-5000:]
        time.sleep(0.5)
    wait_for_quiet(running)
    count = running.listed - done
    figures["resyncs"] = count
    figures["resync_cpu_s"] = round((running.cpu_s - cpu_s) / count, 2)
    figures["resync_reconciles"] = round((sum(running.reconciles().values()) - reconciles) / count)
    return figures


def measure(count: int, window_s: float, folder: Path, *, restart: bool) -> Json:
    with started_api_tier(fake_node=False) as tier:
        kubernetes = tier.kubernetes
        kubernetes.kubectl("apply", f"--filename={ROOT / 'manifests' / 'crds'}")
        for crd in RESOURCES:
            kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{crd}.toktier.dev", "--timeout=30s")
        kubernetes.kubectl("create", "namespace", NAMESPACE)
        kubernetes.wait_for_namespace(NAMESPACE)
        sources = [
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": f"source-{index}"}}
            | {"data": {"tokenizer.json": "{}"}}
            for index in range(SOURCES)
        ]
        kubernetes.apply(*sources, namespace=NAMESPACE)
        with client(tier.kubeconfig) as api, FakeNode(tier.kubeconfig, run=Publisher(api)):
            figures: Json = {"load_before": os.getloadavg()[0]}
            with operator(kubernetes, folder / "operator.log") as running:
                began = time.monotonic()
                kubernetes.apply(*manifests(count), namespace=NAMESPACE)
                figures["apply_s"] = round(time.monotonic() - began, 1)
                figures["converge_s"] = wait_until_settled(api, count, began, running)
                figures["converge_cpu_s"] = round(running.cpu_s, 2)
                figures["converge_reconciles"] = running.reconciles()
                wait_for_quiet(running)
                figures["steady"] = steady_state(running, window_s)
                figures["all_reconciles"] = running.reconciles()
            if restart:
                with operator(kubernetes, folder / "restarted.log", resync_s=SHORT_RESYNC_S) as running:
                    figures["restarted"] = resyncs(running)
            for plural in RESOURCES:
                path = f"/apis/toktier.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}"
                assert sum(map(settled, api.get(path).json()["items"])) == count
    figures["load_after"] = os.getloadavg()[0]
    return figures


def keep(count: int, figures: Json) -> None:
    FIGURES.parent.mkdir(exist_ok=True)
    before = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    FIGURES.write_text(json.dumps(before | {str(count): figures}, indent=1))
    print(json.dumps(figures, indent=1))


def judge(figures: Json) -> None:
    steady = figures["steady"]
    assert steady["share_of_a_core"] < STEADY_SHARE, figures
    assert steady["reconciles"] == 0, figures
    assert figures["all_reconciles"].keys() <= {"ok", "conflict"}, figures


def test_twenty_of_each_come_to_rest(tmp_path: Path) -> None:
    figures = measure(20, 15.0, tmp_path, restart=False)
    keep(20, figures)
    judge(figures)


@pytest.mark.slow
@pytest.mark.timeout(2 * CONVERGE_S)
def test_two_hundred_of_each_come_to_rest(tmp_path: Path) -> None:
    figures = measure(200, 60.0, tmp_path, restart=True)
    steady, restarted = figures["steady"], figures["restarted"]
    all_in_all = steady["share_of_a_core"] + restarted["resync_cpu_s"] / RESYNC_S
    figures["share_with_resyncs"] = round(all_in_all, 5)
    keep(200, figures)
    judge(figures)
    assert restarted["resync_reconciles"] == 2 * 200, figures
    assert all_in_all < STEADY_SHARE, figures
