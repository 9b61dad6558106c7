"""Wrong values are refused before anything is made of them, by a message that names the value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "helm" / "toktier-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

WRONG: list[tuple[str, Any, str]] = [
    ("replica", 2, "replica"),
    ("replicas", "two", "replicas"),
    ("replicas", -1, "replicas"),
    ("replicas", 1.5, "replicas"),
    ("image.repository", "registry/toktier:1.0", "repository"),
    ("image.repository", "", "repository"),
    ("image.repository", None, "repository"),
    ("image.tag", "a b", "tag"),
    ("image.tag", 1.0, "tag"),
    ("image.digest", "sha256:short", "digest"),
    ("image.pullPolicy", "Sometimes", "pullPolicy"),
    ("image.name", "toktier", "name"),
    ("imagePullSecrets", ["registry"], "imagePullSecrets"),
    ("watchNamespaces", "default", "watchNamespaces"),
    ("watchNamespaces", ["team-*"], "watchNamespaces"),
    ("watchNamespaces", ["a", "a"], "watchNamespaces"),
    ("crds.install", "yes", "install"),
    ("webhooks.port", 443, "port"),
    ("webhooks.port", 70000, "port"),
    ("webhooks.failurePolicy", "Retry", "failurePolicy"),
    ("webhooks.timeoutSeconds", 31, "timeoutSeconds"),
    ("webhooks.certificate.from", "vault", "from"),
    ("webhooks.certificate.from", "secret", "secretName"),
    ("webhooks.certificate.days", 30, "days"),
    ("webhooks.certificate.issuerRef", {"kind": "Signer"}, "kind"),
    ("webhooks.certificate.duration", "90 days", "duration"),
    ("metrics.serviceMonitor.interval", 30, "interval"),
    ("health.port", "http", "port"),
    ("resources.requests.memory", "lots", "memory"),
    ("resources.limit", {}, "limit"),
    ("podDisruptionBudget.maxUnavailable", 0, "maxUnavailable"),
    ("networkPolicy.apiServerPorts", [], "apiServerPorts"),
    ("podLabels.team", 1, "team"),
    ("serviceAccount.annotations", ["a"], "annotations"),
    ("tests.toktier", "Not_A_Name", "toktier"),
    ("tests.address", "http://tier:50051", "address"),
    ("terminationGracePeriodSeconds", 0, "terminationGracePeriodSeconds"),
]


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    found: dict[str, Any] = value
    return found


@pytest.mark.parametrize(("path", "value", "named"), WRONG, ids=[f"{path}={value}" for path, value, _ in WRONG])
def test_a_wrong_value_is_refused_by_name(rendered: Callable[..., Any], path: str, value: Any, named: str) -> None:
    with pytest.raises(Exception, match=r"(?s)values don't meet the specifications.*" + re.escape(named)):
        rendered(nested(path, value))


def objects(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema and schema.get("type") == "object":
        yield at, schema
        for name, below in schema["properties"].items():
            yield from objects(below, f"{at}.{name}" if at else name)


def test_no_object_of_the_schema_takes_what_it_does_not_name() -> None:
    assert [at for at, schema in objects(SCHEMA) if schema.get("additionalProperties") is not False] == []


def leaves(values: Any, at: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, below in values.items():
            yield from leaves(below, f"{at}.{name}" if at else name)
    else:
        yield at


def known(path: str) -> bool:
    schema = SCHEMA
    for part in path.split("."):
        schema = schema.get("properties", {}).get(part, schema.get("additionalProperties", None))
        if not schema:
            return False
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    return True


def test_the_schema_knows_every_default() -> None:
    assert [path for path in leaves(VALUES) if not known(path)] == []


def test_every_value_of_the_schema_has_a_default() -> None:
    free = {"global", "resources.claims", "webhooks.certificate.issuerRef"}
    missing = []
    for at, schema in objects(SCHEMA):
        for name in schema["properties"]:
            path = f"{at}.{name}" if at else name
            found: Any = VALUES
            for part in path.split("."):
                found = found.get(part, KeyError) if isinstance(found, dict) else KeyError
            if found is KeyError and not any(path == each or path.startswith(f"{each}.") for each in free):
                missing.append(path)
    assert missing == []


def test_the_charts_readme_tells_of_every_value() -> None:
    told = set(re.findall(r"^\| `([\w.]+)`", (CHART / "README.md").read_text().partition("## Values")[2], flags=re.M))
    open_maps = ("dashboards.labels", "resources.", "webhooks.certificate.issuerRef")
    for path in leaves(VALUES):
        names = {path, path.rpartition(".")[0]} if path.startswith(open_maps) else {path}
        assert names & told or any(path.startswith(f"{each}.") for each in told), path
    assert [each for each in told if not known(each)] == []
