from __future__ import annotations

import asyncio
from typing import Any

import kopf
import pytest

from toktier_operator.cluster.errors import Forbidden
from toktier_operator.cluster.kinds import Json, Kind
from toktier_operator.handlers import webhooks
from toktier_operator.policies.validation import Reference

METADATA = {"name": "tier", "namespace": "models"}


class Finder:
    """Knows what exists; says nothing about kinds that it may not see."""

    def __init__(self, *there: str, forbidden: str = "", waits_s: float = 0.0) -> None:
        self.there, self.forbidden, self.waits_s = there, forbidden, waits_s

    async def get_metadata(self, kind: Kind, namespace: str, name: str) -> Json | None:
        await asyncio.sleep(self.waits_s)
        if kind.kind == self.forbidden:
            raise Forbidden("not allowed")
        return {"metadata": {}} if f"{kind.kind}/{namespace}/{name}" in self.there else None


def handlers(finder: Finder) -> dict[str, Any]:
    registry = kopf.OperatorRegistry()
    webhooks.register(registry, finder)
    return {str(each.id): each.fn for each in registry._webhooks.get_all_handlers()}


def toktier(**spec: Any) -> dict[str, Any]:
    return {"metadata": dict(METADATA), "spec": {"tokenizers": [{"admission": "qwen3"}]} | spec}


def validated(body: dict[str, Any], old: dict[str, Any] | None = None, finder: Finder | None = None) -> list[str]:
    warnings: list[str] = []
    valid = handlers(finder or Finder())["validate-toktier"]
    asyncio.run(valid(body=body, old=old, name="tier", namespace="models", warnings=warnings))
    return warnings


def test_ids_are_the_paths_of_the_charts_configurations() -> None:
    assert set(handlers(Finder())) == {
        "validate-tokenizeradmission",
        "default-tokenizeradmission",
        "validate-toktier",
        "default-toktier",
    }


def test_all_that_is_wrong_is_in_one_refusal() -> None:
    with pytest.raises(kopf.AdmissionError) as refused:
        validated(toktier(sessions={"ttl": "0s"}, limits={"keepAlive": "1ms"}))
    assert refused.value.code == 422
    assert "spec.sessions.ttl" in str(refused.value)
    assert "spec.limits.keepAlive" in str(refused.value)


def test_what_the_types_can_not_read_is_refused_with_its_field() -> None:
    with pytest.raises(kopf.AdmissionError, match=r"spec\.drain\.linger: is a duration like"):
        validated(toktier(drain={"linger": "soon"}))


def test_objects_that_may_come_later_are_warned_of() -> None:
    assert validated(toktier()) == [
        "spec.tokenizers[0].admission: there is no TokenizerAdmission qwen3 in namespace models yet"
    ]
    assert validated(toktier(), finder=Finder("TokenizerAdmission/models/qwen3")) == []


def test_nothing_is_said_of_objects_that_the_operator_may_not_see() -> None:
    assert validated(toktier(), finder=Finder(forbidden="TokenizerAdmission")) == []


def test_an_api_server_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "LOOK_UP_S", 0.05)
    reference = Reference("Secret", "models", "a", "spec")
    assert asyncio.run(webhooks.missing(Finder(waits_s=5.0), [reference])) == []
    assert asyncio.run(webhooks.missing(Finder(), [reference])) == [reference]


def test_a_spec_that_stays_is_not_refused_anew() -> None:
    body = toktier(sessions={"ttl": "0s"})
    labelled = body | {"metadata": METADATA | {"labels": {"a": "b"}}}
    assert validated(labelled, old=body) == []
    with pytest.raises(kopf.AdmissionError):
        validated(body, old=toktier())


def test_an_object_on_its_way_out_is_not_refused() -> None:
    body = toktier(sessions={"ttl": "0s"})
    body["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert validated(body, old=toktier()) == []


def test_defaults_come_as_a_patch_of_what_is_missing() -> None:
    patch = kopf.Patch()
    body = toktier(upstream={"service": {"name": "sglang", "port": 1}})
    asyncio.run(handlers(Finder())["default-toktier"](body=body, patch=patch))
    assert patch == {"spec": {"upstream": {"service": {"namespace": "models"}}}}


def test_an_admission_is_validated_by_its_own_rules() -> None:
    warnings: list[str] = []
    source = {"configMap": {"name": "tokenizer", "key": "tokenizer.json"}}
    valid = handlers(Finder())["validate-tokenizeradmission"]
    body: dict[str, Any] = {"metadata": METADATA, "spec": {"source": source}}
    asyncio.run(valid(body=body, old=None, namespace="models", warnings=warnings))
    assert warnings == ["spec.source.configMap: there is no ConfigMap tokenizer in namespace models yet"]
    body = {"metadata": METADATA, "spec": {"source": source, "campaign": {"budget": "2h"}}}
    with pytest.raises(kopf.AdmissionError, match=r"spec\.job\.activeDeadline"):
        asyncio.run(valid(body=body, old=None, namespace="models", warnings=warnings))
