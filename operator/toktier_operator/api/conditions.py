"""Types, statuses and reasons of conditions: what a user may rely on in `kubectl wait` and alerts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TRUE = "True"
FALSE = "False"
UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """As Kubernetes has it; times are RFC 3339 in UTC."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


Said = tuple[str, str, str]
"""Status, reason, message."""


def with_transitions(
    before: Iterable[Condition], said: Mapping[str, Said], generation: int, now: str
) -> tuple[Condition, ...]:
    """What is said, by type; a condition's `lastTransitionTime` moves only with its status."""
    known = {each.type: each for each in before}
    conditions = []
    for type_, (state, reason, message) in said.items():
        old = known.get(type_)
        since = old.last_transition_time if old is not None and old.status == state else ""
        conditions.append(Condition(str(type_), state, str(reason), message, since or now, generation))
    return tuple(conditions)


class AdmissionCondition(enum.StrEnum):
    """Of a TokenizerAdmission.

    ADMITTED           an accelerated snapshot may serve
    UP_TO_DATE         what was found is of this spec, these bytes and this toolchain
    QUARANTINED        a pod saw a wrong ID: everything of `current` is served by the reference
    SOURCE_AVAILABLE   the source was there when it was last looked for
    PROGRESSING        a run is under way or about to be
    """

    ADMITTED = "Admitted"
    UP_TO_DATE = "UpToDate"
    QUARANTINED = "Quarantined"
    SOURCE_AVAILABLE = "SourceAvailable"
    PROGRESSING = "Progressing"


class AdmissionReason(enum.StrEnum):
    """Of a TokenizerAdmission's conditions; `Admitted` may also have the campaign's own reason as its message."""

    # Admitted
    ADMITTED = "Admitted"
    REFERENCE_ONLY = "ReferenceOnly"
    REJECTED = "Rejected"
    QUARANTINED = "Quarantined"
    NEVER_RUN = "NeverRun"
    # UpToDate
    UP_TO_DATE = "UpToDate"
    SPEC_CHANGED = "SpecChanged"
    SOURCE_CHANGED = "SourceChanged"
    TOOLCHAIN_CHANGED = "ToolchainChanged"
    UPGRADE_REJECTED = "UpgradeRejected"
    UPGRADE_FAILED = "UpgradeFailed"
    READMISSION_OFF = "ReadmissionOff"
    # Quarantined
    DIVERGENCE_REPORTED = "DivergenceReported"
    NO_DIVERGENCE = "NoDivergence"
    # SourceAvailable
    SOURCE_FOUND = "SourceFound"
    SOURCE_MISSING = "SourceMissing"
    SOURCE_UNREADABLE = "SourceUnreadable"
    NOT_CHECKED = "NotChecked"
    # Progressing
    RUN_PENDING = "RunPending"
    RUN_RUNNING = "RunRunning"
    RUN_FAILED = "RunFailed"
    IDLE = "Idle"
    SPEC_INVALID = "SpecInvalid"


class Trigger(enum.StrEnum):
    """Why a run of an admission was started."""

    FIRST = "First"
    SPEC = "SpecChanged"
    SOURCE = "SourceChanged"
    POLL = "Poll"
    REFERENCE = "ReferenceChanged"
    ENCODER = "EncoderChanged"
    DERIVER = "DeriverChanged"
    IMAGE = "ImageChanged"
    ANNOTATION = "Requested"
    QUARANTINE = "Quarantine"
    RETRY = "Retry"


class TierCondition(enum.StrEnum):
    """Of a TokTier.

    AVAILABLE             pods serve: at least one is ready
    PROGRESSING           pods are being made, replaced or scaled
    DEGRADED              something needs a person, or fast paths are off
    TOKENIZERS_ADMITTED   every tokenizer is served by what its admission admitted
    UPSTREAM_REACHABLE    pods could reach SGLang; Unknown without an upstream
    """

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    TOKENIZERS_ADMITTED = "TokenizersAdmitted"
    UPSTREAM_REACHABLE = "UpstreamReachable"


class TierReason(enum.StrEnum):
    # Available
    PODS_READY = "PodsReady"
    NO_POD_READY = "NoPodReady"
    SCALED_TO_ZERO = "ScaledToZero"
    # Progressing
    ROLLED_OUT = "RolledOut"
    ROLLING = "Rolling"
    CANARY = "Canary"
    CANARY_REVERTED = "CanaryReverted"
    SCALING = "Scaling"
    WAITING_FOR_ADMISSION = "WaitingForAdmission"
    WAITING_FOR_IMAGE = "WaitingForImage"
    # Degraded
    HEALTHY = "Healthy"
    QUARANTINED = "Quarantined"
    PODS_FAILING = "PodsFailing"
    UPGRADE_REJECTED = "UpgradeRejected"
    SPEC_INVALID = "SpecInvalid"
    APPLY_FAILED = "ApplyFailed"
    # TokenizersAdmitted
    ALL_ADMITTED = "AllAdmitted"
    ADMISSION_MISSING = "AdmissionMissing"
    ADMISSION_PENDING = "AdmissionPending"
    REFERENCE_ONLY = "ReferenceOnly"
    REFUSED = "Refused"
    # UpstreamReachable
    UPSTREAM_READY = "UpstreamReady"
    UPSTREAM_MISSING = "UpstreamMissing"
    UPSTREAM_NOT_READY = "UpstreamNotReady"
    NO_UPSTREAM = "NoUpstream"
    NOT_CHECKED = "NotChecked"
