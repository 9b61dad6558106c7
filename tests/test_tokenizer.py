"""One tokenizer in service: the reference's IDs by every admitted way, and nothing that isn't admitted."""

from __future__ import annotations

import dataclasses
import random

import pytest

from toktier_tier.admission.compiled import EncoderVerdict, Verdict
from toktier_tier.core.boundaries import no_rule
from toktier_tier.core.errors import InvalidText, StateCorrupt
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    Tier,
    bracketed_json,
    build_tier,
    check_rope,
    examples,
    family_tier,
    fresh_tokenizer,
    random_text,
    repairer_of,
    sample_text,
    small_rope,
    text_parts,
)

FAMILY = "gpt2-novelai"
SAFE = [chr(point) for point in range(0x20, 0x7F)] + ["\n", "é", "ß", "中", "。", "한", "Ж", " the", "  ", "'s", "\r\n"]
"""Characters on which neither candidate was ever seen to differ: what admission keeps from them is tested there."""


@pytest.fixture(scope="module")
def tier() -> Tier:
    return family_tier(FAMILY)


@pytest.mark.parametrize(
    ("family", "encoder"),
    [
        (FAMILY, "gigatoken"),
        (FAMILY, "fastokens"),
        ("mixtral-8x22b-v0.1", "gigatoken"),
        ("mistral-7b-v0.3", "fastokens"),
        ("deepseek-v4", "fastokens"),
    ],
)
def test_candidates_serve_exact_sessions_on_safe_text(family: str, encoder: str) -> None:
    tier = family_tier(family, encoder=encoder)
    repairer = repairer_of(tier, 5)
    chooser = random.Random(f"{family} {encoder}")
    parts = [*SAFE, *(t.content for t in tier.reference.added_tokens()[:20])]
    for _ in range(examples(15)):
        with small_rope():
            text = random_text(chooser, parts, 0, 120)
            state = repairer.open(text)
            for _ in range(8):
                start = chooser.randint(0, len(text))
                stop = chooser.choice((start, min(start + 3, len(text)), len(text)))
                added = random_text(chooser, parts, 0, 12)
                repairer.replace(state, start, stop, added)
                text = text[:start] + added + text[stop:]
                assert state.ids().tolist() == tier.ids(text), text
            check_rope(state, tier, text)
    text = sample_text(30_000).encode("ascii", "ignore").decode()
    assert tier.tokenizer.encode(text).tolist() == tier.ids(text)


@pytest.mark.parametrize("name", [FAMILY, "llama-3.1", "mixtral-8x22b-v0.1", "bracketed"])
@pytest.mark.parametrize("policy", SpecialTokenPolicy)
def test_encode_equals_the_reference_under_both_policies(name: str, policy: SpecialTokenPolicy) -> None:
    tier = build_tier(bracketed_json(), policy=policy) if name == "bracketed" else family_tier(name, policy=policy)
    chooser = random.Random(name)
    parts = text_parts(tier)
    for text in ("", " ", "a", sample_text(20_000), *(random_text(chooser, parts, 0, 30) for _ in range(examples(40)))):
        assert tier.tokenizer.encode(text).tolist() == tier.reference.encode(text).tolist()
        assert tier.tokenizer.encode_text(text).tolist() == tier.ids(text)


def test_what_is_not_admitted_is_not_used(tier: Tier) -> None:
    for verdict in (Verdict.REFERENCE_ONLY, Verdict.REJECTED):
        compiled = dataclasses.replace(tier.compiled, verdict=verdict, rule=no_rule("test", "test"))
        tokenizer = TierTokenizer(tier.reference, compiled)
        assert tokenizer.text_encoder is tokenizer.repairer is tokenizer.cores is None
        assert tokenizer.encode("some text").tolist() == tier.ids("some text")


def test_a_quarantine_leaves_the_reference_alone(tier: Tier) -> None:
    tokenizer = fresh_tokenizer(tier)
    encoder = tokenizer.text_encoder
    assert encoder is not None
    assert tokenizer.quarantine()
    assert not tokenizer.quarantine()  # only one call made it so
    assert tokenizer.quarantined
    assert tokenizer.text_encoder is tokenizer.repairer is None
    assert tokenizer.encode("some text").tolist() == tier.ids("some text")
    assert encoder.encode("some text").tolist() == tier.ids("some text")  # for who still holds it


def test_a_compiled_snapshot_serves_its_own_tokenizer_and_libraries_only(tier: Tier) -> None:
    chosen = EncoderVerdict("gigatoken", "gigatoken==0.0.1", Verdict.ADMITTED)
    for change, code in (
        ({"fingerprint": "0" * 64}, "compiled.fingerprint"),
        ({"reference_version": "tokenizers==0.20.3"}, "compiled.reference"),
        ({"encoder": "gigatoken", "encoders": {"gigatoken": chosen}}, "compiled.encoder"),
    ):
        with pytest.raises(StateCorrupt) as caught:
            TierTokenizer(tier.reference, dataclasses.replace(tier.compiled, **change))  # type: ignore[arg-type]
        assert caught.value.code == code
    right = dataclasses.replace(chosen, version=encoder_version("gigatoken"))
    fitting = dataclasses.replace(tier.compiled, encoder="gigatoken", encoders={"gigatoken": right})
    assert TierTokenizer(tier.reference, fitting).encode("some text").tolist() == tier.ids("some text")


def test_unsafe_code_points_go_to_the_reference_and_are_counted(tier: Tier) -> None:
    unsafe = EncoderVerdict("gigatoken", encoder_version("gigatoken"), Verdict.ADMITTED, unsafe=((0xE9, 0xE9),))
    compiled = dataclasses.replace(tier.compiled, encoder="gigatoken", encoders={"gigatoken": unsafe})
    tokenizer = TierTokenizer(tier.reference, compiled, workers=1)
    assert tokenizer.cores is not None
    tokenizer.encode("plain ß")
    assert tokenizer.cores.fallbacks() == {}
    assert tokenizer.encode("café").tolist() == tier.ids("café")
    assert tokenizer.cores.fallbacks() == {"unsafe_code_point": 1}


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", None, 3, b"x"])
def test_text_that_is_none_is_refused(tier: Tier, text: object) -> None:
    with pytest.raises(InvalidText):
        tier.tokenizer.encode(text)  # type: ignore[arg-type]
