"""What the demo found, as tables and as `demo.json`. Every figure is of the run at hand."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from demo.replay import FULL_ENCODE_CHARS, FullEncode, Replay, TurnRecord, Verification
from processors import processor_names
from toktier_tier.admission.campaign import Admission
from toktier_tier.core.values import Reason

BUCKET_EDGES_CHARS = (0, 25_000, 75_000, 150_000, 350_000, 700_000)
"""Where the context sizes beside one of `FULL_ENCODE_CHARS` begin."""
_NO_FALLBACK = {f"reason.{reason.value}" for reason in (Reason.OPENED, Reason.WIDENED)} | {"encoder.rebuilt"}


@dataclass(frozen=True, slots=True)
class Result:
    """All that was measured. `counts` are the service's after the replay, `seconds` the wall time of each phase."""

    family: str
    candidate: str
    admission: Admission
    replay: Replay
    full: list[FullEncode]
    verification: Verification
    counts: Mapping[str, int]
    state_bytes: int
    seconds: Mapping[str, float]
    environment: Mapping[str, str]

    @property
    def turns(self) -> int:
        return len(self.replay.records)

    @property
    def context_chars(self) -> int:
        return self.replay.records[-1].context_chars

    @property
    def hits(self) -> int:
        return self.counts.get("route.repair", 0)

    @property
    def widenings(self) -> int:
        return self.counts.get(f"reason.{Reason.WIDENED.value}", 0)

    @property
    def fallbacks(self) -> dict[str, int]:
        """Steps down to more work by reason; opening a session is none."""
        kinds = ("reason.", "encoder.", "evicted.")
        steps = {key: count for key, count in sorted(self.counts.items()) if key.startswith(kinds)}
        return {key.removeprefix("reason."): count for key, count in steps.items() if count and key not in _NO_FALLBACK}


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The turns whose context has from `low` to below `high` characters, and the full encodes of a size among them."""

    low: int
    high: int
    appends: list[TurnRecord]
    edits: list[TurnRecord]
    full: FullEncode | None


def environment() -> dict[str, str]:
    """The machine and the versions that the figures hold for."""
    found = {"Date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "Processor": _processor()}
    found["Cores"] = f"{os.cpu_count()} (load average at the start: {os.getloadavg()[0]:.1f})"
    found["Memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    found["System"] = platform.platform()
    found["Python"] = platform.python_version()
    for name in ("toktier-operator", "tokenizers", "gigatoken", "fastokens", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # run from a source tree
    return found


def _processor() -> str:
    names = processor_names()
    return names[0] if names else platform.machine()


def tables(result: Result) -> list[Table]:
    return [_latency_table(result), _outcome_table(result), _admission_table(result), _environment_table(result)]


def _latency_table(result: Result) -> Table:
    rows = []
    for bucket in buckets(result):
        full = bucket.full
        rows.append(
            (
                f"{short(bucket.low)} – {short(bucket.high)}",
                f"{len(bucket.appends)} + {len(bucket.edits)}",
                short(int(np.median([record.changed_chars for record in (*bucket.appends, *bucket.edits)]))),
                quantiles(record.seconds for record in bucket.appends),
                quantiles(record.seconds for record in bucket.edits),
                short(full.chars) if full else "–",
                quantiles(full.candidate_s) if full else "–",
                quantiles(full.reference_s) if full else "–",
            )
        )
    sent = ("Context,\ncharacters", "Appends\n+ edits", "Sent, P50\ncharacters")
    header = (*sent, "Append", "Tail edit", "Full\nencode of", f"{result.candidate},\nfull", "reference,\nfull")
    unequal = [short(full.chars) for full in result.full if not full.equal]
    verdict = f"gave other IDs than the reference at {', '.join(unequal)}" if unequal else "gave the reference's IDs"
    return Table(
        "Latency, P50 / P90",
        header,
        rows,
        f"Append and tail edit: one service call each, once, in order. Full encodes: {result.candidate} (its "
        f"cache holds the text; it {verdict}) and the reference, single calls on the session's first characters.",
    )


def _outcome_table(result: Result) -> Table:
    verification = result.verification
    fallbacks = ", ".join(f"{reason}: {count}" for reason, count in result.fallbacks.items()) or "none"
    edits = sum(record.kind == "tail edit" for record in result.replay.records)
    rows = [
        ("Turns", f"{result.turns:,} (1 open, {result.turns - edits - 1} appends, {edits} tail edits)"),
        ("Context at the end", f"{result.context_chars:,} characters, {len(result.replay.ids[-1]):,} tokens"),
        ("Checked against the reference", rate(verification.checked, result.turns)),
        ("Divergences", str(verification.divergences)),
        ("Certificates rechecked", f"{verification.certificates:,}"),
        ("Repaired (hits)", f"{result.hits:,}"),
        ("Widened windows", f"{result.widenings:,}"),
        ("Fallbacks", fallbacks),
        ("Session state", f"{result.state_bytes / 2**20:.1f} MiB, text included"),
    ]
    rows += [("Failed", f"turn {turn}: {what}") for turn, what in verification.failures[:10]]
    return Table("Outcome", ("", ""), rows)


def _admission_table(result: Result) -> Table:
    report, compiled = result.admission.report, result.admission.compiled
    faults = [phase for phase in report.phases if phase.name == "planted faults"]
    rows = [
        ("Tokenizer", f"{result.family}, sha256 {compiled.sha256[:16]}…"),
        ("Snapshot", f"{compiled.fingerprint[:16]}…"),
        ("Verdict", f"{compiled.verdict.value} {compiled.reason}".strip()),
        ("Boundary rule", f"{compiled.rule.kind}, digest {compiled.rule.digest[:16]}…"),
        ("Serving encoder", compiled.encoder),
        ("Checks", f"{report.checks:,}, {report.divergences} divergences"),
    ]
    rows += [
        ("Candidate", f"{found.version or name}: {found.verdict.value} {found.reason}".strip())
        for name, found in sorted(compiled.encoders.items())
    ]
    rows += [("Planted faults caught", f"{phase.checks - phase.divergences} of {phase.checks}") for phase in faults]
    return Table("Admission", ("", ""), rows)


def _environment_table(result: Result) -> Table:
    spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.seconds.items())
    return Table("Run", ("", ""), [*result.environment.items(), ("Time", spent)])


def to_json(result: Result) -> str:
    document = {
        "turns": result.turns,
        "checked": result.verification.checked,
        "divergences": result.verification.divergences,
        "context_chars": result.context_chars,
        "hits": result.hits,
        "widenings": result.widenings,
        "fallbacks": result.fallbacks,
        "snapshot": result.admission.compiled.fingerprint,
        "latency": [_bucket_document(bucket, result.candidate) for bucket in buckets(result)],
    }
    return json.dumps(document, indent=1) + "\n"


def _bucket_document(bucket: Bucket, candidate: str) -> dict[str, Any]:
    full = bucket.full
    return {
        "from_chars": bucket.low,
        "to_chars": bucket.high,
        "append": _summary([record.seconds for record in bucket.appends]),
        "tail_edit": _summary([record.seconds for record in bucket.edits]),
        "full_encode_chars": full.chars if full else None,
        f"{candidate}_full": _summary(full.candidate_s) if full else None,
        f"{candidate}_equal": full.equal if full else None,
        "reference_full": _summary(full.reference_s) if full else None,
    }


def _summary(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    p50, p90 = np.percentile(seconds, (50, 90)) * 1e6
    return {"samples": len(seconds), "p50_us": round(float(p50), 1), "p90_us": round(float(p90), 1)}


def buckets(result: Result) -> list[Bucket]:
    """Those that the session reached."""
    edges = [*BUCKET_EDGES_CHARS, max(record.context_chars for record in result.replay.records) + 1]
    by_size = {full.chars: full for full in result.full}
    buckets = []
    for low, high, size in zip(BUCKET_EDGES_CHARS, edges[1:], FULL_ENCODE_CHARS, strict=True):
        inside = [record for record in result.replay.records if low <= record.context_chars < high]
        appends = [record for record in inside if record.kind == "append"]
        edits = [record for record in inside if record.kind == "tail edit"]
        if inside:
            buckets.append(Bucket(low, min(high, edges[-1]), appends, edits, by_size.get(size)))
    return buckets


def rate(checked: int, turns: int) -> str:
    if checked == turns:
        return f"{checked:,} of {turns:,} (all)"
    return f"{checked:,} of {turns:,} ({checked / turns:.0%}, spread evenly: the time allowed was spent)"


def quantiles(seconds: Iterable[float]) -> str:
    values = list(seconds)
    if not values:
        return "–"
    p50, p90 = (duration(float(value)) for value in np.percentile(values, (50, 90)))
    number, _, unit = p50.partition(" ")
    return f"{number} / {p90}" if p90.endswith(f" {unit}") else f"{p50} / {p90}"


def duration(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def short(chars: int) -> str:
    if chars < 1_000:
        return str(chars)
    return f"{chars / 1e3:.3g}K" if chars < 999_500 else f"{chars / 1e6:.3g}M"
