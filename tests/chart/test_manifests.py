"""What `kubectl apply -k` applies is what the chart gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def built(helm4: Any, folder: str) -> list[dict[str, Any]]:
    text = helm4.run("kustomize", str(ROOT / folder), program="kubectl")
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (only,) = (each for each in found if each["kind"] == kind)
    return only


def test_the_manifests_are_what_the_chart_gives(helm: Any) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "manifests"), "--check", str(helm.folder / "helm")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_charts_crds_are_the_manifests(helm4: Any) -> None:
    source, copy = ROOT / "manifests" / "crds", ROOT / "helm" / "toktier-operator" / "files" / "crds"
    names = sorted(path.name for path in source.glob("*.yaml"))
    assert names == sorted(path.name for path in copy.glob("*.yaml")) != []
    for name in names:
        assert (source / name).read_bytes() == (copy / name).read_bytes()


def test_plain_manifests_hold_the_operator_its_crds_and_nothing_of_helms(helm4: Any) -> None:
    found = built(helm4, "manifests")
    assert sorted({each["kind"] for each in found}) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Deployment",
        "Namespace",
        "Service",
        "ServiceAccount",
    ]
    for each in found:
        assert each["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") != "Helm"
        assert not [name for name in each["metadata"].get("annotations", {}) if name.startswith("helm.sh/")]
    assert of_kind(found, "ClusterRole")["rules"] == of_kind(helm4.template(), "ClusterRole")["rules"]


def test_with_cert_manager_the_deployment_is_the_charts(helm4: Any) -> None:
    found = built(helm4, "manifests/cert-manager")
    charts = helm4.template({"webhooks": {"certificate": {"from": "cert-manager"}}})
    assert (
        of_kind(found, "Deployment")["spec"]["template"]["spec"]
        == of_kind(charts, "Deployment")["spec"]["template"]["spec"]
    )
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        assert of_kind(found, kind)["webhooks"] == of_kind(charts, kind)["webhooks"]
        namespace, name = of_kind(found, kind)["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].split("/")
        certificate = of_kind(found, "Certificate")
        assert (certificate["metadata"]["namespace"], certificate["metadata"]["name"]) == (namespace, name)


def test_another_image_is_also_that_of_pods_and_jobs(helm4: Any, tmp_path: Path) -> None:
    for folder in ("", "cert-manager"):
        path = tmp_path / "manifests" / folder / "kustomization.yaml"
        subprocess.run(["cp", "-r", str(ROOT / "manifests"), str(tmp_path)], check=True)
        path.write_text(path.read_text().replace("newName: toktier,", "newName: registry.example/toktier,"))
        text = helm4.run("kustomize", str(path.parent), program="kubectl")
        (deployment,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert container["image"] == environment["TOKTIER_TIER_IMAGE"] == "registry.example/toktier:0.1.0"
