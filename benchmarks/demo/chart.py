"""A log-log chart as inline SVG. Colours and strokes are classes that the page's style sheet defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 520
LEFT, RIGHT, TOP, BOTTOM = 84, 176, 24, 64

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """`points` are drawn as marks, `line` as a polyline with its label at the right end."""

    name: str
    css: str
    points: Sequence[Point] = ()
    line: Sequence[Point] = ()
    mark: str = "circle"


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from `low` to `high`; `label` names a tick."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    label: Callable[[float], str]

    def share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)


def draw(series: Sequence[Series], x: Axis, y: Axis, title: str) -> str:
    """The SVG element; `title` is for screen readers."""
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(point: Point) -> Point:
        return LEFT + plot_width * x.share(point[0]), TOP + plot_height * (1 - y.share(point[1]))

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x, y, place),
        *(_marks(one, place) for one in series if one.points),
        *(_line(one, place) for one in series if one.line),
        *_end_labels(series, place),
        "</svg>",
    ]
    return "\n".join(parts)


def _grid(x: Axis, y: Axis, place: Callable[[Point], Point]) -> list[str]:
    left, bottom = place((x.low, y.low))
    right, top = place((x.high, y.high))
    parts = []
    for tick in x.ticks:
        at, _ = place((tick, y.low))
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        parts.append(_text("tick", at, bottom + 20, "middle", x.label(tick)))
    for tick in y.ticks:
        _, at = place((x.low, tick))
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text("tick", left - 10, at + 4, "end", y.label(tick)))
    parts.append(f'<path class="axis" d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}"/>')
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    parts.append(_text("title", middle_x, HEIGHT - 14, "middle", x.title))
    parts.append(
        f'<text class="title" transform="translate(20 {middle_y:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.title)}</text>"
    )
    return parts


def _text(css: str, x: float, y: float, anchor: str, words: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _marks(series: Series, place: Callable[[Point], Point]) -> str:
    marks = []
    for point in series.points:
        at_x, at_y = place(point)
        if series.mark == "circle":
            marks.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="2.6"/>')
        else:
            marks.append(f'<path d="M{at_x:.1f} {at_y - 3.6:.1f}l3.6 3.6l-3.6 3.6l-3.6 -3.6z"/>')
    return f'<g class="mark {series.css}">{"".join(marks)}</g>'


def _line(series: Series, place: Callable[[Point], Point]) -> str:
    places = [place(point) for point in series.line]
    path = " ".join(f"{at_x:.1f},{at_y:.1f}" for at_x, at_y in places)
    dots = "".join(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4"/>' for at_x, at_y in places)
    return f'<polyline class="line {series.css}" points="{path}"/><g class="dot {series.css}">{dots}</g>'


def _end_labels(series: Sequence[Series], place: Callable[[Point], Point]) -> list[str]:
    """Each line's name beside its last point, pushed apart where two would touch."""
    ends = sorted(((place(one.line[-1])[1], one) for one in series if one.line), key=lambda end: end[0])
    labels, last = [], -math.inf
    for height, one in ends:
        last = max(height, last + 20)
        labels.append(_text(f"name {one.css}", WIDTH - RIGHT + 12, last + 4, "start", one.name))
    return labels
