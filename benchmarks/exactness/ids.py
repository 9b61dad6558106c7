"""ID level: texts, sessions and histories, served as the tier serves them, beside a full encode by the reference.

One comparison is one text, or one step of a session: all IDs of its text are equal, or it is a divergence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toktier_tier import SessionService
from toktier_tier.core.errors import TierError
from toktier_tier.tokenizer import TierTokenizer

from .plan import file_text, own_reference, served
from .state import Tally, load, minimized, run_for
from .texts import Texts

TEXTS, PARTS = 4_000, 3
SESSIONS, STEPS, MAX_CHARS = 50, 24, 20_000
HISTORIES, HISTORY_PARTS = 40, 250


class Subject:
    """One tokenizer as it is served, and the reference by itself."""

    def __init__(self, family: str, tally: Tally) -> None:
        self.family, self.tally = family, tally
        text = file_text(family)
        self.document = json.loads(text)
        self.own = own_reference(text)
        self.texts = Texts(self.document, f"{family}/{tally.kind}")
        self.pool: list[str] = []
        self.tier: TierTokenizer = served(family)
        compiled = self.tier.compiled
        tally.notes["verdict"] = compiled.verdict.value + (f" ({compiled.reason})" if compiled.reason else "")
        tally.notes["encoder"] = compiled.encoder + (", whole file" if self.tier.whole is not None else "")

    def expected(self, text: str) -> list[int] | None:
        """None where the reference itself can't encode."""
        try:
            ids: list[int] = self.own.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # a Rust panic isn't an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            return None
        return ids

    def check(self, sort: str, text: str, ids: list[int]) -> None:
        expected = self.expected(text)
        if expected is None:
            return
        self.tally.add(sort, 1)
        if ids != expected:
            self.report(sort, text, expected, ids)

    def report(self, sort: str, text: str, expected: list[int], got: list[int]) -> None:
        """By the shortest text that shows it without its history, else by the whole text."""
        if self.tier.encode_text(text).tolist() != expected:
            text = minimized(text, self._differs)
            expected, got = self.expected(text) or [], self.tier.encode_text(text).tolist()
        self.tally.diverged(sort, text, expected, got)

    def _differs(self, text: str) -> bool:
        expected = self.expected(text)
        return expected is not None and self.tier.encode_text(text).tolist() != expected


def run_ids(family: str, out: Path, seconds: float) -> Tally:
    return _run("ids", family, out, seconds, _short_texts)


def run_sessions(family: str, out: Path, seconds: float) -> Tally:
    return _run("sessions", family, out, seconds, _sessions)


def run_history(family: str, out: Path, seconds: float) -> Tally:
    return _run("history", family, out, seconds, _histories)


def _run(kind: str, family: str, out: Path, seconds: float, batch: Callable[[Subject, int], None]) -> Tally:
    tally = load(out, kind, family)
    subject = Subject(family, tally)
    run_for(out, tally, seconds, lambda number: batch(subject, number))
    if subject.tier.quarantined:
        tally.diverged(kind, "", "not quarantined", "quarantined")
    return tally


def _short_texts(subject: Subject, number: int) -> None:
    texts = subject.texts.batch(number, TEXTS, PARTS)
    try:
        encoded = subject.own.encode_batch_fast(texts, add_special_tokens=False)
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        for text in texts:
            if subject.expected(text) is not None:
                subject.check("ids", text, subject.tier.encode_text(text).tolist())
        return
    encode = subject.tier.encode_text
    subject.tally.add("ids", len(texts))
    for text, found in zip(texts, encoded, strict=True):
        ids = encode(text).tolist()
        if ids != found.ids:
            subject.report("ids", text, found.ids, ids)


def _sessions(subject: Subject, number: int) -> None:
    """One session: opened, then appended to, edited and given anew; each answer applied to what a client has."""
    draw = random.Random(f"{subject.family}/sessions/{number}/steps")
    if number % SESSIONS == 0 or not subject.pool:
        subject.pool = subject.texts.batch(number, 600, 4) + subject.texts.batch(number + 1, 12, 120)
    pool = subject.pool
    service = SessionService(subject.tier)
    text = "".join(draw.sample(pool, draw.choice((0, 1, 3, 12, 40))))
    if subject.expected(text) is None:
        return
    subject.tally.add("sessions", 1)
    ids = service.open("t", "s", text).ids
    subject.check("open", text, ids.tolist())
    for step in range(STEPS):
        more = draw.choice(pool)
        sort, start, stop = _next_step(draw, len(text))
        changed = text[:start] + more + text[stop:] if sort != "append" else text + more
        if subject.expected(changed) is None or len(changed) > MAX_CHARS:
            continue
        try:
            if sort == "append":
                patch = service.append("t", "s", more)
            elif sort == "edit":
                patch = service.edit("t", "s", start, stop, more)
            else:
                patch = service.full_text("t", "s", changed)
        except TierError as error:
            subject.tally.diverged(sort, changed, "an answer", error.code)
            return
        text, ids = changed, patch.apply(ids)
        if len(text) < 3_000 or step % 4 == 3:
            subject.check(sort, text, ids.tolist())
    subject.check("state", text, service.ids("t", "s").tolist())


def _next_step(draw: random.Random, chars: int) -> tuple[str, int, int]:
    kind = draw.random()
    if kind < 0.5:
        return "append", chars, chars
    start = draw.randint(0, chars)
    stop = min(chars, start + draw.choice((0, 0, 1, 2, 10, 300)))
    if draw.random() < 0.3:
        start, stop = max(0, chars - draw.randint(0, 6)), chars
    return ("edit" if kind < 0.8 else "full_text"), start, stop


def _histories(subject: Subject, number: int) -> None:
    """Conversations through one long-lived encoder: each text in three growing parts, cut anywhere.

    What the encoder keeps of pieces it has met (a library's cache) then answers for pieces that only look alike.
    """
    draw = random.Random(f"{subject.family}/history/{number}/cuts")
    texts = subject.texts.batch(number, HISTORIES, HISTORY_PARTS)
    for text in texts:
        subject.tally.add("histories", 1)
        for stop in sorted({draw.randint(1, len(text)), draw.randint(1, len(text)), len(text)}):
            part = text[:stop]
            if (expected := subject.expected(part)) is None:
                continue
            subject.tally.add("history", 1)
            got: Any = subject.tier.encode_text(part).tolist()
            if got != expected:
                subject.report("history", part, expected, got)
