"""result.json: what the operator reads of a run (docs/decisions/0008-operator.md). Small enough for a ConfigMap."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..admission.campaign import Admission
from ..admission.report import Report
from ..core.errors import TierError
from ..engine.chat_files import load_chat_template
from ..sources import TokenizerFiles
from .bundle import chunk_names, chunks_of
from .request import AdmissionRequest
from .toolchain import plain_version, toolchain_of

MAX_REASON_CHARS = 500


def result_document(
    request: AdmissionRequest,
    *,
    outcome: str,
    error: TierError | None,
    rest: Mapping[str, Any],
    started: str,
    finished: str,
) -> dict[str, Any]:
    """Every key of the contract is there, whatever the outcome; `rest` is what is known beyond the request."""
    return {
        "id": request.id,
        "run": request.run,
        "outcome": outcome,
        "error": None if error is None else {"code": error.code, "message": error.message[:MAX_REASON_CHARS]},
        "verdict": "",
        "reason": "",
        "sha256": "",
        "fingerprint": "",
        "policy": request.policy.value,
        "encoder": "",
        "rule": {"kind": "", "digest": "", "summary": ""},
        "encoders": [],
        "checks": 0,
        "characters": 0,
        "divergences": 0,
        "chatTemplate": False,
        "toolchain": toolchain_of(request.encoders),
        "image": request.image,
        "bundle": None,
        "diff": None,
        "startedAt": started,
        "finishedAt": finished,
    } | dict(rest)


def campaign_document(admission: Admission, files: TokenizerFiles) -> dict[str, Any]:
    """What a campaign adds to a result."""
    report = admission.report
    return {
        "verdict": report.verdict.value,
        "reason": report.reason[:MAX_REASON_CHARS],
        "fingerprint": report.snapshot.fingerprint,
        "encoder": report.encoder,
        "rule": {"kind": report.rule.kind, "digest": report.rule.digest, "summary": _rule_summary(report)},
        "encoders": [
            {
                "name": name,
                "version": plain_version(found.version),
                "verdict": found.verdict.value,
                "reason": found.reason[:MAX_REASON_CHARS],
                "checks": found.checks,
                "divergences": found.divergences,
                "unsafeCodePoints": sum(last - first + 1 for first, last in found.unsafe),
            }
            for name, found in sorted(report.encoders.items())
        ],
        "checks": report.checks,
        "characters": sum(phase.characters for phase in report.phases),
        "divergences": report.divergences,
        "chatTemplate": renders_chats(files),
    }


def bundle_document(admission: str, bundle: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(bundle).hexdigest()
    names = chunk_names(admission, sha256, len(chunks_of(bundle)))
    return {"sha256": sha256, "sizeBytes": len(bundle), "configMaps": names}


def renders_chats(files: TokenizerFiles) -> bool:
    """Whether a pod could take the chat template of these files, and what else it reads for chats."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        try:
            load_chat_template(Path(folder))
            json.loads(files.files.get("config.json", b"{}"))
        except (TierError, ValueError):
            return False
    return True


def _rule_summary(report: Report) -> str:
    rule = report.rule
    if rule.kind == "classes":
        boundary, pairs = rule.pairs()
        return f"{boundary:,} of {pairs:,} pairs of character classes are boundaries"
    if rule.kind == "adjacency":
        return f"every pair of characters is a boundary but {len(rule.adjacent):,} inside vocabulary entries"
    return f"no boundary rule: {rule.reason}"
