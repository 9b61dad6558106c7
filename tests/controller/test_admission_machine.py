"""Reconciles of one admission while everything goes wrong: kills between any two calls, late watches, lost statuses.

The API server is a dictionary here with the rules that matter: versions, conflicts, what exists can't be created.
"""

from __future__ import annotations

import asyncio
import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toktier_operator.cluster.client import Cluster
from toktier_operator.cluster.errors import Conflict, Unavailable
from toktier_operator.cluster.kinds import (
    CONFIG_MAP,
    CONFIG_MAP_SOURCE,
    JOB,
    TOKENIZER_ADMISSION,
    Json,
    Kind,
    kind_of,
)
from toktier_operator.cluster.observed import Observed, with_digest
from toktier_operator.config import Config
from toktier_operator.handlers.admissions import Admissions
from toktier_operator.resources import names
from workshop import examples

NAMESPACE, NAME, UID = "n", "a", "uid-a"
ME = [{"uid": UID}]


class Killed(BaseException):
    """The process ends here."""


class Memory(Cluster):
    """What the API server stores; `budget` calls are answered, then the operator is dead."""

    def __init__(self) -> None:
        self.items: dict[tuple[Kind, str], Json] = {}
        self.version = 100
        self.observed = Observed()
        self.budget: int | None = None
        self.flaky = False
        self.created: list[str] = []
        self.happened: list[str] = []

    def _call(self) -> None:
        if self.budget is not None:
            self.budget -= 1
            if self.budget < 0:
                raise Killed
        if self.flaky:
            self.flaky = False
            raise Unavailable("try again")

    def store(self, kind: Kind, item: Json) -> Json:
        self.version += 1
        item = copy.deepcopy(item)
        item["metadata"] |= {"resourceVersion": str(self.version), "namespace": NAMESPACE}
        item["metadata"].setdefault("uid", f"uid-{self.version}")
        self.items[kind, item["metadata"]["name"]] = item
        return copy.deepcopy(item)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        self._call()
        found = self.items.get((kind, name))
        if found is None:
            self.observed.remove(kind, namespace, name)
        else:
            self.observed.put(kind, copy.deepcopy(found))
        return copy.deepcopy(found)

    async def get_metadata(self, kind: Kind, namespace: str, name: str) -> Json | None:
        self._call()
        return copy.deepcopy(self.items.get((kind, name)))

    async def list_metadata(self, kind: Kind, namespace: str = "", labels: str = "") -> Any:
        self._call()
        key, _, value = labels.partition("=")
        return [
            copy.deepcopy(item)
            for (of, _), item in self.items.items()
            if of == kind and (item["metadata"].get("labels") or {}).get(key) == value
        ]

    async def apply(self, manifest: Json) -> Json:
        self._call()
        kind = kind_of(manifest)
        stored = self.store(kind, with_digest(manifest))
        self.observed.put(kind, stored)
        return stored

    async def create(self, manifest: Json) -> Json:
        self._call()
        kind = kind_of(manifest)
        if (kind, manifest["metadata"]["name"]) in self.items:
            raise Conflict("exists", reason="AlreadyExists")
        stored = self.store(kind, manifest)
        self.created.append(stored["metadata"]["name"])
        self.observed.put(kind, stored)
        return stored

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Json, *, observed: Json | None
    ) -> Json | None:
        assert observed is not None
        if (observed.get("status") or {}) == status:
            return observed
        self._call()
        there = self.items[kind, name]
        if there["metadata"]["resourceVersion"] != observed["metadata"]["resourceVersion"]:
            raise Conflict("another version")
        stored = self.store(kind, {**there, "status": json.loads(json.dumps(status))})
        self.observed.put(kind, stored)
        return stored

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> bool:
        self._call()
        return self.items.pop((kind, name), None) is not None

    async def event(self, about: Json, type_: str, reason: str, message: str) -> None:
        self._call()
        self.happened.append(reason)


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Memory()
        self.now = datetime(2026, 11, 30, tzinfo=UTC)
        self.image = "tier:1"
        self.source = 1
        self.admissions = self._started()
        self.results: dict[int, Json] = {}
        self.bundles: dict[int, tuple[str, str]] = {}
        """By run, of what its Job has made so far: the source's bytes, the ConfigMap."""
        self.taken: set[int] = set()
        """Runs whose verdict was in a status once. One without a verdict may be forgotten with its status."""

    def _started(self) -> Admissions:
        return Admissions(clock=lambda: self.now)

    def _restart(self) -> None:
        """Nothing is left but what the API server has."""
        self.admissions = self._started()
        self.cluster.observed = Observed()
        self._deliver()

    def _deliver(self) -> None:
        """All watches are up to date."""
        observed = self.cluster.observed
        for kind in {of for of, _ in self.cluster.items} | {JOB, CONFIG_MAP}:
            items = [copy.deepcopy(item) for (of, _), item in self.cluster.items.items() if of == kind]
            if kind == CONFIG_MAP:
                source = [item for item in items if item["metadata"]["name"] == "source"]
                observed.replace(CONFIG_MAP_SOURCE, NAMESPACE, source, self.cluster.version)
                items = [item for item in items if not names.is_bundle_chunk(NAME, item["metadata"]["name"])]
            observed.replace(kind, NAMESPACE, items, self.cluster.version)

    def _reconcile(self) -> float | None:
        config = Config(tier_image=self.image)
        coroutine = self.admissions.reconcile(self.cluster, self.cluster.observed, config, NAMESPACE, NAME)
        return asyncio.run(coroutine)

    @property
    def body(self) -> Json:
        return self.cluster.items[TOKENIZER_ADMISSION, NAME]

    @property
    def status(self) -> Json:
        status: Json = self.body.get("status") or {}
        return status

    def _stamp(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    @initialize()
    def begin(self) -> None:
        spec = {
            "source": {"configMap": {"name": "source", "key": "tokenizer.json"}},
            "historyLimit": 2,
            "quarantine": {"readmit": "Automatic", "delay": "5m"},
        }
        self.cluster.store(
            TOKENIZER_ADMISSION,
            {
                "apiVersion": "toktier.dev/v1alpha1",
                "kind": "TokenizerAdmission",
                "metadata": {"name": NAME, "uid": UID, "generation": 1},
                "spec": spec,
            },
        )
        self._store_source()
        self._deliver()

    def _store_source(self) -> None:
        self.cluster.store(CONFIG_MAP, {"metadata": {"name": "source"}, "data": {"tokenizer.json": str(self.source)}})

    @rule(calls=st.integers(0, 6), late=st.booleans())
    def reconcile_and_be_killed(self, calls: int, late: bool) -> None:
        if not late:
            self._deliver()
        self.cluster.budget = calls
        try:
            self._reconcile()
        except Killed:
            self.cluster.budget = None
            self._restart()
        except Conflict:
            self._deliver()
        self.cluster.budget = None

    @rule(flaky=st.booleans(), late=st.booleans())
    def reconcile(self, flaky: bool, late: bool) -> None:
        if not late:
            self._deliver()
        self.cluster.flaky = flaky
        try:
            self._reconcile()
        except (Conflict, Unavailable):
            self._deliver()
        self.cluster.flaky = False

    @rule(seconds=st.sampled_from([1, 60, 400, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def change_source(self) -> None:
        self.source += 1
        self._store_source()

    @rule()
    def change_image(self) -> None:
        self.image = f"tier:{int(self.image[5:]) + 1}"

    @rule(seed=st.integers(0, 3))
    def change_spec(self, seed: int) -> None:
        body = self.body
        body["spec"]["campaign"] = {"seed": seed}
        body["metadata"]["generation"] += 1
        self.cluster.store(TOKENIZER_ADMISSION, body)

    @rule()
    def ask_for_a_run(self) -> None:
        body = self.body
        body["metadata"]["annotations"] = {names.READMIT: self._stamp() + str(self.cluster.version)}
        self.cluster.store(TOKENIZER_ADMISSION, body)

    @rule()
    def lose_status(self) -> None:
        self.cluster.store(TOKENIZER_ADMISSION, {**self.body, "status": {}})

    def _jobs(self) -> dict[int, Json]:
        found = {}
        for (kind, name), item in self.cluster.items.items():
            number = names.run_of(NAME, name)
            if kind == JOB and number is not None:
                found[number] = item
        return found

    def _running(self) -> dict[int, Json]:
        return {number: job for number, job in self._jobs().items() if not (job.get("status") or {}).get("conditions")}

    @precondition(lambda self: self._running())
    @rule(data=st.data(), end=st.sampled_from(["Admitted", "ReferenceOnly", "Rejected", "Unchanged", "Failed", "dies"]))
    def a_job_ends(self, data: st.DataObject, end: str) -> None:
        self._end(data.draw(st.sampled_from(sorted(self._running()))), end)

    def _end(self, number: int, end: str) -> None:
        job = self._jobs()[number]
        request = json.loads(job["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"])
        assert request["run"] == number
        if end != "dies":
            self._publish(number, end, request)
        type_ = "Failed" if end == "dies" else "Complete"
        condition = {"type": type_, "status": "True", "lastTransitionTime": self._stamp(), "reason": "X"}
        self.cluster.store(JOB, {**job, "status": {"conditions": [condition]}})

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def a_job_makes_its_bundle(self, data: st.DataObject) -> None:
        self._make_bundle(data.draw(st.sampled_from(sorted(self._running()))))

    def _make_bundle(self, number: int) -> None:
        if number in self.bundles:
            return
        chunk = names.bundle_chunk(NAME, f"{self.source:064x}"[::-1], 0)
        self.bundles[number] = (str(self.source), chunk)
        if (CONFIG_MAP, chunk) not in self.cluster.items:
            metadata = {"name": chunk, "labels": names.admission_labels(NAME), "ownerReferences": ME}
            self.cluster.store(CONFIG_MAP, {"metadata": metadata})

    def _publish(self, number: int, end: str, request: Json) -> None:
        name = names.admission_result(NAME, number)
        if (CONFIG_MAP, name) in self.cluster.items:
            return
        has_verdict = end == "Rejected" or (end in ("Admitted", "ReferenceOnly") and number in self.bundles)
        verdict = end if has_verdict else ""
        source, chunk = self.bundles.get(number, (str(self.source), ""))
        labels = names.admission_labels(NAME)
        bundle = None
        if verdict in ("Admitted", "ReferenceOnly"):
            bundle = {"sha256": chunk, "configMaps": [chunk]}
        self.results[number] = {
            "id": f"{NAME}-{number}",
            "run": number,
            "outcome": "Completed" if verdict else "Unchanged" if end == "Unchanged" else "Failed",
            "verdict": verdict,
            "error": {"code": "source.fetch_failed", "message": "m"} if not verdict and end != "Unchanged" else None,
            "sha256": source,
            "toolchain": {"reference": "r", "deriver": "1", "encoders": {}},
            "image": request["image"],
            "bundle": bundle,
            "startedAt": self._stamp(),
            "finishedAt": self._stamp(),
        }
        metadata = {"name": name, "labels": labels, "ownerReferences": ME}
        self.cluster.store(
            CONFIG_MAP, {"metadata": metadata, "data": {"result.json": json.dumps(self.results[number])}}
        )

    @precondition(lambda self: self._jobs())
    @rule(data=st.data())
    def a_job_vanishes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self._jobs())))
        del self.cluster.items[JOB, names.admission_job(NAME, number)]

    @precondition(lambda self: self.results)
    @rule(data=st.data(), pod=st.sampled_from(["t-0", "t-1"]))
    def a_pod_reports(self, data: st.DataObject, pod: str) -> None:
        id_ = f"{NAME}-{data.draw(st.sampled_from(sorted(self.results)))}"
        name = names.reports("t")
        there = self.cluster.items.get((CONFIG_MAP, name), {"data": {}})
        report = json.dumps({"id": id_, "pod": pod, "kind": "shadow", "text_chars": 5})
        there["data"][names.report_key(pod, id_)] = report
        metadata = {"name": name, "labels": names.tier_labels("t")}
        self.cluster.store(CONFIG_MAP, {"metadata": metadata, "data": there["data"]})

    @invariant()
    def only_what_a_run_admitted_serves(self) -> None:
        if current := self.status.get("current"):
            found = self.results[current["run"]]
            assert found["verdict"] in ("Admitted", "ReferenceOnly")
            assert (current["id"], current["sha256"]) == (found["id"], found["sha256"])

    @invariant()
    def no_number_is_used_again(self) -> None:
        for name in self.cluster.created:
            assert names.run_of(NAME, name) not in self.taken, f"{name} was made again"
        self.cluster.created.clear()
        for entry in (self.status.get("current"), self.status.get("lastRun")):
            if entry and entry.get("verdict"):
                self.taken.add(entry.get("run") or entry.get("number"))

    @invariant()
    def what_serves_has_its_bundle(self) -> None:
        if current := self.status.get("current"):
            for chunk in current["bundle"]["configMaps"]:
                assert (CONFIG_MAP, chunk) in self.cluster.items

    def teardown(self) -> None:
        """Left alone, with Jobs that do their work, it comes to rest: nothing to do, nothing left over."""
        if (TOKENIZER_ADMISSION, NAME) not in self.cluster.items:
            return
        self._restart()
        for _ in range(80):
            before = self.cluster.version
            try:
                wait_s = self._reconcile()
            except Conflict:
                wait_s = 0.0
            self.only_what_a_run_admitted_serves()
            self.what_serves_has_its_bundle()
            self.no_number_is_used_again()
            self._deliver()
            running = self._running()
            if running:
                assert len(running) == 1, "two Jobs at once"
                self._make_bundle(next(iter(running)))
                self._end(next(iter(running)), "Admitted")
                self._deliver()
            elif self.cluster.version == before:
                if wait_s is None:
                    break
                self.now += timedelta(seconds=wait_s + 1)
        else:
            raise AssertionError(f"it doesn't come to rest: {json.dumps(self.status, indent=1)}")
        self._check_rest()

    def _check_rest(self) -> None:
        status = self.status
        last = status["lastRun"]
        current = status.get("current")
        rejected = last.get("verdict") == "Rejected"
        if current is None:
            assert rejected
            assert status["phase"] == "Rejected"
            return
        assert "run" not in status
        assert status["phase"] in ("Admitted", "ReferenceOnly", "Quarantined")
        assert last["outcome"] in ("Completed", "Unchanged")
        if status["phase"] == "Quarantined":
            assert rejected, "the policy is to examine again what was quarantined"
        kept = {current["run"], last["number"], *(entry["number"] for entry in status.get("history", ()))}
        assert len(status.get("history", ())) <= 2
        needed = set(current["bundle"]["configMaps"])
        for number in kept & set(self.results):
            bundle = self.results[number]["bundle"]
            needed |= set(bundle["configMaps"]) if bundle else set()
        for kind, name in self.cluster.items:
            number = names.run_of(NAME, name)
            if kind == CONFIG_MAP and number is not None:
                assert number in kept, f"{name} is left over"
            if kind == CONFIG_MAP and names.is_bundle_chunk(NAME, name):
                assert name in needed, f"{name} is left over"


AdmissionMachine.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking one takes minutes
)
TestAdmissionMachine = AdmissionMachine.TestCase
