"""The operator's documentation says what the code has: reasons, commands, files, metrics."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from servers import free_port, whole_tier
from toktier_operator.api.admission_spec import AdmissionSpec
from toktier_operator.api.admission_status import Phase
from toktier_operator.api.conditions import AdmissionCondition, AdmissionReason, TierCondition, TierReason
from toktier_operator.api.toktier_spec import TokTierSpec
from toktier_operator.handlers.metrics import Metrics
from toktier_tier.client import TierClient
from toktier_tier.core.errors import SessionNotFound
from toktier_tier.settings import PodSettings
from toktier_tier.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "operator"
CONDITIONS = (DOCS / "conditions.md").read_text()
README = (ROOT / "README.md").read_text()


def sections(text: str, mark: str) -> dict[str, str]:
    """By the first word of its heading."""
    parts = re.split(rf"^{mark} ", text, flags=re.M)[1:]
    return {re.split(r"[:\s]", part, maxsplit=1)[0]: part for part in parts}


KINDS = sections(CONDITIONS, "##")
TABLES = [
    ("TokenizerAdmission", AdmissionCondition, AdmissionReason),
    ("TokTier", TierCondition, TierReason),
]


@pytest.mark.parametrize(("kind", "conditions", "reasons"), TABLES, ids=[each[0] for each in TABLES])
def test_every_condition_and_reason_is_explained_and_no_other(kind: str, conditions: Any, reasons: Any) -> None:
    told = sections(KINDS[kind], "###")
    assert set(told) == {each.value for each in conditions}
    rows = {reason for part in told.values() for reason in re.findall(r"^\| `(\w+)` \|", part, flags=re.M)}
    assert rows == {each.value for each in reasons}


def test_every_row_has_a_status() -> None:
    rows = re.findall(r"^\| `\w+` \| ([^|]*) \|", CONDITIONS, flags=re.M)
    assert rows
    assert {word for row in rows for word in re.split(r", then | or ", row)} <= {"True", "False", "Unknown"}


def test_every_phase_is_named() -> None:
    for phase in Phase:
        assert f"`{phase.value}`" in KINDS["TokenizerAdmission"]


@pytest.mark.parametrize(
    "path", sorted([*DOCS.glob("*.md"), ROOT / "helm/toktier-operator/README.md"]), ids=lambda p: p.name
)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), flags=re.M)
            assert anchor in {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}, link


def test_the_readmes_commands_name_files_that_are_there_and_objects_that_they_make() -> None:
    (block,) = re.findall(r"<!-- e2e: kubernetes -->\n```sh\n(.*?)```", README, flags=re.S)
    made = set()
    for line in block.replace("\\\n", " ").splitlines():
        if not line.startswith(("kubectl", "helm")):
            continue
        words = shlex.split(line, posix=True) if line.count("'") % 2 == 0 else []
        for flag, value in itertools.pairwise(words):
            if flag == "-f":
                assert (ROOT / value).is_file(), value
                each = yaml.safe_load((ROOT / value).read_text())
                made.add(f"{each['kind'].lower()}/{each['metadata']['name']}")
        if words[:2] == ["kubectl", "wait"]:
            named = [word for word in words if "/" in word and not word.startswith("-")]
            assert all(name in made or name.startswith("pod/") for name in named), line
            for condition in re.findall(r"--for=condition=(\w+)", line):
                assert condition in {*AdmissionCondition, *TierCondition}, line
    assert made == {"tokenizeradmission/my-model", "toktier/chat"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "operator").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_read_by_the_operator(path: Path) -> None:
    for body in yaml.safe_load_all(path.read_text()):
        kind = {"TokenizerAdmission": AdmissionSpec, "TokTier": TokTierSpec}[body["kind"]]
        kind.of(body)
        known = schema_of(body["kind"])["properties"]["spec"]
        assert unknown(body["spec"], known, "spec") == []


def schema_of(kind: str) -> dict[str, Any]:
    for path in (ROOT / "manifests" / "crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        if crd["spec"]["names"]["kind"] == kind:
            found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            return found
    raise AssertionError(kind)


def unknown(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    if isinstance(value, list):
        return [found for each in value for found in unknown(each, schema["items"], at)]
    if not isinstance(value, dict) or "properties" not in schema or "x-kubernetes-preserve-unknown-fields" in schema:
        return []
    found = [f"{at}.{name}" for name in value if name not in schema["properties"]]
    for name, below in value.items():
        if name in schema["properties"]:
            found += unknown(below, schema["properties"][name], f"{at}.{name}")
    return found


def test_what_the_docs_set_in_a_spec_exists() -> None:
    """Words like `rollout.canaryHold` that begin with a field of a spec."""
    specs = [schema_of(kind)["properties"]["spec"]["properties"] for kind in ("TokenizerAdmission", "TokTier")]
    tops = set(specs[0]) | set(specs[1])
    wrong = []
    for path in DOCS.glob("*.md"):
        for word in re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:: \w+)?`", path.read_text()):
            first, *_ = word.split(".")
            if first in tops and not any(reaches(spec, word.split(".")) for spec in specs):
                wrong.append(f"{path.name}: {word}")
    assert wrong == []


def reaches(properties: dict[str, Any], parts: list[str]) -> bool:
    if parts[0] not in properties:
        return False
    below = properties[parts[0]]
    return len(parts) == 1 or "additionalProperties" in below or reaches(below.get("properties", {}), parts[1:])


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\b(toktier_\w+|process_\w+)", re.sub(r'"[^"]*"', '""', expression)))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All metrics there are: of a tier with pods, also those that it has nothing to tell of yet, and of an operator."""
    watched: list[tuple[str, str, str]] = []
    watch = Telemetry.watch

    def noted(self: Telemetry, name: str, unit: str, what: str, read: Any) -> None:
        watched.append((name, unit, what))
        watch(self, name, unit, what, read)

    port = free_port()
    pods = PodSettings(name="a", peers=(f"a=127.0.0.1:{port}",))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Telemetry, "watch", noted)
        with whole_tier(tmp_path_factory.mktemp("tier"), grpc=f"127.0.0.1:{port}", pods=pods) as tier:
            with TierClient(tier.grpc) as client:
                session = client.open("s", "some text")
                session.close()
                with pytest.raises(SessionNotFound):
                    session.append(" and more")
            page = tier.page()
    telling = Telemetry()
    for name, unit, what in watched:
        telling.watch(name, unit, what, lambda: [(1.0, {})])
    return page + telling.page().decode() + generate_latest(Metrics().registry).decode()


def expressions() -> list[str]:
    board = json.loads((ROOT / "helm/toktier-operator/files/dashboards/toktier.json").read_text())
    rules = yaml.safe_load((ROOT / "helm/toktier-operator/files/alerts.yaml").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [
        each["query"].split("(", 1)[1].split(",")[0] for each in board["templating"]["list"] if "(" in each["query"]
    ]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_dashboards_and_alerts_ask_for_metrics_that_exist(pages: str) -> None:
    known = set(re.findall(r"^# TYPE ([a-z_]+) ", pages, flags=re.M))
    known |= {f"{name}_{end}" for name in known for end in ("bucket", "count", "sum")}
    asked = set().union(*map(metrics_of, expressions()))
    assert len(asked) > 15
    assert asked - known == set()


def test_alerts_point_to_documents_that_exist() -> None:
    text = (ROOT / "helm/toktier-operator/files/alerts.yaml").read_text()
    found = re.findall(r"docs/operator/[\w-]+\.md", text)
    assert found
    assert all((ROOT / each).is_file() for each in found)


def test_alerts_that_the_docs_name_exist() -> None:
    rules = yaml.safe_load((ROOT / "helm/toktier-operator/files/alerts.yaml").read_text())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    told = {name for path in DOCS.glob("*.md") for name in re.findall(r"`(TokTier[A-Z]\w+)`", path.read_text())}
    assert told <= names
