"""The objects of a TokTier as golden files, and what they say held against what the tier itself reads.

`TOKTIER_WRITE_GOLDEN=1` writes the files anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.tiers import FULL_SPEC, IMAGE, OWNER, composition, served, spec_of
from toktier_operator.api.rollout import Composition
from toktier_operator.api.toktier_spec import TokTierSpec
from toktier_operator.resources import messages, names, paths
from toktier_operator.resources.flow import yaml_lines
from toktier_operator.resources.pods import ADMISSIONS
from toktier_operator.resources.settings import settings_config_map
from toktier_operator.resources.stateful_set import TEMPLATE, replicas_of, stateful_set
from toktier_operator.resources.toktier import Made, optional, surroundings
from toktier_tier.settings import TierSettings, parse_settings

GOLDEN = Path(__file__).parent / "golden"
Json = dict[str, Any]


def full() -> tuple[TokTierSpec, Composition]:
    return spec_of(**FULL_SPEC), Composition(
        IMAGE,
        (
            served(
                "qwen-3",
                name="qwen3",
                models=("Qwen/Qwen3-8B", "qwen"),
                reasoning_parser="qwen3",
                tool_call_parser="qwen25",
                untrusted_roles=("tool",),
            ),
            served("llama-1", render=False),
        ),
    )


def everything(spec: TokTierSpec, made_of: Composition, partition: int = 0) -> list[Json]:
    made = Made.of(OWNER, spec, made_of, "IfNotPresent")
    return [
        messages.control(OWNER, "[]"),
        *surroundings(OWNER, spec),
        messages.peers_secret(OWNER, "made-up"),
        made.settings,
        stateful_set(OWNER, spec, made.template, partition=partition),
    ]


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_the_objects_are_those_of_the_golden_file(name: str) -> None:
    spec, made_of = full() if name == "full" else (spec_of(), composition("qwen-1"))
    found = yaml.safe_dump_all(everything(spec, made_of, partition=2), sort_keys=False, width=120)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("TOKTIER_WRITE_GOLDEN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def settings_of(spec: TokTierSpec, made_of: Composition) -> TierSettings:
    return parse_settings(settings_config_map(OWNER, spec, made_of)["data"][names.SETTINGS_KEY].encode())


def test_the_tier_reads_the_settings_as_they_were_meant() -> None:
    found = settings_of(*full())
    qwen, llama = found.tokenizers
    assert (qwen.name, qwen.models, qwen.admission) == ("qwen3", ("Qwen/Qwen3-8B", "qwen"), "qwen-3")
    assert qwen.source == "/snapshots/qwen-3/snapshot/tokenizer.json"
    assert (qwen.compiled_dir, qwen.chat_template) == ("/snapshots/qwen-3/compiled", "/snapshots/qwen-3/snapshot")
    assert (qwen.sha256, qwen.fingerprint, qwen.untrusted_roles) == ("3" * 64, "3" * 64, ("tool",))
    assert llama.chat_template == ""
    assert found.unadmitted == "refuse"
    assert found.upstream.urls == ("http://sglang.models.svc:30000",)
    assert (found.upstream.connect_s, found.upstream.first_byte_s) == (2.0, 300.0)
    assert found.upstream.api_key_file == "/etc/toktier-upstream/api-key"
    assert (found.sessions.ttl_s, found.sessions.budget_bytes) == (1_800.0, 2 << 30)
    assert found.sessions.tenant_budget_bytes == 512 << 20
    assert found.security.tokens == "/etc/toktier-tokens/digests"
    assert found.security.tls.client_ca == "/etc/toktier-client-ca/ca.crt"
    assert found.security.tls.clients[0].roles == ("peer",)
    assert (found.limits.requests, found.limits.body_s, found.limits.keep_alive_s) == (100, 30.0, 60)
    assert found.pods.endpoint_slices.service == "chat-pods"
    assert (found.pods.drain_s, found.pods.linger_s) == (30.0, 7.0)
    assert found.pods.tls.server_name == "tier.example"
    assert (found.kubernetes.control, found.kubernetes.reports) == ("chat-control", "chat-reports")
    assert (found.threads, found.waiting) == (2, 32)


def test_a_spec_without_anything_gives_the_tiers_own_defaults() -> None:
    found = settings_of(spec_of(), composition("qwen-1"))
    defaults = parse_settings(b"tokenizers: [{name: a, source: b}]")
    assert (found.sessions, found.limits, found.telemetry) == (defaults.sessions, defaults.limits, defaults.telemetry)
    assert (found.shadow, found.security, found.upstream) == (defaults.shadow, defaults.security, defaults.upstream)
    assert (found.threads, found.waiting) == (defaults.threads, defaults.waiting)
    assert found.unadmitted == "reference"


@given(
    st.dictionaries(
        st.sampled_from(["a", "b_s", "c"]),
        st.text() | st.integers() | st.booleans() | st.floats(0, 1e9) | st.lists(st.text(max_size=5), max_size=3),
    )
)
def test_settings_are_read_back_as_they_were_written(settings: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_lines(settings)) == (settings or None)
    nested = {"inner": settings, "list": [settings]}
    assert yaml.safe_load(yaml_lines(nested)) == nested


@pytest.mark.parametrize(("protocol", "urls"), [("SMG", ["worker:50051"]), ("Native", ["10.0.0.1:9", "10.0.0.2:9"])])
def test_grpc_upstreams_are_addresses(protocol: str, urls: list[str]) -> None:
    found = settings_of(spec_of(upstream={"urls": urls, "protocol": protocol}), composition("qwen-1"))
    assert found.upstream.urls == tuple(urls)
    assert found.upstream.protocol == protocol.lower()
    service = {"service": {"name": "sglang", "port": 50051}, "protocol": protocol}
    found = settings_of(spec_of(upstream=service), composition("qwen-1"))
    assert found.upstream.urls == ("sglang.prod.svc:50051",)


def test_what_is_not_admitted_gets_no_compiled_snapshot() -> None:
    found = settings_of(spec_of(), Composition(IMAGE, (served("qwen-1", accelerated=False),)))
    assert found.tokenizers[0].compiled_dir == ""
    assert found.unadmitted == "reference"


def test_every_object_is_collected_with_its_toktier_and_found_by_its_labels() -> None:
    for manifest in everything(*full()):
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "toktier.dev/v1alpha1",
            "kind": "TokTier",
            "name": "chat",
            "uid": OWNER.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        assert manifest["metadata"]["labels"].items() >= names.tier_labels("chat").items()
        assert manifest["metadata"]["namespace"] == "prod"


def pod_of(spec: TokTierSpec, made_of: Composition) -> Json:
    return Made.of(OWNER, spec, made_of, "IfNotPresent").template


def test_mounts_and_the_files_that_settings_name_are_the_same() -> None:
    spec, made_of = full()
    pod, settings = pod_of(spec, made_of)["spec"], settings_of(spec, made_of)
    (tier,), (init,) = pod["containers"], pod["initContainers"]
    volumes = {each["name"] for each in pod["volumes"]}
    assert len(volumes) == len(pod["volumes"])
    for container in (tier, init):
        mounted = [each["mountPath"] for each in container["volumeMounts"]]
        assert len(set(mounted)) == len(mounted)
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
    mounts = [each["mountPath"] for each in tier["volumeMounts"]]
    named = [
        settings.tokenizers[0].source,
        settings.tokenizers[0].compiled_dir,
        settings.upstream.api_key_file,
        settings.security.tokens,
        settings.security.tls.certificate,
        settings.security.tls.client_ca,
        settings.pods.token_file,
        settings.pods.tls.ca,
        settings.shadow.samples,
    ]
    for file in named:
        assert any(file.startswith(f"{mount}/") for mount in mounts), file
    assert tier["args"] == ["serve", "/etc/toktier/tier.yaml"]
    assert [each["mountPath"] for each in init["volumeMounts"] if "bundles" in each["mountPath"]] == [
        "/bundles/qwen-3",
        "/bundles/llama-1",
    ]
    assert "hostPath" not in str(pod)


def test_pods_are_restricted_as_pod_security_demands() -> None:
    for spec, made_of in (full(), (spec_of(), composition("qwen-1"))):
        pod = pod_of(spec, made_of)["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"] + pod["initContainers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_pod_has_the_time_that_draining_takes() -> None:
    spec = spec_of(drain={"handOver": "30s", "linger": "7s"})
    assert pod_of(spec, composition("qwen-1"))["spec"]["terminationGracePeriodSeconds"] >= 30 + 7 + 15


def test_a_template_changes_with_what_pods_are_made_of_and_with_nothing_else() -> None:
    def template(spec: TokTierSpec, made_of: Composition, partition: int = 0) -> str:
        made = Made.of(OWNER, spec, made_of, "IfNotPresent")
        manifest = stateful_set(OWNER, spec, made.template, partition=partition)
        digest: str = manifest["metadata"]["annotations"][TEMPLATE]
        return digest

    base = template(spec_of(), composition("qwen-1"))
    assert re.fullmatch(r"[0-9a-f]{64}", base)
    assert template(spec_of(replicas=7), composition("qwen-1"), 3) == base
    assert template(spec_of(service={"type": "NodePort"}), composition("qwen-1")) == base
    others = [
        template(spec_of(), composition("qwen-2")),
        template(spec_of(), composition("qwen-1", image="other")),
        template(spec_of(shadow={"rate": 1.0}), composition("qwen-1")),
        template(spec_of(priorityClassName="x"), composition("qwen-1")),
    ]
    assert len({base, *others}) == 5


def test_pods_say_which_admissions_they_were_made_with() -> None:
    template = pod_of(*full())
    assert template["metadata"]["annotations"][ADMISSIONS] == "llama-1,qwen-3"
    assert template["metadata"]["labels"]["team"] == "serving"
    assert template["metadata"]["labels"].items() >= names.tier_selector("chat").items()


@pytest.mark.parametrize(
    ("replicas", "found"), [(1, 2), (4, 4), (11, 10), (0, 0)], ids=["too few", "within", "too many", "switched off"]
)
def test_the_autoscalers_bounds_hold_for_the_pods_too(replicas: int, found: int) -> None:
    assert replicas_of(spec_of(replicas=replicas, autoscaling={"minReplicas": 2, "maxReplicas": 10})) == found


def test_what_is_switched_off_is_not_made() -> None:
    spec = spec_of(networkPolicy={"enabled": False}, podDisruptionBudget={"enabled": False})
    assert set(optional(OWNER, spec).values()) == {None}
    kinds = [each["kind"] for each in surroundings(OWNER, spec)]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "Service"]


def test_pods_may_read_one_config_map_and_patch_one_other() -> None:
    (role,) = [each for each in surroundings(OWNER, spec_of()) if each["kind"] == "Role"]
    slices, control, reports = role["rules"]
    assert slices["resources"] == ["endpointslices"]
    assert (control["resourceNames"], control["verbs"]) == (["chat-control"], ["get", "list", "watch"])
    assert (reports["resourceNames"], reports["verbs"]) == (["chat-reports"], ["get", "patch"])


def test_reports_are_never_overwritten() -> None:
    assert not {"data", "binaryData", "immutable"} & messages.reports(OWNER).keys()


def test_a_gpu_is_claimed_by_the_tier_alone_and_only_where_it_is_required() -> None:
    def claims(mode: str) -> list[str | None]:
        pod = pod_of(spec_of(gpu={"mode": mode, "count": 2}), composition("qwen-1"))["spec"]
        both = pod["containers"] + pod["initContainers"]
        return [each["resources"].get("limits", {}).get("nvidia.com/gpu") for each in both]

    assert claims("None") == claims("Preferred") == [None, None]
    assert claims("Required") == ["2", None]
    preferring = pod_of(spec_of(gpu={"mode": "Preferred"}), composition("qwen-1"))["spec"]
    (rule,) = preferring["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert rule["preference"]["matchExpressions"][0]["key"] == "nvidia.com/gpu.present"


def test_the_tier_is_told_of_a_gpu_where_there_may_be_one() -> None:
    def told(mode: str) -> tuple[str, bool, list[str]]:
        spec = spec_of(gpu={"mode": mode})
        text = settings_config_map(OWNER, spec, composition("qwen-1"))["data"][names.SETTINGS_KEY]
        (tier,) = pod_of(spec, composition("qwen-1"))["spec"]["containers"]
        caches = [each["value"] for each in tier["env"] if each["name"] == "TRITON_CACHE_DIR"]
        return settings_of(spec, composition("qwen-1")).gpu.mode, "gpu" in text, caches

    # Off isn't said: settings of tiers without a GPU, and the names of their ConfigMaps, are as ever.
    assert told("None") == ("off", False, [])
    assert told("Preferred") == ("preferred", True, ["/tmp/triton"])
    assert told("Required") == ("required", True, ["/tmp/triton"])


def test_an_admission_that_serves_two_names_is_unpacked_once() -> None:
    spec = spec_of(tokenizers=[{"admission": "qwen"}, {"admission": "qwen", "name": "twin"}])
    pod = pod_of(spec, Composition(IMAGE, (served("qwen-1"), served("qwen-1", name="twin"))))["spec"]
    mounts = [each["mountPath"] for each in pod["initContainers"][0]["volumeMounts"]]
    assert mounts.count(f"{paths.BUNDLES}/qwen-1") == 1
