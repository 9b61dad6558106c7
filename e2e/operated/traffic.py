"""Clients of a TokTier's Service while something happens to it: each request must be answered, each answer exact.

An agent keeps a session over gRPC through the Service's one address, as a load balancer's client would; a caller sends
texts over HTTP. Which snapshot an answer is by may change in a rollout: it has to be one that the traffic was told of.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from toktier_tier.client import TierClient
from toktier_tier.core.errors import TierError
from toktier_tier.encoders.reference import Reference

CALL_S = 20.0
"""Longer than anything that a rollout may take to answer."""
MOST_CHARS = 20_000


@dataclass
class Seen:
    """failures: (time, who, code) of requests that weren't answered; wrong: answers by no known snapshot."""

    answers: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[float, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reopened: int = 0

    def clean(self) -> bool:
        return not self.failures and not self.wrong


class Traffic:
    """references: by a name each; `answers` counts by them (`either` where they agree)."""

    def __init__(
        self, address: str, url: str, model: str, references: dict[str, Reference], *, agents: int = 4
    ) -> None:
        self.address, self.url, self.model, self.references = address, url, model, references
        self.seen, self.latest = Seen(), ""
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._agent, args=(n,), daemon=True) for n in range(agents)]
        self._threads.append(threading.Thread(target=self._caller, daemon=True))

    @contextmanager
    def running(self) -> Iterator[Seen]:
        for thread in self._threads:
            thread.start()
        try:
            yield self.seen
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join(2 * CALL_S)
            assert not any(thread.is_alive() for thread in self._threads), "a client waits for ever"

    def _agent(self, number: int) -> None:
        chooser = random.Random(number)
        name, text, session = f"agent-{number}", "", None

        def all_of_it() -> str:
            return text

        with TierClient(self.address, model=self.model, timeout_s=CALL_S) as client:
            while not self._ended.is_set():
                reopened = session.reopened.total() if session is not None else 0
                try:
                    if session is None or len(text) > MOST_CHARS:
                        text = words(chooser, 400)
                        session = client.open(name, text, text_of=all_of_it)
                        reopened = 0
                    else:
                        delta = words(chooser, chooser.randrange(1, 40))
                        text += delta
                        session.append(delta)
                except TierError as error:
                    self._failed(name, error.code)
                    session = None
                    continue
                self._check(name, text, session.ids.tolist())
                with self._lock:
                    self.seen.reopened += session.reopened.total() - reopened
                self._ended.wait(chooser.uniform(0.01, 0.05))

    def _caller(self) -> None:
        chooser = random.Random("caller")
        while not self._ended.is_set():
            text = words(chooser, 100)
            try:
                # A connection each, as short-lived clients have.
                answer = httpx.post(
                    f"{self.url}/tokenize", json={"model": self.model, "prompt": text}, timeout=CALL_S, trust_env=False
                )
            except httpx.TransportError as error:
                self._failed("caller", type(error).__name__)
                continue
            if answer.status_code == 200:
                self._check("caller", text, answer.json()["tokens"])
            else:
                self._failed("caller", f"{answer.status_code} {answer.text[:200]}")
            self._ended.wait(chooser.uniform(0.02, 0.06))

    def _check(self, who: str, text: str, ids: list[int]) -> None:
        found = [name for name, reference in self.references.items() if reference.encode_text(text).tolist() == ids]
        with self._lock:
            if not found:
                self.seen.wrong.append(f"{who}: {len(ids)} IDs for {len(text)} characters")
                return
            self.latest = found[0] if len(found) == 1 else "either"
            self.seen.answers[self.latest] += 1

    def _failed(self, who: str, code: str) -> None:
        with self._lock:
            self.seen.failures.append((time.time(), who, code))
        self._ended.wait(0.1)


WORDS = (
    "def",
    " function",
    " return",
    "\n",
    " über",
    " 中文",
    "  ",
    " self",
    ".",
    "(x)",
    " 12345",
    "'s",
    " naïve",
    "🙂",
    "\r\n",
    "_id",
)


def words(chooser: random.Random, count: int) -> str:
    return "".join(chooser.choice(WORDS) for _ in range(count))
