"""The process of `admission.apart` with candidates that end it, and a reference that does: what `test_apart` runs.

Its campaign is short: each candidate is built and encodes one text, which takes no ten seconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from toktier_tier.admission import apart_worker
from toktier_tier.admission.campaign import Admission
from toktier_tier.admission.compiled import CompiledSnapshot, EncoderVerdict, TrustVerdict, Verdict
from toktier_tier.admission.report import Phase, Report
from toktier_tier.core.boundaries import no_rule
from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.core.pipeline import Position
from toktier_tier.core.proof.result import unavailable
from toktier_tier.encoders import candidates as apart_candidates
from toktier_tier.encoders.assemble import core_documents
from toktier_tier.encoders.reference import Reference
from toktier_tier.ports import Ids

TEXT = "ab e"


class Planted:
    """Built at once; its first answer is its last."""

    version = "planted==1"

    def __init__(self, document: Any) -> None:
        pass

    def encode(self, text: str) -> Ids:
        raise NotImplementedError


class Aborts(Planted):
    name = "aborts"

    def encode(self, text: str) -> Ids:
        os.abort()


class AbortsAtOnce(Planted):
    name = "aborts-at-once"

    def __init__(self, document: Any) -> None:
        os.abort()


class Loops(Planted):
    name = "loops"

    def encode(self, text: str) -> Ids:
        while True:
            pass


class Allocates(Planted):
    """As libraries do that aren't Python: what they don't get ends the process."""

    name = "allocates"

    def encode(self, text: str) -> Ids:
        allocate = ctypes.CDLL(None).malloc
        allocate.restype = ctypes.c_void_p
        while found := allocate(ctypes.c_size_t(64 << 20)):
            ctypes.memset(ctypes.c_void_p(found), 1, 64 << 20)
        os.write(2, b"memory allocation of 67108864 bytes failed\n")
        os.abort()


class Leaks(Planted):
    """Takes so much that the next to ask, whoever that is, gets none."""

    name = "leaks"

    def encode(self, text: str) -> Ids:
        allocate = ctypes.CDLL(None).malloc
        allocate.restype = ctypes.c_void_p
        for size in (64 << 20, 1 << 20, 64 << 10, 4 << 10, 256):
            while allocate(ctypes.c_size_t(size)):
                pass
        return np.zeros(1, dtype=np.uint32)


class Talks(Planted):
    """Wrong, and prints what it is given."""

    name = "talks"

    def encode(self, text: str) -> Ids:
        print(text, flush=True)
        os.write(1, text.encode(errors="replace"))
        return np.zeros(1, dtype=np.uint32)


PLANTED = (Aborts, AbortsAtOnce, Loops, Allocates, Leaks, Talks)


def short_campaign(reference: Reference, *, candidates: Sequence[str], progress: Any, **_: Any) -> Admission:
    document = core_documents(reference)[Position.CONTINUATION]
    right = reference.encode_text(TEXT).tolist()
    verdicts: dict[str, EncoderVerdict] = {}
    for name in candidates:
        progress(f"{name}: text", 0.0)
        try:
            candidate = apart_candidates.build_candidate(name, document)
            exact = candidate.encode(TEXT).tolist() == right
        except EncoderUnavailable as error:
            verdicts[name] = EncoderVerdict(name, "", Verdict.REFERENCE_ONLY, f"{error.code}: {error.message}")
        else:
            verdicts[name] = EncoderVerdict(name, candidate.version, Verdict.ADMITTED if exact else Verdict.REJECTED)
    reference.encode_text(TEXT * 1_000)  # by whatever memory the candidates have left
    rule, trust = no_rule("x", ""), TrustVerdict(Verdict.REFERENCE_ONLY)
    exact_ones = [name for name in candidates if verdicts[name].verdict is Verdict.ADMITTED]
    serving = exact_ones[0] if exact_ones else "reference"
    snapshot = reference.snapshot
    compiled = CompiledSnapshot(
        snapshot.fingerprint,
        snapshot.sha256,
        snapshot.reference_version,
        Verdict.ADMITTED,
        "",
        rule,
        serving,
        verdicts,
        trust=trust,
    )
    phases = (Phase("text", len(candidates)),)
    report = Report(
        snapshot=snapshot,
        rule=rule,
        proof=unavailable("none", "x", ""),
        seed=1,
        budget_s=0.0,
        phases=phases,
        encoders=verdicts,
        verdict=Verdict.ADMITTED,
        reason="",
        encoder=serving,
        trust=trust,
        compiled_digest=compiled.digest,
    )
    return Admission(report, compiled)


def main() -> None:
    cast(Any, apart_worker).admit = short_campaign
    cast(dict[str, Any], apart_candidates.CANDIDATES).update({each.name: each for each in PLANTED})
    if "dense" in sys.argv:  # gigatoken gets files that it isn't made for
        cast(Any, apart_candidates).check_dense = lambda document: None
    if "reference" in sys.argv:
        cast(Any, apart_worker).open_reference = lambda *_: os.abort()
    if "defect" in sys.argv:
        cast(Any, apart_worker).open_reference = lambda *_: {}["secret"]
    if "outside" in sys.argv:
        cast(Any, apart_worker).open_reference = lambda *_: os.kill(os.getpid(), 9)
    if "exit" in sys.argv:
        cast(Any, apart_worker).open_reference = lambda *_: os._exit(3)
    apart_worker.main()


if __name__ == "__main__":
    main()
