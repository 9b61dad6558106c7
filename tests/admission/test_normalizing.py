"""Shortcuts around the normalizer are compared with the normalizer where it acts."""

from __future__ import annotations

import dataclasses

import pytest

from toktier_tier.admission import normalizing
from toktier_tier.admission.comparisons import Campaign
from toktier_tier.admission.normalizing import check_pairs, check_sequences
from toktier_tier.admission.texts import Texts
from toktier_tier.core.classes import Settled
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.assemble import Cores, build_text_encoder, settled_points
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from workshop import byte_level, byte_telltale, derive_rule, replace, tokenizer_json

LETTERS = "abc xé"


def campaign_of(normalizer: object) -> Campaign:
    data = tokenizer_json(byte_telltale(LETTERS), normalizer=normalizer, pre_tokenizer=byte_level())
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    rule = derive_rule(reference)
    texts = Texts(reference.snapshot, rule, 1)
    return Campaign(reference, rule, texts, 0.1, lambda phase, done: None, 8, settled=settled_points(reference))


def divergences(campaign: Campaign, settled: Settled | None) -> int:
    encoder = build_text_encoder(campaign.reference, campaign.rule, Cores(campaign.reference), settled=settled)
    return check_sequences(campaign, encoder, "sequences").divergences


def test_a_character_wrongly_taken_for_settled_is_caught() -> None:
    campaign = campaign_of({"type": "NFC"})
    settled = campaign.settled
    assert settled is not None
    assert divergences(campaign, settled) == 0
    for point in (0x0301, 0x1161, 0x212B):
        always = settled.always.copy()
        always[point] = True
        assert divergences(campaign, dataclasses.replace(settled, always=always)) > 0, hex(point)


def test_every_pair_of_characters_that_move_is_normalized_both_ways() -> None:
    phase = check_pairs(campaign_of({"type": "NFKC"}), "pairs")
    assert phase.checks > 1_900_000  # 800 marks and more, in pairs, in three frames
    assert phase.divergences == 0


def test_marks_that_join_with_nothing_but_change_places_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalizing, "_acting", lambda probe: [0x0301, 0x0316, 0x0321, 0x0323])
    campaign = campaign_of({"type": "NFC"})
    settled = campaign.settled
    assert settled is not None
    always = settled.always.copy()
    always[[0x0316, 0x0321]] = True
    campaign.settled = dataclasses.replace(settled, always=always)
    assert check_pairs(campaign, "pairs").divergences > 0


def test_a_replaced_literal_is_met_whole_and_beside_itself() -> None:
    campaign = campaign_of(replace("ab", "c"))
    assert divergences(campaign, None) == 0
    assert check_sequences(
        campaign, build_text_encoder(campaign.reference, campaign.rule, Cores(campaign.reference)), ""
    ).checks
    assert check_pairs(campaign, "pairs").checks == 0
