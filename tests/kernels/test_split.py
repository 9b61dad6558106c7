"""The walk finds the pieces that a regex finds, in every stage, and gives up where it was told to."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from test_decode import arrangement, array, marks

from toktier_kernels import status as s
from toktier_kernels.tables import Stage
from toktier_kernels.twins import compact, decode
from toktier_kernels.twins import split as twin
from workshop import examples

LIMITS = {"walk_limit": 4096, "walk_budget": 8}
STAGES = (samples.words(), samples.digits(), samples.high_bytes())
MARKS = re.compile(r"1")
LETTERS = re.compile(r"a+!|a")


def isolated(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """Matches and the gaps between them, as places of characters."""
    result, at = [], 0
    for match in pattern.finditer(text):
        if match.start() > at:
            result.append((at, match.start()))
        result.append(match.span())
        at = match.end()
    return [*result, (at, len(text))] if at < len(text) else result


def prepared(
    text: str, documents: list[int], spans: list[tuple[int, int]], cutting: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`text`, `cls`, `flags`, `segments` by the twins."""
    data = array(text.encode())
    flags = marks(len(data), documents, spans).flags
    cls, _ = decode.decode(data, flags, samples.tables())
    cut = decode.cuts(cls, flags, samples.tables()) if cutting else flags & s.HARD
    return data, cls, flags, compact.positions(cut)


def places(text: str) -> list[int]:
    return np.cumsum([0, *[len(character.encode()) for character in text]]).tolist()


class TestTwin:
    @given(st.integers(0, 10**6))
    def test_pieces_are_the_pattern_s_whether_the_text_is_cut_or_not(self, seed: int) -> None:
        text = samples.text(60, seed)
        at = places(text)
        wanted = [at[start] for start, _ in isolated(samples.PATTERN, samples.plain(text))]
        for cutting in (True, False):
            piece, overlong = twin.walk(*prepared(text, [0], [], cutting), STAGES[0], **LIMITS)
            assert (np.flatnonzero(piece).tolist(), overlong) == (wanted, [])
            assert set(piece.tolist()) <= {0, s.PIECE}

    @given(st.integers(0, 10**6))
    def test_documents_and_spans_are_walls(self, seed: int) -> None:
        text, documents, spans = arrangement(60, seed)
        at = places(text)
        where = {place: index for index, place in enumerate(at)}
        walls = sorted({*documents, *sum(spans, ()), len(text.encode())})
        pieces, apart = [], []
        for left, right in itertools.pairwise(walls):
            if (left, right) in spans:
                apart.append(left)
            else:
                part = samples.plain(text[where[left] : where[right]])
                pieces += [at[where[left] + start] for start, _ in isolated(samples.PATTERN, part)]
        piece, _ = twin.walk(*prepared(text, documents, spans), STAGES[0], **LIMITS)
        assert np.flatnonzero(piece == s.PIECE).tolist() == pieces
        assert np.flatnonzero(piece == s.APART).tolist() == apart

    @given(st.integers(0, 10**6))
    def test_a_later_stage_splits_pieces_and_joins_none(self, seed: int) -> None:
        text = samples.text(60, seed)
        given_ = prepared(text, [0], [])
        first, _ = twin.walk(*given_, STAGES[0], **LIMITS)
        second, _ = twin.walk(*given_, STAGES[1], first, **LIMITS)
        at, flat = places(text), samples.plain(text)
        wanted = []
        for start, end in isolated(samples.PATTERN, flat):
            wanted += [at[start + inner] for inner, _ in isolated(MARKS, flat[start:end])]
        assert np.flatnonzero(second).tolist() == wanted

    @given(st.integers(0, 10**6))
    def test_a_stage_of_bytes_may_split_characters(self, seed: int) -> None:
        text = samples.text(60, seed)
        given_ = prepared(text, [0], [])
        first, _ = twin.walk(*given_, STAGES[0], **LIMITS)
        second, _ = twin.walk(*given_, STAGES[2], first, **LIMITS)
        data = text.encode().decode("latin-1")
        pieces = compact.positions(first).tolist()
        wanted = []
        for start, end in itertools.pairwise(pieces):
            high = re.compile("[\x80-\xff]{1,2}")
            wanted += [start + inner for inner, _ in isolated(high, data[start:end])]
        assert np.flatnonzero(second).tolist() == wanted

    def test_a_segment_past_the_limit_stands_apart(self) -> None:
        data = prepared("ab cd " + "x" * 9 + " ef", [0], [], cutting=True)
        piece, overlong = twin.walk(*data, STAGES[0], walk_limit=10, walk_budget=8)
        assert overlong == []
        piece, overlong = twin.walk(*data, STAGES[0], walk_limit=9, walk_budget=8)
        assert len(overlong) == 1
        start, end = data[3][overlong[0] : overlong[0] + 2]
        assert piece[start] == s.APART
        assert not piece[start + 1 : end].any()
        again, more = twin.walk(*data, STAGES[1], piece, walk_limit=8, walk_budget=8)
        assert (again.tolist(), more) == (piece.tolist(), [])

    def test_a_budget_is_a_number_of_steps(self) -> None:
        data = prepared("a" * 6, [0], [], cutting=False)
        steps = sum(range(2, 8))
        assert twin.walk(*data, samples.backtracking(), walk_limit=99, walk_budget=steps // 6 + 1)[1] == []
        assert twin.walk(*data, samples.backtracking(), walk_limit=99, walk_budget=steps // 6)[1] == [0]
        at = [start for start, _ in isolated(LETTERS, "a" * 6)]
        piece, _ = twin.walk(*data, samples.backtracking(), walk_limit=99, walk_budget=9)
        assert np.flatnonzero(piece).tolist() == at


class TestKernels:
    @pytest.fixture(autouse=True)
    def _triton(self) -> None:
        pytest.importorskip("triton")
        pytest.importorskip("torch")

    def run(
        self,
        data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        stage: Stage,
        piece: np.ndarray | None,
        *,
        walk_limit: int = 4096,
        walk_budget: int = 8,
        capacity: int | None = None,
        lanes: int = 8,
        programs: int = 2,
        unroll: int = 2,
    ) -> tuple[np.ndarray, list[int], int]:
        import torch

        from toktier_kernels import split

        text, cls, flags, segments = (torch.from_numpy(entry.copy()) for entry in data)
        size = len(text)
        capacity = len(segments) if capacity is None else capacity
        marks_ = np.zeros(size, np.uint8) if piece is None else piece
        result = torch.from_numpy(np.concatenate([marks_, np.full(3, 0xA5, np.uint8)]))
        overlong = torch.full((capacity + 2,), -77, dtype=torch.int32)
        status = torch.zeros(s.STATUS_SLOTS, dtype=torch.int32)
        status[s.SEGMENTS] = len(segments) - 1
        dense = torch.from_numpy(stage.dense.copy())
        split.walk(
            text, cls, segments, flags, result, dense, overlong[:capacity], status,
            first=piece is None, of_bytes=stage.of_bytes, walk_limit=walk_limit, walk_budget=walk_budget,
            programs=programs, lanes=lanes, unroll=unroll,
        )  # fmt: skip
        count = int(status[s.OVERLONG])
        assert (result.numpy()[size:] == 0xA5).all()
        assert (overlong[min(count, capacity) :] == -77).all()
        return result.numpy()[:size], sorted(overlong[: min(count, capacity)].tolist()), count

    def check(self, data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], **settings: int) -> None:
        piece: np.ndarray | None = None
        limits = {key: value for key, value in {**LIMITS, **settings}.items() if key in LIMITS}
        for stage in STAGES:
            wanted, overlong = twin.walk(*data, stage, piece, **limits)
            got, listed, count = self.run(data, stage, piece, **settings)
            assert got.tolist() == wanted.tolist()
            assert (listed, count) == (overlong, len(overlong))
            piece = wanted

    @pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 40])
    def test_counts_of_segments_around_the_lanes(self, size: int) -> None:
        self.check(prepared("a!" * (size // 2) + "a" * (size % 2), [0] if size else [], []))

    @pytest.mark.parametrize("seed", range(8))
    def test_documents_and_spans(self, seed: int) -> None:
        text, documents, spans = arrangement(120, seed)
        self.check(prepared(text, documents, spans), lanes=[16, 32][seed % 2], unroll=[1, 4][seed // 4])

    @pytest.mark.parametrize("limit", [1, 3, 8])
    def test_limits(self, limit: int) -> None:
        for seed in range(3):
            text, documents, spans = arrangement(80, seed)
            self.check(prepared(text, documents, spans), walk_limit=limit, lanes=16)

    @pytest.mark.parametrize("budget", [0, 1, 2])
    def test_budgets(self, budget: int) -> None:
        for seed in range(3):
            text, documents, spans = arrangement(80, seed)
            self.check(prepared(text, documents, spans), walk_budget=budget, lanes=16)

    @pytest.mark.parametrize("budget", range(1, 7))
    def test_the_budget_is_the_twin_s_to_the_step(self, budget: int) -> None:
        rng = random.Random(budget)
        text = " ".join("a" * rng.randint(1, 12) + rng.choice(["", "!", "1"]) for _ in range(20))
        data = prepared(text, places(text)[:: rng.randint(7, 13)], [], cutting=False)
        wanted, overlong = twin.walk(*data, samples.backtracking(), walk_limit=99, walk_budget=budget)
        got, listed, _ = self.run(data, samples.backtracking(), None, walk_limit=99, walk_budget=budget)
        assert (got.tolist(), listed) == (wanted.tolist(), overlong)

    def test_a_later_stage_wipes_what_stood_in_a_segment_that_it_gives_up(self) -> None:
        data = prepared("aaa aaa! aaa11aaa", [0], [], cutting=False)
        first, _ = twin.walk(*data, STAGES[0], **LIMITS)
        wanted, overlong = twin.walk(*data, samples.backtracking(), first, walk_limit=99, walk_budget=1)
        assert overlong == [0]
        got, listed, _ = self.run(data, samples.backtracking(), first, walk_limit=99, walk_budget=1)
        assert (got.tolist(), listed) == (wanted.tolist(), overlong)

    def test_a_full_list_counts_on_and_writes_no_further(self) -> None:
        data = prepared("abc!def!ghi!jkl!" * 3, [0], [])
        got, listed, count = self.run(data, STAGES[0], None, walk_limit=2, capacity=5)
        wanted, overlong = twin.walk(*data, STAGES[0], walk_limit=2, walk_budget=8)
        assert got.tolist() == wanted.tolist()
        assert (len(listed), count) == (5, len(overlong))
        assert set(listed) <= set(overlong)

    def test_bytes_that_are_no_text_end_the_walk_too(self) -> None:
        rng = random.Random(3)
        for _ in range(examples(4)):
            data = array(rng.randbytes(60))
            flags = marks(len(data), [0]).flags
            cls, _ = decode.decode(data, flags, samples.tables())
            segments = compact.positions(decode.cuts(cls, flags, samples.tables()))
            for stage in STAGES:
                self.run((data, cls, flags, segments), stage, None, lanes=32, programs=1, unroll=4)
