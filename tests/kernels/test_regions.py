"""Regions: what has to be normalized, found from the positions of unsettled characters alone, and spliced again."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_kernels.batch import Batch, gather
from toktier_kernels.errors import InvalidText, Overlong
from toktier_kernels.regions import all_regions, firm_stretches, normalize_regions, unsettled_regions
from toktier_kernels.stretches import encode_stretches
from workshop import examples

CHARS = [*"aez\n\0é中가😀𝅗", *"\u0301\u0323\u0345\u0334\u0316\u1100\u1161\u11a8\u212b\U0001d165"]
MARKS = set("\u0334\u0316")
"""Move for others but join with nothing: harmless between two settled characters."""


def nfc(data: bytes) -> bytes:
    return unicodedata.normalize("NFC", data.decode()).encode()


def settled(char: str) -> int:
    """0, 1 or 2 as in 0009; by the definition, slowly."""
    if char in MARKS:
        return 1
    if unicodedata.normalize("NFC", char) != char or unicodedata.combining(char):
        return 2
    return 2 if char in "\u1161\u11a8" else 0


def unsettled_of(stretches: list[tuple[int, str]]) -> list[int]:
    """Positions of unsettled characters in stretches (byte position, text) between hard positions."""
    found = []
    for at, text in stretches:
        states = [0, *map(settled, text), 0]
        for index, char in enumerate(text, 1):
            if states[index] == 2 or (states[index] == 1 and (states[index - 1] or states[index + 1])):
                found.append(at)
            at += len(char.encode())
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, list[tuple[int, str]]]:
    """A batch and its stretches (byte position, text) that aren't spans."""
    documents, spans, stretches = [], [], []
    at = 0
    for _ in range(draw(st.integers(1, 3))):
        start = at
        for _ in range(draw(st.integers(0, 3))):
            text = "".join(draw(st.lists(st.sampled_from(CHARS), max_size=8)))
            size = len(text.encode())
            if draw(st.booleans()) and size:
                spans.append((at, at + size, 5))
            elif size and stretches and stretches[-1][0] + len(stretches[-1][1].encode()) == at and at > start:
                stretches[-1] = (stretches[-1][0], stretches[-1][1] + text)
            elif size:
                stretches.append((at, text))
            documents.append((start, text.encode()))
            at += size
        documents.append((start, b""))
    starts = list(dict.fromkeys(start for start, _ in documents))
    whole = b"".join(part for _, part in documents)
    texts = [whole[a:b] for a, b in pairwise([*starts, len(whole)])]
    columns = [list(column) for column in zip(*spans, strict=True)] or [[], [], []]
    return gather(texts, (columns[0], columns[1], columns[2])), stretches


def normalized_slowly(batch: Batch, stretches: list[tuple[int, str]]) -> tuple[bytes, list[int], list[int]]:
    """(text, documents, spans): every stretch normalized whole."""
    edges = sorted({0, batch.size, *batch.hard().tolist()})
    begins = {at for at, _ in stretches}
    text, moved = b"", {}
    for a, b in pairwise(edges):
        moved[a] = len(text)
        part = batch.text[a:b].tobytes()
        text += nfc(part) if a in begins else part
    moved[batch.size] = len(text)
    return text, [moved[p] for p in batch.documents.tolist()], [moved[p] for p in batch.spans.tolist()]


@settings(max_examples=examples(400))
@given(batches())
def test_regions_give_what_normalizing_every_stretch_gives(case: tuple[Batch, list[tuple[int, str]]]) -> None:
    batch, stretches = case
    unsettled = np.array(unsettled_of(stretches), dtype=np.int32)
    expected = normalized_slowly(batch, stretches)
    for starts, ends in (unsettled_regions(batch, unsettled), all_regions(batch)):
        assert (starts < ends).all()
        assert (ends[:-1] <= starts[1:]).all()
        spliced = normalize_regions(batch, starts, ends, nfc)
        assert (spliced.text.tobytes(), spliced.documents.tolist(), spliced.spans.tolist()) == expected
        assert (spliced.span_ends - spliced.spans).tolist() == (batch.span_ends - batch.spans).tolist()
        assert spliced.span_ids.tolist() == batch.span_ids.tolist()


def test_a_region_is_no_wider_than_it_has_to_be() -> None:
    text = "aaae\u0301bbb中\u0323\u0301😀ee"
    batch = gather([text.encode()])
    starts, ends = unsettled_regions(batch, np.array(unsettled_of([(0, text)]), dtype=np.int32))
    assert [text.encode()[a:b].decode() for a, b in zip(starts, ends, strict=True)] == ["e\u0301", "中\u0323\u0301"]


def test_the_normalizer_is_called_once_for_all_regions() -> None:
    calls = []

    def normalize(data: bytes) -> bytes:
        calls.append(data)
        return nfc(data)

    text = "e\u0301 " * 50
    batch = gather([text.encode()])
    starts, ends = unsettled_regions(batch, np.array(unsettled_of([(0, text)]), dtype=np.int32))
    assert normalize_regions(batch, starts, ends, normalize).text.tobytes() == nfc(text.encode())
    assert (len(starts), len(calls)) == (50, 1)


# --- stretches ------------------------------------------------------------------------------------------------

LENGTHS = np.array([1, 2, 3, 0], dtype=np.uint16)


def test_tokens_of_a_stretch_stand_where_their_lengths_say() -> None:
    text = np.frombuffer(b"abcdefghij", np.uint8)
    starts, ends = np.array([1, 6], np.int32), np.array([5, 9], np.int32)
    seen: list[bytes] = []

    def encode(parts):  # type: ignore[no-untyped-def]
        seen.extend(parts)
        return [np.array([0, 2], np.uint32), np.array([1, 0], np.uint32)]

    at, ids = encode_stretches(text, starts, ends, encode, LENGTHS)
    assert seen == [b"bcde", b"ghi"]
    assert (at.tolist(), ids.tolist()) == ([1, 2, 6, 8], [0, 2, 1, 0])


@pytest.mark.parametrize(
    "answer",
    [
        [[0, 2], [1]],
        [[0, 2]],
        [[0, 2], []],
        [[0, 2], [9, 0]],
        [[2, 2], [1, 0]],
        [[0, 2], [1, 0], [1]],
        [[1, 0], [2, 0]],
    ],
)
def test_an_encoding_that_does_not_cover_its_stretch_is_refused(answer: list[list[int]]) -> None:
    text = np.frombuffer(b"abcdefghij", np.uint8)
    arrays = [np.array(part, dtype=np.uint32) for part in answer]
    starts, ends = np.array([1, 6], np.int32), np.array([5, 9], np.int32)
    with pytest.raises(Overlong) as caught:
        encode_stretches(text, starts, ends, lambda _: arrays, LENGTHS)
    assert caught.value.code == "kernels.overlong"


def test_without_an_encoder_stretches_are_an_error() -> None:
    text = np.frombuffer(b"abc", np.uint8)
    with pytest.raises(Overlong, match="too long"):
        encode_stretches(text, np.array([0], np.int32), np.array([3], np.int32), None, LENGTHS)
    assert not issubclass(Overlong, InvalidText)


@pytest.mark.parametrize(
    ("segment", "firm"),
    [
        ((0, 3), True),
        ((0, 4), False),
        ((1, 5), False),
        ((2, 8), True),
        ((4, 9), False),
        ((6, 9), False),
        ((7, 9), True),
    ],
)
@pytest.mark.parametrize("hard", [False, True])
def test_a_stretch_is_firm_if_no_region_is_at_its_edges(segment: tuple[int, int], firm: bool, hard: bool) -> None:
    """The region is [4, 6): it holds the character at 4, and the one before 6. What is hard stays."""
    documents = np.array(sorted({0, *segment}) if hard else [0], np.int32)
    none = np.empty(0, np.int32)
    batch = Batch(np.zeros(10, np.uint8), documents, none, none, np.empty(0, np.uint32))
    starts, ends, begins, stops = (np.array([at], np.int32) for at in (4, 6, *segment))
    found = firm_stretches(batch, starts, ends, begins, stops)
    assert [part.tolist() for part in found] == ([[segment[0]], [segment[1]]] if firm or hard else [[], []])
