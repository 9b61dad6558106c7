"""`python -m memory_bench`: 1,000 sessions of 100 K tokens, then churn; writes build/bench-memory.json.

The model is what `SessionService.state_bytes` says: 4 bytes an ID, the text in UTF-8, a fixed allowance per segment and
session. It is compared with how much the process's resident memory has grown. During the churn sessions are opened,
grown, edited and closed at a fixed pace; at the end some are compared with a full encode by the reference.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from agent_session import plain_text
from bench.results import Unequal
from catalog import path_of
from toktier_tier import SessionService, open_tokenizer
from toktier_tier.encoders.guarded import resident_bytes
from toktier_tier.sources import default_cache_dir

FAMILY = "qwen-3"
TENANT = "bench"
SESSIONS, TOKENS = 1_000, 100_000
MODEL_BAR, FLAT_BAR = 0.15, 0.05
SAMPLE_EVERY_S = 10.0
PACE_PER_S = 40.0
"""Changes a second during the churn: every session ends once in half an hour, and the machine is left to others."""


@dataclass(frozen=True)
class Sample:
    """Bytes after `seconds` of churn."""

    seconds: float
    resident: int
    modelled: int
    sessions: int


class Fleet:
    """Sessions of about `TOKENS` tokens; what each text consists of is kept as positions in one source."""

    def __init__(self, service: SessionService, source: str, chars: int, seed: int) -> None:
        self.service, self._source, self._chars = service, source, chars
        self._chooser = random.Random(seed)
        self._parts: dict[str, list[tuple[int, int]]] = {}
        self._named = 0

    def open(self) -> None:
        name = f"s{self._named}"
        self._named += 1
        part = self._part(round(self._chars * self._chooser.uniform(0.9, 1.1)))
        self.service.open(TENANT, name, self._text([part]))
        self._parts[name] = [part]

    def change(self) -> None:
        """Mostly appends; now and then a session ends and another starts in its place."""
        name = self._chooser.choice(list(self._parts))
        if self._chooser.random() < 1 / 64:
            self.service.close(TENANT, name)
            del self._parts[name]
            self.open()
            return
        part = self._part(self._chooser.randrange(100, 3_000))
        if sum(stop - start for start, stop in self._parts[name]) > 1.1 * self._chars:
            first = self._part(self._chars)  # a compacted transcript
            self.service.full_text(TENANT, name, self._text([first]))
            self._parts[name] = [first]
        self.service.append(TENANT, name, self._text([part]))
        self._parts[name].append(part)

    def check(self, count: int) -> int:
        for name in self._chooser.sample(sorted(self._parts), count):
            expected = self.service.tokenizer.reference.encode(self._text(self._parts[name]))
            if self.service.ids(TENANT, name).tobytes() != expected.tobytes():
                raise Unequal(name)
        return count

    def _part(self, chars: int) -> tuple[int, int]:
        start = self._chooser.randrange(len(self._source) - chars)
        return start, start + chars

    def _text(self, parts: list[tuple[int, int]]) -> str:
        return "".join(self._source[start:stop] for start, stop in parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m memory_bench")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--minutes", type=float, default=30.0, help="of churn")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--compiled-dir", type=Path, default=default_cache_dir() / "compiled")
    options = parser.parse_args()
    output = options.out / "bench-memory.json"
    output.unlink(missing_ok=True)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    tokenizer = open_tokenizer(path_of(FAMILY), compiled_dir=options.compiled_dir, budget_s=10.0)
    service = SessionService(tokenizer, budget_bytes=1 << 40)
    source = plain_text(6_000_000, 41)
    chars = round(TOKENS * len(source) / len(tokenizer.encode_text(source)))  # and the encoder has seen its words
    fleet = Fleet(service, source, chars, 7)
    for _ in range(20):  # what every first session brings with it isn't a session's
        fleet.open()
    gc.collect()
    resident, modelled, opened = resident_bytes(), service.state_bytes, len(service)
    for _ in range(options.sessions - opened):
        fleet.open()
    gc.collect()
    grown, stated = resident_bytes() - resident, service.state_bytes - modelled
    off = grown / stated - 1
    console.print(
        f"{options.sessions:,} sessions of {TOKENS:,} tokens: stated {stated / 1e9:.3f} GB, grown {grown / 1e9:.3f} GB"
        f" ({off:+.1%}, bar ±{MODEL_BAR:.0%})",
        highlight=False,
    )
    samples = churn(fleet, options.minutes * 60)
    drift = drift_of(samples)
    console.print(f"{options.minutes:g} minutes of churn: {drift:+.2%} against the model (bar ±{FLAT_BAR:.0%})")
    try:
        checked = fleet.check(25)
    except Unequal as error:
        console.print(f"[bold red]nothing is written: other IDs than the reference:[/] {error}")
        return 1
    document = {
        "sessions": options.sessions,
        "tokens_a_session": TOKENS,
        "stated_bytes": stated,
        "grown_bytes": grown,
        "samples": [asdict(sample) for sample in samples],
        "sessions_checked": checked,
        "bars": [
            {"bar": "growth over the model", "required": MODEL_BAR, "measured": off, "passed": abs(off) <= MODEL_BAR},
            {"bar": "drift in the churn", "required": FLAT_BAR, "measured": drift, "passed": abs(drift) <= FLAT_BAR},
        ],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def churn(fleet: Fleet, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    begun = time.monotonic()
    changes = 0
    while (now := time.monotonic() - begun) < seconds:
        if not samples or now >= samples[-1].seconds + SAMPLE_EVERY_S:
            service = fleet.service
            samples.append(Sample(round(now, 1), resident_bytes(), service.state_bytes, len(service)))
        fleet.change()
        changes += 1
        time.sleep(max(changes / PACE_PER_S - (time.monotonic() - begun), 0))
    return samples


def drift_of(samples: list[Sample]) -> float:
    """How much memory the last sixth has beyond the model, compared with the second sixth, as a share of all of it."""
    sixth = max(len(samples) // 6, 1)
    early, late = samples[sixth : 2 * sixth] or samples[:1], samples[-sixth:]

    def beyond(part: list[Sample]) -> float:
        return statistics.median(sample.resident - sample.modelled for sample in part)

    return (beyond(late) - beyond(early)) / statistics.median(sample.resident for sample in early)


if __name__ == "__main__":
    sys.exit(main())
