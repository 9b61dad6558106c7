"""The operator's rights: enough for what it does and hands on, no wildcard, the same in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toktier_operator.cluster import kinds
from toktier_operator.handlers.tier_objects import OPTIONAL
from toktier_operator.resources import access, admission_job, messages
from toktier_operator.resources.owned import Owner

Rules = list[dict[str, Any]]
OWNER = Owner("chat", "team-a", "uid")
BODY = {
    "apiVersion": "toktier.dev/v1alpha1",
    "kind": "TokenizerAdmission",
    "metadata": {"name": "model", "namespace": "team-a", "uid": "uid"},
}
APPLIED = {
    kinds.CONFIG_MAP,
    kinds.STATEFUL_SET,
    kinds.SERVICE,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    *OPTIONAL.values(),
}
CREATED = {kinds.JOB, kinds.SECRET}
DELETED = {kinds.JOB, kinds.CONFIG_MAP, *OPTIONAL.values()}
ONLY_READ = {kinds.POD, kinds.ENDPOINT_SLICE, kinds.TOKENIZER_ADMISSION, kinds.TOKTIER}
NEVER_TOUCHED = {kinds.NAMESPACE}


def rules_of(found: Any, kind: str) -> Rules:
    (role,) = (each for each in found if each["kind"] == kind)
    rules: Rules = role["rules"]
    return rules


@pytest.fixture(scope="module")
def rules(rendered: Callable[..., Any]) -> Rules:
    return rules_of(rendered(), "ClusterRole")


def verbs(rules: Rules, group: str, resource: str, name: str | None = None) -> set[str]:
    return {
        verb
        for rule in rules
        if group in rule["apiGroups"] and resource in rule["resources"]
        if "resourceNames" not in rule or name in rule["resourceNames"]
        for verb in rule["verbs"]
    }


def test_there_is_no_wildcard_and_no_way_to_more_rights(rendered: Callable[..., Any]) -> None:
    for values in ({}, {"replicas": 2}, {"watchNamespaces": ["a"], "replicas": 2}):
        for each in rendered(values):
            for rule in each.get("rules", ()) if each["kind"] in ("Role", "ClusterRole") else ():
                assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
                assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
                assert "nonResourceURLs" not in rule
                assert not {"pods/exec", "pods/attach", "pods/log", "pods/portforward"} & set(rule["resources"])


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.plural)
def test_each_kind_has_exactly_the_verbs_that_are_used(rules: Rules, kind: kinds.Kind) -> None:
    found = verbs(rules, kind.group, kind.plural)
    if kind in NEVER_TOUCHED:
        assert found == set()
    elif kind == kinds.EVENT:
        assert found == {"get", "create", "patch"}
    elif kind == kinds.SECRET:
        assert found == {"get", "create"}
    else:
        assert kind in APPLIED | CREATED | ONLY_READ
        expected = {"get", "list", "watch"}
        expected |= {"create", "patch"} if kind in APPLIED else set()
        expected |= {"create"} if kind in CREATED else set()
        expected |= {"delete"} if kind in DELETED else set()
        assert found == expected


def test_no_other_kind_is_named(rules: Rules) -> None:
    named = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    known = {(kind.group, kind.plural) for kind in kinds.KINDS}
    own = {("toktier.dev", f"{plural}/status") for plural in ("tokenizeradmissions", "toktiers")}
    assert named - known == own | {("toktier.dev", "toktiers/finalizers")}
    for group, resource in own:
        assert verbs(rules, group, resource) == {"patch"}


def test_what_is_handed_on_to_jobs_and_pods_is_held(rules: Rules) -> None:
    """Otherwise the API server refuses the Role as an escalation."""
    handed = [access.role(OWNER), *admission_job.account_objects(BODY)]
    roles = [each for each in handed if each["kind"] == "Role"]
    assert len(roles) == 2
    for role in roles:
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    assert set(rule["verbs"]) <= verbs(rules, group, resource)


def test_the_pods_credential_is_made_by_create_alone() -> None:
    assert messages.peers_secret(OWNER, "t")["kind"] == kinds.SECRET.kind
    assert kinds.SECRET not in APPLIED


def test_in_some_namespaces_the_rights_are_the_same_and_nothing_is_cluster_wide(
    rendered: Callable[..., Any], rules: Rules
) -> None:
    found = rendered({"watchNamespaces": ["team-a", "team-b"]})
    assert not [each for each in found if each["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    roles = {each["metadata"]["namespace"]: each for each in found if each["kind"] == "Role"}
    assert set(roles) == {"team-a", "team-b"}
    assert all(role["rules"] == rules for role in roles.values())
    bindings = [each for each in found if each["kind"] == "RoleBinding"]
    assert {each["metadata"]["namespace"] for each in bindings} == {"team-a", "team-b"}
    for each in bindings:
        assert each["roleRef"]["name"] == roles[each["metadata"]["namespace"]]["metadata"]["name"]
        assert each["subjects"] == [
            {"kind": "ServiceAccount", "name": "toktier-operator", "namespace": "toktier-system"}
        ]


@pytest.mark.parametrize(
    ("values", "role", "resource"),
    [({"replicas": 2}, "ClusterRole", "clusterkopfpeerings"), ({"watchNamespaces": ["a"]}, "Role", "kopfpeerings")],
)
def test_of_peerings_only_the_own_one_may_be_written(
    rendered: Callable[..., Any], values: Any, role: str, resource: str
) -> None:
    found = rules_of(rendered({"replicas": 2, **values}), role)
    assert verbs(found, "kopf.dev", resource) == {"list", "watch"}
    own = verbs(found, "kopf.dev", resource, "toktier-system-toktier-operator")
    assert own == {"list", "watch", "get", "patch"}
    assert not verbs(rules_of(rendered({**values, "replicas": 1}), role), "kopf.dev", resource)
