"""Decoding says what `bytes.decode` says, classes and cuts are the tables', and kernels equal their twins."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from toktier_kernels import status as s
from toktier_kernels.twins import decode as twin
from workshop import examples

TABLES = samples.tables()
BLOCK = 64

NO_CHARACTERS = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2a", b"\xc2\xc2\x80", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
    b"\xe0\xa0", b"\xe1\x80", b"\xe1\x80a", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xef\xbf", b"\xf0\x80\x80\x80",
    b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80", b"\xf0\x90", b"\xf0", b"\xf1\x80\x80a", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xfe", b"\xff", b"\xc3\xa9\xa9", b"\xe4\xb8\xad\x80",
    b"\xf0\x9f\x98\x80\x80\x80", b"\x80\x80\x80\x80\x80", b"\xe4\xe4\xb8\xad",
]  # fmt: skip
EDGES = ["\x00", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
ALONE = ["\u1100", "\U00020000"]  # of `settled` 1
NEIGHBOURS = ["a", "é", "中", "😀", "\u0301", "\u1100", "\U00020000", "\U0001d165"]


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def marks(size: int, documents: list[int], spans: list[tuple[int, int]] = []) -> twin.Marks:  # noqa: B006
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    ids = np.arange(1000, 1000 + len(spans), dtype=np.uint32)
    return twin.mark(size, np.array(documents, np.int32), np.array(starts, np.int32), np.array(ends, np.int32), ids)


def expected_error(stretches: list[bytes]) -> int:
    base = 0
    for stretch in stretches:
        try:
            stretch.decode()
        except UnicodeDecodeError as error:
            return base + error.start
        base += len(stretch)
    return base


def joined(stretches: list[bytes]) -> tuple[np.ndarray, list[int]]:
    starts = np.cumsum([0, *map(len, stretches)])[:-1].tolist()
    return array(b"".join(stretches)), starts


class TestTwins:
    """The definitions, against Python's own facts."""

    @pytest.mark.parametrize("bad", NO_CHARACTERS)
    @pytest.mark.parametrize("before", ["", "a", "é", "中", "😀", "中😀é"])
    @pytest.mark.parametrize("behind", ["", "a", "é", "中"])
    def test_every_kind_of_invalid_byte_is_found_where_python_finds_it(
        self, bad: bytes, before: str, behind: str
    ) -> None:
        text = before.encode() + bad + behind.encode()
        _, error = twin.decode(array(text), marks(len(text), [0]).flags, TABLES)
        assert error == expected_error([text]) < len(text)

    @given(st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode)), max_size=6))
    def test_any_bytes_in_any_stretches(self, stretches: list[bytes]) -> None:
        text, starts = joined(stretches)
        _, error = twin.decode(text, marks(len(text), starts).flags, TABLES)
        assert error == expected_error(stretches)

    def test_all_triples_of_interesting_bytes(self) -> None:
        interesting = b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xed\xef\xf0\xf4\xf5"
        for values in product(interesting, repeat=3):
            text = bytes(values)
            assert twin.decode(array(text), np.zeros(3, np.uint8), TABLES)[1] == expected_error([text])

    @given(st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(EDGES)), max_size=40))
    def test_classes_stand_at_leads(self, text: str) -> None:
        cls, error = twin.decode(array(text.encode()), marks(len(text.encode()), [0]).flags, TABLES)
        wanted = []
        for character in text:
            code = ord(character)
            found = int(TABLES.class_of[TABLES.page_of[code >> 8], code & 255])
            wanted += [found, *[s.CONTINUATION] * (len(character.encode()) - 1)]
        assert (cls.tolist(), error) == (wanted, len(text.encode()))

    def test_the_sample_s_classes_are_python_s(self) -> None:
        for character in samples.text(300, 1) + "".join(EDGES):
            code = ord(character)
            assert TABLES.class_of[TABLES.page_of[code >> 8], code & 255] == samples.class_of(character)

    @given(st.integers(0, 10**6))
    def test_cuts_stand_where_the_rule_or_a_stretch_says(self, seed: int) -> None:
        text, documents, spans = arrangement(40, seed)
        size = len(text.encode())
        marked = marks(size, documents, spans)
        cls, _ = twin.decode(array(text.encode()), marked.flags, TABLES)
        cut = twin.cuts(cls, marked.flags, TABLES)
        hard = {place for place in [*documents, *sum(spans, ())] if place < size}
        at, before, wanted = 0, "", []
        for character in text:
            inside = any(start < at < end for start, end in spans)
            rule = before and TABLES.cuts[samples.class_of(before), samples.class_of(character)] and not inside
            if at in hard or rule:
                wanted.append(at)
            at, before = at + len(character.encode()), character
        assert np.flatnonzero(cut).tolist() == wanted

    @given(st.integers(0, 10**6))
    def test_unsettled_characters_are_those_that_their_neighbours_do_not_save(self, seed: int) -> None:
        text, documents, spans = arrangement(40, seed)
        size = len(text.encode())
        marked = marks(size, documents, spans)
        cls, _ = twin.decode(array(text.encode()), marked.flags, TABLES)
        places = np.cumsum([0, *[len(character.encode()) for character in text]]).tolist()
        kinds = [int(TABLES.settled[samples.class_of(character)]) for character in text]
        hard = {*documents, *sum(spans, ()), size}
        wanted = []
        for index, place in enumerate(places[:-1]):
            left = 0 if place in hard else kinds[index - 1]
            right = 0 if places[index + 1] in hard else kinds[index + 1]
            spanned = any(start <= place < end for start, end in spans)
            if not spanned and (kinds[index] == 2 or (kinds[index] == 1 and (left or right))):
                wanted.append(place)
        assert np.flatnonzero(twin.unsettled(cls, marked.flags, TABLES)).tolist() == wanted


def arrangement(characters: int, seed: int) -> tuple[str, list[int], list[tuple[int, int]]]:
    """A text, where its documents start (some empty), and spans of whole characters, some side by side."""
    rng = random.Random(seed)
    text = samples.text(rng.randint(0, characters), seed)
    places = np.cumsum([0, *[len(character.encode()) for character in text]]).tolist()
    documents = sorted([0, *rng.choices(places, k=rng.randint(0, 3))])
    chosen = sorted({*rng.choices(places, k=rng.randint(0, 6)), *documents})
    spans = [(left, right) for left, right in pairwise(chosen) if rng.random() < 0.4]
    return text, documents, spans


class TestKernels:
    """Kernels under Triton's interpreter, on poisoned outputs, against the twins."""

    @pytest.fixture(autouse=True)
    def _triton(self) -> None:
        pytest.importorskip("triton")
        pytest.importorskip("torch")

    def run(
        self, text: bytes, documents: list[int], spans: list[tuple[int, int]], spare: int = 5, block: int = BLOCK
    ) -> dict[str, np.ndarray]:
        """All steps of the module on arrays with `spare` entries more than the text needs."""
        import torch

        from toktier_kernels import decode

        size = len(text)
        capacity = size + spare
        data = torch.full((capacity,), 0xBF, dtype=torch.uint8)
        data[:size] = torch.from_numpy(array(text).copy())
        poison = {name: torch.full((capacity,), 0xA5, dtype=torch.uint8) for name in ("flags", "piece", "cls", "cut")}
        unsettled = torch.full((capacity,), 0xA5, dtype=torch.uint8)
        token = torch.from_numpy(np.full(capacity, 0xA5A5A5A5, np.uint32))
        status = torch.full((s.STATUS_SLOTS,), -77, dtype=torch.int32)
        sizes = torch.tensor([size, len(documents), len(spans)], dtype=torch.int32)
        starts = torch.tensor([start for start, _ in spans] + [3], dtype=torch.int32)
        ends = torch.tensor([end for _, end in spans] + [4], dtype=torch.int32)
        ids = torch.from_numpy(np.arange(1000, 1001 + len(spans), dtype=np.uint32))
        known = {
            name: torch.from_numpy(getattr(TABLES, name).copy()) for name in ("page_of", "class_of", "cuts", "settled")
        }
        decode.clear(poison["flags"], poison["piece"], token, sizes, status, block=block)
        decode.mark(
            data, torch.tensor([*documents, 1], dtype=torch.int32), starts, ends, ids, poison["flags"], token, sizes,
            status, block=block, span_block=4,
        )  # fmt: skip
        decode.decode(
            data, poison["flags"], known["page_of"], known["class_of"], known["cuts"], poison["cls"], poison["cut"],
            sizes, status, block=block,
        )  # fmt: skip
        decode.unsettle(poison["cls"], poison["flags"], known["settled"], unsettled, sizes, status, block=block)
        arrays = {name: tensor.numpy() for name, tensor in poison.items()}
        return {**arrays, "unsettled": unsettled.numpy(), "token": token.numpy(), "status": status.numpy()}

    def check(
        self, text: bytes, documents: list[int], spans: list[tuple[int, int]], spare: int = 5, block: int = BLOCK
    ) -> None:
        size = len(text)
        got = self.run(text, documents, spans, spare, block)
        marked = marks(size, documents, spans)
        assert got["token"][:size].tolist() == marked.token.tolist()
        assert got["flags"][:size].tolist() == marked.flags.tolist()
        assert not got["piece"][:size].any()
        cls, error = twin.decode(array(text), marked.flags, TABLES)
        assert got["status"][s.ERROR] == error
        assert got["cls"][:size].tolist() == cls.tolist()
        assert got["status"][s.SEGMENTS :].tolist() == [0] * (s.STATUS_SLOTS - s.SEGMENTS)
        if error == size:
            unsettled = twin.unsettled(cls, marked.flags, TABLES)
            assert got["cut"][:size].tolist() == twin.cuts(cls, marked.flags, TABLES).tolist()
            assert got["unsettled"][:size].tolist() == unsettled.tolist()
            assert got["status"][s.UNSETTLED] == unsettled.sum()
        for name in ("flags", "piece", "cls", "cut", "unsettled"):
            assert (got[name][size:] == 0xA5).all(), f"{name} is written past the text"
        assert (got["token"][size:] == 0xA5A5A5A5).all()

    @pytest.mark.parametrize("size", samples.sizes(BLOCK))
    @pytest.mark.parametrize("spare", [0, BLOCK + 3])
    def test_sizes(self, size: int, spare: int) -> None:
        text = samples.text(size, size).encode()[:size].decode(errors="ignore").encode()
        self.check(text + b"x" * (size - len(text)), [0], [], spare)

    @pytest.mark.parametrize("size", [1023, 1024, 1025, 3079])
    def test_sizes_about_the_launchers_own_block(self, size: int) -> None:
        from toktier_kernels.decode import BLOCK

        text = samples.text(size, size).encode()[:size].decode(errors="ignore").encode()
        self.check(text + b"x" * (size - len(text)), [0], [], 1, BLOCK)

    @pytest.mark.parametrize("shift", range(BLOCK - 4, BLOCK + 1))
    @pytest.mark.parametrize("character", ["é", "中", "😀", "\u1100", "\u0301"])
    def test_characters_across_blocks(self, character: str, shift: int) -> None:
        self.check(b"b" * shift + (character * 3 + "a1").encode(), [0], [])

    @pytest.mark.parametrize("seed", range(10))
    def test_documents_and_spans(self, seed: int) -> None:
        text, documents, spans = arrangement(200, seed)
        self.check(text.encode(), documents, spans)

    @pytest.mark.parametrize("walls", ["documents", "spans", "none"])
    def test_neighbours_of_every_length_save_a_character_or_do_not(self, walls: str) -> None:
        parts = [left + middle + right for left in NEIGHBOURS for middle in ALONE for right in NEIGHBOURS]
        pieces = [piece for part in parts for piece in part] if walls != "none" else parts
        text, starts = joined([piece.encode() for piece in pieces])
        spans = list(pairwise(starts))[::3] if walls == "spans" else []
        self.check(text.tobytes(), starts if walls == "documents" else [0], spans)

    @pytest.mark.parametrize("bad", NO_CHARACTERS)
    def test_invalid_bytes(self, bad: bytes) -> None:
        for before in (b"", "a中".encode(), b"a" * (BLOCK - 2)):
            self.check(before + bad + "b😀".encode(), [0], [])
            self.check(before + bad, [0], [])

    def test_random_bytes(self) -> None:
        rng = random.Random(5)
        for _ in range(examples(6)):
            stretches = [
                rng.randbytes(rng.randint(0, 9))
                if rng.random() < 0.2
                else samples.text(9, rng.randint(0, 999)).encode()
                for _ in range(20)
            ]
            text, starts = joined(stretches)
            self.check(text.tobytes(), starts, [])

    @pytest.mark.parametrize("character", ["é", "中", "😀"])
    def test_a_character_across_a_stretch_is_an_error_at_its_lead(self, character: str) -> None:
        data = character.encode()
        for place in range(1, len(data)):
            for kept in range(place, len(data) + 1):
                text = b"ab" + data[:kept] + b"c"
                assert self.run(text, [0, 2 + place], [])["status"][s.ERROR] == 2
                self.check(text, [0, 2 + place], [])

    def test_a_continuation_that_nothing_leads_is_an_error_at_its_place(self) -> None:
        self.check(b"ab\x80\x80c", [0, 3], [])
        self.check(b"ab\xc3\xa9\x80c", [0, 4], [])
        self.check(b"\x80c", [0], [])
