"""Which characters of a text are untrusted: ranges, in order, of characters in which no added token is recognized.

Guarantee: a `Spans` made here is canonical: every range holds a character, and between two of them stands a trusted
one. So two texts have the same trust exactly if their spans are equal. Positions are in characters.

What untrusted means for the IDs: docs/decisions/0007-untrusted-spans.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from .errors import InvalidRequest

Spans = tuple[tuple[int, int], ...]
"""Ranges (start, stop)."""

NO_SPANS: Spans = ()
MAX_SPANS = 65_536
"""In one call; a session may hold more."""


def check_spans(untrusted: Sequence[Sequence[int]], chars: int) -> Spans:
    """`untrusted`, as a caller gave it for a text of `chars` characters, in canonical form; empty ranges say nothing.

    Raises `InvalidRequest`: `trust.bad_span`, `trust.out_of_range`, `trust.unordered`, `trust.overlap`,
    `trust.too_many`.
    """
    try:
        given = [tuple(span) for span in untrusted]
    except TypeError:
        raise InvalidRequest("trust.bad_span", "untrusted spans are pairs of positions") from None
    if len(given) > MAX_SPANS:
        raise InvalidRequest("trust.too_many", f"{len(given)} untrusted spans", limit=MAX_SPANS)
    before = 0
    for index, span in enumerate(given):
        if len(span) != 2 or type(span[0]) is not int or type(span[1]) is not int:
            raise InvalidRequest("trust.bad_span", "an untrusted span is a pair of positions", index=index)
        start, stop = span
        if start < 0 or stop > chars:
            raise InvalidRequest("trust.out_of_range", "an untrusted span lies in its text", index=index, chars=chars)
        if stop < start or (index and start < given[index - 1][0]):
            raise InvalidRequest("trust.unordered", "untrusted spans come in order", index=index)
        if start < before:
            raise InvalidRequest("trust.overlap", "untrusted spans don't overlap", index=index)
        before = stop
    return joined((start, stop) for start, stop in given)


def joined(ranges: Iterable[tuple[int, int]]) -> Spans:
    """Ordered ranges that don't overlap, in canonical form."""
    spans: list[tuple[int, int]] = []
    for start, stop in ranges:
        if start == stop:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return tuple(spans)


def clipped(spans: Spans, start: int, stop: int) -> Spans:
    """The spans of characters start..stop, counted from `start`."""
    if not spans or start >= stop:
        return NO_SPANS
    first = bisect_right(spans, start, key=_stop)
    last = bisect_left(spans, stop, key=_start)
    return tuple((max(a, start) - start, min(b, stop) - start) for a, b in spans[first:last])


def spliced(spans: Spans, start: int, stop: int, replacement: Spans, chars: int) -> Spans:
    """The spans of a text in which `chars` characters with spans `replacement` take the place of start..stop."""
    if not spans and not replacement:
        return NO_SPANS
    first = bisect_right(spans, start, key=_stop)
    last = bisect_left(spans, stop, key=_start)
    shift = chars - (stop - start)
    left, right = spans[:first], tuple((a + shift, b + shift) for a, b in spans[last:])
    middle = [(a + start, b + start) for a, b in replacement]
    if first < last and spans[first][0] < start:
        middle.insert(0, (spans[first][0], start))
    if first < last and spans[last - 1][1] > stop:
        middle.append((stop + shift, spans[last - 1][1] + shift))
    return left[:-1] + joined((*left[-1:], *middle, *right[:1])) + right[1:]


def trusted_stretches(spans: Spans, chars: int) -> Iterator[tuple[int, int]]:
    """The maximal ranges outside `spans` of a text of `chars` characters."""
    at = 0
    for start, stop in spans:
        if at < start:
            yield at, start
        at = stop
    if at < chars:
        yield at, chars


def common_start(left: Spans, right: Spans, chars: int) -> int:
    """How many characters from the start on have the same trust in both texts, at most `chars`."""
    for a, b in zip_longest(_borders(left), _borders(right)):
        if a != b:
            return min(chars, min(border for border in (a, b) if border is not None))
    return chars


def common_end(left: Spans, left_chars: int, right: Spans, right_chars: int, chars: int) -> int:
    """How many characters up to the end have the same trust in both texts, at most `chars`."""
    return common_start(_reversed(left, left_chars), _reversed(right, right_chars), chars)


def _borders(spans: Spans) -> Iterator[int]:
    for span in spans:
        yield from span


def _reversed(spans: Spans, chars: int) -> Spans:
    return tuple((chars - stop, chars - start) for start, stop in reversed(spans))


def _start(span: tuple[int, int]) -> int:
    return span[0]


def _stop(span: tuple[int, int]) -> int:
    return span[1]
