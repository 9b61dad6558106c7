"""A vocabulary's tables hold every merge and whole piece within their bounds, and refuse what they can't express."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from vocabularies import FAMILIES, Words, genuine, made_up, spelled

from toktier_kernels import hashing
from toktier_kernels.errors import InvalidTables
from toktier_kernels.hashing import ABSENT, EMPTY_KEY, PROBES, hash_bytes, place
from toktier_kernels.status import NONE
from toktier_kernels.vocabulary import ALL, ALTERNATE, LEFTMOST, Vocabulary, build_vocabulary
from workshop import examples

BYTES = {byte: bytes([byte]) for byte in range(256)}
BYTE_ID = np.arange(256, dtype=np.uint32)


def small(
    tokens: dict[int, bytes], merges: Sequence[tuple[int, int, int]] = (), whole: list[int] | None = None
) -> Vocabulary:
    return build_vocabulary(BYTE_ID, {**BYTES, **tokens}, merges, whole)


def modes(vocabulary: Vocabulary, pairs: list[tuple[int, int]]) -> list[int]:
    left, right = np.array(pairs, np.uint32).T
    return (vocabulary.find(left, right) >> np.uint64(32) & np.uint64(3)).tolist()


def whole_ids(vocabulary: Vocabulary) -> set[int]:
    return set(vocabulary.whole_id[vocabulary.whole_length > 0].tolist())


class TestHashing:
    def test_a_hash_of_bytes_is_the_formula(self) -> None:
        data = np.frombuffer(random.Random(0).randbytes(500), np.uint8)
        starts = np.array([0, 0, 7, 499, 3, 100])
        lengths = np.array([0, 1, 13, 1, 400, 100])
        for start, length, found in zip(starts, lengths, hash_bytes(data, starts, lengths).tolist(), strict=True):
            wanted = hashing.SEED
            for byte in data[start : start + length].tolist():
                wanted = (wanted ^ byte) * hashing.MULTIPLIER % 2**64
            assert found == wanted | 1

    def test_runs_of_one_byte_have_hashes_of_their_own(self) -> None:
        for byte in range(256):
            found = hash_bytes(np.full(64, byte, np.uint8), np.zeros(65, np.int64), np.arange(65))
            assert len(set(found.tolist())) == 65

    @settings(max_examples=examples(100))
    @given(st.lists(st.integers(0, 2**32 - 1), max_size=300, unique=True), st.sampled_from([1, 3, 2**20]))
    def test_every_entry_stands_within_the_bound_behind_no_empty_slot(self, upper: list[int], step: int) -> None:
        known = np.array([half // step << 32 for half in upper], np.uint64)
        try:
            placement = place(known)
        except InvalidTables:
            reject()
        assert len(set(placement.slot.tolist())) == len(known)
        taken = np.zeros(placement.slots, bool)
        taken[placement.slot] = True
        for home, slot in zip(hashing.home_of(known, placement.size).tolist(), placement.slot.tolist(), strict=True):
            assert home <= slot < min(home + placement.probes, placement.slots)
            assert taken[home:slot].all()

    def test_more_equal_hashes_than_probes_are_refused(self) -> None:
        assert place(np.full(PROBES, 2**40, np.uint64)).probes == PROBES
        with pytest.raises(InvalidTables) as caught:
            place(np.full(PROBES + 1, 2**40, np.uint64))
        assert caught.value.code == "kernels.crowded_table"


class TestMerges:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_every_merge_is_found_and_nothing_else(self, family: str) -> None:
        words = genuine(family)
        vocabulary = words.vocabulary
        table = np.array(words.merges, np.int64)
        values = vocabulary.find(table[:, 0].astype(np.uint32), table[:, 1].astype(np.uint32))
        assert np.array_equal(values >> np.uint64(34), np.arange(len(table)))
        assert np.array_equal(values & np.uint64(0xFFFFFFFF), table[:, 2])
        rng = np.random.default_rng(0)
        left, right = rng.choice(table[:, 0], 50000), rng.choice(table[:, 1], 50000)
        known = {(a, b) for a, b, _ in words.merges}
        wanted = [(a, b) in known for a, b in zip(left.tolist(), right.tolist(), strict=True)]
        assert np.array_equal(vocabulary.find(left.astype(np.uint32), right.astype(np.uint32)) != ABSENT, wanted)
        assert vocabulary.merge_size & vocabulary.merge_size - 1 == 0
        assert len(vocabulary.merge_key) == vocabulary.merge_size + vocabulary.merge_probes - 1

    def test_padding_merges_with_nothing(self) -> None:
        vocabulary = small({300: b"ab"}, [(97, 98, 300)])
        pad = np.full(3, NONE, np.uint32)
        assert (vocabulary.find(pad, pad) == ABSENT).all()
        assert (vocabulary.find(pad, np.full(3, 97, np.uint32)) == ABSENT).all()
        assert EMPTY_KEY not in vocabulary.merge_key[vocabulary.merge_value != 0]

    def test_of_several_merges_of_a_pair_the_last_counts(self) -> None:
        tokens = {300: b"ab", 301: b"bc"}
        vocabulary = small(tokens, [(97, 98, 300), (98, 99, 301), (97, 98, 300)])
        ranks = vocabulary.find(np.array([97, 98], np.uint32), np.array([98, 99], np.uint32)) >> np.uint64(34)
        assert ranks.tolist() == [2, 1]

    def test_modes_say_which_pairs_may_merge_at_once(self) -> None:
        tokens = {300: b"ab", 301: b"aa", 302: b"abc", 303: b"bc"}
        merges = [(97, 97, 301), (300, 99, 302), (97, 98, 300), (98, 99, 303), (97, 303, 302)]
        pairs = [(97, 97), (300, 99), (97, 98), (98, 99), (97, 303)]
        assert modes(small(tokens, merges), pairs) == [ALTERNATE, ALL, LEFTMOST, ALL, ALL]
        as_right = [(97, 303, 302), (98, 99, 303)]
        assert modes(small(tokens, as_right), [(97, 303), (98, 99)]) == [ALL, LEFTMOST]

    def test_a_vocabulary_without_merges_works(self) -> None:
        vocabulary = small({})
        assert whole_ids(vocabulary) == set(BYTES)
        assert (vocabulary.find(np.array([1], np.uint32), np.array([2], np.uint32)) == ABSENT).all()


class TestWholePieces:
    @settings(max_examples=examples(40))
    @given(st.integers(0, 10**6), st.booleans())
    def test_those_found_out_are_what_the_reference_gives_their_own_bytes(self, seed: int, shuffled: bool) -> None:
        words = made_up(seed, shuffled=shuffled)
        ids = {id for id, token in words.tokens.items() if words.wanted([token])[0] == id}
        single = {id for id in ids if (words.wanted([words.tokens[id]]) != NONE).sum() == 1}
        assert whole_ids(words.built()) == single

    @pytest.mark.parametrize("family", ["gpt2-novelai", "llama-3.1"])
    def test_also_of_genuine_ones(self, family: str) -> None:
        words = genuine(family)
        plain = Words(words.tokens, words.merges)
        tokenize = plain.reference.model.tokenize
        wanted = {id for id, token in words.tokens.items() if [part.id for part in tokenize(spelled(token))] == [id]}
        assert whole_ids(words.built()) == wanted

    def test_the_blob_spells_each(self) -> None:
        words = made_up(5)
        vocabulary = words.vocabulary
        for slot in np.flatnonzero(vocabulary.whole_length):
            at, length = int(vocabulary.whole_at[slot]), int(vocabulary.whole_length[slot])
            assert vocabulary.blob[at : at + length].tobytes() == words.tokens[int(vocabulary.whole_id[slot])]
            assert length <= vocabulary.whole_longest
            assert vocabulary.whole_hash[slot] != 0

    def test_those_given_are_taken_but_for_the_empty(self) -> None:
        vocabulary = small({300: b"ab", 301: b"abc", 302: b""}, whole=[97, 301, 302, 301])
        assert whole_ids(vocabulary) == {97, 301}
        assert whole_ids(small({300: b"ab"}, whole=[])) == set()

    def test_lengths_are_of_every_token(self) -> None:
        assert small({300: b"abc", 299: b""}).length_of.tolist() == [1] * 256 + [0] * 44 + [3]


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "tokens", "merges", "whole"),
        [
            ("kernels.id_out_of_range", {-1: b"x"}, [], None),
            ("kernels.id_out_of_range", {(1 << 22) - 1: b"x"}, [], None),
            ("kernels.id_out_of_range", {}, [], [999]),
            ("kernels.token_too_long", {300: b"x" * 65536}, [], None),
            ("kernels.invalid_merge", {300: b"ab"}, [(97, 98, 301)], None),
            ("kernels.invalid_merge", {300: b"ab"}, [(97, 99, 300)], None),
            ("kernels.invalid_merge", {300: b"ab"}, [(97, 400, 300)], None),
            ("kernels.invalid_merge", {300: b"a", 301: b""}, [(97, 301, 300)], None),
            ("kernels.ambiguous_token", {300: b"a"}, [], [97, 300]),
        ],
    )
    def test_each_has_its_code(
        self, code: str, tokens: dict[int, bytes], merges: list[tuple[int, int, int]], whole: list[int] | None
    ) -> None:
        with pytest.raises(InvalidTables) as caught:
            small(tokens, merges, whole=whole)
        assert caught.value.code == code

    @pytest.mark.parametrize(("byte", "entry"), [(97, NONE), (0xC2, NONE), (0xF4, NONE), (97, 98), (0xFF, 98)])
    def test_a_byte_needs_its_own_token(self, byte: int, entry: int) -> None:
        byte_id = BYTE_ID.copy()
        byte_id[byte] = entry
        with pytest.raises(InvalidTables) as caught:
            build_vocabulary(byte_id, BYTES, [])
        assert (caught.value.code, caught.value.details) == ("kernels.byte_without_id", {"byte": byte})
        with pytest.raises(InvalidTables, match="256"):
            build_vocabulary(BYTE_ID[:255], BYTES, [])

    @pytest.mark.parametrize("byte", [0xC0, 0xC1, 0xF5, 0xFF])
    def test_but_not_where_utf_8_never_has_it(self, byte: int) -> None:
        byte_id = BYTE_ID.copy()
        byte_id[byte] = NONE
        vocabulary = build_vocabulary(byte_id, {id: token for id, token in BYTES.items() if id != byte}, [])
        assert whole_ids(vocabulary) == set(BYTES) - {byte}

    def test_whole_pieces_with_too_many_equal_hashes_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "toktier_kernels.vocabulary.hash_bytes", lambda _, starts, __: np.ones_like(starts, np.uint64)
        )
        with pytest.raises(InvalidTables) as caught:
            small({})
        assert caught.value.code == "kernels.crowded_table"

    def test_a_long_token_is_no_trouble(self) -> None:
        vocabulary = small({300: b"x" * 65535}, whole=[300])
        assert vocabulary.whole_longest == 65535


def test_the_largest_genuine_one_is_built() -> None:
    words = genuine("gpt-oss")
    vocabulary = build_vocabulary(words.byte_id, words.tokens, words.merges)
    assert len(whole_ids(vocabulary)) == 199998
