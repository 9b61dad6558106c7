"""The cache, and when something is to be applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from toktier_operator.cluster.kinds import CONFIG_MAP, STATEFUL_SET, kind_of
from toktier_operator.cluster.observed import APPLIED, Observed, needs_apply, with_digest

STATEFUL = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "t", "namespace": "n", "labels": {"a": "b"}},
    "spec": {
        "serviceName": "t-pods",
        "updateStrategy": {"rollingUpdate": {"partition": 0}},
        "template": {
            "spec": {
                "hostNetwork": False,
                "nodeSelector": {},
                "priorityClassName": "",
                "containers": [
                    {
                        "name": "tier",
                        "image": "i",
                        "args": ["serve", "x"],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "env": [{"name": "EMPTY", "value": ""}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                        "volumeMounts": [
                            {"name": "v", "mountPath": "/a"},
                            {"name": "v", "mountPath": "/b"},
                        ],
                    }
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
            }
        },
    },
}


def stored() -> dict[str, Any]:
    """As the API server gives it back: with defaults, canonical quantities, and without what is empty."""
    item = copy.deepcopy(with_digest(STATEFUL))
    item["metadata"] |= {"uid": "u", "resourceVersion": "5", "generation": 1, "managedFields": [{"manager": "m"}]}
    item["spec"]["podManagementPolicy"] = "OrderedReady"
    pod = item["spec"]["template"]["spec"]
    for gone in ("hostNetwork", "nodeSelector", "priorityClassName"):
        del pod[gone]
    pod["restartPolicy"] = "Always"
    container = pod["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["ports"][0]["protocol"] = "TCP"
    container["env"] = [{"name": "EMPTY"}]
    container["resources"]["limits"] = {"cpu": "1", "memory": "1Gi"}
    pod["volumes"][0]["emptyDir"] = {}
    return item


def test_what_the_server_defaulted_needs_no_apply() -> None:
    assert needs_apply(STATEFUL, None)
    assert not needs_apply(STATEFUL, stored())


def test_what_others_added_needs_no_apply() -> None:
    item = stored()
    item["metadata"]["labels"]["other"] = "x"
    pod = item["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "sidecar", "image": "s"})
    pod["containers"][1]["env"].append({"name": "MORE", "value": "1"})
    assert not needs_apply(STATEFUL, item)


def test_another_digest_needs_an_apply() -> None:
    desired = copy.deepcopy(STATEFUL)
    del desired["metadata"]["labels"]  # type: ignore[attr-defined]
    assert needs_apply(desired, stored())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda item: item["metadata"]["annotations"].pop(APPLIED),
        lambda item: item["metadata"]["labels"].update(a="c"),
        lambda item: item["spec"]["updateStrategy"]["rollingUpdate"].update(partition=2),
        lambda item: item["spec"]["template"]["spec"]["containers"][0].update(image="other"),
        lambda item: item["spec"]["template"]["spec"]["containers"][0]["args"].append("y"),
        lambda item: item["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].pop(0),
        lambda item: item["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].update(cpu="2"),
        lambda item: item["spec"]["template"]["spec"].update(hostNetwork=True),
        lambda item: item["spec"]["template"]["spec"].pop("volumes"),
    ],
)
def test_what_somebody_changed_needs_an_apply(spoil: Any) -> None:
    item = stored()
    spoil(item)
    assert needs_apply(STATEFUL, item)


def test_a_rule_that_somebody_added_to_a_network_policy_needs_an_apply() -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "t", "namespace": "n"},
        "spec": {"ingress": [{"ports": [{"port": 8080}]}]},
    }
    item = with_digest(policy)
    assert not needs_apply(policy, item)
    wider = copy.deepcopy(item)
    wider["spec"]["ingress"][0]["ports"].append({"port": 22})
    assert needs_apply(policy, wider)
    wider = copy.deepcopy(item)
    wider["spec"]["ingress"].append({})
    assert needs_apply(policy, wider)


def config_map(name: str, version: int, uid: str = "u", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "resourceVersion": str(version), "uid": uid, "labels": labels}
    return {"metadata": metadata}


def test_the_newest_version_stays_in_whatever_order_they_come() -> None:
    observed = Observed()
    assert observed.put(CONFIG_MAP, config_map("a", 5))
    assert not observed.put(CONFIG_MAP, config_map("a", 4))
    assert not observed.put(CONFIG_MAP, config_map("a", 5))
    found = observed.get(CONFIG_MAP, "n", "a")
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "5"
    assert (found["kind"], kind_of(found)) == ("ConfigMap", CONFIG_MAP)


def test_what_went_does_not_come_back_by_an_old_event() -> None:
    observed = Observed()
    observed.put(CONFIG_MAP, config_map("a", 5))
    assert observed.remove(CONFIG_MAP, "n", "a", "u", "7")
    assert not observed.put(CONFIG_MAP, config_map("a", 6))
    assert observed.put(CONFIG_MAP, config_map("a", 8, uid="v"))
    assert not observed.remove(CONFIG_MAP, "n", "a", "u", "7")
    assert observed.get(CONFIG_MAP, "n", "a") is not None


def test_replacing_drops_what_is_gone_and_keeps_what_is_newer_than_the_list() -> None:
    observed = Observed()
    for name, version in (("gone", 5), ("same", 6), ("newer", 20)):
        observed.put(CONFIG_MAP, config_map(name, version))
    news = observed.replace(CONFIG_MAP, "", [config_map("same", 6), config_map("new", 9)], 10)
    assert sorted(item["metadata"]["name"] for item in news) == ["gone", "new"]
    assert [item["metadata"]["name"] for item in observed.list(CONFIG_MAP)] == ["new", "newer", "same"]


def test_lists_are_of_a_kind_a_namespace_and_labels() -> None:
    observed = Observed()
    observed.put(CONFIG_MAP, config_map("a", 1, x="1"))
    observed.put(CONFIG_MAP, config_map("b", 2, x="1", y="2"))
    observed.put(STATEFUL_SET, config_map("c", 3, x="1"))
    assert [item["metadata"]["name"] for item in observed.list(CONFIG_MAP, "n", {"x": "1"})] == ["a", "b"]
    assert [item["metadata"]["name"] for item in observed.list(CONFIG_MAP, "n", {"x": "1", "y": "2"})] == ["b"]
    assert observed.list(CONFIG_MAP, "other") == []
