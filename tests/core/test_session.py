"""The rope: what goes in comes out, lengths and sizes add up, segments never change."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core import session
from toktier_tier.core.errors import StateError
from toktier_tier.core.pipeline import Position
from toktier_tier.core.session import (
    SEGMENT_CHARS,
    SESSION_OVERHEAD_BYTES,
    TAIL_CHARS,
    TAIL_KEEP_CHARS,
    Piece,
    Segment,
    SessionState,
    text_digest,
)
from workshop import GENERAL, examples, small_rope

# The rope itself knows no tokenizer: here a text's IDs are its code points, so any cut is a boundary.


def ids_of(text: str) -> np.ndarray:
    return np.array([ord(char) for char in text], dtype=np.uint32)


def pieces_of(*texts: str) -> list[Piece]:
    return [(text, ids_of(text)) for text in texts]


def state_of(*texts: str, keep_text: bool = True) -> SessionState:
    state = SessionState(keep_text=keep_text)
    state.replace_segments(0, None, pieces_of(*texts))
    return state


def check(state: SessionState, text: str) -> None:
    assert state.ids().tolist() == ids_of(text).tolist()
    assert (state.chars, state.tokens) == (len(text), len(text))
    sizes = [segment.chars for segment in state.segments]
    assert state.chars_before == [0, *accumulate(sizes)]
    assert state.tokens_before == [0, *accumulate(len(segment.ids) for segment in state.segments)]
    assert all(sizes)
    at = 0
    for segment in state.segments:
        data = text[at : at + segment.chars].encode()
        assert segment.bytes_ == len(data)
        assert segment.matches(data + b"more", 0)
        assert not segment.matches(b"", 0)
        assert (segment.text is None) == (segment.digest is not None) == (not state.keep_text)
        at += segment.chars
    assert state.tail == text[at:]
    kept = sum(segment.memory_bytes for segment in state.segments)
    assert state.state_bytes() >= kept + state.tail_ids.nbytes + SESSION_OVERHEAD_BYTES
    assert state.state_bytes() <= kept + 5 * len(state.tail) + 8 * state.count + 2 * SESSION_OVERHEAD_BYTES


word = st.text(st.sampled_from(GENERAL), max_size=20)


@settings(max_examples=examples(150))
@given(st.lists(word, max_size=30), st.booleans(), st.data())
def test_any_replacement_of_segments_is_a_replacement_of_text(
    texts: list[str], keep_text: bool, data: st.DataObject
) -> None:
    with small_rope():
        state = state_of(*texts, keep_text=keep_text)
        text = "".join(texts)
        check(state, text)
        for _ in range(3):
            start = data.draw(st.integers(0, len(state.segments)))
            stop = data.draw(st.none() | st.integers(start, len(state.segments)))
            fresh = data.draw(st.lists(word, max_size=10))
            first = state.chars_before[start]
            last = len(text) if stop is None else state.chars_before[stop]
            state.replace_segments(start, stop, pieces_of(*fresh))
            text = text[:first] + "".join(fresh) + text[last:]
            check(state, text)
            for place in range(len(text) + 1):
                index = state.find(place)
                inside = state.chars_before[index : index + 2]
                assert inside[0] <= place < inside[1] if len(inside) == 2 else inside[0] <= place


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(word, st.integers(0, 40)), max_size=30), st.booleans())
def test_a_growing_tail_is_sealed_at_its_marks_only(steps: list[tuple[str, int]], keep_text: bool) -> None:
    with small_rope():
        state, text = SessionState(keep_text=keep_text), ""
        seams = {0}
        for added, back in steps:
            kept = max(len(state.tail) - back, 0)
            tail = state.tail + added
            state.splice_tail(tail, kept, ids_of(tail[kept:]))
            state.mark(kept, kept)
            assert state.marks == sorted(set(state.marks))
            assert not state.marks or state.marks[-1][0] <= kept
            seams = {seam for seam in seams if seam < state.chars_before[-1] + kept} | {state.chars_before[-1] + kept}
            text += added
            state.seal()
            check(state, text)
            assert set(state.chars_before) <= seams | {0}
            assert all(0 < chars <= len(state.tail) for chars, _ in state.marks)
            assert all(chars == tokens for chars, tokens in state.marks)
            if state.segments:
                assert len(state.tail) >= session.TAIL_KEEP_CHARS


def test_a_tail_is_sealed_once_it_is_longer_than_it_may_be() -> None:
    state = SessionState()
    text = "x" * TAIL_CHARS
    state.splice_tail(text, 0, ids_of(text))
    state.mark(TAIL_CHARS - TAIL_KEEP_CHARS, TAIL_CHARS - TAIL_KEEP_CHARS)
    state.seal()
    assert not state.segments
    state.splice_tail(text + "x", TAIL_CHARS, ids_of("x"))
    state.seal()
    assert [segment.chars for segment in state.segments] == [TAIL_CHARS - TAIL_KEEP_CHARS]
    check(state, text + "x")


def test_a_tail_without_a_mark_stays_a_tail() -> None:
    state = SessionState()
    text = "x" * (4 * TAIL_CHARS)
    state.splice_tail(text, 0, ids_of(text))
    state.seal()
    assert not state.segments
    state.mark(TAIL_KEEP_CHARS - 1, TAIL_KEEP_CHARS - 1)  # too little for a segment
    state.seal()
    assert not state.segments


def test_pieces_join_up_to_the_size_of_a_segment() -> None:
    state = state_of(*["x" * 100] * 400)
    assert max(segment.chars for segment in state.segments) <= SEGMENT_CHARS
    assert min(segment.chars for segment in state.segments[:-1]) > SEGMENT_CHARS - 200
    assert len(state.tail) >= TAIL_KEEP_CHARS
    assert state_of("y" * 10 * SEGMENT_CHARS).tail == "y" * 10 * SEGMENT_CHARS  # one piece has no seam inside


def test_segments_never_change() -> None:
    state = state_of(*["ab"] * 9_000)
    segment = state.segments[0]
    assert not segment.ids.flags.writeable
    with pytest.raises(AttributeError):
        segment.chars = 3  # type: ignore[misc]
    before = segment.ids.tobytes()
    state.splice_tail("zz", 0, ids_of("zz"))
    state.replace_segments(1, None, pieces_of("new"))
    assert state.segments[0] is segment
    assert segment.ids.tobytes() == before


def test_the_pieces_given_stay_the_callers() -> None:
    with small_rope():
        shared = ids_of("x" * 200)
        state = SessionState()
        state.replace_segments(0, None, [("x" * 60, shared[:60]), ("x" * 60, shared[60:120])])
        shared[:] = 7
        check(state, "x" * 120)
        state.tail_ids[-1] += 1
        assert set(shared.tolist()) == {7}


def test_ids_are_a_copy_and_tail_ids_a_view() -> None:
    state = state_of("abc")
    state.ids()[:] = 0
    check(state, "abc")
    assert state.tail_ids.base is not None or state.tail_ids.flags.owndata
    assert state.tail_ids.dtype == state.ids().dtype == np.uint32


def test_an_empty_state_is_an_empty_text() -> None:
    state = SessionState()
    check(state, "")
    assert (state.text(), state.find(0), state.tail_position) == ("", 0, Position.TEXT_START)
    state.replace_segments(0, None, [])
    check(state, "")


def test_the_tail_is_a_continuation_once_there_are_segments() -> None:
    with small_rope():
        assert state_of("ab").tail_position is Position.TEXT_START
        assert state_of(*["ab"] * 60).tail_position is Position.CONTINUATION


def test_text_of_which_only_a_digest_is_left_is_not_given() -> None:
    with small_rope():
        state = state_of(*["äb"] * 60, keep_text=False)
    assert not state.has_text()
    with pytest.raises(StateError) as caught:
        state.text()
    assert caught.value.code == "session.text_not_kept"
    segment = state.segments[0]
    assert segment.text is None
    assert segment.digest == text_digest(("äb" * (segment.chars // 2)).encode())
    assert state_of("short", keep_text=False).has_text()


def test_a_segment_matches_its_own_text_at_its_own_place_only() -> None:
    for segment in (
        Segment("aé".encode(), None, 3, 2, ids_of("aé")),
        Segment(None, text_digest("aé".encode()), 3, 2, ids_of("aé")),
    ):
        data = "xaéaé".encode()
        assert [at for at in range(len(data) + 1) if segment.matches(data, at)] == [1, 4]
        assert not segment.matches("aé".encode()[:2], 0)


def test_digest_only_states_are_smaller() -> None:
    texts = [random.Random(1).choice(("words ", "and ", "more ")) for _ in range(20_000)]
    assert state_of(*texts, keep_text=False).state_bytes() < state_of(*texts).state_bytes() - 50_000


def test_an_adopted_state_equals_the_one_it_came_from() -> None:
    with small_rope():
        state = state_of(*["ab", "cde"] * 40)
        copy = SessionState()
        copy.adopt(list(state.segments), state.tail, state.tail_ids.copy(), 7)
        check(copy, "abcde" * 40)
        assert copy.revision == 7
        copy.replace_segments(0, 1, [])
        assert copy.chars == state.chars - state.segments[0].chars
        check(state, "abcde" * 40)
