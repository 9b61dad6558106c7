"""What became of the requests: counted for Prometheus in SGLang's own registry, and told in the log now and then.

Guarantee: one log line a minute at most for requests that the plugin should have served and didn't. No text is logged.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from typing import Any

from .asking import Sent
from .own import Call
from .reasons import NOT_ALARMING, Own

LOG_EVERY_S = 60.0
SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0)
log = logging.getLogger("toktier_sglang")


class Counts:
    """Thread-safe. `prometheus`: also to SGLang's metrics, which only then are imported.

    requests   (path, answer, reason): path `text` or `chat`; answer `own`, or how the tier was told of the text
    """

    def __init__(self, prometheus: bool = False, clock: Any = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._metrics = _metrics() if prometheus else None
        self._untold: Counter[str] = Counter()
        self._told_at: float | None = None
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.lost: Counter[str] = Counter()
        self.shadow: Counter[str] = Counter()
        self.chars: Counter[str] = Counter()

    def by_tier(self, call: Call, sent: Sent, text_chars: int, seconds: float) -> None:
        with self._lock:
            self.requests[_path(call), sent.kind, "none"] += 1
            self.chars["text"] += text_chars
            self.chars["sent"] += sent.chars
        if self._metrics is not None:
            self._metrics["requests"].labels(_path(call), sent.kind, "none").inc()
            self._metrics["chars"].labels("text").inc(text_chars)
            self._metrics["chars"].labels("sent").inc(sent.chars)
            self._metrics["seconds"].labels(sent.kind).observe(seconds)

    def by_own(self, call: Call, reason: Own) -> None:
        with self._lock:
            self.requests[_path(call), "own", reason.value] += 1
            line = self._due_line(reason)
        if self._metrics is not None:
            self._metrics["requests"].labels(_path(call), "own", reason.value).inc()
        if line:
            log.warning("TokTier: tokenized by SGLang itself since the last such line: %s", line)

    def state_lost(self, code: str) -> None:
        with self._lock:
            self.lost[code] += 1
        if self._metrics is not None:
            self._metrics["lost"].labels(code).inc()

    def shadowed(self, result: str) -> None:
        """`same`, `differs`, `failed` or `dropped`."""
        with self._lock:
            self.shadow[result] += 1
        if self._metrics is not None:
            self._metrics["shadow"].labels(result).inc()

    def off(self, code: str) -> None:
        if self._metrics is not None:
            self._metrics["off"].labels(code).inc()

    def _due_line(self, reason: Own) -> str:
        if reason in NOT_ALARMING:
            return ""
        self._untold[reason.value] += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < LOG_EVERY_S:
            return ""
        line = ", ".join(f"{code} {count}" for code, count in sorted(self._untold.items()))
        self._untold.clear()
        self._told_at = now
        return line


def _path(call: Call) -> str:
    return "text" if call is Call.TEXT else "chat"


@functools.cache
def _metrics() -> dict[str, Any]:
    """Once per process. SGLang sets prometheus_client's multi-process folder before it makes a TokenizerManager."""
    from prometheus_client import Counter as Count
    from prometheus_client import Histogram

    name = "toktier_plugin"
    return {
        "requests": Count(
            f"{name}_requests",
            "Texts tokenized, by how (append, edit, open, whole: by the tier) and why not by the tier",
            ["path", "answer", "reason"],
        ),
        "chars": Count(f"{name}_chars", "Characters of the texts that the tier answered for, and sent to it", ["what"]),
        "seconds": Histogram(f"{name}_seconds", "How long the tier's answers took", ["answer"], buckets=SECONDS),
        "lost": Count(f"{name}_state_lost", "Texts sent in full since the tier had another state", ["code"]),
        "shadow": Count(f"{name}_shadow", "The tier's answers compared with the own tokenizer's", ["result"]),
        "off": Count(f"{name}_off", "Processes in which the plugin is off for good", ["reason"]),
    }
