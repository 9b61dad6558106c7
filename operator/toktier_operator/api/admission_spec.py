"""`spec` of a TokenizerAdmission: which tokenizer, how it is examined, and when again.

Defaults are those of `manifests/crds/tokenizeradmissions.yaml`; a test compares them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .references import ClaimReference, KeyReference, NameReference, Raw, Resources
from .structure import SpecError, duration, read

ENCODERS = ("gigatoken", "fastokens", "tokenizers-1")


class SpecialTokenPolicy(enum.StrEnum):
    """Whether a text gets the tokens that the tokenizer's post-processor adds, such as BOS."""

    NONE = "none"
    TEMPLATE = "template"


class Readmit(enum.StrEnum):
    MANUAL = "Manual"
    AUTOMATIC = "Automatic"


class OnRejected(enum.StrEnum):
    """What becomes of the admitted snapshot while a newer one of the source was rejected."""

    KEEP_PREVIOUS = "KeepPrevious"
    REFERENCE_ONLY = "ReferenceOnly"


@dataclass(frozen=True, slots=True)
class HttpsSource:
    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """revision: a commit, or a branch or tag that is looked at again every `readmission.pollInterval`."""

    repo: str
    revision: str
    token_secret: KeyReference | None = None


@dataclass(frozen=True, slots=True)
class SglangSource:
    """address: HOST:PORT of an SGLang worker's gRPC service, which tells its tokenizer."""

    address: str


@dataclass(frozen=True, slots=True)
class Source:
    """Exactly one is set. Of a ConfigMap or Secret, other keys with the companions' names lie beside `key`."""

    config_map: KeyReference | None = None
    secret: KeyReference | None = None
    persistent_volume_claim: ClaimReference | None = None
    https: HttpsSource | None = None
    hugging_face: HuggingFaceSource | None = None
    sglang: SglangSource | None = None

    def __post_init__(self) -> None:
        if len(self._given()) != 1:
            raise SpecError("spec.source", f"has exactly one of {', '.join(_SOURCE_KEYS.values())}")

    def _given(self) -> list[str]:
        return [key for name, key in _SOURCE_KEYS.items() if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """The key that is set: configMap, secret, ..."""
        return self._given()[0]

    @property
    def remote(self) -> bool:
        """Whether only a Job can tell whether it has changed."""
        return self.config_map is None and self.secret is None


_SOURCE_KEYS = {
    "config_map": "configMap",
    "secret": "secret",
    "persistent_volume_claim": "persistentVolumeClaim",
    "https": "https",
    "hugging_face": "huggingFace",
    "sglang": "sglang",
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """*.txt of a ConfigMap, or of a folder in a claim: exactly one is set."""

    config_map: NameReference | None = None
    persistent_volume_claim: ClaimReference | None = None

    def __post_init__(self) -> None:
        if (self.config_map is None) == (self.persistent_volume_claim is None):
            raise SpecError("spec.campaign.corpora", "each has exactly one of configMap, persistentVolumeClaim")


@dataclass(frozen=True, slots=True)
class Campaign:
    budget_s: float = duration("budget", 60.0)
    seed: int = 0
    corpora: tuple[Corpus, ...] = ()


@dataclass(frozen=True, slots=True)
class Readmission:
    """poll_interval_s: how often a source outside the API server (`Source.remote`) is looked at again."""

    on_source_change: bool = True
    poll_interval_s: float = duration("pollInterval", 3_600.0)
    on_reference_change: bool = True
    on_encoder_change: bool = True


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """readmit: Automatic starts a new run `delay` after the first report."""

    readmit: Readmit = Readmit.MANUAL
    delay_s: float = duration("delay", 600.0)


@dataclass(frozen=True, slots=True)
class UpgradePolicy:
    on_rejected: OnRejected = OnRejected.KEEP_PREVIOUS


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Of the Jobs' pods. image: empty for the operator's own; env, tolerations, affinity: as in a pod."""

    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: tuple[NameReference, ...] = ()
    resources: Resources = field(default_factory=Resources)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Raw, ...] = ()
    affinity: Raw | None = None
    env: tuple[Raw, ...] = ()
    priority_class_name: str = ""
    ttl_s: float = duration("ttl", 3_600.0)
    active_deadline_s: float = duration("activeDeadline", 1_800.0)


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    source: Source
    special_token_policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE
    reference_version: str = ""
    encoders: tuple[str, ...] = ENCODERS
    campaign: Campaign = field(default_factory=Campaign)
    readmission: Readmission = field(default_factory=Readmission)
    quarantine: QuarantinePolicy = field(default_factory=QuarantinePolicy)
    upgrade: UpgradePolicy = field(default_factory=UpgradePolicy)
    history_limit: int = 5
    job: JobSettings = field(default_factory=JobSettings)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> AdmissionSpec:
        """Of the object as the API server has it. Raises `SpecError`."""
        return read(cls, body.get("spec"), "spec")
