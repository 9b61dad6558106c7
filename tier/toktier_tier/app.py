"""Opening a tokenizer for service: from a source to a `TierTokenizer`, admitted now or before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .admission import first_loads
from .admission.apart import KILLS_PROCESS, Apart, admit_apart, load_apart
from .admission.compiled import CompiledSnapshot, Verdict, load, save
from .core.boundaries import no_rule
from .core.errors import StateCorrupt, StateError, UnsupportedTokenizer
from .core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from .encoders.reference import REFERENCE_VERSION, Reference
from .gpu_service import Gpu
from .settings import ADMIT, REFUSE
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
    apart: Apart | None = None,
) -> TierTokenizer:
    """Load `source` (see `sources`), admit it unless a fitting compiled snapshot is on file, and make it ready.

    A file that isn't known here is tried in a process of its own first (`apart`: its limits; see `admission.apart`).
    Raises the coded errors of `sources`, `core.snapshot` and the reference, and `UnsupportedTokenizer`
    (`tokenizer.kills_process`).
    """
    snapshot = parse_snapshot(load_source(str(source)).data, reference_version=REFERENCE_VERSION, policy=policy)
    return open_snapshot(
        snapshot, compiled_dir=compiled_dir, budget_s=budget_s, seed=seed, workers=workers, apart=apart
    )


def open_snapshot(
    snapshot: Snapshot,
    *,
    compiled_dir: Path | None = None,
    unadmitted: str = ADMIT,
    budget_s: float = 10.0,
    seed: int = 1,
    workers: int | None = None,
    gpu: Gpu | None = None,
    name: str = "",
    apart: Apart | None = None,
) -> TierTokenizer:
    """By the compiled snapshot on file, if that was made for this snapshot and these libraries.

    Otherwise as `unadmitted` says: `admit` runs a campaign and keeps what it found, `reference` serves it by the
    reference alone, `refuse` raises `StateError` (`snapshot.unadmitted`). A `Rejected` one counts as none, but for
    `admit`: another campaign would find the same.

    `gpu`: a device for long texts, where that is admitted too, here if need be; `name` is for the log. Raises
    `EncoderUnavailable` where the device is required and fails.

    A file that was neither admitted nor loaded here before is tried in a process of its own, of which `apart` tells the
    limits. Raises `UnsupportedTokenizer` (`tokenizer.kills_process`) for one that ends it.
    """
    directory, apart = compiled_dir or default_cache_dir() / "compiled", apart or Apart()
    compiled, why = _on_file(snapshot, directory, unadmitted)
    if compiled is None and unadmitted == REFUSE:
        raise StateError(UNADMITTED, f"no compiled snapshot that may serve: {why}", reason=why)
    if compiled is None and unadmitted == ADMIT:
        with _remembered(snapshot, directory, apart):
            compiled = admit_apart(snapshot, budget_s=budget_s, seed=seed, apart=apart).compiled
        save(compiled, directory)
    elif (
        compiled is None or compiled.sha256 != snapshot.sha256
    ):  # admitted is a file that differs in nothing but layout
        with _remembered(snapshot, directory, apart) as loads:
            if not loads:
                load_apart(snapshot, apart)
    compiled = compiled or reference_only(snapshot, why)
    reference = Reference(snapshot)
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


@contextmanager
def _remembered(snapshot: Snapshot, directory: Path, apart: Apart) -> Iterator[bool]:
    """Whether the file is known to load; what comes of trying it is kept, where that can be written."""
    memory_bytes = apart.limits.allowed_bytes()
    loads = first_loads.recall(directory, snapshot, memory_bytes)
    try:
        yield loads
    except UnsupportedTokenizer as error:
        if error.code == KILLS_PROCESS:
            with suppress(OSError):
                first_loads.remember(directory, snapshot, memory_bytes, error.message)
        raise
    if not loads:
        with suppress(OSError):
            first_loads.remember(directory, snapshot, memory_bytes)


def _on_file(snapshot: Snapshot, directory: Path, unadmitted: str) -> tuple[CompiledSnapshot | None, str]:
    """(the compiled snapshot that may serve, or why there is none)."""
    fingerprint = snapshot.fingerprint
    try:
        compiled = load(directory, fingerprint)
        if compiled is None:
            return None, "compiled.none"
        check_fit(snapshot, compiled)
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


def reference_only(snapshot: Snapshot, why: str) -> CompiledSnapshot:
    """What stands in for a compiled snapshot where there is none: nothing compiled, the reference serves."""
    return CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=Verdict.REFERENCE_ONLY,
        reason=UNADMITTED,
        rule=no_rule(UNADMITTED, why),
        encoder="reference",
    )
