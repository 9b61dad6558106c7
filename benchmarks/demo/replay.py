"""Replaying a session, timing full encodes beside it, and checking each turn against the reference.

Guarantees: only the service's call is timed, and nothing else runs in the process meanwhile. A turn counts as checked
only if the IDs that a client holds after applying its patch were compared with the reference's full encode of the
text that the turns alone lead to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np

from agent_session import Append, Turn, render
from toktier_tier.core.certificate import verify_certificate
from toktier_tier.core.errors import CertificateInvalid
from toktier_tier.core.values import Patch, Route
from toktier_tier.encoders.candidates import build_candidate
from toktier_tier.encoders.reference import Reference
from toktier_tier.ports import Ids
from toktier_tier.sessions.service import SessionService

Progress = Callable[[int, int], None]
"""Told (done, of how many)."""

FULL_ENCODE_CHARS = (10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
CANDIDATE_RUNS = 15
REFERENCE_RUNS = 3


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One call: its kind (`open`, `append`, `tail edit`), the text's length after it, how long the service took."""

    kind: str
    context_chars: int
    changed_chars: int
    seconds: float
    patch: Patch


@dataclass(frozen=True, slots=True)
class Replay:
    """`ids[n]` is what the client held after turn n."""

    records: list[TurnRecord]
    ids: list[Ids]


@dataclass(frozen=True, slots=True)
class FullEncode:
    """Full encodes of the session's first `chars` characters; `equal`: the candidate gave the reference's IDs."""

    chars: int
    candidate_s: list[float]
    reference_s: list[float]
    equal: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """checked turns of all, certificates that were rechecked, and what failed: (turn, what) pairs."""

    checked: int
    certificates: int
    failures: list[tuple[int, str]]

    @property
    def divergences(self) -> int:
        """Turns whose IDs differ or whose certificate doesn't hold."""
        return len({turn for turn, _ in self.failures})


def replay(service: SessionService, session: Sequence[Turn], progress: Progress) -> Replay:
    """Send each turn to `service` as a client would: with the revision it knows, applying the patch it gets."""
    records: list[TurnRecord] = []
    ids: list[Ids] = []
    held: Ids = np.empty(0, dtype=np.uint32)
    chars = revision = 0
    for turn in session:
        kind, changed, seconds, patch = _call(service, turn, chars, revision)
        held = patch.apply(held)
        chars, revision = chars + _growth(turn), patch.revision
        records.append(TurnRecord(kind, chars, changed, seconds, patch))
        ids.append(held)
        progress(len(records), len(session))
    return Replay(records, ids)


def _call(service: SessionService, turn: Turn, chars: int, revision: int) -> tuple[str, int, float, Patch]:
    """(kind, characters sent, seconds, patch) of one timed call."""
    names = ("demo", "agent")
    if not isinstance(turn, Append):
        sent = turn.replacement
        began = time.perf_counter()
        patch = service.edit(*names, chars - turn.drop_chars, chars, sent, expected_revision=revision)
        return "tail edit", len(sent), time.perf_counter() - began, patch
    sent = turn.delta
    if not chars:
        began = time.perf_counter()
        patch = service.open(*names, sent)
        return "open", len(sent), time.perf_counter() - began, patch
    began = time.perf_counter()
    patch = service.append(*names, sent, expected_revision=revision)
    return "append", len(sent), time.perf_counter() - began, patch


def _growth(turn: Turn) -> int:
    return len(turn.delta) if isinstance(turn, Append) else len(turn.replacement) - turn.drop_chars


def time_full_encodes(reference: Reference, candidate: str, text: str, progress: Progress) -> list[FullEncode]:
    """Both libraries on prefixes of `text`; the candidate's first run of each, which fills its cache, isn't counted."""
    encode = build_candidate(candidate, reference.snapshot.document()).encode
    sizes = [chars for chars in FULL_ENCODE_CHARS if chars <= len(text)]
    results = []
    for chars in sizes:
        prefix = text[:chars]
        ids = encode(prefix)
        candidate_s = [_seconds(encode, prefix) for _ in range(CANDIDATE_RUNS)]
        reference_s = [_seconds(reference.encode, prefix) for _ in range(REFERENCE_RUNS)]
        equal = np.array_equal(ids, reference.encode(prefix))
        results.append(FullEncode(chars, candidate_s, reference_s, equal))
        progress(len(results), len(sizes))
    return results


def _seconds(encode: Callable[[str], Ids], text: str) -> float:
    began = time.perf_counter()
    encode(text)
    return time.perf_counter() - began


def verify(
    service: SessionService, session: Sequence[Turn], done: Replay, budget_s: float, progress: Progress
) -> Verification:
    """Check turns in an order of which every beginning is spread over the session, until `budget_s` is spent."""
    deadline = time.monotonic() + budget_s
    checked = certificates = 0
    failures: list[tuple[int, str]] = []

    def check(index: int) -> tuple[int, bool, list[str]] | None:
        return None if time.monotonic() > deadline else (index, *_check(service, session, done, index))

    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="demo-verify") as pool:
        futures = [pool.submit(check, index) for index in spread(len(session))]
        for future in as_completed(futures):
            outcome = future.result()
            if outcome is not None:
                index, certified, found = outcome
                checked += 1
                certificates += certified
                failures += [(index, what) for what in found]
            progress(checked, len(session))
    return Verification(checked, certificates, sorted(failures))


def _check(service: SessionService, session: Sequence[Turn], done: Replay, index: int) -> tuple[bool, list[str]]:
    """(whether there was a certificate, what failed) of one turn."""
    tokenizer = service.tokenizer
    text, ids, patch = render(session[: index + 1]), done.ids[index], done.records[index].patch
    found = []
    expected = tokenizer.reference.encode(text)
    if not np.array_equal(ids, expected):
        shorter = min(len(ids), len(expected))
        differing = np.flatnonzero(ids[:shorter] != expected[:shorter])
        found.append(f"IDs differ from token {differing[0] if len(differing) else shorter} on")
    if patch.route is not Route.REPAIR:
        return False, found
    try:
        verify_certificate(
            patch,
            fingerprint=tokenizer.fingerprint,
            rule=tokenizer.compiled.rule,
            old_text=render(session[:index]),
            new_text=text,
            old_ids=done.ids[index - 1],
        )
    except CertificateInvalid as error:
        found.append(str(error))
    return True, found


def spread(count: int) -> list[int]:
    """0..count-1, the last first, then ever finer halvings (van der Corput): any beginning is an even sample."""
    bits = max(count - 1, 1).bit_length()
    order = (int(f"{index:0{bits}b}"[::-1], 2) for index in range(1 << bits))
    return [count - 1 - index for index in order if index < count]
