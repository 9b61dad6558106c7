"""The load curve as a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import demo
from demo.chart import Axis, Series, draw

_STYLE = (Path(demo.__file__).parent / "page.css").read_text(encoding="utf-8")


class Measured(Protocol):
    """One step of the load, as `__main__.Row` has it."""

    @property
    def answered_per_s(self) -> float: ...
    @property
    def append_p50_ms(self) -> float: ...
    @property
    def append_p99_ms(self) -> float: ...
    @property
    def cold_p50_ms(self) -> float: ...


def to_html(rows: Sequence[Measured], bar_ms: float) -> str:
    """Latency over the requests answered a second."""
    rates = [row.answered_per_s for row in rows]
    low, high = min(rates) * 0.8, max(rates) * 1.25

    def series(name: str, css: str, times: Sequence[float]) -> Series:
        return Series(name, css, line=[(rate, max(ms, 0.1)) for rate, ms in zip(rates, times, strict=True)])

    chart = draw(
        [
            series("append P50", "append", [row.append_p50_ms for row in rows]),
            series("append P99", "edit", [row.append_p99_ms for row in rows]),
            series("cold start P50", "candidate", [row.cold_p50_ms for row in rows]),
            Series(f"{bar_ms:.0f} ms", "reference", line=[(low, bar_ms), (high, bar_ms)]),
        ],
        Axis("requests answered a second", low, high, [each for each in TICKS if low <= each <= high], str),
        Axis("ms since the request was due", 0.1, 20_000, (0.1, 1, 10, 100, 1_000, 10_000), str),
        "Latency over throughput",
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>TokTier under load</title>\n'
        f"<style>\n{_STYLE}</style></head>\n<body><main><h1>TokTier under mixed load</h1>\n<figure>{chart}</figure>\n"
        "</main></body></html>\n"
    )


TICKS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
