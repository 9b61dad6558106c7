"""Cuts of a text that is encoded for the first time: around them, what serves is compared with the reference itself."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

from toktier_tier.admission.faults import plant_rule_fault
from toktier_tier.core.errors import InvalidText
from toktier_tier.core.pipeline import Position
from toktier_tier.core.repair import WitnessMismatch
from toktier_tier.core.session import Piece
from toktier_tier.core.trust import NO_SPANS, Spans
from toktier_tier.core.values import Ids, Reason, Route
from toktier_tier.core.witness import CHARS_PER_CHECK, MOST_CHECKS, WIDEST_CHARS, CutWitness
from toktier_tier.encoders.snapshot_encoder import PARALLEL_CHARS, SnapshotEncoder
from toktier_tier.sessions.service import SessionService
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    Tier,
    build_tier,
    byte_level,
    byte_telltale,
    metaspace,
    small_rope,
    telltale,
    token,
    tokenizer_json,
)

WORDS = tokenizer_json(byte_telltale("abc .\n"), pre_tokenizer=byte_level(), added=[token(300, "<a>", special=True)])
PREFIXED = tokenizer_json(telltale("abc ▁"), pre_tokenizer=metaspace("first"))
TEXT = "abc cab. " * 40
LETTERS = "abcabc" * 60
KEY = ("t", "s")


@pytest.fixture(scope="module", params=["words", "prefixed"])
def tier(request: pytest.FixtureRequest) -> Tier:
    return build_tier({"words": WORDS, "prefixed": PREFIXED}[request.param])


def pieces_of(tier: Tier, text: str = TEXT, chars: int = 24) -> list[Piece]:
    """Text and IDs of chunks, cut by the tier's rule."""
    staged = tier.tokenizer.staged
    assert staged is not None
    chunks = staged.cut(text, chars)
    positions = [Position.TEXT_START] + [Position.CONTINUATION] * (len(chunks) - 1)
    return [(chunk, staged.encode(chunk, where)) for chunk, where in zip(chunks, positions, strict=True)]


def witness_of(tier: Tier, draw: Callable[[int], int] = lambda cuts: 0) -> CutWitness:
    return CutWitness(rule=tier.rule, encode=tier.tokenizer.encode_by_reference, overlap_chars=3, draw=draw)


def test_right_chunks_pass_at_every_cut(tier: Tier) -> None:
    pieces = pieces_of(tier)
    assert len(pieces) > 8
    witness = witness_of(tier)
    witness.check_every(pieces, Position.TEXT_START)
    witness.check_every(pieces[3:], Position.CONTINUATION)
    for draw in range(len(pieces) - 1):
        witness_of(tier, lambda cuts, draw=draw: draw).check(pieces, Position.TEXT_START)  # type: ignore[misc]


FAULTS: dict[str, Callable[[Ids, Ids], tuple[Ids, Ids]]] = {
    "another last ID": lambda left, right: (np.append(left[:-1], left[-1] ^ 1), right),
    "another first ID": lambda left, right: (left, np.append(right[:1] ^ 1, right[1:])),
    "no last ID": lambda left, right: (left[:-1], right),
    "no first ID": lambda left, right: (left, right[1:]),
    "one too many": lambda left, right: (np.append(left, left[-1]), right),
    "the next one's first": lambda left, right: (np.append(left, right[0]), right[1:]),
    "the last one's last": lambda left, right: (left[:-1], np.insert(right, 0, left[-1])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_encoder_that_errs_at_a_cut_is_found_there(tier: Tier, fault: str) -> None:
    """The last two leave all IDs of the text as they are: a full encode doesn't show them."""
    pieces = pieces_of(tier)
    for cut in range(len(pieces) - 1):
        (left, left_ids), (right, right_ids) = pieces[cut], pieces[cut + 1]
        made = FAULTS[fault](left_ids, right_ids)
        wrong = [*pieces[:cut], (left, made[0]), (right, made[1]), *pieces[cut + 2 :]]
        with pytest.raises(WitnessMismatch) as caught:
            witness_of(tier, lambda cuts, cut=cut: cut).check(wrong, Position.TEXT_START)  # type: ignore[misc]
        assert caught.value.details["cut_chars"] == sum(len(text) for text, _ in pieces[: cut + 1])
        with pytest.raises(WitnessMismatch):
            witness_of(tier).check_every(wrong, Position.TEXT_START)
    for cut in range(len(pieces) - 2):  # what happens elsewhere isn't seen there
        witness_of(tier, lambda cuts, cut=cut: cut).check(pieces, Position.TEXT_START)  # type: ignore[misc]


def test_few_characters_are_encoded_whatever_the_texts_length(tier: Tier) -> None:
    asked: list[int] = []

    def encode(text: str, untrusted: Spans) -> Ids:
        asked.append(len(text))
        return tier.tokenizer.encode_by_reference(text, untrusted)

    unit = pieces_of(tier, TEXT * 20, 2_000)
    for times, most in ((1, 1), (1 + CHARS_PER_CHECK // len(TEXT * 20), 2), (200, MOST_CHECKS)):
        chooser = random.Random(times)
        witness = CutWitness(rule=tier.rule, encode=encode, overlap_chars=3, draw=chooser.randrange)
        pieces = unit + [(text, ids) for text, ids in unit[1:]] * (times - 1)
        asked.clear()
        try:
            witness.check(pieces, Position.TEXT_START)
        except WitnessMismatch:
            pytest.fail("repeated chunks are as right as the first")
        assert 3 <= len(asked) <= 3 * most
        assert max(asked) < 2 * (3 + WIDEST_CHARS)


def test_a_cut_without_a_boundary_near_it_isnt_looked_at(tier: Tier) -> None:
    """Nor one at the start of a text of which nothing is known to its left."""
    staged = tier.tokenizer.staged
    assert staged is not None
    long = "a" * (WIDEST_CHARS + 100)
    none: Ids = np.empty(0, dtype=np.uint32)
    witness_of(tier).check([(long, none), (" b", none)], Position.TEXT_START)
    witness_of(tier).check([("b", none), (" " + long, none)], Position.TEXT_START)
    witness_of(tier).check([("b", none), (" b", none)], Position.CONTINUATION)
    with pytest.raises(WitnessMismatch):
        witness_of(tier).check([("b", none), (" b", none)], Position.TEXT_START)
    witness_of(tier).check([("b", none)], Position.TEXT_START)


def test_what_the_reference_refuses_is_a_mismatch(tier: Tier) -> None:
    def refuse(text: str, untrusted: Spans) -> Ids:
        raise InvalidText("text.reference_refuses", "no")

    with pytest.raises(WitnessMismatch):
        witness_of(tier).check_every(pieces_of(tier), Position.TEXT_START, NO_SPANS, refuse)


def test_untrusted_spans_are_those_of_the_window() -> None:
    tier = build_tier(WORDS)
    staged = tier.tokenizer.staged
    assert staged is not None
    text = "abc <a> " * 30
    spans = tuple((at, at + 3) for at in range(4, len(text), 16))
    pieces = []
    at = 0
    for chunk in staged.cut(text, 24):
        inside = tuple((a - at, b - at) for a, b in spans if at <= a < at + len(chunk))
        where = Position.CONTINUATION if at else Position.TEXT_START
        pieces.append((chunk, staged.encode_untrusted(chunk, inside, where)))
        at += len(chunk)
    witness_of(tier).check_every(pieces, Position.TEXT_START, spans)
    with pytest.raises(WitnessMismatch):
        witness_of(tier).check_every(pieces, Position.TEXT_START)


# --- in service -------------------------------------------------------------------------------------------------------


def wrong_rule(**more: Any) -> Tier:
    """A tier whose rule takes every pair of letters for a boundary: its encoder is the reference's own."""
    sound = build_tier(WORDS)
    return build_tier(WORDS, rule=plant_rule_fault(sound.rule), **more)


@pytest.fixture
def every_cut_drawn() -> Iterator[None]:
    """Chance left out: of a wrong rule, some cuts hide what is wrong."""
    with mock.patch.object(CutWitness, "check", CutWitness.check_every):
        yield


def without_witness(tokenizer: TierTokenizer, text: str) -> list[int]:
    assert tokenizer.text_encoder is not None
    return np.concatenate([ids for _, ids in tokenizer.text_encoder.encode_chunks(text)]).tolist()


@pytest.mark.usefixtures("every_cut_drawn")
@pytest.mark.parametrize("call", ["open", "full_text", "append", "edit"])
def test_a_wrong_rule_is_found_before_anything_leaves(call: str) -> None:
    tier = wrong_rule()
    told: list[str] = []
    sessions = SessionService(tier.tokenizer, on_quarantine=told.append)
    with small_rope():
        assert without_witness(tier.tokenizer, LETTERS) != tier.ids(LETTERS)
        if call == "open":
            patch = sessions.open(*KEY, LETTERS)
        else:
            sessions.open(*KEY, ". ")
            act: dict[str, Callable[[], Any]] = {
                "full_text": lambda: sessions.full_text(*KEY, LETTERS, whole=True),
                "append": lambda: sessions.append(*KEY, LETTERS, whole=True),
                "edit": lambda: sessions.edit(*KEY, 0, 1, LETTERS, whole=True),
            }
            patch = act[call]()
    text = {"append": ". " + LETTERS, "edit": LETTERS + " "}.get(call, LETTERS)
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.WITNESS_MISMATCH)
    assert sessions.ids(*KEY).tolist() == tier.ids(text) == (patch.ids if call == "open" else patch.whole).tolist()
    assert tier.tokenizer.quarantined
    assert told == [Reason.WITNESS_MISMATCH.value]
    assert sessions.counts()["reason.repair.witness_mismatch"] == 1


def test_an_encoder_that_errs_behind_cuts_only_is_found_by_an_open() -> None:
    tier = build_tier(WORDS)
    encoder = tier.tokenizer.staged
    assert encoder is not None

    class ErrsAtCuts(SnapshotEncoder):
        def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[Piece]:
            chunks = super().encode_chunks(text, position)
            return chunks[:1] + [(chunk, np.append(ids[:1] ^ 1, ids[1:])) for chunk, ids in chunks[1:]]

    encoder.__class__ = ErrsAtCuts
    tokenizer = tier.tokenizer
    with small_rope():
        assert encoder.encode(TEXT).tolist() == tier.ids(TEXT) != without_witness(tokenizer, TEXT)
        assert tokenizer.repairer is not None
        assert tokenizer.cuts is not None
        tokenizer.repairer._encode_chunks = tokenizer.cuts.over(encoder.encode_chunks)
        patch = SessionService(tokenizer).open(*KEY, TEXT)
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.WITNESS_MISMATCH)
    assert patch.ids.tolist() == tier.ids(TEXT)


@pytest.mark.usefixtures("every_cut_drawn")
@pytest.mark.parametrize("way", ["tokenizer", "sessions"])
def test_a_text_that_is_cut_for_the_workers_sake_is_checked(way: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        tier = wrong_rule(pool=pool, workers=2)
        text = LETTERS * (1 + PARALLEL_CHARS // len(LETTERS))
        assert without_witness(tier.tokenizer, text) != tier.ids(text)
        if way == "tokenizer":
            ids = tier.tokenizer.encode(text)
        else:
            patch = SessionService(tier.tokenizer).encode(text)
            assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.QUARANTINED)
            ids = patch.ids
        assert ids.tolist() == tier.ids(text)
        assert tier.tokenizer.quarantined
        right = build_tier(WORDS, pool=pool, workers=2)
        assert right.tokenizer.encode(TEXT * 250).tolist() == right.ids(TEXT * 250)
        assert not right.tokenizer.quarantined


def test_cuts_are_drawn_from_the_randomness_that_is_given() -> None:
    tier = build_tier(WORDS)
    drawn: list[int] = []

    class Drawn(random.Random):
        def randrange(self, start: int, *more: Any) -> int:
            drawn.append(start)
            return start - 1

    compiled = dataclasses.replace(tier.compiled)
    tokenizer = TierTokenizer(tier.reference, compiled, workers=1, randomness=Drawn())
    with small_rope():
        SessionService(tokenizer).open(*KEY, TEXT)
        assert len(drawn) == 1
        assert drawn[0] > 8
