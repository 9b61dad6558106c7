from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
import yaml

from controller.crd_schema import ROOT, closed, defaulted, repeats, schema
from controller.wrong_manifests import Wrong, wrong_manifests
from toktier_operator.api.admission_spec import AdmissionSpec
from toktier_operator.api.rollout import Composition, Served
from toktier_operator.api.structure import SpecError
from toktier_operator.api.toktier_spec import TokTierSpec
from toktier_operator.policies.defaulting import default_admission, default_toktier
from toktier_operator.policies.validation import (
    Findings,
    absent,
    references_of_admission,
    references_of_toktier,
    validate_admission,
    validate_toktier,
)
from toktier_operator.policies.validation.containers import RESERVED_ENV, RESERVED_PATHS, RESERVED_VOLUMES
from toktier_operator.resources import paths
from toktier_operator.resources.owned import Owner
from toktier_operator.resources.volumes import pod_volumes

WRONG = wrong_manifests()
SOURCE: dict[str, Any] = {"configMap": {"name": "tokenizer", "key": "tokenizer.json"}}


def findings(kind: str, spec: dict[str, Any], name: str = "wrong") -> Findings:
    if kind == "TokenizerAdmission":
        return validate_admission(AdmissionSpec.of({"spec": spec}))
    return validate_toktier(TokTierSpec.of({"spec": spec}), name, "default")


def tier(**spec: Any) -> Findings:
    return findings("TokTier", {"tokenizers": [{"admission": "a"}]} | spec)


def fits_the_schema(wrong: Wrong) -> bool:
    spec = schema(wrong.kind)["properties"]["spec"]
    return jsonschema_rs.Draft4Validator(closed(spec)).is_valid(wrong.spec) and not repeats(spec, wrong.spec)


def test_there_are_wrong_manifests_for_every_layer() -> None:
    assert len(WRONG) >= 100
    for kind in ("TokenizerAdmission", "TokTier"):
        assert {wrong.layer for wrong in WRONG if wrong.kind == kind} == {"schema", "cel", "webhook"}
    assert len({(wrong.kind, wrong.case) for wrong in WRONG}) == len(WRONG)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.kind}-{wrong.case}")
def test_each_wrong_manifest_is_for_the_layer_that_refuses_it(wrong: Wrong) -> None:
    """CEL rules run on the API server alone (e2e/test_bad_manifests.py); the other two are shown here as well."""
    assert fits_the_schema(wrong) == (wrong.layer != "schema")
    if wrong.layer == "webhook":
        stored = defaulted(schema(wrong.kind)["properties"]["spec"], wrong.spec)
        assert wrong.says in findings(wrong.kind, stored).refusal


@pytest.mark.parametrize("wrong", [each for each in WRONG if each.layer != "schema"], ids=lambda each: each.case)
def test_what_fits_the_schema_never_surprises_the_operator(wrong: Wrong) -> None:
    """Also where neither CEL nor webhooks are at work: findings, or an error that names the field."""
    path = "spec"
    try:
        findings(wrong.kind, wrong.spec)
    except SpecError as error:
        path = error.path
    assert path.startswith("spec")


def test_every_error_names_a_field_and_says_what_to_do() -> None:
    for wrong in WRONG:
        if wrong.layer == "webhook":
            for error in findings(wrong.kind, wrong.spec).errors:
                path, _, problem = error.partition(": ")
                assert path.startswith("spec.")
                assert len(problem) > 20
                assert any(mark in problem for mark in (";", "(", ":")), error


def test_all_errors_are_told_at_once() -> None:
    found = tier(sessions={"ttl": "0s", "budget": 0}, limits={"keepAlive": "1ms"})
    assert len(found.errors) == 3
    assert found.refusal.count(";") >= 3


def test_examples_are_right() -> None:
    seen = 0
    for path in sorted((ROOT / "examples/operator").glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text()):
            kind = body["kind"]
            if kind in ("TokenizerAdmission", "TokTier"):
                jsonschema_rs.Draft4Validator(closed(schema(kind)["properties"]["spec"])).validate(body["spec"])
                assert findings(kind, body["spec"], body["metadata"]["name"]).errors == ()
                seen += 1
    assert seen >= 8


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"shadow": {"rate": 0}}, "a wrong ID would be noticed by witnesses and probes alone"),
        ({"replicas": 1}, "one pod is all there is"),
        ({"drain": {"linger": "100ms"}}, "less than 1s"),
        ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, "can be drained"),
        ({"autoscaling": {"maxReplicas": 4}}, "resources.requests.cpu, which isn't given"),
        ({"resources": {"limits": {"memory": "1Gi"}}}, "is less than the tokenizers"),
        ({"tokenizers": [{"admission": "a", "chat": False, "untrustedRoles": ["tool"]}]}, "aren't rendered here"),
        ({"upstream": {"urls": ["http://a:1"], "timeouts": {"total": "5m"}}}, "firstByte: 600s is more than total"),
        ({"gateway": {"parentRefs": [{"name": "a"}]}, "security": {"tls": {"secretName": "a"}}}, "BackendTLSPolicy"),
    ],
)
def test_what_may_be_meant_is_a_warning(spec: dict[str, Any], says: str) -> None:
    found = tier(**spec)
    assert found.errors == ()
    assert says in " ".join(found.warnings)
    assert all(len(each) <= 256 for each in found.warnings)


def test_a_plain_toktier_has_nothing_to_be_said_of() -> None:
    assert tier() == Findings()
    assert tier(upstream={"service": {"name": "sglang", "port": 30000}}) == Findings()


def test_an_upstream_of_the_same_name_elsewhere_is_another_one() -> None:
    assert tier(upstream={"service": {"name": "wrong", "port": 1, "namespace": "elsewhere"}}).errors == ()
    assert tier(upstream={"urls": ["http://wrong.elsewhere.svc:1"]}).errors == ()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"encoders": []}, "appends are still repaired"),
        ({"quarantine": {"readmit": "Automatic", "delay": "1s"}}, "less than 1m"),
        (
            {
                "source": {"huggingFace": {"repo": "a/b", "revision": "main"}},
                "readmission": {"onSourceChange": False},
            },
            "main may move",
        ),
    ],
)
def test_warnings_about_admissions(spec: dict[str, Any], says: str) -> None:
    found = findings("TokenizerAdmission", {"source": SOURCE} | spec)
    assert found.errors == ()
    assert says in " ".join(found.warnings)


def test_references_of_a_toktier_are_found_with_their_fields() -> None:
    body = next(iter(yaml.safe_load_all((ROOT / "examples/operator/complete.yaml").read_text())))
    found = {(each.kind, each.name, each.path) for each in references_of_toktier(TokTierSpec.of(body), "models")}
    assert found == {
        ("TokenizerAdmission", "qwen3", "spec.tokenizers[0].admission"),
        ("TokenizerAdmission", "llama-3-1", "spec.tokenizers[1].admission"),
        ("Secret", "sglang", "spec.upstream.authSecret"),
        ("Secret", "tokens", "spec.security.tokensSecret"),
        ("Secret", "tier-tls", "spec.security.tls.secretName"),
        ("ConfigMap", "mesh-ca", "spec.security.tls.clientCA"),
    }


def test_an_upstream_is_looked_for_in_its_own_namespace() -> None:
    spec = {"tokenizers": [{"admission": "a"}], "upstream": {"service": {"name": "b", "port": 1, "namespace": "c"}}}
    found = references_of_toktier(TokTierSpec.of({"spec": spec}), "models")
    assert [(each.kind, each.namespace) for each in found] == [("TokenizerAdmission", "models"), ("Service", "c")]


def test_what_is_missing_is_warned_of_by_name() -> None:
    spec = AdmissionSpec.of({"spec": {"source": SOURCE, "campaign": {"corpora": [{"configMap": {"name": "texts"}}]}}})
    found = absent(references_of_admission(spec, "models"))
    assert found.errors == ()
    assert found.warnings == (
        "spec.source.configMap: there is no ConfigMap tokenizer in namespace models yet",
        "spec.campaign.corpora[0].configMap: there is no ConfigMap texts in namespace models yet",
    )


def test_what_is_reserved_is_what_the_pods_have() -> None:
    body = next(iter(yaml.safe_load_all((ROOT / "examples/operator/complete.yaml").read_text())))
    body["spec"]["podTemplate"] = {}
    served = Served("a", "a", "a-1", "", "", "none", "", ("chunk",))
    made = pod_volumes(Owner("a", "b", "c"), TokTierSpec.of(body), Composition("i", (served,)), "settings")
    volumes = {each["name"] for each in made.volumes}
    assert {name for name in volumes if not name.startswith("bundle-")} == set(RESERVED_VOLUMES) - {"bundles"}
    mounted = {each["mountPath"] for each in made.tier} - {paths.TMP}
    assert all(any(place == one or place.startswith(f"{one}/") for one in RESERVED_PATHS) for place in mounted)
    assert {"POD_NAME", "POD_IP", "POD_NAMESPACE", "TOKTIER_BUNDLES"} <= set(RESERVED_ENV)


@pytest.mark.parametrize("body", [{}, {"spec": None}, {"spec": []}, {"spec": {"source": 3, "upstream": "x"}}])
def test_defaulting_leaves_alone_what_it_does_not_understand(body: dict[str, Any]) -> None:
    assert default_admission(body) == {}
    assert default_toktier(body) == {}


def test_spellings_that_everybody_uses_are_understood() -> None:
    digest = "AEB13307A71ACD8FE81861D94AD54AB689DF773318809EED3CBE794B4492DAE4"
    body = {"spec": {"source": {"https": {"url": "https://a/b", "sha256": f"sha256:{digest}"}}}}
    assert default_admission(body) == {"spec": {"source": {"https": {"sha256": digest.lower()}}}}
    hub = {"spec": {"source": {"huggingFace": {"repo": "https://huggingface.co/Qwen/Qwen3-8B/", "revision": "main"}}}}
    assert default_admission(hub) == {"spec": {"source": {"huggingFace": {"repo": "Qwen/Qwen3-8B"}}}}


def test_defaults_follow_from_other_fields_and_only_once() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "tier", "namespace": "models"},
        "spec": {
            "tokenizers": [{"admission": "a"}],
            "upstream": {"service": {"name": "sglang", "port": 30000}},
            "autoscaling": {"maxReplicas": 4},
            "security": {"tls": {"secretName": "tls"}},
        },
    }
    changes = default_toktier(body)
    assert changes == {
        "spec": {
            "upstream": {"service": {"namespace": "models"}},
            "autoscaling": {"targetCPUUtilizationPercentage": 70},
            "security": {"tls": {"serverName": "tier.models.svc"}},
        }
    }
    body["spec"]["upstream"]["service"] |= {"namespace": "models"}
    body["spec"]["autoscaling"] |= {"targetCPUUtilizationPercentage": 70}
    body["spec"]["security"]["tls"] |= {"serverName": "tier.models.svc"}
    assert default_toktier(body) == {}


def test_a_metric_needs_no_cpu() -> None:
    spec = {"autoscaling": {"maxReplicas": 4, "metric": {"averageValue": "16"}}}
    assert default_toktier({"metadata": {}, "spec": spec}) == {}
