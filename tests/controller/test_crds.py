from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from typing import Any

import pytest
import yaml

from controller.crd_schema import CRDS, ROOT, Schema, crd, defaulted, parts, schema
from toktier_operator.api import admission_spec, admission_status, conditions, group, toktier_spec, toktier_status
from toktier_operator.api.admission_spec import AdmissionSpec
from toktier_operator.api.admission_status import AdmissionStatus
from toktier_operator.api.quantities import DURATION_PATTERN, QUANTITY_PATTERN
from toktier_operator.api.structure import camel_case
from toktier_operator.api.toktier_spec import TokTierSpec
from toktier_operator.api.toktier_status import TokTierStatus

KINDS = tuple(CRDS)
SPECS = {"TokenizerAdmission": AdmissionSpec, "TokTier": TokTierSpec}
STATUSES = {"TokenizerAdmission": AdmissionStatus, "TokTier": TokTierStatus}
LEAST: dict[str, list[dict[str, Any]]] = {
    "TokenizerAdmission": [
        {"source": {"configMap": {"name": "a", "key": "b"}}},
        {
            "source": {"persistentVolumeClaim": {"claimName": "a"}},
            "campaign": {"corpora": [{"persistentVolumeClaim": {"claimName": "a"}}]},
            "readmission": {},
            "quarantine": {},
            "job": {},
        },
    ],
    "TokTier": [
        {"tokenizers": [{"admission": "a"}]},
        {
            "tokenizers": [{"admission": "a"}, {"admission": "b"}],
            "upstream": {"service": {"name": "a", "port": 1}},
            "autoscaling": {"maxReplicas": 9, "metric": {"averageValue": 1}},
            "security": {"tls": {"secretName": "a", "clientCA": {"secret": {"name": "a", "key": "b"}}}},
            "gateway": {"parentRefs": [{"name": "a"}]},
            "service": {"ports": {"http": 1}},
            "podTemplate": {},
        },
    ],
}


@pytest.mark.parametrize("resource", [group.TOKENIZER_ADMISSION, group.TOKTIER])
def test_names_are_those_of_the_api(resource: group.Resource) -> None:
    document = crd(resource.kind)
    names = document["spec"]["names"]
    assert document["metadata"]["name"] == resource.crd
    assert (names["kind"], names["plural"], names["shortNames"]) == (resource.kind, resource.plural, [resource.short])
    assert (document["spec"]["group"], document["spec"]["versions"][0]["name"]) == (group.GROUP, group.VERSION)
    called = {names[key] for key in ("singular", "plural", "kind")} | set(names["shortNames"])
    assert not called & set(names["categories"])  # kubectl takes a word for a category first
    rules = schema(resource.kind)["x-kubernetes-validations"]
    assert any(f"<= {group.MAX_NAME_CHARS}" in rule["rule"] for rule in rules)


@pytest.mark.parametrize(
    ("kind", "spec"), [(kind, spec) for kind in KINDS for spec in LEAST[kind]], ids=lambda value: str(value)[:40]
)
def test_defaults_of_the_schema_are_those_of_the_types(kind: str, spec: dict[str, Any]) -> None:
    stored = defaulted(schema(kind)["properties"]["spec"], spec)
    assert stored != spec
    assert SPECS[kind].of({"spec": stored}) == SPECS[kind].of({"spec": spec})


@pytest.mark.parametrize("kind", KINDS)
def test_every_default_is_reached_by_a_test(kind: str) -> None:
    root = schema(kind)["properties"]["spec"]
    with_defaults = {path for path, part in parts(root) if "default" in part}
    reached = {path for spec in LEAST[kind] for path in paths_in(root, defaulted(root, spec))}
    assert with_defaults - reached == set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_schema_and_types_have_the_same_fields(kind: str, part: str) -> None:
    types_of_part = SPECS if part == "spec" else STATUSES
    compare(types_of_part[kind], schema(kind)["properties"][part], part)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_in_a_spec_is_described(kind: str) -> None:
    spec = schema(kind)["properties"]["spec"]
    silent = [
        path
        for path, part in parts(spec)
        if not part.get("description") and path.count(".") <= 1 and not path.endswith(("[]", "{}", "[].name"))
    ]
    assert silent == []
    assert spec["description"]
    assert schema(kind)["description"]


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_structural(kind: str) -> None:
    for path, part in parts(schema(kind)):
        if part.get("x-kubernetes-int-or-string"):
            assert "type" not in part, path
        else:
            assert "type" in part, path
        assert not ("properties" in part and "additionalProperties" in part), path
        for rule in part.get("x-kubernetes-validations", ()):
            assert len(rule["message"]) > 20, path


@pytest.mark.parametrize("kind", KINDS)
def test_lists_and_texts_in_a_spec_are_bounded(kind: str) -> None:
    """CEL's costs are estimated from the bounds, and nobody stores a novel."""
    ruled = [part for _, part in parts(schema(kind)["properties"]["spec"]) if part.get("x-kubernetes-validations")]
    for part in ruled:
        if part.get("type") == "string":
            assert "maxLength" in part or "enum" in part
        if part.get("type") == "array":
            assert "maxItems" in part


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_are_those_that_the_types_read(kind: str) -> None:
    text = CRDS[kind].read_text()
    quantities = {part["pattern"] for _, part in parts(schema(kind)) if "KMGTPE" in part.get("pattern", "")}
    assert {pattern.replace("[.]", r"\.") for pattern in quantities} == {QUANTITY_PATTERN}
    durations = set(re.findall(r"matches\('(\^\(\[0-9\]\+\([^']*ms[^']*)'\)", text))
    assert {pattern.replace("[.]", r"\.") for pattern in durations} == {DURATION_PATTERN}


def test_reserved_yaml_words_are_no_values() -> None:
    """YAML 1.1, which kubectl reads, takes On, Off, Yes and No for booleans."""
    for kind in KINDS:
        values = [value for _, part in parts(schema(kind)) for value in part.get("enum", ())]
        assert {str(value).lower() for value in values} & {"on", "off", "yes", "no", "true", "false"} <= {
            "true",
            "false",
        }
        assert all(yaml.safe_load(str(value)) == value for value in values if value not in ("", "True", "False"))


def test_conditions_are_named_in_the_schema() -> None:
    for kind, listed in (("TokenizerAdmission", conditions.AdmissionCondition), ("TokTier", conditions.TierCondition)):
        described = schema(kind)["properties"]["status"]["properties"]["conditions"]["description"]
        assert described == f"{', '.join(listed)}."


def test_phases_are_those_of_the_schema() -> None:
    phase = schema("TokenizerAdmission")["properties"]["status"]["properties"]["phase"]
    assert phase["enum"] == [each.value for each in admission_status.Phase]


@pytest.mark.parametrize("kind", KINDS)
def test_printed_columns_and_scale_are_fields(kind: str) -> None:
    version = crd(kind)["spec"]["versions"][0]
    known = {path for path, _ in parts(schema(kind))} | {"metadata.creationTimestamp"}
    for column in version["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*\)\]", "[]", column["jsonPath"])
        assert path.removeprefix(".") in known
    for path in version["subresources"].get("scale", {}).values():
        assert path.removeprefix(".") in known


def test_examples_are_read_by_the_types() -> None:
    seen: set[str] = set()
    for path in sorted((ROOT / "examples/operator").glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text()):
            if body["kind"] in SPECS:
                SPECS[body["kind"]].of(body)
                seen.add(body["kind"])
    assert seen == set(KINDS)


def paths_in(part: Schema, value: Any, path: str = "") -> set[str]:
    found = {path}
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in part.get("properties", {}):
                found |= paths_in(part["properties"][key], inner, f"{path}.{key}" if path else key)
    if isinstance(value, list):
        for each in value:
            found |= paths_in(part.get("items", {}), each, f"{path}[]")
    return found


def compare(hint: Any, part: Schema, path: str) -> None:
    """`hint` says of the value what the schema does: keys, enums, kinds."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(inner) == 1:
            compare(inner[0], part, path)
        else:
            assert part["x-kubernetes-int-or-string"], path
    elif typing.get_origin(hint) is tuple:
        assert part["type"] == "array", path
        compare(typing.get_args(hint)[0], part["items"], f"{path}[]")
    elif typing.get_origin(hint) is not None:
        assert part["type"] == "object", path
        if typing.get_args(hint)[1] is not Any:
            compare(typing.get_args(hint)[1], part["additionalProperties"], f"{path}{{}}")
    elif dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {each.metadata.get("key", camel_case(each.name)): each for each in dataclasses.fields(hint)}
        assert set(fields) == set(part["properties"]), path
        for key, field in fields.items():
            if "read" in field.metadata:
                assert part["properties"][key].get("x-kubernetes-int-or-string") or (
                    part["properties"][key]["type"] == "string"
                )
            else:
                compare(hints[field.name], part["properties"][key], f"{path}.{key}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        assert part["enum"] == [each.value for each in hint], path
    else:
        assert part["type"] == {str: "string", int: "integer", float: "number", bool: "boolean"}[hint], path


def test_defaults_of_the_module_are_named_once() -> None:
    maximum = schema("TokTier")["properties"]["spec"]["properties"]["replicas"]["maximum"]
    assert maximum == toktier_spec.MAX_REPLICAS
    items = schema("TokenizerAdmission")["properties"]["spec"]["properties"]["encoders"]["items"]
    assert tuple(items["enum"]) == admission_spec.ENCODERS
    states = schema("TokTier")["properties"]["status"]["properties"]["snapshots"]["items"]["properties"]["state"]
    assert all(each in states["description"] for each in toktier_status.SnapshotState)
