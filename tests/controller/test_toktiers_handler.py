"""A TokTier's reconcile against an API server of a few lines, killed before each of its calls in turn.

What the real API server makes of the same calls is the end-to-end tests' business.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.fake_stateful_set import FakeSet, Pod
from controller.tiers import IMAGE, OWNER, Json, admitted, toktier
from toktier_operator.api.admission_status import AdmissionStatus
from toktier_operator.cluster.errors import Conflict, Invalid, NotFound
from toktier_operator.cluster.kinds import (
    CONFIG_MAP,
    HTTP_ROUTE,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    TOKENIZER_ADMISSION,
    TOKTIER,
    Kind,
    kind_of,
)
from toktier_operator.cluster.observed import Observed, with_digest
from toktier_operator.config import Config
from toktier_operator.handlers.toktiers import reconcile_toktier
from toktier_operator.resources.pods import ADMISSIONS

NS, NAME = OWNER.namespace, OWNER.name


class Killed(Exception):
    pass


class FakeApi:
    """Objects by kind and name, of one namespace. `kill_at`: how many calls are still answered."""

    def __init__(self) -> None:
        self.items: dict[tuple[Kind, str], Json] = {}
        self.version = 0
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.events: list[str] = []
        self.kill_at: int | None = None
        self.refuse: dict[str, Exception] = {}
        self.set: FakeSet | None = None

    def _called(self, verb: str, kind: Kind, name: str) -> None:
        if self.kill_at == 0:
            self.kill_at = None
            raise Killed
        if self.kill_at is not None:
            self.kill_at -= 1
        self.calls[verb] += 1
        self.order.append(f"{verb} {kind.kind} {name}")
        if kind.kind in self.refuse and verb == "apply":
            raise self.refuse[kind.kind]

    def store(self, kind: Kind, item: Json) -> Json:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        item["metadata"].setdefault("namespace", NS)
        item["metadata"].setdefault("uid", f"uid-{self.version}")
        item["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.items[kind, item["metadata"]["name"]] = item
        return item

    def observe(self) -> Observed:
        found = Observed()
        for (kind, _), item in self.items.items():
            found.put(kind, copy.deepcopy(item))
        return found

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        self._called("get", kind, name)
        return copy.deepcopy(self.items.get((kind, name)))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Json]:
        self._called("list", kind, labels)
        return []

    async def apply(self, manifest: Json) -> Json:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        self._called("apply", kind, name)
        before = self.items.get((kind, name))
        item = copy.deepcopy(with_digest(manifest))
        if before is not None:
            for key in ("uid", "creationTimestamp"):
                item["metadata"][key] = before["metadata"][key]
            item |= {key: before[key] for key in ("status", "data") if key in before and key not in item}
        generation = before["metadata"].get("generation", 0) if before is not None else 0
        changed = before is None or before.get("spec") != item.get("spec")
        item["metadata"]["generation"] = generation + changed
        return copy.deepcopy(self.store(kind, item))

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Json, *, observed: Json | None
    ) -> Json | None:
        item = self.items.get((kind, name))
        if item is None:
            return None
        if observed is not None and observed.get("status") == status:
            return observed
        self._called("patch_status", kind, name)
        if observed is not None and observed["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise Conflict("changed meanwhile")
        return copy.deepcopy(self.store(kind, {**item, "status": copy.deepcopy(status)}))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> bool:
        self._called("delete", kind, name)
        return self.items.pop((kind, name), None) is not None

    async def create_once(self, manifest: Json) -> bool:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        if (kind, name) in self.items:
            return False
        self._called("create", kind, name)
        self.store(kind, copy.deepcopy(manifest))
        return True

    async def event(self, about: Json, type_: str, reason: str, message: str) -> None:
        self.events.append(reason)

    def controllers_act(self, *, broken: frozenset[str] = frozenset()) -> None:
        """The StatefulSet's, and a kubelet whose pods are Ready at once, unless they have a broken snapshot."""
        item = self.items.get((STATEFUL_SET, NAME))
        if item is None:
            return
        spec = item["spec"]
        template = json.dumps(spec["template"], sort_keys=True)
        partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
        if self.set is None:
            self.set = FakeSet(spec["replicas"], template, partition)
        self.set.apply(template, spec["replicas"], partition)
        self.set.generation = item["metadata"]["generation"]
        now = datetime.now(UTC)
        self.set.step(now)
        for pod in self.set.pods.values():
            pod.ready = not set(self._admissions(pod.made_of).split(",")) & broken
        existing, updated, ready = self.set.counts
        status = {"replicas": existing, "updatedReplicas": updated, "readyReplicas": ready}
        status |= {"observedGeneration": self.set.observed, "updateRevision": str(hash(self.set.update))}
        self.store(STATEFUL_SET, {**item, "status": status})
        for name in [name for kind, name in self.items if kind == POD]:
            del self.items[POD, name]
        for ordinal, made in self.set.pods.items():
            self.store(POD, self._pod(f"{NAME}-{ordinal}", made, item["metadata"]["uid"]))

    @staticmethod
    def _admissions(made_of: object) -> str:
        found: str = json.loads(str(made_of))["metadata"]["annotations"][ADMISSIONS]
        return found

    def _pod(self, name: str, made: Pod, owner: str) -> Json:
        condition = {"type": "Ready", "status": str(made.ready), "lastTransitionTime": made.since.isoformat()}
        metadata = {
            "name": name,
            "labels": {"toktier.dev/toktier": NAME, "controller-revision-hash": str(hash(made.made_of))},
            "annotations": {ADMISSIONS: self._admissions(made.made_of)},
            "ownerReferences": [{"uid": owner}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"conditions": [condition]}}

    def pods(self) -> list[str]:
        return sorted(
            item["metadata"]["annotations"][ADMISSIONS] for (kind, _), item in self.items.items() if kind == POD
        )

    def status(self) -> Json:
        found: Json = self.items[TOKTIER, NAME].get("status") or {}
        return found

    def said(self, kind: str) -> tuple[str, str]:
        (found,) = [each for each in self.status()["conditions"] if each["type"] == kind]
        return found["status"], found["reason"]

    def names(self, kind: Kind) -> set[str]:
        return {name for of, name in self.items if of == kind}

    def admit(self, status: AdmissionStatus, name: str = "qwen") -> None:
        body: Json = {"apiVersion": "toktier.dev/v1alpha1", "kind": "TokenizerAdmission", "metadata": {"name": name}}
        self.store(TOKENIZER_ADMISSION, body | {"status": status.to_dict()})

    def change(self, **spec: Any) -> None:
        item = self.items[TOKTIER, NAME]
        item["spec"] |= spec
        item["metadata"]["generation"] += 1
        self.store(TOKTIER, item)


def reconcile(api: FakeApi, observed: Observed | None = None, image: str = IMAGE) -> float | None:
    config = Config(tier_image=image)
    cluster: Any = api
    return asyncio.run(reconcile_toktier(cluster, observed or api.observe(), config, NS, NAME))


def settle(api: FakeApi, rounds: int = 12, image: str = IMAGE) -> None:
    for _ in range(rounds):
        reconcile(api, image=image)
        api.controllers_act()


@pytest.fixture
def api() -> FakeApi:
    found = FakeApi()
    found.store(TOKTIER, toktier(replicas=3, rollout={"canaryHold": "0s"}))
    found.admit(admitted("qwen-1"))
    return found


def test_it_gets_ready_and_then_nothing_is_called_for(api: FakeApi) -> None:
    settle(api)
    assert api.pods() == ["qwen-1"] * 3
    assert api.said("Progressing") == ("False", "RolledOut")
    assert api.said("Available") == ("True", "PodsReady")
    assert api.events == ["RollStarted", "RolledOut"]
    api.calls.clear()
    assert reconcile(api) is None
    assert not api.calls


def test_without_an_admission_everything_is_there_but_the_pods(api: FakeApi) -> None:
    del api.items[TOKENIZER_ADMISSION, "qwen"]
    settle(api, 3)
    assert not api.names(STATEFUL_SET)
    assert api.names(SERVICE) == {"chat", "chat-pods"}
    assert api.said("TokenizersAdmitted") == ("False", "AdmissionMissing")


def scenario(api: FakeApi, kill_at: int | None) -> None:
    """Made, upgraded, given up an upgrade, upgraded again, scaled, stripped; killed at the n-th call of each part."""

    def part(rounds: int = 12) -> None:
        api.kill_at = kill_at
        for _ in range(rounds):
            try:
                reconcile(api)
            except Killed:
                continue
            api.controllers_act()
        api.kill_at = None

    part()
    api.admit(admitted("qwen-2"))
    part()
    assert api.pods() == ["qwen-2"] * 3
    api.change(rollout={"canaryHold": "1h"})
    api.admit(admitted("qwen-3"))
    part()
    assert api.pods() == ["qwen-2", "qwen-2", "qwen-3"]
    reports = api.items[CONFIG_MAP, "chat-reports"]
    api.store(CONFIG_MAP, {**reports, "data": {"chat-2.qwen-3": "{}"}})
    part()
    assert api.pods() == ["qwen-2"] * 3
    assert api.items[CONFIG_MAP, "chat-control"]["data"]["quarantined"] == '["qwen-3"]'
    assert api.items[CONFIG_MAP, "chat-reports"]["data"] == {"chat-2.qwen-3": "{}"}
    api.change(rollout={"canaryHold": "0s"}, replicas=2, podDisruptionBudget={"enabled": False})
    api.admit(admitted("qwen-4"))
    part()
    assert api.pods() == ["qwen-4"] * 2


@pytest.mark.parametrize("kill_at", [None, *range(18)])
def test_it_gets_there_wherever_it_is_killed(api: FakeApi, kill_at: int | None) -> None:
    scenario(api, kill_at)
    assert api.said("Progressing") == ("False", "RolledOut")
    assert len([name for name in api.names(CONFIG_MAP) if "-settings-" in name]) == 1
    assert not api.names(POD_DISRUPTION_BUDGET)
    assert len(api.names(SECRET)) == 1
    for (kind, _), item in api.items.items():
        if kind not in (TOKTIER, TOKENIZER_ADMISSION, POD):
            assert [each["uid"] for each in item["metadata"]["ownerReferences"]] == [OWNER.uid]


def test_quarantines_are_told_before_anything_else(api: FakeApi) -> None:
    settle(api)
    api.change(replicas=5)
    api.admit(admitted("qwen-1", quarantined=True))
    api.order.clear()
    reconcile(api)
    assert api.order[0] == "apply ConfigMap chat-control"
    assert "Quarantined" in api.events
    assert api.said("Degraded") == ("True", "Quarantined")


def test_a_step_is_written_before_it_is_taken(api: FakeApi) -> None:
    settle(api)
    api.admit(admitted("qwen-2"))
    api.order.clear()
    reconcile(api)
    assert api.order.index("patch_status TokTier chat") < api.order.index("apply StatefulSet chat")


def test_what_pods_may_still_need_is_not_deleted(api: FakeApi) -> None:
    settle(api)
    (old,) = [name for name in api.names(CONFIG_MAP) if "-settings-" in name]
    api.change(rollout={"canaryHold": "1h"})
    api.admit(admitted("qwen-2"))
    settle(api)
    assert api.pods().count("qwen-2") == 1
    assert old in api.names(CONFIG_MAP)


def test_a_decision_on_something_old_is_not_written(api: FakeApi) -> None:
    settle(api)
    old = api.observe()
    api.change(replicas=4)
    api.admit(admitted("qwen-2"))
    for item in [api.items[TOKENIZER_ADMISSION, "qwen"]]:
        old.put(TOKENIZER_ADMISSION, item)
    with pytest.raises(Conflict):
        reconcile(api, old)
    assert api.items[STATEFUL_SET, NAME]["spec"]["template"]["metadata"]["annotations"][ADMISSIONS] == "qwen-1"


def test_a_service_of_somebody_else_is_left_alone(api: FakeApi) -> None:
    theirs = api.store(SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": {"a": 1}})
    assert reconcile(api) == 60.0
    assert api.items[SERVICE, NAME] is theirs
    assert api.said("Degraded") == ("True", "ApplyFailed")
    assert api.names(STATEFUL_SET) == {NAME}


def test_what_a_tier_of_the_same_name_left_is_waited_for(api: FakeApi) -> None:
    settle(api)
    again = toktier(replicas=3)
    again["metadata"]["uid"] = "another"
    api.store(TOKTIER, again)
    with pytest.raises(Conflict):
        reconcile(api)
    owner = api.items[STATEFUL_SET, NAME]["metadata"]["ownerReferences"][0]["uid"]
    assert owner == OWNER.uid


def test_what_the_api_server_refuses_is_told_and_tried_again_later(api: FakeApi) -> None:
    api.refuse = {"StatefulSet": Invalid("spec.template: no such thing")}
    assert reconcile(api) == 60.0
    assert api.said("Degraded") == ("True", "ApplyFailed")
    assert api.events.count("ApplyFailed") == 1
    reconcile(api)
    assert api.events.count("ApplyFailed") == 1
    api.refuse = {}
    settle(api)
    assert api.said("Degraded") == ("False", "Healthy")


def test_a_cluster_without_the_gateway_api_says_so(api: FakeApi) -> None:
    api.refuse = {"HTTPRoute": NotFound("page not found", reason="")}
    api.change(gateway={"parentRefs": [{"name": "public"}]})
    settle(api)
    assert api.said("Degraded") == ("True", "ApplyFailed")
    assert api.pods() == ["qwen-1"] * 3


def test_what_is_switched_off_goes_and_comes_back(api: FakeApi) -> None:
    api.change(gateway={"parentRefs": [{"name": "public"}]})
    settle(api)
    assert api.names(HTTP_ROUTE) == api.names(POD_DISRUPTION_BUDGET) == api.names(NETWORK_POLICY) == {NAME}
    del api.items[TOKTIER, NAME]["spec"]["gateway"]
    api.change(podDisruptionBudget={"enabled": False}, networkPolicy={"enabled": False})
    settle(api, 2)
    assert not api.names(HTTP_ROUTE) | api.names(POD_DISRUPTION_BUDGET) | api.names(NETWORK_POLICY)
    api.change(podDisruptionBudget={"enabled": True})
    settle(api, 2)
    assert api.names(POD_DISRUPTION_BUDGET) == {NAME}


def test_a_hand_that_changed_an_object_is_undone(api: FakeApi) -> None:
    settle(api)
    api.items[SERVICE, NAME]["spec"]["selector"] = {"app": "other"}
    api.items[STATEFUL_SET, NAME]["spec"]["replicas"] = 1
    settle(api, 3)
    assert api.items[SERVICE, NAME]["spec"]["selector"]["app.kubernetes.io/instance"] == NAME
    assert api.items[STATEFUL_SET, NAME]["spec"]["replicas"] == 3


def test_a_spec_that_cannot_be_read_is_told_of_and_what_serves_is_quarantined_all_the_same(api: FakeApi) -> None:
    settle(api)
    api.change(replicas="many")
    api.admit(admitted("qwen-1", quarantined=True))
    assert reconcile(api) is None
    assert api.said("Degraded") == ("True", "SpecInvalid")
    assert api.events[-1] == "SpecInvalid"
    assert api.items[CONFIG_MAP, "chat-control"]["data"]["quarantined"] == '["qwen-1"]'
    api.calls.clear()
    reconcile(api)
    assert not api.calls


def test_a_tier_that_is_gone_or_going_is_left_to_its_owner_references(api: FakeApi) -> None:
    api.items[TOKTIER, NAME]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert reconcile(api) is None
    del api.items[TOKTIER, NAME]
    assert reconcile(api) is None
    assert not api.calls


def test_a_new_image_comes_with_new_admissions_as_a_canary(api: FakeApi) -> None:
    settle(api)
    newer = "registry.example/toktier:2"
    settle(api, 3, image=newer)
    assert api.said("Progressing") == ("False", "WaitingForImage")
    assert api.status()["image"] == IMAGE
    api.change(rollout={"canaryHold": "1h"})
    api.admit(admitted("qwen-2", image=newer))
    settle(api, 6, image=newer)
    assert api.pods() == ["qwen-1", "qwen-1", "qwen-2"]
    api.change(rollout={"canary": False})
    settle(api, image=newer)
    assert api.pods() == ["qwen-2"] * 3
    assert api.status()["image"] == newer
