"""What the policies of a TokTier want to know, read out of objects as the API server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..api.admission_status import AdmissionStatus
from ..api.conditions import TierReason
from ..api.structure import SpecError
from ..api.tier_settings import UpstreamService
from ..api.toktier_spec import TokTierSpec
from ..cluster.client import Cluster
from ..cluster.errors import ClusterError, Forbidden
from ..cluster.kinds import ENDPOINT_SLICE, TOKENIZER_ADMISSION, Json
from ..cluster.observed import Observed
from ..policies.conditions import Upstream
from ..policies.rollout import PodSeen, SetSeen
from ..resources.owned import owned_by
from ..resources.pods import ADMISSIONS
from ..resources.stateful_set import TEMPLATE

REVISION = "controller-revision-hash"


def admissions_of(observed: Observed, namespace: str, names: Sequence[str]) -> dict[str, AdmissionStatus]:
    """Those that exist and aren't being deleted; one whose status makes no sense counts as without a verdict."""
    found: dict[str, AdmissionStatus] = {}
    for name in names:
        body = observed.get(TOKENIZER_ADMISSION, namespace, name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            continue
        try:
            found[name] = AdmissionStatus.of(body)
        except SpecError:
            found[name] = AdmissionStatus()
    return found


def set_seen(item: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> SetSeen | None:
    if item is None:
        return None
    metadata, status = item["metadata"], item.get("status") or {}
    revision = status.get("updateRevision", "")
    seen = [_pod(pod, metadata["name"], revision) for pod in pods if owned_by(pod, metadata.get("uid"))]
    return SetSeen(
        template=(metadata.get("annotations") or {}).get(TEMPLATE, ""),
        current=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        replicas=item["spec"].get("replicas", 1),
        existing=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        pods=tuple(sorted((each for each in seen if each is not None), key=lambda pod: pod.ordinal)),
    )


def _pod(pod: Mapping[str, Any], set_name: str, revision: str) -> PodSeen | None:
    metadata = pod["metadata"]
    prefix, _, ordinal = str(metadata["name"]).rpartition("-")
    if prefix != set_name or not ordinal.isdecimal():
        return None
    conditions = (pod.get("status") or {}).get("conditions") or ()
    condition: Mapping[str, str] = next((each for each in conditions if each.get("type") == "Ready"), {})
    leaving = metadata.get("deletionTimestamp")
    ready = condition.get("status") == "True" and not leaving
    since = leaving or condition.get("lastTransitionTime") or metadata["creationTimestamp"]
    ids = (metadata.get("annotations") or {}).get(ADMISSIONS, "")
    updated = bool(revision) and (metadata.get("labels") or {}).get(REVISION) == revision
    return PodSeen(int(ordinal), frozenset(filter(None, ids.split(","))), updated, ready, moment(since))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


async def upstream_of(cluster: Cluster, namespace: str, spec: TokTierSpec) -> Upstream:
    """A Service is as reachable as it has ready endpoints; addresses outside are for the pods alone to try."""
    upstream = spec.upstream
    if upstream is None:
        return Upstream(None, TierReason.NO_UPSTREAM, "only token IDs are served")
    if upstream.service is None:
        message = "URLs aren't tried by the operator; the pods count it in toktier_engine_events"
        return Upstream(None, TierReason.NOT_CHECKED, message)
    service = upstream.service
    where = service.namespace or namespace
    try:
        slices = await cluster.list(ENDPOINT_SLICE, where, f"kubernetes.io/service-name={service.name}")
    except Forbidden:
        return Upstream(None, TierReason.NOT_CHECKED, f"the operator may not see the endpoints in {where}")
    except ClusterError as error:
        return Upstream(None, TierReason.NOT_CHECKED, error.message)
    return _of_slices(slices, service, where)


def _of_slices(slices: Sequence[Json], service: UpstreamService, where: str) -> Upstream:
    about = f"Service {where}/{service.name}"
    if not slices:
        return Upstream(False, TierReason.UPSTREAM_MISSING, f"{about} has no endpoints at all: is it there?")
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    ready = sum((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)
    if not ready:
        return Upstream(False, TierReason.UPSTREAM_NOT_READY, f"{about}: none of {len(endpoints)} endpoints is ready")
    return Upstream(True, TierReason.UPSTREAM_READY, f"{about}: {ready} endpoints are ready")
