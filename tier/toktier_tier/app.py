"""Opening a tokenizer for service: from a source to a `TierTokenizer`, admitted now or before."""

from __future__ import annotations

import logging
from pathlib import Path

from .admission.campaign import admit
from .admission.compiled import CompiledSnapshot, Verdict, load, save
from .core.boundaries import no_rule
from .core.errors import StateCorrupt, StateError
from .core.snapshot import SpecialTokenPolicy
from .encoders.reference import Reference, open_reference
from .gpu_service import Gpu
from .settings import ADMIT, REFERENCE, REFUSE
from .sources import default_cache_dir, load_source
from .tokenizer import TierTokenizer, check_fit

UNADMITTED = "snapshot.unadmitted"
log = logging.getLogger("toktier")


def open_tokenizer(
    source: str | Path,
    *,
    policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE,
    compiled_dir: Path | None = None,
    budget_s: float = 10.0,
    seed: int = 1,
    workers: int | None = None,
) -> TierTokenizer:
    """Load `source` (see `sources`), admit it unless a fitting compiled snapshot is on file, and make it ready.

    Raises the coded errors of `sources`, `core.snapshot` and the reference.
    """
    reference = open_reference(load_source(str(source)).data, policy)
    return open_snapshot(reference, compiled_dir=compiled_dir, budget_s=budget_s, seed=seed, workers=workers)


def open_snapshot(
    reference: Reference,
    *,
    compiled_dir: Path | None = None,
    unadmitted: str = ADMIT,
    budget_s: float = 10.0,
    seed: int = 1,
    workers: int | None = None,
    gpu: Gpu | None = None,
    name: str = "",
) -> TierTokenizer:
    """By the compiled snapshot on file, if that was made for this snapshot and these libraries.

    Otherwise as `unadmitted` says: `admit` runs a campaign and keeps what it found, `reference` serves it by the
    reference alone, `refuse` raises `StateError` (`snapshot.unadmitted`). A `Rejected` one counts as none, but for
    `admit`: another campaign would find the same.

    `gpu`: a device for long texts, where that is admitted too, here if need be; `name` is for the log. Raises
    `EncoderUnavailable` where the device is required and fails.
    """
    directory = compiled_dir or default_cache_dir() / "compiled"
    compiled, why = _on_file(reference, directory, unadmitted)
    if compiled is None and unadmitted == REFUSE:
        raise StateError(UNADMITTED, f"no compiled snapshot that may serve: {why}", reason=why)
    if compiled is None and unadmitted == REFERENCE:
        compiled = reference_only(reference, why)
    if compiled is None:
        compiled = admit(reference, budget_s=budget_s, seed=seed).compiled
        save(compiled, directory)
    if gpu is None:
        return TierTokenizer(reference, compiled, workers=workers)
    examined = gpu.examined(reference, compiled, seed=seed)
    if examined is not compiled and unadmitted == ADMIT:
        _save(examined, directory)
    accelerate = gpu.accelerate(name or reference.snapshot.fingerprint[:16], reference, examined)
    return TierTokenizer(reference, examined, workers=workers, accelerate=accelerate)


def _save(compiled: CompiledSnapshot, directory: Path) -> None:
    """Where that can be written; elsewhere the next start examines the GPU path again."""
    try:
        save(compiled, directory)
    except OSError as error:
        log.warning("what was found about the GPU path isn't kept: %s", type(error).__name__)


def _on_file(reference: Reference, directory: Path, unadmitted: str) -> tuple[CompiledSnapshot | None, str]:
    """(the compiled snapshot that may serve, or why there is none)."""
    fingerprint = reference.snapshot.fingerprint
    try:
        compiled = load(directory, fingerprint)
        if compiled is None:
            return None, "compiled.none"
        check_fit(reference, compiled)
    except StateCorrupt as error:  # damaged, or made with other libraries
        why = error.code
    except OSError as error:
        why = f"compiled.unreadable ({type(error).__name__})"
    else:
        if compiled.verdict is not Verdict.REJECTED or unadmitted == ADMIT:
            return compiled, ""
        why = "compiled.rejected"
    log.warning("the compiled snapshot of %s isn't used: %s", fingerprint[:16], why)
    return None, why


def reference_only(reference: Reference, why: str) -> CompiledSnapshot:
    """What stands in for a compiled snapshot where there is none: nothing compiled, the reference serves."""
    snapshot = reference.snapshot
    return CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=Verdict.REFERENCE_ONLY,
        reason=UNADMITTED,
        rule=no_rule(UNADMITTED, why),
        encoder="reference",
    )
