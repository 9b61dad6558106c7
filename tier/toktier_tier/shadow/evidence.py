"""What is told and kept of a divergence.

Guarantees: the report holds no text, and its `repr`, which ends up in logs, no IDs either: they decode to words. Files
are complete or absent, readable by their owner only, and at most so many in the directory, across restarts. Whatever
the file system does, `write` returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..core.trust import NO_SPANS, Spans
from ..core.values import Ids
from .sample import Sample

AROUND_TOKENS = 8
"""IDs told on either side of the first that differs."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """One answer that isn't the reference's. Positions and numbers of tokens count the template's.

    time_s              Unix time
    reason              why the answer wasn't made more cheaply: a code of `core.values.Reason`
    revision            None for an answer without a session
    expected_tokens     None if the reference refuses the text
    first_difference    index of the first ID that differs (of the shorter one's end if none does); where all are equal,
                        of the first one behind a border between segments that isn't one
    around_from         index of the first ID of `expected_around` and `answered_around`
    quarantined_now     whether this divergence put the tokenizer into quarantine
    sample_path         where the sample was written; None if it wasn't
    untrusted           spans of the text in which no added token is recognized
    """

    time_s: float
    fingerprint: str
    route: str
    reason: str
    revision: int | None
    text_sha256: str
    text_chars: int
    text_bytes: int
    expected_tokens: int | None
    answered_tokens: int
    first_difference: int
    around_from: int
    expected_around: tuple[int, ...] = field(repr=False)
    answered_around: tuple[int, ...] = field(repr=False)
    quarantined_now: bool
    sample_path: str | None = None
    untrusted: Spans = field(default=NO_SPANS, repr=False)


def describe(
    sample: Sample,
    text: str,
    expected: Ids | None,
    answered: Ids,
    *,
    time_s: float,
    fingerprint: str,
    quarantined_now: bool,
    first: int | None = None,
) -> Divergence:
    """`expected` and `answered` differ; None: the reference refuses the text. Where they don't differ, `first` is the
    index of the first ID behind a border that is wrong."""
    data = text.encode("utf-8")
    known = expected if expected is not None else answered[:0]
    if first is None:
        first = first_difference(known, answered)
    start, stop = max(first - AROUND_TOKENS, 0), first + AROUND_TOKENS + 1
    return Divergence(
        time_s=time_s,
        fingerprint=fingerprint,
        route=sample.route.value,
        reason=sample.reason.value,
        revision=sample.revision,
        text_sha256=hashlib.sha256(data).hexdigest(),
        text_chars=len(text),
        text_bytes=len(data),
        expected_tokens=len(expected) if expected is not None else None,
        answered_tokens=len(answered),
        first_difference=first,
        around_from=start,
        expected_around=tuple(known[start:stop].tolist()),
        answered_around=tuple(answered[start:stop].tolist()),
        quarantined_now=quarantined_now,
        untrusted=sample.untrusted,
    )


def first_difference(left: Ids, right: Ids) -> int:
    """Index of the first difference; the shorter one's length if that is where they part."""
    shared = min(len(left), len(right))
    differing = np.flatnonzero(left[:shared] != right[:shared])
    return int(differing[0]) if len(differing) else shared


class EvidenceFolder:
    """Writes divergences as JSON files. Not thread-safe.

    directory   made if need be; None: nothing is ever written
    redact      leave the text out
    max_files   files (`divergence-*.json`) in the directory beyond which none is added
    """

    def __init__(self, directory: Path | None, *, redact: bool = True, max_files: int = 16) -> None:
        self.directory, self.redact, self.max_files = directory, redact, max_files

    def write(self, divergence: Divergence, text: str) -> Path | None:
        """The file's path; None if there is no place, no room, or no permission."""
        if self.directory is None:
            return None
        document = dataclasses.asdict(divergence)
        del document["sample_path"]
        if not self.redact:
            document["text"] = text
        name = f"divergence-{divergence.fingerprint[:16]}-{divergence.text_sha256[:16]}-{divergence.time_s:.6f}.json"
        path = self.directory / name
        part = path.with_suffix(".part")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if sum(1 for _ in self.directory.glob("divergence-*.json")) >= self.max_files:
                return None
            _write_private(part, json.dumps(document, indent=1, ensure_ascii=False).encode())
            part.replace(path)
        except OSError:
            _remove(part)
            return None
        return path


def _write_private(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
