"""Sampling: the share that was asked for, what was there at that moment, and nothing of it in any `repr`."""

from __future__ import annotations

import random
import timeit
from typing import Any

import numpy as np
import pytest

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.core.values import Patch, Reason, Route
from toktier_tier.sessions.service import SessionService
from toktier_tier.shadow.sample import Sample, sample_change, sample_encoding
from toktier_tier.shadow.sampler import Sampler
from workshop import Tier, family_tier, repairer_of, sample_text, small_rope


class Sink:
    """A verifier that only keeps what it is given."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.skipped = 0

    def offer(self, sample: Sample) -> None:
        self.samples.append(sample)

    def skip(self) -> None:
        self.skipped += 1


def sampler_of(sink: Sink, rate: float, seed: int = 0) -> Sampler:
    return Sampler(sink, rate=rate, randomness=random.Random(seed))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tier() -> Tier:
    return family_tier("gpt2-novelai")


IDS = np.array([1, 2, 3], dtype=np.uint32)


@pytest.mark.parametrize("rate", [-0.01, 1.01, float("nan")])
def test_a_share_lies_between_none_and_all(rate: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampler_of(Sink(), rate)
    assert caught.value.code == "shadow.rate"


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0, 0), (0.05, 400, 600), (1.0, 10_000, 10_000)])
def test_the_share_asked_for_is_taken(rate: float, least: int, most: int) -> None:
    sink = Sink()
    sampler = sampler_of(sink, rate)
    for _ in range(10_000):
        sampler.encoded("abc", IDS, Route.ENCODE)
    assert least <= len(sink.samples) <= most  # 500 ± 4.6 standard deviations


def test_one_seed_takes_the_same_answers() -> None:
    taken = []
    for seed in (1, 1, 2):
        sink = Sink()
        sampler = sampler_of(sink, 0.3, seed)
        for number in range(200):
            sampler.encoded(str(number), IDS, Route.ENCODE)
        taken.append([sample.text() for sample in sink.samples])
    assert taken[0] == taken[1] != taken[2]


def test_the_references_own_answers_are_not_checked_against_it(tier: Tier) -> None:
    sink = Sink()
    sampler = sampler_of(sink, 1.0)
    sampler.encoded("abc", IDS, Route.REFERENCE)
    state = repairer_of(tier).open("abc")
    sampler.changed(Patch(0, IDS, 0, 3, 0, Route.REFERENCE, Reason.QUARANTINED), state)
    assert (sink.samples, sink.skipped) == ([], 0)


def test_a_state_without_text_is_skipped_unless_its_tail_is_all_of_it(tier: Tier) -> None:
    sink = Sink()
    with small_rope():
        service = SessionService(tier.tokenizer, keep_text=False, observer=sampler_of(sink, 1.0))
        service.open("t", "short", "abc")
        assert (len(sink.samples), sink.skipped) == (1, 0)
        service.open("t", "long", sample_text(1_000))
        service.append("t", "long", " more")
        assert (len(sink.samples), sink.skipped) == (1, 2)


def test_a_sample_stays_as_it_was_taken(tier: Tier) -> None:
    with small_rope():
        repairer = repairer_of(tier, 3)
        text = sample_text(500)
        state = repairer.open(text)
        patch = repairer.append(state, " more")
        text += " more"
        sample = sample_change(patch, state)
        ids = patch.ids.tolist()
        for turn in range(60):
            repairer.append(state, f" {turn} and more")
            repairer.replace(state, 7 * turn, 7 * turn + 2, "é")
        repairer.replace(state, 0, state.chars, "")
        patch.ids[:] = 0
    stored = sample.stored()
    assert stored is not None
    assert (sample.text(), stored.tolist(), sample.ids.tolist()) == (text, tier.ids(text), ids)
    kept = IDS.copy()
    encoding = sample_encoding("abc", kept, Route.ENCODE)
    kept[0] = 9
    assert (encoding.ids.tolist(), encoding.stored(), encoding.revision) == ([1, 2, 3], None, None)


def test_a_sample_shows_no_text(tier: Tier) -> None:
    state = repairer_of(tier).open("very secret")
    patch = repairer_of(tier).append(state, " words")
    for sample in (sample_change(patch, state), sample_encoding("very secret words", IDS, Route.ENCODE)):
        assert "secret" not in repr(sample)
        assert "secret" not in str(sample)


def test_a_sample_weighs_what_it_keeps_from_being_freed(tier: Tier) -> None:
    state = repairer_of(tier).open(sample_text(100_000))
    patch = repairer_of(tier).append(state, " words")
    sample = sample_change(patch, state)
    text, stored = sample.text(), sample.stored()
    assert stored is not None
    least = len(text.encode()) + stored.nbytes
    assert least <= sample.bytes_ <= 2 * least


def test_an_answer_that_is_not_drawn_costs_less_than_a_microsecond(tier: Tier) -> None:
    sampler: Any = sampler_of(Sink(), 0.0)
    state = repairer_of(tier).open("abc")
    patch = repairer_of(tier).append(state, "d")
    best = min(timeit.repeat(lambda: sampler.changed(patch, state), number=2_000, repeat=20))
    assert best / 2_000 < 1e-6
