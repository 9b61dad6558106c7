"""`demo.html`: one page that needs nothing else, with the chart, the tables and what was run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from demo.chart import Axis, Point, Series, draw
from demo.replay import TurnRecord
from demo.report import Result, Table, buckets, duration, rate, short, tables

_STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def to_html(result: Result) -> str:
    verification = result.verification
    exact = not verification.divergences
    verdict = "equal to the reference" if exact else f"{verification.divergences} DIVERGENCES"
    cards = [
        (f"{result.context_chars:,}", "characters of context at the end"),
        (f"{verification.checked:,} / {result.turns:,}", f"turns checked in full: {verdict}"),
        *_latency_cards(result),
    ]
    body = [
        "<header><h1>TokTier: one agent session, token by token</h1>",
        f"<p>{escape(_lead(result))}</p></header>",
        '<section class="cards">',
        *(f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in cards),
        "</section>",
        "<figure>",
        _chart(result),
        "<figcaption>Each mark is one call of the replay; lines join medians. Both axes are logarithmic."
        "</figcaption></figure>",
        *map(_html_table, tables(result)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>TokTier demo</title>\n<style>\n{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _lead(result: Result) -> str:
    return (
        f"{result.turns} turns of a coding agent's transcript (Qwen3's chat template; code, JSON, command output and "
        "prose in many scripts) were sent through one session of the tier. Each answer is a patch to the token IDs "
        "that the client holds. To check it, the IDs held after a turn were compared with a full encode of its whole "
        f"text by the pinned reference: {rate(result.verification.checked, result.turns)}."
    )


def _latency_cards(result: Result) -> list[tuple[str, str]]:
    """Repair beside the full encodes, where the context is largest."""
    last = buckets(result)[-1]
    repairs = [record.seconds for record in last.appends]
    if not repairs or last.full is None:
        return []
    at = short(last.full.chars)
    return [
        (duration(float(np.median(repairs))), f"P50 of an append beyond {short(last.low)} characters"),
        (duration(float(np.median(last.full.candidate_s))), f"P50, {result.candidate} over all {at} characters"),
        (duration(float(np.median(last.full.reference_s))), f"P50, reference over all {at} characters"),
    ]


def _chart(result: Result) -> str:
    records = result.replay.records
    appends = [(float(r.context_chars), r.seconds) for r in records if r.kind == "append"]
    edits = [(float(r.context_chars), r.seconds) for r in records if r.kind == "tail edit"]
    candidate = [(float(full.chars), float(np.median(full.candidate_s))) for full in result.full]
    reference = [(float(full.chars), float(np.median(full.reference_s))) for full in result.full]
    medians = [_middle(bucket.appends) for bucket in buckets(result) if bucket.appends]
    series = [
        Series("tail edit", "edit", points=edits, mark="diamond"),
        Series("append", "append", points=appends),
        Series("repair, append P50", "append", line=medians),
        Series(f"{result.candidate}, full", "candidate", line=candidate),
        Series("reference, full", "reference", line=reference),
    ]
    every = [point for one in series for point in (*one.points, *one.line)]
    x_low, x_high = min(x for x, _ in every) * 0.85, max(x for x, _ in every) * 1.15
    y_low, y_high = min(y for _, y in every) * 0.6, max(y for _, y in every) * 1.6
    x = Axis("context, characters", x_low, x_high, _ticks(x_low, x_high, (1, 2, 5)), lambda value: short(int(value)))
    y = Axis("latency of one call", y_low, y_high, _ticks(y_low, y_high, (1,)), duration)
    legend = (
        '<ul class="legend"><li class="append">● append</li><li class="edit">◆ tail edit</li>'
        f'<li class="candidate">━ {escape(result.candidate)}, full encode</li>'
        '<li class="reference">━ reference, full encode</li></ul>'
    )
    drawn = draw(series, x, y, "Latency of one call by length of the context")
    return f'{legend}<div class="wide">{drawn}</div>'


def _middle(records: Sequence[TurnRecord]) -> Point:
    context_chars, seconds = [r.context_chars for r in records], [r.seconds for r in records]
    return float(np.median(context_chars)), float(np.median(seconds))


def _html_table(table: Table) -> str:
    kind = "figures" if any(table.header) else "facts"
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header) if any(table.header) else ""
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide"><table class="{kind}">{head}<tbody>\n{rows}\n'
        f"</tbody></table></div>{note}</section>"
    )


def _ticks(low: float, high: float, steps: Iterable[int]) -> list[float]:
    values = (step * 10.0**power for power in range(-7, 9) for step in steps)
    return [value for value in values if low <= value <= high]
