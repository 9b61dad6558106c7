"""What the chart makes of several sets of values, by both versions of Helm: compared whole with files that were read.

TOKTIER_GOLDEN=write writes the files anew.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa

FOLDER = Path(__file__).parent
CASES = sorted(path.stem for path in (FOLDER / "cases").glob("*.yaml"))


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "cases" / f"{name}.yaml").read_text())
    return found


def comparable(found: list[dict[str, Any]]) -> str:
    """Without what is random (certificates) and what other tests compare (files that are put in whole)."""
    for each in found:
        if each["kind"] == "ConfigMap":
            each["data"] = dict.fromkeys(each["data"], "(a file)")
    wanted = [each for each in found if each["kind"] != "CustomResourceDefinition"]
    wanted.sort(key=lambda each: (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]))
    text = yaml.safe_dump_all(wanted, sort_keys=True)
    text = re.sub(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]+", "(PEM)", text)
    return re.sub(r"(toktier.dev/(certificate|renew-after)): .*", r"\1: (of the certificate)", text)


@pytest.mark.parametrize("name", CASES)
def test_the_chart_gives_what_was_read(helm: Any, name: str) -> None:
    path = FOLDER / "golden" / f"{name}.yaml"
    text = comparable(helm.template(case(name)))
    if os.environ.get("TOKTIER_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_chart_passes_helms_own_lint(helm: Any, name: str, tmp_path: Path) -> None:
    chart = FOLDER.parents[1] / "helm" / "toktier-operator"
    assert "0 chart(s) failed" in helm.run(
        "lint", "--strict", str(chart), "--values", str(FOLDER / "cases" / f"{name}.yaml")
    )


def test_every_workload_runs_as_nobody_on_a_read_only_root(rendered: Callable[..., Any]) -> None:
    pods = 0
    for name in CASES:
        for each in rendered(case(name)):
            if each["kind"] not in ("Deployment", "Pod"):
                continue
            spec = each["spec"]["template"]["spec"] if each["kind"] == "Deployment" else each["spec"]
            pods += 1
            assert spec["automountServiceAccountToken"] is (each["kind"] == "Deployment")
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["runAsUser"] == 65532
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in spec["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                assert container["resources"]["limits"]["memory"]
                assert container["resources"]["requests"]
    assert pods == 2 * len(CASES)


def test_the_certificate_of_the_chart_is_what_the_api_server_is_told_to_trust(
    rendered: Callable[..., Any], one_of: Callable[..., Any]
) -> None:
    found = rendered()
    secret = one_of(found, "Secret")
    webhooks = [
        hook
        for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
        for hook in one_of(found, kind)["webhooks"]
    ]
    assert {hook["clientConfig"]["caBundle"] for hook in webhooks} == {secret["data"]["ca.crt"]}
    pem = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    authority, certificate = (x509.load_pem_x509_certificate(pem[key]) for key in ("ca.crt", "tls.crt"))
    key = authority.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert certificate.signature_hash_algorithm is not None
    key.verify(
        certificate.signature,
        certificate.tbs_certificate_bytes,
        padding.PKCS1v15(),
        certificate.signature_hash_algorithm,
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (service,) = {
        (hook["clientConfig"]["service"]["name"], hook["clientConfig"]["service"]["namespace"]) for hook in webhooks
    }
    assert f"{service[0]}.{service[1]}.svc" in names.get_values_for_type(x509.DNSName)
    lasts = certificate.not_valid_after_utc.timestamp() - int(
        secret["metadata"]["annotations"]["toktier.dev/renew-after"]
    )
    assert 29 * 86400 < lasts < 31 * 86400


def test_two_releases_of_one_name_share_no_object(helm4: Any) -> None:
    def names(namespace: str) -> set[tuple[str, str, str]]:
        found = helm4.template({"crds": {"install": False}}, "--namespace", namespace)
        return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in found}

    assert names("one") & names("other") == set()


@pytest.mark.parametrize("keep", [True, False])
def test_crds_are_those_of_the_manifests_and_stay_if_they_are_to(rendered: Callable[..., Any], keep: bool) -> None:
    sources = [
        yaml.safe_load(path.read_text()) for path in sorted((FOLDER.parents[1] / "manifests/crds").glob("*.yaml"))
    ]
    found = [each for each in rendered({"crds": {"keep": keep}}) if each["kind"] == "CustomResourceDefinition"]
    for each in found:
        assert each["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None) == (
            "keep" if keep else None
        )
        if not each["metadata"].get("annotations", True):
            del each["metadata"]["annotations"]
    assert len(found) == 2
    assert sorted(found, key=lambda each: each["metadata"]["name"]) == sorted(
        sources, key=lambda each: each["metadata"]["name"]
    )


def test_crds_can_be_left_out(rendered: Callable[..., Any]) -> None:
    kinds = {each["kind"] for each in rendered({"crds": {"install": False}})}
    assert "CustomResourceDefinition" not in kinds


def test_kopfs_definitions_come_before_the_peering(helm: Any, one_of: Callable[..., Any]) -> None:
    found = helm.template({"replicas": 2}, "--include-crds")
    peering = one_of(found, "ClusterKopfPeering")
    assert [each["metadata"]["name"] for each in found[:2]] == ["clusterkopfpeerings.kopf.dev", "kopfpeerings.kopf.dev"]
    deployment = one_of(found, "Deployment")
    environment = {
        each["name"]: each.get("value") for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment["TOKTIER_PEERING"] == peering["metadata"]["name"]
    assert "TOKTIER_PRIORITY" not in environment  # replicas of one priority pause each other
