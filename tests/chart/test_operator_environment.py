"""The Deployment gives the operator exactly what `toktier_operator.config` reads, and probes where it listens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, cast

import kopf
import yaml

from toktier_operator import config
from toktier_operator.handlers import webhooks

KOPFS = {"POD_ID"}
LEFT_TO_THE_PROCESS = {"TOKTIER_PRIORITY"}
CHANGED = {
    "image": {"repository": "registry.example/toktier", "tag": "7"},
    "watchNamespaces": ["b", "a"],
    "replicas": 2,
    "webhooks": {"port": 10443},
    "metrics": {"port": 19090},
    "health": {"port": 18081},
}


def container(found: Any) -> dict[str, Any]:
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    result: dict[str, Any] = only
    return result


def environment(found: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(found)["env"] if "value" in each}


def test_the_names_are_those_that_are_read(rendered: Callable[..., Any]) -> None:
    read = set(re.findall(r'"(TOKTIER_\w+)"', inspect.getsource(config)))
    given = {each["name"] for each in container(rendered())["env"]}
    assert given - KOPFS == read - LEFT_TO_THE_PROCESS


def test_defaults_of_the_chart_are_those_of_the_process(rendered: Callable[..., Any]) -> None:
    given = config.read(environment(rendered()))
    plain = config.Config(given.tier_image)
    assert given.namespaces == plain.namespaces == ()
    assert given.peering == plain.peering == ""
    assert given.image_pull_policy == plain.image_pull_policy
    for name in ("webhook_port", "metrics_port", "health_port"):
        assert getattr(given, name) == getattr(plain, name)


def test_values_reach_the_process(rendered: Callable[..., Any]) -> None:
    given = config.read(environment(rendered(CHANGED)))
    assert given.tier_image == "registry.example/toktier:7" == container(rendered(CHANGED))["image"]
    assert given.namespaces == ("a", "b")
    assert given.peering == "toktier-system-toktier-operator"
    assert (given.webhook_port, given.metrics_port, given.health_port) == (10443, 19090, 18081)


def test_ports_and_probes_are_where_it_listens(rendered: Callable[..., Any]) -> None:
    for values in ({}, CHANGED):
        found = rendered(values)
        only, given = container(found), config.read(environment(found))
        ports = {each["name"]: each["containerPort"] for each in only["ports"]}
        assert ports == {"metrics": given.metrics_port, "health": given.health_port, "webhooks": given.webhook_port}
        assert only["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
        targets = {port["targetPort"] for each in found if each["kind"] == "Service" for port in each["spec"]["ports"]}
        assert targets == set(ports)


def test_the_certificate_is_mounted_where_it_is_looked_for(rendered: Callable[..., Any]) -> None:
    found = rendered()
    given = config.read(environment(found))
    mounts = {each["mountPath"]: each["name"] for each in container(found)["volumeMounts"]}
    assert mounts[str(given.webhook_dir)] == "webhooks"
    assert config.read(environment(rendered({"webhooks": {"enabled": False}}))).webhook_dir is None


def test_the_dashboards_and_alerts_are_put_in_whole(rendered: Callable[..., Any], request: Any) -> None:
    found = rendered({"dashboards": {"enabled": True}, "alerts": {"enabled": True}})
    files = request.config.rootpath / "helm" / "toktier-operator" / "files"
    (boards,) = (each for each in found if each["metadata"]["name"].endswith("-dashboards"))
    assert boards["data"] == {"toktier.json": (files / "dashboards" / "toktier.json").read_text()}
    (rule,) = (each for each in found if each["kind"] == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((files / "alerts.yaml").read_text())


def test_the_api_server_asks_where_the_operator_answers(rendered: Callable[..., Any]) -> None:
    """Paths are Kopf's handler ids; each is asked about its own kind, when it is made and when it is changed."""
    registry = kopf.OperatorRegistry()
    webhooks.register(registry, cast(webhooks.Finder, None))
    answered = {}
    for handler in registry._webhooks.get_all_handlers():
        assert handler.selector is not None
        word = (
            "MutatingWebhookConfiguration" if handler.reason.value == "mutating" else "ValidatingWebhookConfiguration"
        )
        answered[f"/{handler.id}"] = (word, handler.selector.any_name, set(handler.operations or ()))
    asked = {}
    for each in rendered():
        for hook in each.get("webhooks", ()):
            (rule,) = hook["rules"]
            assert (rule["apiGroups"], rule["apiVersions"]) == (["toktier.dev"], ["v1alpha1"])
            (plural,) = rule["resources"]
            asked[hook["clientConfig"]["service"]["path"]] = (each["kind"], plural, set(rule["operations"]))
    assert asked == answered
    assert len(asked) == 4
