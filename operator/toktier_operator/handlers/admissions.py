"""One look at a TokenizerAdmission: observe, decide (`policies.admission`), write the status, then do what it says.

The status is written first, and only onto the object that was decided about: whoever is killed after it finds it again,
and does the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..api.admission_spec import AdmissionSpec
from ..api.admission_status import AdmissionStatus, DivergenceReport
from ..api.rollout import Rollout
from ..api.structure import SpecError, read
from ..api.times import rfc3339
from ..cluster.client import Cluster
from ..cluster.errors import Conflict, Forbidden
from ..cluster.kinds import (
    CONFIG_MAP,
    CONFIG_MAP_SOURCE,
    JOB,
    SECRET,
    SECRET_SOURCE,
    STATEFUL_SET,
    TOKENIZER_ADMISSION,
    TOKTIER,
    Json,
    kind_of,
)
from ..cluster.observed import Observed, needs_apply
from ..config import Config
from ..policies.admission import decide
from ..policies.admission_conditions import invalid_spec
from ..policies.admission_runs import Result, known_to, read_result, run_image, spec_digest
from ..policies.admission_seen import Decision, JobSeen, Report, Seen
from ..resources import names
from ..resources.admission_job import Run, account_objects, admission_job
from ..resources.owned import owned_by
from .metrics import Metrics

SOURCE_MISSING_S = 30.0
FOREIGN_S = 5.0
log = logging.getLogger("toktier.operator")


class Admissions:
    """Keeps nothing that a restart would lose, but which bundles were swept last."""

    def __init__(
        self, metrics: Metrics | None = None, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._metrics = metrics if metrics is not None else Metrics()
        self._clock = clock
        self._swept: dict[str, tuple[int, frozenset[str]]] = {}

    async def reconcile(
        self, cluster: Cluster, observed: Observed, config: Config, namespace: str, name: str
    ) -> float | None:
        """Seconds until it wants to be looked at again."""
        body = observed.get(TOKENIZER_ADMISSION, namespace, name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        status = status_of(body)
        try:
            spec = AdmissionSpec.of(body)
        except SpecError as error:
            await self._write_invalid(cluster, body, status, str(error))
            return None
        seen = await self._look(cluster, observed, config, body, spec, status)
        decision = decide(seen)
        for each in decision.happenings:
            await cluster.event(body, each.type_, each.reason, each.message)
        status_dict = decision.status.to_dict()
        if await cluster.patch_status(TOKENIZER_ADMISSION, namespace, name, status_dict, observed=body) is None:
            return None
        self._count(namespace, name, decision)
        wait_s = await self._act(cluster, observed, config, body, spec, seen, decision)
        waits_s = [each for each in (decision.look_again_s, wait_s) if each is not None]
        if seen.source_version == "":
            waits_s.append(SOURCE_MISSING_S)
        return min(waits_s, default=None)

    async def _write_invalid(self, cluster: Cluster, body: Json, status: AdmissionStatus, problem: str) -> None:
        """The webhook refuses such specs; without it they get here."""
        metadata = body["metadata"]
        now = rfc3339(self._clock())
        conditions = invalid_spec(status, problem, int(metadata.get("generation") or 0), now)
        written = {
            **(body.get("status") or {}),
            "phase": status.phase.value,
            "conditions": AdmissionStatus(conditions=conditions).to_dict()["conditions"],
        }
        await cluster.patch_status(TOKENIZER_ADMISSION, metadata["namespace"], metadata["name"], written, observed=body)

    async def _look(
        self,
        cluster: Cluster,
        observed: Observed,
        config: Config,
        body: Json,
        spec: AdmissionSpec,
        status: AdmissionStatus,
    ) -> Seen:
        metadata = body["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        labels = {names.ADMISSION: name}
        jobs = {}
        for item in observed.list(JOB, namespace, labels):
            if (number := names.run_of(name, item["metadata"]["name"])) is not None:
                jobs[number] = job_seen(item, uid)
        run = status.run
        if run is not None and run.number in jobs and jobs[run.number].state != "Running":
            result_name = names.admission_result(name, run.number)
            if observed.get(CONFIG_MAP, namespace, result_name) is None:
                await cluster.get(CONFIG_MAP, namespace, result_name)
        results: dict[int, Result] = {}
        numbers = set(jobs)
        for item in observed.list(CONFIG_MAP, namespace, labels):
            number = names.run_of(name, item["metadata"]["name"])
            if number is None:
                continue
            numbers.add(number)
            if owned_by(item, uid):
                results[number] = read_result(item, name, number)
        return Seen(
            name=name,
            generation=int(metadata.get("generation") or 0),
            spec=spec,
            spec_digest=spec_digest(body),
            status=status,
            now=self._clock(),
            image=run_image(spec, config.tier_image),
            readmit=str((metadata.get("annotations") or {}).get(names.READMIT) or ""),
            source_version=await source_version(cluster, observed, namespace, spec),
            jobs=jobs,
            results=results,
            numbers=frozenset(numbers),
            reports=reports_about(observed, namespace, name),
            used=chunks_in_use(observed, namespace, name),
        )

    def _count(self, namespace: str, name: str, decision: Decision) -> None:
        if decision.divergences:
            self._metrics.divergences.labels(namespace, name).inc(decision.divergences)
        for outcome in decision.finished:
            self._metrics.runs.labels(namespace, name, outcome).inc()

    async def _act(
        self,
        cluster: Cluster,
        observed: Observed,
        config: Config,
        body: Json,
        spec: AdmissionSpec,
        seen: Seen,
        decision: Decision,
    ) -> float | None:
        metadata = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        for number in decision.delete_jobs:
            await cluster.delete(JOB, namespace, names.admission_job(name, number))
        wait_s = None
        if decision.make_job is not None:
            for manifest in account_objects(body):
                there = observed.get(kind_of(manifest), namespace, manifest["metadata"]["name"])
                if needs_apply(manifest, there):
                    await cluster.apply(manifest)
            wait_s = await self._make_job(cluster, config, body, spec, seen, decision)
        for number in decision.delete_results:
            await cluster.delete(CONFIG_MAP, namespace, names.admission_result(name, number))
        await self._sweep(cluster, body, decision)
        return wait_s

    async def _make_job(
        self, cluster: Cluster, config: Config, body: Json, spec: AdmissionSpec, seen: Seen, decision: Decision
    ) -> float | None:
        status, number = decision.status, decision.make_job
        assert number is not None
        assert status.run is not None
        bundle = status.current.bundle if status.current is not None else None
        run = Run(
            number=number,
            image=status.image or seen.image,
            pull_policy=config.image_pull_policy,
            known=known_to(status, seen.results, status.run.trigger),
            previous=bundle.config_maps if bundle is not None else (),
        )
        try:
            await cluster.create(admission_job(body, spec, run))
        except Conflict as conflict:
            if conflict.reason != "AlreadyExists":
                raise
            # Made before the cache has heard of it, or left by an admission of the same name and on its way out.
            await cluster.get(JOB, body["metadata"]["namespace"], status.run.job)
            return FOREIGN_S
        return None

    async def _sweep(self, cluster: Cluster, body: Json, decision: Decision) -> None:
        """Delete the bundles that nothing needs; asked of the API server once for each state that needs others."""
        if decision.needed_chunks is None:
            return
        metadata = body["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        state = (decision.status.next_run, decision.needed_chunks)
        if self._swept.get(uid) == state:
            return
        labels = f"{names.ADMISSION}={name}"
        for item in await cluster.list_metadata(CONFIG_MAP, namespace, labels):
            chunk = item["metadata"]["name"]
            if chunk in decision.needed_chunks or not names.is_bundle_chunk(name, chunk) or not owned_by(item, uid):
                continue
            await cluster.delete(CONFIG_MAP, namespace, chunk, uid=item["metadata"]["uid"])
        self._swept[uid] = state


def status_of(body: Json) -> AdmissionStatus:
    """One that can't be read is as if it were lost: what matters of it is found again."""
    try:
        return AdmissionStatus.of(body)
    except SpecError as error:
        log.warning("status of %s is started anew: %s", body["metadata"]["name"], error)
        return AdmissionStatus()


def job_seen(item: Json, uid: str) -> JobSeen:
    status = item.get("status") or {}
    started_at = str(status.get("startTime") or item["metadata"].get("creationTimestamp") or "")
    state, reason, message, finished_at = "Running", "", "", ""
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            state = "Succeeded" if condition["type"] == "Complete" else "Failed"
            reason, message = str(condition.get("reason") or ""), str(condition.get("message") or "")
            finished_at = str(status.get("completionTime") or condition.get("lastTransitionTime") or "")
    return JobSeen(state, reason, message, started_at, finished_at, foreign=not owned_by(item, uid))


async def source_version(cluster: Cluster, observed: Observed, namespace: str, spec: AdmissionSpec) -> str | None:
    """resourceVersion of a source in the API server, "" if it isn't there, None if only a Job can look at it.

    Secrets are such ones where the operator may read their metadata.
    """
    source = spec.source
    if source.config_map is not None:
        kind, seen_as, name = CONFIG_MAP, CONFIG_MAP_SOURCE, source.config_map.name
    elif source.secret is not None:
        kind, seen_as, name = SECRET, SECRET_SOURCE, source.secret.name
    else:
        return None
    found = observed.get(seen_as, namespace, name)
    if found is None:
        try:
            found = await cluster.get_metadata(kind, namespace, name)
        except Forbidden:
            return None
        if found is None:
            return ""
        observed.put(seen_as, found)
    return str(found["metadata"].get("resourceVersion") or "0")


def reports_about(observed: Observed, namespace: str, name: str) -> tuple[Report, ...]:
    found = []
    for item in observed.list(CONFIG_MAP, namespace):
        toktier = (item["metadata"].get("labels") or {}).get(names.TOKTIER)
        if toktier is None or item["metadata"]["name"] != names.reports(toktier):
            continue
        for key, text in (item.get("data") or {}).items():
            id_ = names.admission_of(key.rpartition(".")[2])
            if id_ is not None and id_[0] == name and (report := _report(text, toktier)) is not None:
                found.append(report)
    return tuple(found)


def _report(text: str, toktier: str) -> Report | None:
    try:
        document: Any = json.loads(text)
        renamed = {"textChars": document.get("text_chars"), "toktier": toktier}
        return Report(str(document["id"]), read(DivergenceReport, {**document, **renamed}, "report"))
    except (ValueError, TypeError, KeyError, AttributeError, SpecError) as error:
        log.warning("a report in %s can't be read: %s", names.reports(toktier), error)
        return None


def chunks_in_use(observed: Observed, namespace: str, name: str) -> frozenset[str]:
    """Of the admission's bundles, what pods of any TokTier have mounted or may be given again."""
    used: set[str] = set()
    for item in observed.list(TOKTIER, namespace):
        written = (item.get("status") or {}).get("rollout")
        rollout = Rollout.from_status(written) if _names_admission(written, name) else None
        used |= rollout.config_maps if rollout is not None else set()
    for item in observed.list(STATEFUL_SET, namespace):
        for volume in item["spec"]["template"]["spec"].get("volumes") or ():
            sources = (volume.get("projected") or {}).get("sources") or ()
            used |= {each["configMap"]["name"] for each in sources if each.get("configMap")}
    return frozenset(chunk for chunk in used if names.is_bundle_chunk(name, chunk))


def _names_admission(rollout: Any, name: str) -> bool:
    """Whether that status.rollout is worth reading: every admission asks of every TokTier, and reading is slow."""
    try:
        parts = [rollout.get(part) or {} for part in ("stable", "target")]
        return any(each.get("admission") == name for part in parts for each in part.get("tokenizers") or ())
    except (AttributeError, TypeError):
        return False  # nothing that could be read
