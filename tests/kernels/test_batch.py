"""The documents of a call as one text: positions, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toktier_kernels.batch import Spans, gather
from toktier_kernels.errors import InvalidArgument, KernelsError


def test_documents_stand_one_behind_the_other() -> None:
    batch = gather([b"ab", b"", b"cde", b""], ([0, 3], [2, 4], [7, 8]))
    assert batch.text.tobytes() == b"abcde"
    assert batch.documents.tolist() == [0, 2, 2, 5]
    assert batch.hard().tolist() == [0, 2, 3, 4, 5]
    assert (batch.spans.tolist(), batch.span_ends.tolist(), batch.span_ids.tolist()) == ([0, 3], [2, 4], [7, 8])
    assert [part.dtype for part in (batch.documents, batch.spans, batch.span_ends)] == [np.int32] * 3
    assert batch.span_ids.dtype == np.uint32


def test_nothing_at_all_is_a_batch() -> None:
    assert (gather([]).size, len(gather([]).documents)) == (0, 0)
    assert (gather([b""]).size, gather([b""]).documents.tolist()) == (0, [0])


def test_a_single_document_is_not_copied() -> None:
    document = b"some text"
    assert np.shares_memory(gather([document]).text, np.frombuffer(document, np.uint8))


@pytest.mark.parametrize(
    "spans",
    [
        ([0], [1], []),
        ([2], [2], [1]),
        ([3], [2], [1]),
        ([-1], [1], [1]),
        ([4], [7], [1]),
        ([0, 1], [2, 3], [1, 1]),
        ([3, 0], [4, 1], [1, 1]),
        ([1], [3], [1]),
        ([0], [1], [-1]),
        ([0], [1], [0xFFFFFFFF]),
    ],
)
def test_spans_that_make_no_sense_are_refused(spans: Spans) -> None:
    with pytest.raises(InvalidArgument) as caught:
        gather([b"ab", b"", b"cdef"], spans)
    assert caught.value.code == "kernels.invalid_spans"


@pytest.mark.parametrize("spans", [([0, 2], [2, 6], [1, 2]), ([2], [3], [0xFFFFFFFE]), ([], [], []), None])
def test_spans_up_to_the_edges_of_documents_are_taken(spans: Any) -> None:
    assert len(gather([b"ab", b"", b"cdef"], spans).spans) == (0 if spans is None else len(spans[0]))


def test_an_error_shows_its_code() -> None:
    with pytest.raises(KernelsError, match=r"^\[kernels.invalid_spans\] a span crosses"):
        gather([b"ab", b"cd"], ([1], [3], [0]))
