"""The whole-file form of a candidate: exact where it answers, staged where it may not, admitted by all its parts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from toktier_tier.admission import whole
from toktier_tier.admission.campaign import derive_rule
from toktier_tier.admission.comparisons import Campaign
from toktier_tier.admission.compiled import EncoderVerdict, Verdict, whole_name
from toktier_tier.admission.faults import Liar
from toktier_tier.admission.probe import ProbeResult
from toktier_tier.admission.texts import Texts
from toktier_tier.admission.whole import try_whole
from toktier_tier.core.boundaries import BoundaryRule
from toktier_tier.core.classes import Settled, is_scalar, ranges_of
from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.assemble import Cores, build_text_encoder, settled_points
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.encoders.reference import (
    REFERENCE_VERSION,
    Reference,
    class_members,
    encode_of,
    load_tokenizer,
)
from toktier_tier.encoders.whole import WholeEncoder, whole_document
from toktier_tier.ports import Ids
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    byte_level,
    byte_telltale,
    examples,
    family_tier,
    metaspace,
    random_text,
    sample_text,
    telltale,
    token,
    tokenizer_json,
)

NFC = {"type": "NFC"}
LETTERS = "abcdefghijklmnopqrstuvwxyz 1.é"


def whole_tokenizer(family: str, unsafe: tuple[tuple[int, int], ...] | None = None) -> TierTokenizer:
    """The family served by gigatoken in both forms; `unsafe`: of the whole-file form, by default what is unassigned."""
    tier = family_tier(family)
    version = encoder_version("gigatoken")
    unassigned = ranges_of(is_scalar() & class_members(r"\p{Cn}"))
    verdicts = (
        EncoderVerdict("gigatoken", version, Verdict.ADMITTED, unsafe=unassigned),
        EncoderVerdict(
            whole_name("gigatoken"), version, Verdict.ADMITTED, unsafe=unassigned if unsafe is None else unsafe
        ),
    )
    compiled = dataclasses.replace(tier.compiled, encoder="gigatoken", encoders={v.name: v for v in verdicts})
    return TierTokenizer(tier.reference, compiled, workers=1)


@pytest.mark.parametrize("family", ["qwen-3", "llama-3.1", "deepseek-v4"])
def test_every_way_to_encode_gives_the_references_ids(family: str) -> None:
    tokenizer = whole_tokenizer(family)
    assert tokenizer.whole is tokenizer.text_encoder is not None
    literals = [each.content for each in tokenizer.reference.added_tokens()]
    chooser = random.Random(family)
    parts = [
        *literals[:40],
        "e\u0301",
        "\u0323\u0301",
        "가",
        "\u1100\u1161",
        "中",
        "\U0001c000",
        "'s ",
        "\n\n",
        "word ",
    ]
    for _ in range(examples(20)):
        text = random_text(chooser, parts, 1, 60) + sample_text(chooser.randrange(30_000))
        expected = tokenizer.reference.encode_text(text).tobytes()
        assert tokenizer.encode(text).tobytes() == expected
        chunks = tokenizer.whole.encode_chunks(text)
        assert "".join(chunk for chunk, _ in chunks) == text
        assert b"".join(ids.tobytes() for _, ids in chunks) == expected
    assert tokenizer.fallbacks()["whole.unsafe_code_point"] > 0


def test_repair_by_the_whole_form_gives_the_references_ids() -> None:
    tokenizer = whole_tokenizer("qwen-3")
    repairer = tokenizer.repairer
    assert repairer is not None
    state = repairer.open("<|im_start|>user\n")
    client = state.ids()
    chooser = random.Random(5)
    parts = ["<|im_start|>", "<|im_", "end|>", "e", "\u0301", "\u0323", " word", "\n", "1", "<think>", "</think>"]
    for _ in range(examples(150)):
        start = chooser.randint(0, state.chars)
        stop = min(start + chooser.choice([0, 1, 5, 300]), state.chars)
        text = random_text(chooser, parts, 0, 12)
        patch = repairer.append(state, text) if chooser.random() < 0.6 else repairer.replace(state, start, stop, text)
        client = patch.apply(client)
        assert client.tobytes() == tokenizer.reference.encode_text(state.text()).tobytes()


def test_what_the_whole_form_may_not_answer_goes_through_the_stages_and_is_counted() -> None:
    tokenizer = whole_tokenizer("qwen-3", unsafe=((0xE9, 0xE9),))
    assert tokenizer.whole is not None
    expected = tokenizer.reference.encode_text
    tokenizer.encode("plain ß <|im_end|>")
    assert tokenizer.fallbacks() == {}
    for text in ("café", "é" + "x" * 20_000, "x" * 20_000 + "é<|im_end|>"):  # short and long texts are looked at apart
        assert tokenizer.encode(text).tobytes() == expected(text).tobytes()
    assert tokenizer.fallbacks() == {"whole.unsafe_code_point": 3}

    def broken(text: str) -> Ids:
        raise RuntimeError("planted")

    tokenizer.whole.guarded.replace(Liar("broken", broken))
    assert tokenizer.encode("plain").tobytes() == expected("plain").tobytes()
    assert tokenizer.fallbacks()["whole.encoder_exception"] == 1


def test_a_quarantine_reaches_who_still_holds_the_whole_form() -> None:
    tokenizer = whole_tokenizer("qwen-3")
    held = tokenizer.whole
    assert held is not None
    tokenizer.quarantine()
    held.guarded.fallbacks.clear()
    text = "some <|im_end|> text"
    assert held.encode(text).tobytes() == tokenizer.reference.encode_text(text).tobytes()
    assert held.guarded.is_reference
    assert all(core.is_reference for core in tokenizer.cores.by_position.values())  # type: ignore[union-attr]


# --- its admission ----------------------------------------------------------------------------------------------------


@cache
def derived(data: bytes) -> tuple[Reference, BoundaryRule, Settled]:
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    return reference, derive_rule(reference), settled_points(reference)


def campaign_of(data: bytes) -> Campaign:
    reference, rule, settled = derived(data)
    texts = Texts(reference.snapshot, rule, 3)
    return Campaign(reference, rule, texts, 0.2, lambda phase, done: None, 8, settled=settled)


def normalized_file(**changes: Any) -> bytes:
    added = [token(5_000, "<|end|>", special=True), token(5_001, "<think>", normalized=False)]
    sections = {"added": added, "normalizer": NFC, "pre_tokenizer": byte_level(), **changes}
    return tokenizer_json(byte_telltale(LETTERS), **sections)


def verdict_with(
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
    plant: Callable[[Reference], Callable[[str], Ids]],
    *,
    probe: bool = False,
) -> EncoderVerdict:
    """`probe`: ask about every code point too (seconds); otherwise none is found to differ."""
    reference = campaign.reference
    if not probe:
        monkeypatch.setattr(whole, "probe_encoders", lambda found, *_, **__: {n: ProbeResult((), 0) for n in found})
    monkeypatch.setattr(whole, "build_whole", lambda reference, name: Liar(name, plant(reference)))
    staged = build_text_encoder(reference, campaign.rule, Cores(reference), settled=campaign.settled)
    return try_whole(campaign, "gigatoken", staged)


def without(section: str, value: Any) -> Callable[[Reference], Callable[[str], Ids]]:
    return lambda reference: encode_of(load_tokenizer({**whole_document(reference), section: value}))


def swapped(pairs: dict[str, str]) -> Callable[[Reference], Callable[[str], Ids]]:
    """A library that reads some strings as others."""

    def plant(reference: Reference) -> Callable[[str], Ids]:
        def lie(text: str) -> Ids:
            for wrong, read in pairs.items():
                text = text.replace(wrong, read)
            return reference.encode_text(text)

        return lie

    return plant


def honest(reference: Reference) -> Callable[[str], Ids]:
    return reference.encode_text


def test_an_exact_whole_form_is_admitted_and_leaves_out_what_is_unassigned(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_with(monkeypatch, campaign_of(normalized_file()), honest)
    assert verdict.verdict is Verdict.ADMITTED
    assert verdict.divergences == 0 < verdict.checks
    unsafe = verdict.unsafe_points()
    assert unsafe is not None
    assert unsafe[0x0378]
    assert unsafe[0x1C000]
    assert not unsafe[0x41]
    assert not unsafe[0xE9]
    assert unsafe[0x301]  # on this the reference's normalizer may act


def test_what_the_normalizer_could_act_on_never_reaches_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where every sample agrees: its Unicode tables may be newer than the reference's."""
    campaign = campaign_of(normalized_file())
    verdict = verdict_with(monkeypatch, campaign, honest)
    seen: list[str] = []

    def watched(text: str) -> Ids:
        seen.append(text)
        return campaign.reference.encode_text(text)

    staged = build_text_encoder(campaign.reference, campaign.rule, Cores(campaign.reference), settled=campaign.settled)
    whole_form = WholeEncoder(staged, Liar("watched", watched), verdict.unsafe_points())
    for text in ("e\u0301", "a\u0323\u0301", "\u1100\u1161", "\u212b", "\U00011935\U00011930", "\u0ec8\u0eba"):
        assert whole_form.encode(f"a {text} b").tobytes() == campaign.reference.encode_text(f"a {text} b").tobytes()
    settled = campaign.settled
    assert settled is not None
    assert all(settled.always[ord(char)] for text in seen for char in text)
    assert whole_document(campaign.reference)["normalizer"] is None


@pytest.mark.parametrize(
    "plant",
    [
        without("added_tokens", []),
        swapped({"<think<think>": "<think>"}),  # a token cut short before itself
        swapped({"a<|end|>b": "a b"}),
        swapped({"<|end|><think>": "<think><|end|>"}),
        swapped({"z1": "1z"}),
    ],
    ids=["no added tokens", "cut token", "token in a word", "neighbours", "a pair of characters"],
)
def test_every_part_that_the_library_took_over_is_examined(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    verdict = verdict_with(monkeypatch, campaign_of(normalized_file()), plant)
    assert verdict.verdict is Verdict.REJECTED


def test_a_code_point_that_it_reads_otherwise_is_left_to_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_with(
        monkeypatch, campaign_of(normalized_file(normalizer=None)), swapped({"\u2122": "TM"}), probe=True
    )
    unsafe = verdict.unsafe_points()
    assert verdict.verdict is Verdict.ADMITTED
    assert unsafe is not None
    assert unsafe[0x2122]
    assert not unsafe[0x2121]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (normalized_file(normalizer={"type": "Lowercase"}), "whole.normalizer"),
        (normalized_file(added=[token(5_000, "<x>", rstrip=True)]), "whole.token_flags"),
        (normalized_file(added=[token(5_000, "<x>", single_word=True)]), "whole.token_flags"),
        (normalized_file(added=[token(5_000, "<e\u0301>", normalized=True)]), "whole.token_form"),
        (
            normalized_file(added=[token(5_000, "<zq", normalized=True), token(5_001, "zqj>")], normalizer=None),
            "whole.token_order",
        ),
        (tokenizer_json(telltale("▁ab"), pre_tokenizer=metaspace("first")), "whole.position_matters"),
        (tokenizer_json(telltale("▁ab"), pre_tokenizer=metaspace("always")), "whole.position_matters"),
    ],
)
def test_what_a_whole_form_is_not_tried_for_is_said_by_name(
    monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    verdict = verdict_with(monkeypatch, campaign_of(data), honest)
    assert (verdict.verdict, verdict.reason) == (Verdict.REFERENCE_ONLY, reason)


def test_a_library_that_refuses_the_whole_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reference: Reference) -> Callable[[str], Ids]:
        raise EncoderUnavailable("encoder.refuses", "no such normalizer")

    verdict = verdict_with(monkeypatch, campaign_of(normalized_file()), refuse)
    assert (verdict.verdict, verdict.reason) == (Verdict.REFERENCE_ONLY, "encoder.refuses: no such normalizer")


def test_a_whole_form_is_void_where_a_planted_fault_goes_uncaught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(whole.ENCODER_FAULTS, "none", lambda encode: encode)  # type: ignore[attr-defined]
    verdict = verdict_with(monkeypatch, campaign_of(normalized_file()), honest)
    assert (verdict.verdict, verdict.reason) == (Verdict.REFERENCE_ONLY, "campaign.void")
