"""Planted faults: none without permission, as many as were asked for, and none after a quarantine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from toktier_tier.admission.compiled import EncoderVerdict, Verdict, whole_name
from toktier_tier.core.boundaries import no_rule
from toktier_tier.core.errors import InvalidRequest
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.shadow.faults import plant_wrong_ids
from toktier_tier.tokenizer import TierTokenizer
from workshop import Tier, build_tier, family_tier, fresh_tokenizer, telltale, tokenizer_json

TEXT = "some words, and some more of them"


@pytest.fixture(scope="module")
def tier() -> Tier:
    return family_tier("gpt2-novelai")


def whole_tokenizer(tier: Tier) -> TierTokenizer:
    version = encoder_version("gigatoken")
    verdicts = {
        name: EncoderVerdict(name, version, Verdict.ADMITTED) for name in ("gigatoken", whole_name("gigatoken"))
    }
    compiled = dataclasses.replace(tier.compiled, encoder="gigatoken", encoders=verdicts)
    tokenizer = TierTokenizer(tier.reference, compiled, workers=1)
    assert tokenizer.whole is not None
    return tokenizer


@pytest.mark.parametrize("allow", [False, None, 1, "1", "yes"])
def test_nothing_is_planted_without_permission(tier: Tier, allow: Any) -> None:
    tokenizer = fresh_tokenizer(tier)
    for options in ({}, {"allow": allow}):
        with pytest.raises(InvalidRequest) as caught:
            plant_wrong_ids(tokenizer, rate=1.0, seed=0, **options)
        assert caught.value.code == "faults.not_allowed"
    assert tokenizer.encode(TEXT).tolist() == tier.ids(TEXT)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_share_lies_between_none_and_all(tier: Tier, rate: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plant_wrong_ids(fresh_tokenizer(tier), rate=rate, seed=0, allow=True)
    assert caught.value.code == "faults.rate"


def test_the_reference_is_left_alone(tier: Tier) -> None:
    quarantined = fresh_tokenizer(tier)
    quarantined.quarantine()
    compiled = dataclasses.replace(tier.compiled, verdict=Verdict.REFERENCE_ONLY, rule=no_rule("test", "test"))
    for tokenizer in (quarantined, TierTokenizer(tier.reference, compiled)):
        with pytest.raises(InvalidRequest) as caught:
            plant_wrong_ids(tokenizer, rate=1.0, seed=0, allow=True)
        assert caught.value.code == "faults.nothing_admitted"
        assert tokenizer.encode(TEXT).tolist() == tier.ids(TEXT)


@pytest.mark.parametrize("form", ["reference", "gigatoken", "whole"])
def test_every_form_of_an_encoder_errs_until_quarantined(form: str) -> None:
    tier = family_tier("gpt2-novelai", encoder="reference" if form == "whole" else form)
    tokenizer = whole_tokenizer(tier) if form == "whole" else fresh_tokenizer(tier)
    encoder = tokenizer.text_encoder
    assert encoder is not None
    planted = plant_wrong_ids(tokenizer, rate=1.0, seed=0, allow=True)
    for _ in range(20):
        ids = tokenizer.encode(TEXT)
        assert len(ids) == len(tier.ids(TEXT))
        assert ids.tolist() != tier.ids(TEXT)
        assert int(ids.max()) < tier.reference.id_limit
    assert planted.lies >= 20
    tokenizer.quarantine()
    lies = planted.lies
    assert tokenizer.encode(TEXT).tolist() == tier.ids(TEXT)
    assert encoder.encode(TEXT).tolist() == tier.ids(TEXT)  # for who still holds it
    assert planted.lies == lies


def test_the_share_asked_for_is_wrong_and_one_seed_errs_alike(tier: Tier) -> None:
    histories = []
    for seed in (3, 3, 4):
        tokenizer = fresh_tokenizer(tier)
        planted = plant_wrong_ids(tokenizer, rate=0.1, seed=seed, allow=True)
        answers = [tokenizer.encode(TEXT).tolist() for _ in range(1_000)]
        assert planted.lies == sum(answer != tier.ids(TEXT) for answer in answers)
        assert 57 <= planted.lies <= 143  # 100 ± 4.5 standard deviations
        histories.append(answers)
    assert histories[0] == histories[1] != histories[2]


def test_empty_text_has_no_id_to_change() -> None:
    tier = build_tier(tokenizer_json(telltale("ab "), pre_tokenizer={"type": "WhitespaceSplit"}))
    planted = plant_wrong_ids(tier.tokenizer, rate=1.0, seed=0, allow=True)
    assert tier.tokenizer.encode("  ").tolist() == []
    assert planted.lies == 0
