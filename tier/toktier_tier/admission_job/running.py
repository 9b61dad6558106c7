"""The campaign of one Job: from its request to what it found, as files in its working folder.

Guarantees: whatever can be said by a code is a result of its own (`Failed`), so that the Job succeeds and the operator
decides; only what the machine did (no memory, no disk, a defect here) ends it otherwise. That goes for a file that ends
the process it is tried in, too: the campaign runs in one of its own. `result.json` is written last
and by rename: where it is, the others are whole.

The bytes that a campaign was run on are the bytes in the bundle.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..admission.apart import MACHINE_FAULTS, Apart, ChildFailed, admit_apart, run_apart
from ..admission.transfer import unpack_value
from ..core.errors import InvalidRequest, TierError
from ..core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from ..encoders.candidates import CANDIDATES
from ..encoders.reference import REFERENCE_VERSION
from ..sources import TokenizerFiles, load_files
from ..sources.cache import write_by_rename
from . import diff_worker
from .bundle import REPORT, bundle_files, joined, pack, tokenizer_files, unpack
from .diff import SnapshotDiff
from .request import AdmissionRequest
from .result import bundle_document, campaign_document, result_document
from .toolchain import toolchain_of
from .worker import is_worker, load_from_worker

MAX_CORPUS_BYTES = 64 << 20
RESULT, BUNDLE = "result.json", "bundle.tar.gz"
log = logging.getLogger("toktier")


@dataclass(frozen=True)
class _Found:
    """`rest` goes into the result; `report` and `bundle` are None where there was no campaign."""

    outcome: str
    rest: dict[str, Any]
    report: str | None = None
    bundle: bytes | None = None


def run(request: AdmissionRequest, work: Path) -> dict[str, Any]:
    """The result, which then lies in `work`, beside report.json and bundle.tar.gz where there was a campaign.

    Raises `EnvironmentFault` (`admission.*`) where the machine ended the campaign's process, not the file.
    """
    started = _now()
    error: TierError | None = None
    try:
        found = _run(request)
    except TierError as caught:
        if caught.code in MACHINE_FAULTS:
            raise
        log.warning("run %s failed: %s", request.id, caught)
        error, found = caught, _Found("Failed", {})
    result = result_document(
        request, outcome=found.outcome, error=error, rest=found.rest, started=started, finished=_now()
    )
    for stale in (RESULT, REPORT, BUNDLE):
        (work / stale).unlink(missing_ok=True)
    if found.bundle is not None:
        write_by_rename(work / BUNDLE, found.bundle)
    if found.report is not None:
        write_by_rename(work / REPORT, found.report.encode())
    write_by_rename(work / RESULT, json.dumps(result, indent=1, sort_keys=True).encode())
    log.info("run %s: %s %s", request.id, result["outcome"], result["verdict"])
    return result


def _run(request: AdmissionRequest) -> _Found:
    _check(request)
    toolchain = toolchain_of(request.encoders)
    files = _load(request)
    log.info("source %s, sha256 %s", files.origin, files.sha256)
    rest: dict[str, Any] = {"sha256": files.sha256, "toolchain": toolchain}
    known = request.known
    if known is not None and (known.sha256, known.policy, known.toolchain) == (
        files.sha256,
        request.policy.value,
        toolchain,
    ):
        return _Found("Unchanged", rest)
    corpus = _corpus(request.corpora)
    snapshot = _snapshot(files, request.policy)
    admission = admit_apart(
        snapshot,
        budget_s=request.budget_s,
        seed=request.seed,
        candidates=request.encoders,
        corpus=corpus,
        progress=_Told(),
    )
    report = admission.report.to_json()
    bundle = pack(bundle_files(files, admission.compiled, report))
    diff = None if request.previous is None else _diff(request, files, snapshot, corpus)
    if isinstance(diff, SnapshotDiff):
        report = json.dumps({**json.loads(report), "diff": diff.to_report()}, indent=1, sort_keys=True) + "\n"
    rest |= campaign_document(admission, files)
    rest["bundle"] = bundle_document(request.name, bundle)
    rest["diff"] = diff.to_document() if isinstance(diff, SnapshotDiff) else diff
    return _Found("Completed", rest, report, bundle)


def _check(request: AdmissionRequest) -> None:
    unknown = sorted(set(request.encoders) - set(CANDIDATES))
    if unknown:
        raise InvalidRequest("encoder.unknown", f"no encoder is called {unknown[0]!r}")
    wanted = request.reference_version
    if wanted and wanted not in (REFERENCE_VERSION, REFERENCE_VERSION.partition("==")[2]):
        message = f"{wanted} is asked for, and this image has {REFERENCE_VERSION}"
        raise InvalidRequest("admission.reference_version", message)


def _load(request: AdmissionRequest) -> TokenizerFiles:
    if is_worker(request.source_spec):
        return load_from_worker(request.source_spec)
    return load_files(request.source_path or request.source_spec)


def _snapshot(files: TokenizerFiles, policy: SpecialTokenPolicy) -> Snapshot:
    return parse_snapshot(files.tokenizer, reference_version=REFERENCE_VERSION, policy=policy)


def _corpus(folders: Sequence[Path]) -> list[str]:
    """The texts of `*.txt` in the folders, in the order of their names; empty ones are left out."""
    texts: list[str] = []
    size = 0
    for folder in folders:
        try:
            if not folder.is_dir():
                raise InvalidRequest("admission.corpus", f"{folder} is no folder")
            for path in sorted(folder.glob("*.txt")):
                size += path.stat().st_size
                if size > MAX_CORPUS_BYTES:
                    raise InvalidRequest("admission.corpus", f"the corpora exceed {MAX_CORPUS_BYTES} bytes")
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise InvalidRequest("admission.corpus", f"can't read {folder}: {error.strerror}") from error
    return [text for text in texts if text]


def _diff(
    request: AdmissionRequest, files: TokenizerFiles, after: Snapshot, corpus: Sequence[str]
) -> SnapshotDiff | dict[str, Any]:
    """A previous bundle that can't be read costs the diff, not the admission."""
    assert request.previous is not None
    try:
        content = unpack(joined(request.previous))
        old = tokenizer_files(content, "previous")
        told = json.loads(content[REPORT])["snapshot"]
        changed = [
            name
            for name in sorted(old.files.keys() | files.files.keys())
            if old.files.get(name) != files.files.get(name)
        ]
        asked = {
            "what": diff_worker.DIFF,
            "before": old.tokenizer.decode(),
            "before_policy": SpecialTokenPolicy(told["policy"]).value,
            "files": changed,
            "seed": request.seed,
            "release": str(told["reference"]),
        }
        (found,) = run_apart(after, asked, Apart(command=(sys.executable, "-m", diff_worker.__name__)), corpus)
        diff = unpack_value(found)
        assert isinstance(diff, SnapshotDiff)
        return diff
    except (TierError, ChildFailed, ValueError, KeyError, TypeError) as error:
        reason = error.code if isinstance(error, TierError) else "bundle.bad_archive"
        log.warning("no diff: %s", error)
        counts = dict.fromkeys(("texts", "differing", "addedTokens", "removedTokens", "changedIds"), 0)
        return {"summary": f"the previous snapshot can't be read: {reason}", **counts, "examples": []}


class _Told:
    """A line in the Job's log for every phase."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, phase: str, done: float) -> None:
        if phase != self._phase:
            self._phase = phase
            log.info("campaign: %s", phase)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
