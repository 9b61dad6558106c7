"""Spans against their slow twin: one truth value per character."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.core.trust import (
    MAX_SPANS,
    Spans,
    check_spans,
    clipped,
    common_end,
    common_start,
    joined,
    spliced,
    trusted_stretches,
)
from workshop import examples

marks = st.lists(st.booleans(), max_size=14)


def spans_of(untrusted: list[bool]) -> Spans:
    """The twin's only operation: ranges of equal neighbours."""
    spans, at = [], 0
    for value, group in groupby(untrusted):
        size = len(list(group))
        if value:
            spans.append((at, at + size))
        at += size
    return tuple(spans)


@settings(max_examples=examples(300))
@given(marks, st.data())
def test_a_part_has_the_spans_of_its_characters(untrusted: list[bool], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(untrusted)))
    stop = data.draw(st.integers(start, len(untrusted)))
    assert clipped(spans_of(untrusted), start, stop) == spans_of(untrusted[start:stop])


@settings(max_examples=examples(500))
@given(marks, marks, st.data())
def test_a_replacement_brings_its_own_and_leaves_the_others(
    untrusted: list[bool], replacement: list[bool], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(untrusted)))
    stop = data.draw(st.integers(start, len(untrusted)))
    found = spliced(spans_of(untrusted), start, stop, spans_of(replacement), len(replacement))
    assert found == spans_of(untrusted[:start] + replacement + untrusted[stop:])


@settings(max_examples=examples(300))
@given(marks, marks)
def test_equal_trust_is_counted_from_both_ends(left: list[bool], right: list[bool]) -> None:
    chars = min(len(left), len(right))
    start = next((n for n in range(chars) if left[n] != right[n]), chars)
    end = next((n for n in range(chars) if left[-1 - n] != right[-1 - n]), chars)
    assert common_start(spans_of(left), spans_of(right), chars) == start
    assert common_end(spans_of(left), len(left), spans_of(right), len(right), chars) == end


@settings(max_examples=examples(200))
@given(marks)
def test_trusted_stretches_are_what_is_left(untrusted: list[bool]) -> None:
    stretches = tuple(trusted_stretches(spans_of(untrusted), len(untrusted)))
    assert stretches == spans_of([not value for value in untrusted])


def test_touching_and_empty_ranges_come_in_canonical_form() -> None:
    assert check_spans([(1, 2), (2, 2), [2, 4], (5, 5), (6, 8)], 8) == ((1, 4), (6, 8))  # type: ignore[list-item]
    assert check_spans((), 0) == ()
    assert joined([(0, 0)]) == ()


@pytest.mark.parametrize(
    ("given_spans", "code"),
    [
        ([(-1, 2)], "trust.out_of_range"),
        ([(0, 9)], "trust.out_of_range"),
        ([(3, 2)], "trust.unordered"),
        ([(4, 5), (1, 2)], "trust.unordered"),
        ([(1, 4), (3, 5)], "trust.overlap"),
        ([(1, 4), (1, 4)], "trust.overlap"),
        ([(1,)], "trust.bad_span"),
        ([(1, 2, 3)], "trust.bad_span"),
        ([(True, 2)], "trust.bad_span"),
        ([(0, 1.0)], "trust.bad_span"),
        (["ab"], "trust.bad_span"),
        ([3], "trust.bad_span"),
        (7, "trust.bad_span"),
        ([(0, 0)] * (MAX_SPANS + 1), "trust.too_many"),
    ],
)
def test_what_is_no_list_of_spans_is_refused_by_code(given_spans: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_spans(given_spans, 8)
    assert caught.value.code == code
