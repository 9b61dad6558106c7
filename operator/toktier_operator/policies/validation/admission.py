"""A TokenizerAdmission's spec."""

from __future__ import annotations

import re

from ...api.admission_spec import AdmissionSpec, Corpus, Readmit
from .addresses import check_address
from .containers import check_env, check_resources
from .findings import Findings, Notes, repeated

COMPANIONS = ("tokenizer_config.json", "chat_template.jinja", "config.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def validate_admission(spec: AdmissionSpec) -> Findings:
    notes = Notes()
    _check_source(notes, spec)
    campaign, job = spec.campaign, spec.job
    if job.active_deadline_s <= campaign.budget_s:
        notes.error(
            "spec.job.activeDeadline",
            f"{job.active_deadline_s:g}s isn't more than campaign.budget ({campaign.budget_s:g}s), so that no run "
            "could end; raise it well above the budget",
        )
    for corpus in repeated(map(_describe, campaign.corpora)):
        notes.error("spec.campaign.corpora", f"{corpus} is there twice; take one out")
    if spec.quarantine.readmit is Readmit.AUTOMATIC and spec.quarantine.delay_s < 60:
        notes.warning(
            "spec.quarantine.delay", "less than 1m: a snapshot that is wrong again and again is admitted as often"
        )
    if not spec.encoders:
        notes.warning("spec.encoders", "without candidates every encode is the reference's; appends are still repaired")
    check_resources(notes, "spec.job.resources", job.resources)
    check_env(notes, "spec.job.env", job.env)
    return notes.findings()


def _check_source(notes: Notes, spec: AdmissionSpec) -> None:
    source = spec.source
    for kind, reference in (("configMap", source.config_map), ("secret", source.secret)):
        if reference is not None and reference.key in COMPANIONS:
            notes.error(
                f"spec.source.{kind}.key", f"{reference.key} is no tokenizer; name the key of the tokenizer.json"
            )
    if source.sglang is not None:
        check_address(notes, "spec.source.sglang.address", source.sglang.address)
    if source.https is not None:
        check_address(notes, "spec.source.https.url", source.https.url)
    hub = source.hugging_face
    if hub is not None and not _COMMIT.fullmatch(hub.revision) and not spec.readmission.on_source_change:
        notes.warning(
            "spec.source.huggingFace.revision",
            f"{hub.revision} may move, and readmission.onSourceChange is false; name a commit",
        )


def _describe(corpus: Corpus) -> str:
    if corpus.config_map is not None:
        return f"configMap {corpus.config_map.name}"
    claim = corpus.persistent_volume_claim
    assert claim is not None
    return f"persistentVolumeClaim {claim.claim_name} {claim.path}".strip()
