"""A whole piece is found where all its bytes agree and nowhere else; the other pieces are listed by length."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import FAMILIES, Layout, adversarial, genuine, layout, made_up

from toktier_kernels import status as s
from toktier_kernels.hashing import hash_bytes, home_of
from toktier_kernels.twins import lookup as twin
from toktier_kernels.vocabulary import Vocabulary, build_vocabulary
from workshop import examples

LIMIT = 512
POISON = 0x0BADBEEF


def by_twin(laid: Layout, vocabulary: Vocabulary, merge_limit: int = LIMIT) -> tuple[np.ndarray, twin.Lists]:
    token = np.full(len(laid.text), POISON, np.uint32)
    lists = twin.lookup(laid.text, laid.pieces, laid.piece, laid.segments, token, vocabulary, merge_limit=merge_limit)
    return token, lists


def obvious(
    pieces: list[bytes], laid: Layout, whole: dict[bytes, int], merge_limit: int = LIMIT
) -> tuple[np.ndarray, twin.Lists]:
    token = np.full(len(laid.text), POISON, np.uint32)
    short, long, overlong = [], [], []
    entries = [entry for entry, at in enumerate(laid.pieces[:-1].tolist()) if laid.piece[at] == s.PIECE]
    for entry, piece in zip(entries, pieces, strict=True):
        if piece in whole:
            token[laid.pieces[entry]] = whole[piece]
        elif len(piece) <= min(32, merge_limit):
            short.append(entry)
        elif len(piece) <= merge_limit:
            long.append(entry)
        else:
            overlong.append(entry // 2)
    return token, twin.Lists(*(np.array(found, np.int32) for found in (short, long, overlong)))


def same(found: tuple[np.ndarray, twin.Lists], wanted: tuple[np.ndarray, twin.Lists]) -> None:
    assert np.array_equal(found[0], wanted[0])
    for name in ("short", "long", "overlong"):
        assert np.array_equal(getattr(found[1], name), getattr(wanted[1], name)), name


def by_kernel(
    laid: Layout,
    vocabulary: Vocabulary,
    merge_limit: int = LIMIT,
    *,
    lanes: int = 16,
    programs: int = 3,
    capacity: int | None = None,
) -> tuple[np.ndarray, twin.Lists]:
    pytest.importorskip("triton")
    import torch

    from toktier_kernels import lookup

    def there(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    count = len(laid.pieces) - 1
    status = np.full(s.STATUS_SLOTS, -7, np.int32)
    status[[s.SEGMENTS, s.PIECES]] = len(laid.segments) - 1, count
    status[[s.SHORT, s.LONG, s.OVERLONG]] = 0
    status = there(status)
    token = there(np.full(len(laid.text), POISON, np.uint32))
    room = max(count, 1) if capacity is None else capacity
    lists = [torch.full((room + 5,), -9, dtype=torch.int32) for _ in range(3)]
    beyond = [np.concatenate([part, np.full(7, 2**30, part.dtype)]) for part in (laid.pieces, laid.segments)]
    lookup.lookup(
        there(laid.text), there(beyond[0]), there(laid.piece), there(beyond[1]), token,
        *(part[:room] for part in lists),
        *(there(getattr(vocabulary, name)) for name in ("blob", "whole_hash", "whole_at", "whole_length", "whole_id")),
        status,
        whole_size=vocabulary.whole_size, whole_probes=vocabulary.whole_probes,
        whole_longest=vocabulary.whole_longest, merge_limit=merge_limit, programs=programs, lanes=lanes,
    )  # fmt: skip
    counts = status.numpy()
    assert counts[[s.ERROR, s.UNSETTLED, s.TOKENS]].tolist() == [-7, -7, -7]
    found = []
    for items, slot in zip(lists, (s.SHORT, s.LONG, s.OVERLONG), strict=True):
        written = min(int(counts[slot]), room)
        assert (items[written:] == -9).all()
        found.append(np.sort(items[:written].numpy()))
    return token.numpy(), twin.Lists(*found)


def whole_of(vocabulary: Vocabulary, tokens: dict[int, bytes]) -> dict[bytes, int]:
    return {tokens[id]: id for id in vocabulary.whole_id[vocabulary.whole_length > 0].tolist()}


class TestTwin:
    @settings(max_examples=examples(60))
    @given(st.integers(0, 10**6), st.lists(st.binary(min_size=1, max_size=40), max_size=30), st.booleans())
    def test_finds_what_a_dict_finds(self, seed: int, pieces: list[bytes], apart: bool) -> None:
        words = made_up(seed)
        pieces = pieces + adversarial(words, seed)[:40]
        laid = layout(pieces, apart=apart)
        whole = whole_of(words.vocabulary, words.tokens)
        for limit in (512, 100, 20, 1):
            same(by_twin(laid, words.vocabulary, limit), obvious(pieces, laid, whole, limit))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_of_genuine_vocabularies(self, family: str) -> None:
        words = genuine(family)
        pieces = adversarial(words, 1) + list(words.tokens.values())[::97]
        laid = layout(pieces, apart=True)
        same(by_twin(laid, words.vocabulary), obvious(pieces, laid, whole_of(words.vocabulary, words.tokens)))

    def test_nothing_at_all(self) -> None:
        token, lists = by_twin(layout([]), made_up(0).vocabulary)
        assert (len(token), len(lists.short), len(lists.long), len(lists.overlong)) == (0, 0, 0, 0)


def twins_of_a_hash(pieces: list[bytes]) -> tuple[Vocabulary, list[bytes]]:
    """A vocabulary whose last entries all have the hash of `pieces[0]`, which is none of them, and stand behind its
    home: what only comparing bytes tells apart."""
    tokens = {byte: bytes([byte]) for byte in range(256)}
    entries = [b"entry-%d" % index for index in range(6)] + [piece[:-1] + b"~" for piece in pieces[:1]]
    tokens.update({300 + index: entry for index, entry in enumerate(entries)})
    plain = build_vocabulary(np.arange(256, dtype=np.uint32), tokens, [], list(tokens))
    wanted = hash_bytes(np.frombuffer(pieces[0], np.uint8), np.array([0]), np.array([len(pieces[0])]))
    home = int(home_of(wanted, plain.whole_size)[0])
    arrays = {name: getattr(plain, name).copy() for name in ("whole_hash", "whole_at", "whole_length", "whole_id")}
    for offset in range(len(entries)):
        slot = home + offset
        source = int(np.flatnonzero(plain.whole_id == 300 + offset)[0])
        for name in ("whole_at", "whole_length", "whole_id"):
            arrays[name][slot] = getattr(plain, name)[source]
        arrays["whole_hash"][slot] = wanted[0]
    return dataclasses.replace(plain, **arrays), entries


class TestCollisions:
    def test_equal_hashes_with_other_bytes_are_no_match(self) -> None:
        piece = b"entry-?"
        vocabulary, entries = twins_of_a_hash([piece])
        assert len(entries[0]) == len(piece)
        laid = layout([piece])
        token, lists = by_twin(laid, vocabulary)
        assert (token.tolist(), lists.short.tolist()) == ([POISON] * len(piece), [0])
        same(by_kernel(laid, vocabulary), (token, lists))

    def test_the_one_behind_others_of_its_hash_is_found(self) -> None:
        piece = b"entry-4"
        vocabulary, entries = twins_of_a_hash([piece])
        assert entries[4] == piece
        laid = layout([piece] * 3)
        token, _ = by_twin(laid, vocabulary)
        assert token[:: len(piece)].tolist() == [304] * 3
        same(by_kernel(laid, vocabulary), by_twin(laid, vocabulary))

    def test_a_table_full_to_the_bound(self) -> None:
        piece = b"entry-6"
        vocabulary, _ = twins_of_a_hash([piece])
        laid = layout([piece, b"a", b"entry-5"])
        same(by_kernel(laid, dataclasses.replace(vocabulary, whole_probes=7)), by_twin(laid, vocabulary))
        same(
            by_kernel(laid, dataclasses.replace(vocabulary, whole_probes=3)),
            by_twin(laid, dataclasses.replace(vocabulary, whole_probes=3)),
        )

    def test_a_probe_ends_at_the_bound(self) -> None:
        vocabulary, _ = twins_of_a_hash([b"entry-4"])
        laid = layout([b"entry-4"])
        wanted = hash_bytes(laid.text, np.array([0]), np.array([7]))
        home = int(home_of(wanted, vocabulary.whole_size)[0])
        hashes = vocabulary.whole_hash.copy()
        hashes[home : home + 4] = 12345
        for probes, found in ((4, False), (5, True)):
            bounded = dataclasses.replace(vocabulary, whole_hash=hashes, whole_probes=probes)
            token, _ = by_twin(laid, bounded)
            assert (token[0] == 304) == found
            same(by_kernel(laid, bounded), by_twin(laid, bounded))


class TestKernel:
    @pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 47, 101])
    def test_equals_the_twin(self, count: int) -> None:
        words = made_up(count)
        pieces = (adversarial(words, count) * 2)[:count]
        laid = layout(pieces, apart=count % 2 == 1)
        for limit in (512, 40, 7):
            same(by_kernel(laid, words.vocabulary, limit), by_twin(laid, words.vocabulary, limit))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_of_genuine_vocabularies(self, family: str) -> None:
        words = genuine(family)
        laid = layout(adversarial(words, 2) + list(words.tokens.values())[::397], apart=True)
        same(by_kernel(laid, words.vocabulary, lanes=64), by_twin(laid, words.vocabulary))

    def test_with_its_own_lanes_and_programs(self) -> None:
        pytest.importorskip("triton")
        from toktier_kernels.lookup import LANES, PROGRAMS

        words = made_up(3)
        for count in (LANES - 1, LANES, LANES + 1):
            laid = layout((adversarial(words, 3) * 2)[:count])
            found = by_kernel(laid, words.vocabulary, lanes=LANES, programs=PROGRAMS)
            same(found, by_twin(laid, words.vocabulary))

    def test_a_list_without_room_is_counted_on_and_not_written_past(self) -> None:
        words = made_up(4)
        laid = layout(adversarial(words, 4))
        _, lists = by_kernel(laid, words.vocabulary, capacity=3)
        _, wanted = by_twin(laid, words.vocabulary)
        assert min(len(wanted.short), len(wanted.long), len(wanted.overlong)) > 3
        for name in ("short", "long", "overlong"):
            assert len(getattr(lists, name)) == 3
            assert set(getattr(lists, name).tolist()) <= set(getattr(wanted, name).tolist())

    def test_the_twins_agree_on_constants(self) -> None:
        pytest.importorskip("triton")
        from toktier_kernels.lookup import SHORT_BYTES

        assert SHORT_BYTES == twin.SHORT_BYTES
