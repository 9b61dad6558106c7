"""What runs in the process of a diff: `admission.apart_worker` with one task more.

Two files are at work in it and, where the earlier one was admitted under another release, that release's code. The
task's fields: `before` (a tokenizer.json) with its `before_policy`, and `files`, `seed`, `release` of `diff.compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..admission import apart_worker
from ..admission.transfer import pack_value
from ..core.snapshot import SpecialTokenPolicy
from ..encoders.reference import Reference, open_reference
from .diff import compare

DIFF = "diff"


def run_diff(
    asked: Mapping[str, Any], after: Reference, corpus: Sequence[str], tell: apart_worker.Teller
) -> Sequence[bytes]:
    tell("diff", 0.0)
    before = open_reference(asked["before"].encode(), SpecialTokenPolicy(asked["before_policy"]))
    rest = {key: asked[key] for key in ("files", "seed", "release")}
    return (pack_value(compare(before, after, corpus=corpus, **rest)),)


if __name__ == "__main__":
    apart_worker.main({DIFF: run_diff})
