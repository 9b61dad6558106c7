"""Repair: whatever was done to a text piece by piece, the IDs are those of one encode of what it became."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.boundaries import NO_RULE, BoundaryRule, seal
from toktier_tier.core.errors import InvalidRequest, InvalidText, StateError, TierError
from toktier_tier.core.pipeline import Position
from toktier_tier.core.repair import Repairer, WitnessMismatch
from toktier_tier.core.session import SessionState
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.core.values import Patch, Reason, Route
from workshop import (
    Tier,
    bpe,
    bracketed_json,
    build_tier,
    check_rope,
    examples,
    family_tier,
    frozen,
    random_text,
    repairer_of,
    sample_text,
    small_rope,
    split,
    text_parts,
    texts,
    tokenizer_json,
)

FAMILIES = ("gpt2-novelai", "deepseek-v4", "mixtral-8x22b-v0.1", "mistral-7b-v0.3", "qwen-3")
OVERLAPS = (2, 9, None)  # characters of witness; None: the tier's own
Change = tuple[int, int, str]  # start and stop in thousandths of the text, replacement

every_family = pytest.mark.parametrize("family", FAMILIES)


def changes(parts: list[str]) -> st.SearchStrategy[list[Change]]:
    places = st.one_of(st.just(1000), st.integers(0, 1000))
    return st.lists(st.tuples(places, places, texts(parts, 8)), min_size=1, max_size=8)


def check_patch(patch: Patch, before: Any, state: SessionState, repairer: Repairer, old_text: str, text: str) -> None:
    """The patch leads from the old IDs to the new, and its certificate can be checked again from outside."""
    after = repairer.ids(state)
    assert patch.apply(before).tobytes() == after.tobytes()
    assert (patch.total, patch.revision) == (len(after), state.revision)
    certificate = patch.certificate
    if patch.route is Route.UNCHANGED:
        assert certificate is None
        return
    assert certificate is not None
    assert certificate.rule_digest == repairer.rule.digest
    assert certificate.text_chars == len(text)
    assert 0 <= certificate.window_chars <= certificate.boundary_chars <= certificate.resume_chars <= len(text)
    overlap = after[patch.keep - certificate.overlap_tokens : patch.keep]
    assert len(overlap) == certificate.overlap_tokens
    assert hashlib.blake2b(overlap.astype("<u4").tobytes(), digest_size=16).digest() == certificate.overlap_digest
    for p, where in (
        (certificate.boundary_chars, text),
        (certificate.boundary_chars, old_text),
        (certificate.resume_chars, text),
        (len(old_text) - (len(text) - certificate.resume_chars), old_text),
    ):
        assert p in (0, len(where)) or repairer.rule.holds(where[p - 1], where[p])


def apply_changes(tier: Tier, repairer: Repairer, text: str, steps: list[Change], *, keep_text: bool = True) -> None:
    """Run `steps` on a session and on a plain string, and hold the one to the other after every step."""
    state = repairer.open(text, keep_text=keep_text)
    check_rope(state, tier, text)
    for low, high, replacement in steps:
        start, stop = sorted((low * len(text) // 1000, high * len(text) // 1000))
        before, revision = repairer.ids(state), state.revision
        refusal = None
        try:
            patch = repairer.replace(state, start, stop, replacement)
        except StateError as error:
            refusal = error
        if refusal is not None:
            assert (refusal.code, keep_text) == ("session.text_not_kept", False)
            continue
        changed = text[:start] + replacement + text[stop:]
        check_rope(state, tier, changed)
        check_patch(patch, before, state, repairer, text, changed)
        assert state.revision == revision + (patch.route is not Route.UNCHANGED)
        text = changed


@every_family
def test_any_split_into_appends_equals_one_encode(family: str) -> None:
    tier = family_tier(family)
    parts = text_parts(tier)

    @settings(max_examples=examples(60))
    @given(st.lists(texts(parts, 8), max_size=16), st.sampled_from(OVERLAPS), st.booleans())
    def run(pieces: list[str], overlap: int | None, keep_text: bool) -> None:
        repairer = repairer_of(tier, overlap)
        with small_rope():
            state = repairer.open("", keep_text=keep_text)
            ids, text = repairer.ids(state), ""
            for piece in pieces:
                patch = repairer.append(state, piece)
                check_patch(patch, ids, state, repairer, text, text + piece)
                ids, text = patch.apply(ids), text + piece
                check_rope(state, tier, text)
        assert state.ids().tolist() == tier.ids("".join(pieces))

    run()


@every_family
def test_one_code_point_at_a_time_equals_one_encode(family: str) -> None:
    tier = family_tier(family)
    chooser = random.Random(family)
    for _ in range(examples(3)):
        text = random_text(chooser, text_parts(tier), 20, 60)
        repairer = repairer_of(tier, chooser.choice(OVERLAPS))
        with small_rope():
            state = repairer.open("")
            for end in range(1, len(text) + 1):
                repairer.append(state, text[end - 1])
                assert state.ids().tolist() == tier.ids(text[:end])
            check_rope(state, tier, text)


@every_family
def test_any_edits_equal_an_encode_of_the_result(family: str) -> None:
    tier = family_tier(family)
    parts = text_parts(tier)

    @settings(max_examples=examples(60))
    @given(texts(parts, 40), changes(parts), st.sampled_from(OVERLAPS))
    def run(text: str, steps: list[Change], overlap: int | None) -> None:
        with small_rope():
            apply_changes(tier, repairer_of(tier, overlap), text, steps)

    run()


@every_family
def test_edits_at_every_position_of_a_rope_are_exact(family: str) -> None:
    tier = family_tier(family)
    chooser = random.Random(f"every position {family}")
    text = random_text(chooser, text_parts(tier), 40, 60)[:150]
    repairer = repairer_of(tier, 3)
    with small_rope():
        for start in range(0, len(text) + 1, max(1, round(3 / examples(1)))):
            for length, replacement in ((0, "x"), (1, ""), (1, " "), (2, "\u0301"), (len(text), "")):
                stop = min(start + length, len(text))
                state = repairer.open(text)
                before = repairer.ids(state)
                patch = repairer.replace(state, start, stop, replacement)
                changed = text[:start] + replacement + text[stop:]
                assert state.ids().tolist() == tier.ids(changed), (text, start, stop, replacement)
                check_patch(patch, before, state, repairer, text, changed)


@every_family
def test_edits_with_digests_only_are_exact_or_refused(family: str) -> None:
    tier = family_tier(family)
    parts = text_parts(tier)

    @settings(max_examples=examples(50))
    @given(texts(parts, 40), changes(parts), st.sampled_from(OVERLAPS))
    def run(text: str, steps: list[Change], overlap: int | None) -> None:
        with small_rope():
            apply_changes(tier, repairer_of(tier, overlap), text, steps, keep_text=False)

    run()


@pytest.mark.parametrize("family", ["gpt2-novelai", "mistral-7b-v0.3"])
def test_long_texts_at_real_segment_sizes_are_exact(family: str) -> None:
    tier = family_tier(family)
    repairer = repairer_of(tier)
    text = sample_text(60_000)
    state = repairer.open(text[:30_000])
    for end in range(30_100, 45_000, 1_490):
        repairer.append(state, text[len(state.text()) : end])
    repairer.append(state, text[state.chars :])  # more than a window: encoded in chunks
    check_rope(state, tier, text)
    chooser = random.Random(1)
    for _ in range(examples(6)):
        start = chooser.randrange(len(text))
        stop = min(start + chooser.choice((0, 1, 300, 30_000)), len(text))
        replacement = sample_text(chooser.choice((0, 1, 200, 26_000)), seed=start)
        repairer.replace(state, start, stop, replacement)
        text = text[:start] + replacement + text[stop:]
        assert state.ids().tolist() == tier.ids(text)
    check_rope(state, tier, text)


@pytest.mark.parametrize("family", ["gpt2-novelai", "mixtral-8x22b-v0.1"])
def test_a_text_encoded_by_several_threads_equals_one_encode(family: str) -> None:
    tier = family_tier(family, workers=3)
    text = sample_text(150_000)
    state = repairer_of(tier).open(text)
    assert state.ids().tolist() == tier.ids(text) == tier.tokenizer.encode(text).tolist()
    check_rope(state, tier, text)


@pytest.mark.parametrize("name", ["llama-3.1", "bracketed"])
def test_template_tokens_stay_around_the_text(name: str) -> None:
    if name == "bracketed":
        tier = build_tier(bracketed_json(), policy=SpecialTokenPolicy.TEMPLATE)
        assert len(tier.reference.suffix_ids) == 2
    else:
        tier = family_tier(name, policy=SpecialTokenPolicy.TEMPLATE)
    assert tier.reference.prefix_ids
    repairer = repairer_of(tier, 5)
    parts = text_parts(tier)

    @settings(max_examples=examples(50))
    @given(texts(parts, 30), changes(parts))
    def run(text: str, steps: list[Change]) -> None:
        with small_rope():
            apply_changes(tier, repairer, text, steps)
            state = repairer.open(text)
            assert repairer.ids(state).tolist() == tier.reference.encode(text).tolist()

    run()


# --- what isn't changed -----------------------------------------------------------------------------------------


def opened(family: str = "gpt2-novelai", *, keep_text: bool = True) -> tuple[Tier, Repairer, SessionState]:
    tier = family_tier(family)
    repairer = repairer_of(tier, 4)
    with small_rope():
        state = repairer.open(sample_text(400), keep_text=keep_text)
    assert state.segments
    return tier, repairer, state


def test_an_empty_append_changes_nothing() -> None:
    _, repairer, state = opened()
    before = frozen(state)
    patch = repairer.append(state, "")
    assert (patch.route, patch.reason, len(patch.ids)) == (Route.UNCHANGED, Reason.NONE, 0)
    assert patch.apply(repairer.ids(state)).tobytes() == repairer.ids(state).tobytes()
    assert repairer.replace(state, 7, 7, "").route is Route.UNCHANGED
    assert frozen(state) == before


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (1, 0), (0, 401), (401, 401), (0.0, 1), ("0", 1), (None, None)])
def test_an_edit_outside_the_text_is_refused_and_changes_nothing(start: Any, stop: Any) -> None:
    _, repairer, state = opened()
    before = frozen(state)
    with pytest.raises(InvalidRequest) as caught:
        repairer.replace(state, start, stop, "x")
    assert caught.value.code == "edit.out_of_range"
    assert frozen(state) == before


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", 7, b"bytes", None])
def test_text_that_is_none_is_refused_and_changes_nothing(text: Any) -> None:
    _, repairer, state = opened()
    before = frozen(state)
    for call in (
        lambda: repairer.append(state, text),
        lambda: repairer.replace(state, 1, 2, text),
        lambda: repairer.open(text),
    ):
        with pytest.raises(InvalidText):
            call()
    assert frozen(state) == before


def test_a_repairer_without_a_rule_is_refused() -> None:
    tier = family_tier("gpt2-novelai")
    encoder: Any = tier.tokenizer.text_encoder
    with pytest.raises(InvalidRequest) as caught:
        Repairer(
            fingerprint="f",
            rule=NO_RULE,
            encode=encoder.encode,
            encode_chunks=encoder.encode_chunks,
            overlap_chars=8,
        )
    assert caught.value.code == "repair.no_rule"


def test_an_edit_of_text_that_is_gone_is_refused_and_changes_nothing() -> None:
    _, repairer, state = opened(keep_text=False)
    before = frozen(state)
    with pytest.raises(StateError) as caught:
        repairer.replace(state, 3, 5, "x")
    assert caught.value.code == "session.text_not_kept"
    assert frozen(state) == before


def test_a_window_without_boundaries_is_counted_as_widened() -> None:
    tier = family_tier("gpt2-novelai")
    repairer = repairer_of(tier)
    state = repairer.open("b " + "a" * 4_000)
    patch = repairer.append(state, "a")
    assert patch.reason is Reason.WIDENED
    assert state.ids().tolist() == tier.ids("b " + "a" * 4_001)
    assert repairer.append(state, " c").reason is Reason.WIDENED
    repairer.append(state, " d" * repairer.overlap_chars)
    assert repairer.append(state, " e").reason is Reason.NONE


# --- witnesses ----------------------------------------------------------------------------------------------------


Act = Callable[[Repairer, SessionState], Patch]
ACTS: dict[str, Act] = {
    "append": lambda repairer, state: repairer.append(state, " more"),
    "long append": lambda repairer, state: repairer.append(state, " more" * 30),
    "tail edit": lambda repairer, state: repairer.replace(state, state.chars - 2, state.chars, "y"),
    "truncate": lambda repairer, state: repairer.replace(state, state.chars - 2, state.chars, ""),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("keep_text", [True, False])
def test_a_wrong_id_in_the_window_is_never_spliced(act: Act, keep_text: bool) -> None:
    _, repairer, state = opened(keep_text=keep_text)
    state.tail_ids[-1] ^= 1
    before = frozen(state)
    with small_rope(), pytest.raises(WitnessMismatch) as caught:
        act(repairer, state)
    assert caught.value.code == "repair.witness_mismatch"
    assert frozen(state) == before


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_missing_or_surplus_id_in_the_window_is_never_spliced(act: Act) -> None:
    for change in (-1, 1):
        _, repairer, state = opened()
        ids = state.tail_ids.copy()
        state.splice_tail(state.tail, 0, ids[:-1] if change < 0 else np.concatenate([ids, ids[-1:] ^ 1]))
        before = frozen(state)
        with small_rope(), pytest.raises(WitnessMismatch):
            act(repairer, state)
        assert frozen(state) == before


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_surplus_id_before_a_window_that_starts_the_tail_is_never_spliced(act: Act) -> None:
    # Found here: a window from the tail's start left `kept` IDs before it, which belong to no character.
    tier = family_tier("gpt2-novelai")
    repairer = repairer_of(tier)
    state = repairer.open("One short text.")
    state.splice_tail(state.tail, 0, np.concatenate([state.tail_ids[:1] ^ 1, state.tail_ids]))
    before = frozen(state)
    with pytest.raises(WitnessMismatch):
        act(repairer, state)
    assert frozen(state) == before


def test_a_wrong_id_in_a_segment_is_found_by_an_edit_beside_it() -> None:
    tier, repairer, state = opened()
    ids = state.segments[1].ids
    ids.setflags(write=True)
    place = state.chars_before[1] + state.segments[1].chars // 2
    text = state.text()
    left = len(tier.encoded(text[state.chars_before[1] : place], Position.CONTINUATION))
    ids[left] ^= 1
    before = frozen(state)
    with small_rope(), pytest.raises(WitnessMismatch):
        repairer.replace(state, place, place + 1, "Q")
    assert frozen(state) == before


def digits_in_threes() -> tuple[Tier, Repairer]:
    """A repairer whose rule wrongly claims that a boundary is between any two digits; its witness is two characters."""
    model = bpe("x0123456789", [("2", "3"), ("1", "2")])
    tier = build_tier(tokenizer_json(model, pre_tokenizer=split(r"\d{1,3}|[^\d]")))
    rule = tier.rule
    table = np.array([list(row) for row in rule.table], dtype=np.uint8)
    table[rule.left[ord("1")], rule.right[ord("1")]] = 1
    wrong = seal(BoundaryRule(**{**rule.__dict__, "table": tuple(row.tobytes() for row in table), "digest": ""}))
    encoder = tier.tokenizer.text_encoder
    assert encoder is not None
    repairer = Repairer(
        fingerprint="",
        rule=wrong,
        encode=encoder.encode,
        encode_chunks=encoder.encode_chunks,
        overlap_chars=2,
    )
    return tier, repairer


def test_ids_left_of_a_boundary_that_is_none_are_found_changed_by_an_append() -> None:
    tier, repairer = digits_in_threes()
    state = repairer.open("x12")
    before = frozen(state)
    with pytest.raises(WitnessMismatch):
        repairer.append(state, "3")
    assert frozen(state) == before
    assert tier.ids("x123") != [*tier.ids("x12"), *tier.ids("3")]


def test_ids_right_of_a_boundary_that_is_none_are_found_changed_by_an_edit() -> None:
    tier, repairer = digits_in_threes()
    text = "x" + "123" * 6
    state = repairer.open(text)
    before = frozen(state)
    with pytest.raises(WitnessMismatch):
        repairer.replace(state, 1, 1, "9")
    assert frozen(state) == before
    assert tier.ids("x9" + text[1:])[-4:] != tier.ids(text)[-4:]


class Liar:
    """An encoder that answers wrongly now and then, the same each run."""

    def __init__(self, tier: Tier, seed: int, rate: float) -> None:
        encoder = tier.tokenizer.text_encoder
        assert encoder is not None
        self.chooser, self.rate, self.true, self.on = random.Random(seed), rate, encoder, False

    def encode(self, text: str, position: Position = Position.TEXT_START) -> Any:
        ids = self.true.encode(text, position)
        if not self.on or self.chooser.random() >= self.rate:
            return ids
        kind = self.chooser.randrange(3)
        if kind == 0:
            return ids[:-1]
        if kind == 1:
            return np.concatenate([ids, ids[-1:]]) if len(ids) else np.array([7], dtype=np.uint32)
        return ids ^ 1

    def encode_chunks(self, text: str, position: Position = Position.TEXT_START) -> list[tuple[str, Any]]:
        return [(text, self.encode(text, position))]


@pytest.mark.parametrize("rate", [0.2, 0.6, 1.0])
def test_a_call_that_raises_has_changed_nothing_whatever_the_encoder_says(rate: float) -> None:
    tier = family_tier("gpt2-novelai")
    chooser = random.Random(rate)
    raised = 0
    for seed in range(examples(300)):
        liar = Liar(tier, seed, rate)
        repairer = Repairer(
            fingerprint=tier.compiled.fingerprint,
            rule=tier.rule,
            encode=liar.encode,
            encode_chunks=liar.encode_chunks,
            overlap_chars=chooser.choice((2, 5, 12)),
        )
        text = sample_text(200, seed) if seed % 4 < 2 else " x" * 100
        with small_rope():
            state = repairer.open(text)
            liar.on = True
            before = frozen(state)
            start = chooser.randrange(0, len(text), 2)
            stop = min(len(text), start + chooser.randrange(4))
            failure = None
            try:
                if seed % 2:
                    repairer.append(state, " more")
                else:
                    repairer.replace(state, start, chooser.choice((start, stop)), chooser.choice(("x y", " x", "")))
            except TierError as error:
                failure = error
            if failure is not None:
                raised += 1
                assert frozen(state) == before, (seed, str(failure))
                assert isinstance(failure, WitnessMismatch), seed
    assert raised
