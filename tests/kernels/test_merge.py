"""Merges by rank give the reference's tokens, whatever the order of ranks; the kernels give the twin's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import FAMILIES, LIMITS, Words, adversarial, genuine, layout, made_up, spelled_out

from toktier_kernels import status as s
from toktier_kernels.twins import merge as twin
from toktier_kernels.twins.lookup import lookup
from toktier_kernels.vocabulary import ALL, ALTERNATE, LEFTMOST, Vocabulary
from workshop import examples

POISON = 0x0BADBEEF
PIECES = st.lists(
    st.one_of(
        st.text("ab", min_size=1, max_size=70).map(str.encode),
        st.binary(min_size=1, max_size=20),
        st.tuples(st.sampled_from([b"a", b"ab", b"aab", b"\xc3"]), st.integers(1, 50)).map(lambda run: run[0] * run[1]),
    ),
    min_size=1,
    max_size=12,
)


def plain(words: Words) -> Words:
    """Without `ignore_merges`: what merging gives."""
    return dataclasses.replace(words, ignore_merges=False)


def by_twin(pieces: Sequence[bytes], vocabulary: Vocabulary, entries: np.ndarray | None = None) -> np.ndarray:
    laid = layout(pieces)
    token = np.full(len(laid.text), s.NONE, np.uint32)
    twin.merge(laid.text, laid.pieces, np.arange(len(pieces)) if entries is None else entries, token, vocabulary)
    return token


def by_kernel(pieces: Sequence[bytes], vocabulary: Vocabulary, programs: int = 2) -> np.ndarray:
    """`token` with `POISON` where nothing was written; the lists in no order, with poison behind them."""
    pytest.importorskip("triton")
    import torch

    from toktier_kernels import merge

    def there(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    laid = layout(pieces)
    order = np.random.default_rng(0).permutation(len(pieces)).astype(np.int32)
    lengths = np.array([len(piece) for piece in pieces], np.int64)[order]
    status = np.full(s.STATUS_SLOTS, -7, np.int32)
    lists = [order[lengths <= 32], order[lengths > 32]]
    status[s.SHORT], status[s.LONG] = map(len, lists)
    token = there(np.full(len(laid.text), POISON, np.uint32))
    merge.merge(
        there(laid.text), there(laid.pieces),
        *(there(np.concatenate([part, np.full(9, 2**30, np.int32)])) for part in lists),
        token,
        *(there(getattr(vocabulary, name)) for name in ("byte_id", "merge_key", "merge_value")),
        there(status),
        merge_size=vocabulary.merge_size, merge_probes=vocabulary.merge_probes, programs=programs,
    )  # fmt: skip
    return token.numpy()


def same(pieces: Sequence[bytes], vocabulary: Vocabulary, programs: int = 2) -> None:
    wanted = by_twin(pieces, vocabulary)
    wanted[wanted == s.NONE] = POISON
    assert np.array_equal(by_kernel(pieces, vocabulary, programs), wanted)


def looked_up_and_merged(pieces: list[bytes], words: Words) -> bool:
    """Whether both steps together give what the reference's model gives."""
    laid = layout(pieces)
    token = np.full(len(laid.text), s.NONE, np.uint32)
    lists = lookup(laid.text, laid.pieces, laid.piece, laid.segments, token, words.vocabulary, merge_limit=512)
    twin.merge(laid.text, laid.pieces, np.concatenate([lists.short, lists.long]), token, words.vocabulary)
    return not len(lists.overlong) and np.array_equal(token, words.wanted(pieces))


def modes(vocabulary: Vocabulary) -> set[int]:
    values = vocabulary.merge_value[vocabulary.merge_value != 0]
    return set((values >> np.uint64(32) & np.uint64(3)).tolist())


class TestTwin:
    @settings(max_examples=examples(150))
    @given(st.integers(0, 10**6), PIECES, st.booleans())
    def test_merges_as_the_reference_does(self, seed: int, pieces: list[bytes], shuffled: bool) -> None:
        words = made_up(seed, shuffled=shuffled)
        assert np.array_equal(by_twin(pieces, words.vocabulary), words.wanted(pieces))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_of_genuine_vocabularies(self, family: str) -> None:
        words = genuine(family)
        pieces = adversarial(words, 3)
        assert np.array_equal(by_twin(pieces, words.vocabulary), plain(words).wanted(pieces))

    def test_of_one_without_the_bytes_that_utf_8_never_has(self) -> None:
        words = genuine("pile-novelai")
        pieces = [token * 3 for token in list(words.tokens.values())[::500]] + ["語中文Ωß".encode() * 9]
        assert (words.byte_id == s.NONE).sum() == 13
        assert np.array_equal(by_twin(pieces, words.vocabulary), words.wanted(pieces))

    @settings(max_examples=examples(60))
    @given(st.integers(0, 10**6), PIECES, st.booleans())
    def test_behind_lookup_it_is_the_model(self, seed: int, pieces: list[bytes], ignore_merges: bool) -> None:
        words = made_up(seed, ignore_merges=ignore_merges)
        assert looked_up_and_merged([*pieces, *list(words.tokens.values())[-40:]], words)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_behind_lookup_it_is_the_model_of_genuine_ones(self, family: str) -> None:
        words = genuine(family)
        assert looked_up_and_merged(adversarial(words, 7, longest=130) + list(words.tokens.values())[::101], words)

    def test_leaves_the_other_pieces_alone(self) -> None:
        words = made_up(1)
        found = by_twin([b"ab", b"ba", b"ab"], words.vocabulary, np.array([1]))
        assert (found[[0, 1, 4, 5]] == s.NONE).all()
        assert found[2] != s.NONE

    def test_nothing_at_all(self) -> None:
        assert len(by_twin([], made_up(0).vocabulary)) == 0


class TestKernels:
    @settings(max_examples=examples(15))
    @given(st.integers(0, 10**6), PIECES, st.booleans())
    def test_equal_the_twin(self, seed: int, pieces: list[bytes], shuffled: bool) -> None:
        same(pieces, made_up(seed, shuffled=shuffled).vocabulary)

    @pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 13])
    def test_with_any_number_of_pieces(self, count: int) -> None:
        words = made_up(count)
        same([b"ab" * (1 + index) for index in range(count)], words.vocabulary)

    @pytest.mark.parametrize("length", [1, 2, *LIMITS])
    def test_around_the_limits(self, length: int) -> None:
        """Past 512 bytes nothing is written."""
        words = made_up(length, count=60)
        pieces = [(b"ab" * length)[:length], b"a" * length]
        if length <= 512:
            same(pieces, words.vocabulary)
        else:
            assert (by_kernel(pieces, words.vocabulary) == POISON).all()

    @pytest.mark.parametrize("mode", [ALL, LEFTMOST, ALTERNATE])
    def test_of_each_mode(self, mode: int) -> None:
        """Several pairs of least rank in one row, apart and overlapping."""
        seeds = [seed for seed in range(60) if mode in modes(made_up(seed).vocabulary)][:4]
        assert len(seeds) == 4
        pieces = [b"a" * 31, b"aabaaab" * 4, b"ab" * 16, b"aab" * 20, b"b" + b"a" * 65]
        for seed in seeds:
            words = made_up(seed)
            assert np.array_equal(by_twin(pieces, words.vocabulary), words.wanted(pieces))
            same(pieces, words.vocabulary)

    @pytest.mark.parametrize(
        ("merges", "piece", "tokens"),
        [
            (["ab a", "a b"], b"abab", [b"aba", b"b"]),
            (["x ab", "xab a", "a b"], b"xabab", [b"xaba", b"b"]),
            (["a ab", "a b"], b"aabab", [b"aab", b"ab"]),
            (["aa a", "a a"], b"aaaaaaa", [b"aaa", b"aaa", b"a"]),
            (["a a", "aa a"], b"aaaaaaa", [b"aa", b"aa", b"aaa"]),
            (["a a", "aa aa"], b"aaaaaaa", [b"aaaa", b"aa", b"a"]),
        ],
    )
    def test_what_a_merge_makes_may_merge_before_its_next_occurrence(
        self, merges: list[str], piece: bytes, tokens: list[bytes]
    ) -> None:
        words = spelled_out(merges)
        ids = [id for id in words.wanted([piece]).tolist() if id != s.NONE]
        assert [words.tokens[id] for id in ids] == tokens
        pieces = [piece, piece * 7, piece * 20, piece * 40]
        assert np.array_equal(by_twin(pieces, words.vocabulary), words.wanted(pieces))
        same(pieces, words.vocabulary)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_of_genuine_vocabularies(self, family: str) -> None:
        words = genuine(family)
        pieces = sorted(adversarial(words, 5), key=len)
        same([*pieces[:60:3], *[piece for piece in pieces if 30 < len(piece) < 34]], words.vocabulary)
        same([piece for piece in pieces if len(piece) == 127][:6], words.vocabulary)

    def test_of_long_pieces_of_a_genuine_vocabulary(self) -> None:
        words = genuine("gpt2-novelai")
        row = b"".join([words.tokens[id] for id in range(5000, 5150)])
        same([row[:512], row[7:300], "語中文".encode() * 20], words.vocabulary)

    def test_with_its_own_number_of_programs(self) -> None:
        pytest.importorskip("triton")
        from toktier_kernels.merge import PROGRAMS

        words = made_up(9)
        same([piece for piece in adversarial(words, 9) if len(piece) <= 40][:20], words.vocabulary, PROGRAMS)
