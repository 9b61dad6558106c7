"""One look at a TokTier: what is → what should be → apply → status.

The order is what makes it safe to be killed between any two calls:

 1. quarantines go to the pods before anything else;
 2. the step of the rollout is written to the status before it is taken;
 3. settings and everything around the pods are there before the pods that need them;
 4. nothing is deleted that any pod may still need.

Everything is done again from the beginning after an error, and finds what was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from ..api.admission_status import AdmissionStatus
from ..api.rollout import Composition, Rollout, Stage
from ..api.structure import SpecError
from ..api.toktier_spec import TokTierSpec
from ..api.toktier_status import TokTierStatus
from ..cluster.client import Cluster
from ..cluster.kinds import CONFIG_MAP, POD, STATEFUL_SET, TOKTIER, Json
from ..cluster.observed import Observed, needs_apply
from ..config import Config
from ..policies import conditions, toktier
from ..policies.rollout import Decision, Facts, SetSeen, decide
from ..resources import messages, names
from ..resources.owned import Owner
from ..resources.stateful_set import replicas_of, stateful_set
from ..resources.toktier import Made, surroundings
from .tier_objects import Objects
from .tier_observed import admissions_of, set_seen, upstream_of

REFUSED_AGAIN_S = 60.0
"""What the API server refused may be allowed later without any event that tells."""
UPSTREAM_AGAIN_S = {False: 30.0, True: 120.0}
"""Nobody tells of the endpoints of a Service that isn't ours: while it is not reachable, and while it is, whether there
are any is looked at so often."""
_WARNINGS = frozenset({"RollingBack", "Quarantined", "ApplyFailed", "SpecInvalid"})


async def reconcile_toktier(
    cluster: Cluster, observed: Observed, config: Config, namespace: str, name: str
) -> float | None:
    """Seconds until it is to be looked at again, None for at the next event. `ClusterError`: to be tried again."""
    body = observed.get(TOKTIER, namespace, name)
    if body is None or body["metadata"].get("deletionTimestamp"):
        return None  # owner references collect the rest
    return await _Reconcile(cluster, observed, config, body).run()


class _Reconcile:
    def __init__(self, cluster: Cluster, observed: Observed, config: Config, body: Json) -> None:
        self.cluster, self.observed, self.config, self.body = cluster, observed, config, body
        self.owner = Owner.of(body)
        self.objects = Objects(cluster, observed, self.owner)
        self.now = datetime.now(UTC)
        self._made: dict[Composition, Made] = {}
        self.rollout = Rollout.from_status((body.get("status") or {}).get("rollout"))

    async def run(self) -> float | None:
        before = _status(self.body)
        try:
            spec = TokTierSpec.of(self.body)
        except SpecError as error:
            await self._refuse(error, before)
            return None
        known = admissions_of(self.observed, self.owner.namespace, [each.admission for each in spec.tokenizers])
        quarantined = await self._quarantine(known)
        seen = self._seen()
        choice = toktier.choose(spec, known, quarantined, self.rollout, self.config.tier_image)
        facts = self._facts(spec, seen, quarantined)
        decision = decide(self.rollout, choice.wanted, facts) if choice.wanted is not None else None
        if decision is not None:
            await self._write_rollout(decision.rollout)
        await self._bring_about(spec, decision)
        upstream = await upstream_of(self.cluster, self.owner.namespace, spec)
        situation = conditions.Situation(
            generation=self.body["metadata"]["generation"],
            spec=spec,
            admissions=known,
            quarantined=quarantined,
            choice=choice,
            decision=decision,
            seen=seen,
            counted=decision is not None and facts.has(decision.serve),
            replicas=replicas_of(spec),
            upstream=upstream,
            failures=self.objects.failures,
            selector=",".join(f"{key}={value}" for key, value in names.tier_selector(self.owner.name).items()),
            now=self.now,
        )
        await self._write(conditions.status_of(situation, before))
        await self._tell(decision, before)
        waits = [
            decision.look_again_s if decision is not None else None,
            conditions.stuck_in_s(seen, replicas_of(spec), self.now),
            REFUSED_AGAIN_S if self.objects.failures else None,
            UPSTREAM_AGAIN_S[upstream.reachable] if upstream.reachable is not None else None,
        ]
        return min((each for each in waits if each is not None), default=None)

    async def _refuse(self, error: SpecError, before: TokTierStatus) -> None:
        known = admissions_of(self.observed, self.owner.namespace, self._served_admissions())
        await self._quarantine(known)
        generation = self.body["metadata"]["generation"]
        status = conditions.refused_status(before, generation, str(error), self.now)
        if await self._write(status) and before.observed_generation != generation:
            await self._event("SpecInvalid", str(error))

    def _served_admissions(self) -> list[str]:
        return [each.admission for each in self.rollout.stable.tokenizers] if self.rollout is not None else []

    async def _quarantine(self, known: Mapping[str, AdmissionStatus]) -> frozenset[str]:
        """The ids that are, told to the pods."""
        namespace, name = self.owner.namespace, self.owner.name
        told = self.observed.get(CONFIG_MAP, namespace, names.reports(name)) or {}
        control = self.observed.get(CONFIG_MAP, namespace, names.control(name))
        text = ((control or {}).get("data") or {}).get(names.CONTROL_KEY, "")
        reported = toktier.reported_ids(name, told.get("data") or {})
        found = toktier.quarantined_ids(known, reported, text, self.rollout)
        manifest = messages.control(self.owner, toktier.write_control(found))
        new = found - toktier.read_control(text)
        if control is None or needs_apply(manifest, control):
            await self.objects.apply(manifest)
        if new:
            await self._event("Quarantined", f"{', '.join(sorted(new))}: served by the reference alone from now on")
        return found

    def _seen(self) -> SetSeen | None:
        namespace, name = self.owner.namespace, self.owner.name
        item = self.observed.get(STATEFUL_SET, namespace, name)
        if item is None or not self.owner.owns(item):
            return None
        return set_seen(item, self.observed.list(POD, namespace, {names.TOKTIER: name}))

    def _facts(self, spec: TokTierSpec, seen: SetSeen | None, quarantined: frozenset[str]) -> Facts:
        return Facts(
            seen=seen,
            template=lambda composition: self._made_of(spec, composition).digest,
            replicas=replicas_of(spec),
            hold_s=spec.rollout.canary_hold_s,
            now=self.now,
            canary=spec.rollout.canary,
            quarantined=quarantined,
        )

    def _made_of(self, spec: TokTierSpec, composition: Composition) -> Made:
        if composition not in self._made:
            self._made[composition] = Made.of(self.owner, spec, composition, self.config.image_pull_policy)
        return self._made[composition]

    async def _write_rollout(self, rollout: Rollout) -> None:
        if rollout != self.rollout:
            await self._patch({**(self.body.get("status") or {}), "rollout": rollout.to_status()})

    async def _bring_about(self, spec: TokTierSpec, decision: Decision | None) -> None:
        manifests = surroundings(self.owner, spec)
        for manifest in manifests:
            await self.objects.apply(manifest)
        await self.objects.ensure_peers()
        if decision is not None:
            made = self._made_of(spec, decision.serve)
            if await self.objects.apply(made.settings):
                pods = stateful_set(self.owner, spec, made.template, partition=decision.partition)
                await self.objects.apply(pods)
            if decision.complete and decision.rollout.stage is Stage.STEADY:
                await self.objects.prune_settings(made.settings["metadata"]["name"])
        await self.objects.prune_optional({manifest["kind"] for manifest in manifests})

    async def _write(self, status: TokTierStatus) -> bool:
        return await self._patch(status.to_dict())

    async def _patch(self, status: Json) -> bool:
        """Whether it is still there."""
        found = await self.cluster.patch_status(
            TOKTIER, self.owner.namespace, self.owner.name, status, observed=self.body
        )
        if found is not None:
            self.body = found
        return found is not None

    async def _tell(self, decision: Decision | None, before: TokTierStatus) -> None:
        if self.objects.failures and not any(each.reason == "ApplyFailed" for each in before.conditions):
            await self._event("ApplyFailed", "; ".join(self.objects.failures))
        if decision is not None and decision.event:
            ids = ", ".join(sorted(decision.serve.ids))
            await self._event(decision.event, f"{ids} with {decision.serve.image}")

    async def _event(self, reason: str, message: str) -> None:
        type_ = "Warning" if reason in _WARNINGS else "Normal"
        await self.cluster.event(self.body, type_, reason, message[:1_000])


def _status(body: Json) -> TokTierStatus:
    try:
        return TokTierStatus.of(body)
    except SpecError:
        return TokTierStatus()
