"""Opening a tokenizer for service: from a source to a `TierTokenizer`, admitted now or before."""

from __future__ import annotations

from pathlib import Path

from .admission.campaign import admit
from .admission.compiled import load, save
from .core.errors import StateCorrupt
from .core.snapshot import SpecialTokenPolicy, parse_snapshot
from .encoders.reference import REFERENCE_VERSION, Reference
from .sources import default_cache_dir, load_source
from .tokenizer import TierTokenizer, check_fit


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
    data = load_source(str(source)).data
    directory = compiled_dir or default_cache_dir() / "compiled"
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))
    try:
        compiled = load(directory, reference.snapshot.fingerprint)
        if compiled is not None:
            check_fit(reference, compiled)
    except StateCorrupt:
        compiled = None  # damaged, or made with other libraries: admit again
    if compiled is None:
        compiled = admit(reference, budget_s=budget_s, seed=seed).compiled
        save(compiled, directory)
    return TierTokenizer(reference, compiled, workers=workers)
