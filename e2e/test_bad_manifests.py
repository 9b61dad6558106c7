"""Wrong manifests on a real API server: each is refused by schema, CEL or webhook, with words that say what to change.

The API tier alone: nothing runs but the control plane and the operator's own process, which serves the webhooks of the
chart's configurations.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "cluster"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controller.wrong_manifests import Wrong, wrong_manifests
from onenode.api_tier import ApiTier, free_ports
from onenode.kubernetes import Kubernetes
from onenode.pki import Authority

ROOT = Path(__file__).parents[1]
WRONG = wrong_manifests()
EXAMPLES = sorted((ROOT / "examples" / "operator").glob("*.yaml"))
SERVING_S = 60.0


@dataclass(frozen=True)
class Said:
    accepted: bool
    words: str


@dataclass(frozen=True)
class Api:
    """kubectl, with what it says to its user."""

    kubernetes: Kubernetes

    def send(self, *manifests: dict[str, Any], verb: str = "create", dry: bool = True) -> Said:
        stream = "\n---\n".join(map(json.dumps, manifests))
        command = ["kubectl", verb, "--filename=-", *(["--dry-run=server"] if dry else [])]
        done = subprocess.run(
            command, input=stream, capture_output=True, text=True, env=self.kubernetes.environment(), timeout=60
        )
        return Said(done.returncode == 0, done.stderr)


@contextmanager
def operator(kubernetes: Kubernetes, folder: Path) -> Iterator[int]:
    """The port of its webhooks, once they are served."""
    authority = Authority.make(folder)
    authority.issue("tls", "toktier-operator", hosts=["127.0.0.1"])
    webhooks, metrics, health = free_ports(3)
    environment = kubernetes.environment() | {
        "TOKTIER_TIER_IMAGE": "toktier:none",
        "TOKTIER_WEBHOOK_DIR": str(folder),
        "TOKTIER_WEBHOOK_PORT": str(webhooks),
        "TOKTIER_METRICS_PORT": str(metrics),
        "TOKTIER_HEALTH_PORT": str(health),
    }
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "toktier_operator"], env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SERVING_S
        while True:
            told = (folder / "operator.log").read_text()
            assert process.poll() is None, told
            assert time.monotonic() < deadline, told
            try:
                socket.create_connection(("127.0.0.1", webhooks), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield webhooks
    finally:
        process.terminate()
        process.wait(timeout=30)


def configurations(kubernetes: Kubernetes, port: int, authority: bytes) -> list[dict[str, Any]]:
    """The chart's, called on loopback instead of through a Service."""
    chart = str(ROOT / "helm" / "toktier-operator")
    rendered = kubernetes.helm("template", "toktier", chart, "--show-only=templates/webhooks.yaml")
    found = [each for each in yaml.safe_load_all(rendered) if each["kind"].endswith("WebhookConfiguration")]
    for webhook in (webhook for each in found for webhook in each["webhooks"]):
        url = f"https://127.0.0.1:{port}{webhook['clientConfig']['service']['path']}"
        webhook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
        webhook["failurePolicy"] = "Fail"
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def api(api_tier: ApiTier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("webhooks")
    kubernetes = api_tier.kubernetes
    kubernetes.kubectl("apply", f"--filename={ROOT / 'manifests' / 'crds'}")
    for crd in ("tokenizeradmissions", "toktiers"):
        kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{crd}.toktier.dev", "--timeout=30s")
    with operator(kubernetes, folder) as port:
        webhooks = configurations(kubernetes, port, (folder / "ca.crt").read_bytes())
        try:
            kubernetes.apply(*webhooks)
            found = Api(kubernetes)
            wait_for_webhooks(found)
            yield found
        finally:
            for each in webhooks:
                kubernetes.kubectl("delete", each["kind"], each["metadata"]["name"])
            kubernetes.kubectl("delete", "ta,tt", "--all", "--timeout=60s")


def wait_for_webhooks(api: Api) -> None:
    """Configurations take a moment to be known to the API server."""
    known = next(wrong for wrong in WRONG if wrong.layer == "webhook")
    deadline = time.monotonic() + SERVING_S
    while "denied the request" not in (said := api.send(known.manifest(known.spec))).words:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.kind}: {wrong.case}")
def test_a_wrong_manifest_is_refused_with_words_that_help(api: Api, wrong: Wrong) -> None:
    if wrong.before:
        assert api.send(wrong.manifest(wrong.before), verb="apply", dry=False).accepted
    try:
        said = api.send(wrong.manifest(wrong.spec), verb="apply" if wrong.before else "create")
    finally:
        if wrong.before:
            api.kubernetes.kubectl("delete", wrong.kind, wrong.name)
    assert not said.accepted
    assert wrong.says in said.words
    assert ("denied the request" in said.words) == (wrong.layer == "webhook")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted(api: Api, path: Path) -> None:
    said = api.send(*yaml.safe_load_all(path.read_text()))
    assert said.accepted, said.words
    for line in said.words.splitlines():
        assert line.startswith("Warning: spec."), line


def test_what_is_missing_is_warned_of(api: Api) -> None:
    admission = {"source": {"configMap": {"name": "not-there", "key": "tokenizer.json"}}}
    wrong = Wrong("TokenizerAdmission", "", "", "", admission, name="early")
    assert (
        "Warning: spec.source.configMap: there is no ConfigMap not-there" in api.send(wrong.manifest(admission)).words
    )
    api.kubernetes.kubectl("create", "configmap", "there", "--from-literal=tokenizer.json={}")
    admission["source"]["configMap"]["name"] = "there"
    said = api.send(wrong.manifest(admission))
    assert (said.accepted, said.words) == (True, "")


def test_defaults_of_both_layers_are_stored(api: Api) -> None:
    spec = {
        "tokenizers": [{"admission": "a"}],
        "upstream": {"service": {"name": "sglang", "port": 30000}},
        "autoscaling": {"maxReplicas": 4},
        "security": {"tls": {"secretName": "tls"}},
    }
    api.send(Wrong("TokTier", "", "", "", spec, name="defaulted").manifest(spec), dry=False)
    stored = api.kubernetes.get("toktier", "defaulted")["spec"]
    assert stored["upstream"]["service"] == {"name": "sglang", "port": 30000, "namespace": "default", "scheme": "http"}
    assert stored["autoscaling"] == {"minReplicas": 2, "maxReplicas": 4, "targetCPUUtilizationPercentage": 70}
    assert stored["security"]["tls"]["serverName"] == "defaulted.default.svc"
    assert stored["sessions"]["budget"] == "1Gi"


def test_spellings_are_put_right_before_they_are_judged(api: Api) -> None:
    digest = "AEB13307A71ACD8FE81861D94AD54AB689DF773318809EED3CBE794B4492DAE4"
    spec = {"source": {"https": {"url": "https://models.example.com/tokenizer.json", "sha256": f"sha256:{digest}"}}}
    said = api.send(Wrong("TokenizerAdmission", "", "", "", spec, name="spelt").manifest(spec), dry=False)
    assert said.accepted, said.words
    assert api.kubernetes.get("tokenizeradmission", "spelt")["spec"]["source"]["https"]["sha256"] == digest.lower()


def test_a_toktier_scales_and_goes_whatever_its_spec_is(api: Api) -> None:
    """The scale subresource, labels and deletion are never in the way of a webhook."""
    spec: dict[str, Any] = {"tokenizers": [{"admission": "a"}]}
    assert api.send(Wrong("TokTier", "", "", "", spec, name="scaled").manifest(spec), dry=False).accepted
    api.kubernetes.kubectl("scale", "toktier/scaled", "--replicas=3")
    assert api.kubernetes.get("toktier", "scaled")["spec"]["replicas"] == 3
    api.kubernetes.kubectl("label", "tt/scaled", "team=tokens")
    api.kubernetes.kubectl("delete", "tt", "scaled", "--timeout=30s")


def test_kubectl_explains_every_field(api: Api) -> None:
    text = api.kubernetes.kubectl("explain", "toktier.spec.upstream.timeouts.firstByte")
    assert "Until its first byte" in text
    assert "FIELDS" in api.kubernetes.kubectl("explain", "ta.spec.source")
