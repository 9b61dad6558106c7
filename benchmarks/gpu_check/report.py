"""The bars, and the tables that are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_check.checks import Check
from gpu_check.plan import MAIN
from gpu_check.texts import DECOMPOSED, NFC
from gpu_check.timing import Bulk, Cell, Latency
from kernels_report.columns import columns


@dataclass(frozen=True)
class Bar:
    """`at_most`: whether `required` is a ceiling. `measured`: None where its cells weren't timed."""

    name: str
    required: float
    measured: float | None
    at_most: bool = True

    @property
    def passed(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.required if self.at_most else self.measured >= self.required


def bars(latencies: Sequence[Latency], bulks: Sequence[Bulk]) -> list[Bar]:
    def p50(chars: int, text: str = NFC.name, *, from_str: bool = False) -> float | None:
        cell = Cell(MAIN, text, chars, "graph", "array", ends=False)
        found = (row.p50_ms + from_str * row.utf8_ms for row in latencies if row.cell == cell)
        return next(found, None)

    plain, decomposed = p50(1_000_000), p50(1_000_000, DECOMPOSED.name)
    return [
        Bar("1 M characters to an array, P50 in ms", 0.87, plain),
        Bar("the same from a str", 0.87, p50(1_000_000, from_str=True)),
        Bar("4.4 M characters to an array, P50 in ms", 3.6, p50(4_400_000)),
        Bar("the same from a str", 3.6, p50(4_400_000, from_str=True)),
        Bar("text that needs normalization, times as long", 2.0, decomposed / plain if decomposed and plain else None),
        Bar("bulk, GB/s", 3.8, max((row.gb_per_s for row in bulks), default=None), at_most=False),
    ]


def checks_table(checks: Sequence[Check]) -> str:
    header = ["tokenizer", "check", "cases", "right", ""]
    rows = [[c.family, c.what, c.cases, c.right, "RED" if c.red else ""] for c in checks]
    wrong = [f"{check.family}, {check.what}: {check.difference}" for check in checks if check.difference]
    return "\n".join([columns(header, rows), *wrong])


def times_tables(
    latencies: Sequence[Latency], steps: Mapping[str, Mapping[int, Mapping[str, float]]], bulks: Sequence[Bulk]
) -> str:
    header = ["tokenizer", "text", "chars", "mode", "delivery", "ends", "n"]
    header += ["P50 ms", "P90 ms", "P99 ms", "UTF-8 ms", "waits", "CPU bytes"]
    rows = [
        [
            row.cell.family,
            row.cell.text,
            row.cell.chars,
            row.cell.mode,
            row.cell.delivery,
            "yes" if row.cell.ends else "",
            row.n,
            *(f"{ms:.3f}" for ms in (row.p50_ms, row.p90_ms, row.p99_ms, row.utf8_ms)),
            row.waits,
            row.normalized_bytes + row.overlong_bytes,
        ]
        for row in latencies
    ]
    parts = ["Latency, from UTF-8 to the delivered IDs", columns(header, rows)]
    for family, sizes in steps.items():
        names = list(dict.fromkeys(name for found in sizes.values() for name in found))
        lines = [[name, *(f"{sizes[size].get(name, 0.0):.1f}" for size in sizes)] for name in names]
        lines.append(["all", *(f"{sum(sizes[size].values()):.1f}" for size in sizes)])
        parts += ["", f"Steps of {family} on the device, microseconds", columns(["step", *map(str, sizes)], lines)]
    bulk_lines = [[b.family, b.documents, b.bytes, b.n, f"{b.p50_ms:.2f}", f"{b.gb_per_s:.2f}"] for b in bulks]
    parts += ["", "Bulk, to an array", columns(["tokenizer", "documents", "bytes", "n", "P50 ms", "GB/s"], bulk_lines)]
    return "\n".join(parts)


def bars_table(found: Sequence[Bar]) -> str:
    words = {True: "passed", False: "MISSED", None: "not measured"}
    rows = [
        [
            bar.name,
            f"{'<=' if bar.at_most else '>='} {bar.required:g}",
            "-" if bar.measured is None else f"{bar.measured:.3f}",
            words[bar.passed],
        ]
        for bar in found
    ]
    return columns(["bar", "required", "measured", ""], rows)
