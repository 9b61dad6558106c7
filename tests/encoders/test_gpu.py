"""The GPU path by the kernels' twins: the reference's IDs whatever the text, and each way to the CPU counted."""

from __future__ import annotations

import logging
import random
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_twins import TwinBackend, TwinEngine
from toktier_kernels import errors
from toktier_tier.core.pipeline import Position
from toktier_tier.encoders.gpu import GpuEncoder, byte_spans
from toktier_tier.encoders.gpu_device import gpu_encoder, open_gpu_encoder
from toktier_tier.encoders.gpu_tables import build_tables
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder
from toktier_tier.encoders.trust import TrustReference
from workshop import (
    WORDS,
    Tier,
    build_tier,
    byte_level,
    byte_telltale,
    examples,
    family_tier,
    random_text,
    sample_text,
    small_rope,
    spans_in,
    text_parts,
    texts,
    token,
    tokenizer_json,
)

FAMILIES = ("qwen-3", "deepseek-v4", "llama-3.1", "gpt2-novelai")
"""NFC; three stages and normalized added tokens; ignore_merges; ByteLevel's own pattern."""
MARKS = ("e\u0301", "\u0323\u0301", "a\u0334\u0316", "\u1100\u1161\u11a8", "가", "\u212b", "\u0340", "q\u0302\u0323")


@cache
def tables(family: str) -> Any:
    tier = family_tier(family)
    return build_tables(tier.reference, tier.rule, tier.compiled.settled_points())


def encoder_of(family: str, threshold_chars: int = 1, **limits: int) -> tuple[GpuEncoder, TwinEngine]:
    tier, backend = family_tier(family), TwinBackend(**limits)
    staged = tier.tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    encoder = gpu_encoder(tier.reference, staged, staged, lambda *callables: backend.open(tables(family), *callables))
    encoder.begin(threshold_chars)
    return encoder, backend.opened[0]


def parts_of(tier: Tier) -> list[str]:
    return [*text_parts(tier), *MARKS * 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_to_encode_gives_the_references_ids(family: str) -> None:
    tier = family_tier(family)
    encoder, engine = encoder_of(family)
    chooser, parts = random.Random(family), parts_of(family_tier(family))
    for seed in range(examples(20)):
        text = random_text(chooser, parts, 1, 40) + sample_text(chooser.randrange(150), seed)
        expected = tier.reference.encode_text(text).tobytes()
        assert encoder.encode(text).tobytes() == expected
        assert encoder.encode_full(text).tobytes() == expected
        with small_rope():
            chunks = encoder.encode_chunks(text)
            assert [chunk for chunk, _ in chunks] == encoder.staged.cut(text)
        assert b"".join(ids.tobytes() for _, ids in chunks) == expected
        for chunk, ids in chunks:
            assert ids.tolist() == tier.ids(chunk)
    assert encoder.fallbacks == {}
    assert encoder.encoded == len(engine.calls) == 3 * examples(20)


@pytest.mark.parametrize("family", ["qwen-3", "deepseek-v4"])
@settings(max_examples=examples(15))
@given(st.data())
def test_a_continuation_gives_what_the_stages_give(family: str, data: st.DataObject) -> None:
    tier = family_tier(family)
    encoder, _ = encoder_of(family)
    text = data.draw(texts(parts_of(tier)))
    for position in Position:
        assert encoder.encode(text, position).tolist() == tier.encoded(text, position)


@pytest.mark.parametrize("family", ["qwen-3", "deepseek-v4"])
@settings(max_examples=examples(20))
@given(st.data())
def test_only_trusted_added_tokens_become_spans(family: str, data: st.DataObject) -> None:
    tier = family_tier(family)
    encoder, engine = encoder_of(family)
    text = data.draw(texts(parts_of(tier)))
    untrusted = data.draw(spans_in(text))
    expected = TrustReference(tier.reference).encode(text, untrusted).tolist()
    assert encoder.encode_untrusted(text, untrusted).tolist() == expected
    with small_rope():
        chunks = encoder.encode_untrusted_chunks(text, untrusted)
    assert "".join(chunk for chunk, _ in chunks) == text
    assert [id for _, ids in chunks for id in ids.tolist()] == expected
    found = encoder.staged.recognized(text, untrusted)
    for _, spans in engine.calls:
        assert (0 if spans is None else len(spans[2])) == len(found)


def test_what_is_too_long_for_a_lane_is_encoded_by_the_stages() -> None:
    """Pieces and segments past the limits, with something that would be an added token if it weren't untrusted."""
    tier = family_tier("qwen-3")
    encoder, _ = encoder_of("qwen-3", walk_limit=24, merge_limit=40)
    text = f"{'x' * 300}e\u0301{'ab' * 40} <|im_end|> {'=' * 99}<|im_start|>{'中' * 60}" + sample_text(300)
    assert encoder.encode(text).tolist() == tier.ids(text)
    untrusted = ((0, len(text)),)
    expected = TrustReference(tier.reference).encode(text, untrusted).tolist()
    assert encoder.encode_untrusted(text, untrusted).tolist() == expected
    assert encoder.fallbacks == {}


def test_no_added_token_is_found_in_what_is_too_long() -> None:
    """Neither one that isn't trusted, nor one that only the normalizer makes."""
    added = [token(5_000, "abab"), token(5_001, "é")]
    model = byte_telltale("abcé ")
    tier = build_tier(tokenizer_json(model, normalizer={"type": "NFC"}, pre_tokenizer=byte_level(), added=added))
    staged = tier.tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    encoder = open_gpu_encoder(
        TwinBackend(walk_limit=8), tier.reference, tier.rule, tier.compiled.settled_points(), staged, staged
    )
    made = f"{'c' * 20}e\u0301{'c' * 20} abab"
    assert encoder.encode(made).tolist() == tier.ids(made)
    text = "abab" * 9
    untrusted = ((0, len(text)),)
    assert encoder.encode_untrusted(text, untrusted).tolist() != tier.ids(text)
    assert encoder.encode_untrusted(text, untrusted).tolist() == (
        TrustReference(tier.reference).encode(text, untrusted).tolist()
    )
    assert encoder.fallbacks == {}


def test_sessions_on_the_device_give_the_references_ids() -> None:
    tier = family_tier("qwen-3")
    engines: list[TwinEngine] = []

    def accelerate(inner: Any, staged: SnapshotEncoder) -> GpuEncoder:
        backend = TwinBackend()
        found = gpu_encoder(tier.reference, inner, staged, lambda *called: backend.open(tables("qwen-3"), *called))
        engines.extend(backend.opened)
        found.begin(12)
        return found

    tokenizer = type(tier.tokenizer)(tier.reference, tier.compiled, workers=1, accelerate=accelerate)
    assert tokenizer.text_encoder is tokenizer.gpu is not None
    repairer = tokenizer.repairer
    assert repairer is not None
    chooser = random.Random(3)
    parts = ["<|im_start|>", "<|im_", "end|>", "<think>", *MARKS, *WORDS]
    with small_rope():
        state = repairer.open("<|im_start|>user\n" + random_text(chooser, parts, 20, 30))
        client = state.ids()
        for _ in range(examples(60)):
            start = chooser.randint(0, state.chars)
            stop = min(start + chooser.choice([0, 1, 5, 60]), state.chars)
            text = random_text(chooser, parts, 0, 12)
            grow = chooser.random() < 0.6
            patch = repairer.append(state, text) if grow else repairer.replace(state, start, stop, text)
            client = patch.apply(client)
            assert client.tobytes() == tier.reference.encode_text(state.text()).tobytes()
    counts = tokenizer.fallbacks()
    assert counts["gpu.encoded"] == len(engines[0].calls) > 0
    assert set(counts) == {"gpu.encoded"}


def test_whole_texts_of_a_quarantined_tokenizer_never_see_the_device() -> None:
    tier, made = family_tier("gpt2-novelai"), []

    def accelerate(inner: Any, staged: SnapshotEncoder) -> GpuEncoder:
        made.append(encoder_of("gpt2-novelai"))
        return made[0][0]

    tokenizer = type(tier.tokenizer)(tier.reference, tier.compiled, workers=1, accelerate=accelerate)
    (encoder, engine), held = made[0], tokenizer.text_encoder
    text = sample_text(300)
    assert tokenizer.encode(text).tolist() == tier.ids(text)
    assert len(engine.calls) == 1
    assert tokenizer.quarantine()
    assert encoder.is_off
    assert held is not None
    assert held.encode(text).tolist() == tokenizer.encode(text).tolist() == tier.ids(text)
    assert len(engine.calls) == 1
    assert tokenizer.fallbacks()["gpu.quarantined"] == 1
    for thread in threading.enumerate():
        if thread.name == "toktier-gpu-close":
            thread.join(5)
    assert engine.closed


# --- what stays with the CPU ------------------------------------------------------------------------------------------


def test_a_short_text_stays_with_the_cpu_and_is_no_fallback() -> None:
    encoder, engine = encoder_of("gpt2-novelai", threshold_chars=200)
    text = sample_text(199)
    expected = family_tier("gpt2-novelai").ids(text)
    assert encoder.encode(text).tolist() == encoder.encode_full(text).tolist() == expected
    assert [id for _, ids in encoder.encode_chunks(text) for id in ids.tolist()] == expected
    assert encoder.encode_untrusted(text, ((0, 3),)).tolist() == expected
    assert (engine.calls, encoder.fallbacks, encoder.encoded) == ([], {}, 0)
    encoder.encode(text + "x")
    assert (len(engine.calls), encoder.encoded) == (1, 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.Busy("kernels.busy", "others wait"), "busy"),
        (errors.OutOfMemory("kernels.out_of_memory", "no room"), "out_of_memory"),
        (errors.TextTooLarge("kernels.too_large", "too long"), "too_large"),
        (errors.DeviceFault("kernels.device", "failed", sticky=False), "device"),
        (errors.Overlong("kernels.overlong", "stretches"), "overlong"),
        (RuntimeError("anything else"), "exception"),
        (BaseException("as a Rust panic is"), "exception"),
    ],
)
def test_every_failure_is_the_cpus_work_and_counted_by_reason(error: BaseException, reason: str) -> None:
    encoder, engine = encoder_of("gpt2-novelai")
    engine.failing = error
    text = sample_text(100)
    expected = family_tier("gpt2-novelai").ids(text)
    assert encoder.encode(text).tolist() == encoder.encode_full(text).tolist() == expected
    assert [id for _, ids in encoder.encode_chunks(text) for id in ids.tolist()] == expected
    assert encoder.encode_untrusted(text, ((1, 2),)).tolist() == expected
    assert [id for _, ids in encoder.encode_untrusted_chunks(text, ((1, 2),)) for id in ids.tolist()] == expected
    assert (encoder.fallbacks, encoder.encoded) == ({reason: 5}, 0)
    engine.failing = None
    assert encoder.encode(text).tolist() == expected
    assert encoder.encoded == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_failure_of_the_device(interrupt: type[BaseException]) -> None:
    encoder, engine = encoder_of("gpt2-novelai")
    engine.failing = interrupt()
    with pytest.raises(interrupt):
        encoder.encode("text")
    assert encoder.fallbacks == {}


def test_a_device_that_is_lost_is_not_asked_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    encoder, engine = encoder_of("gpt2-novelai")
    engine.failing = errors.DeviceFault("kernels.device", "an illegal address", sticky=True)
    with caplog.at_level(logging.INFO, logger="toktier"):
        for _ in range(3):
            assert encoder.encode("some text").tolist() == family_tier("gpt2-novelai").ids("some text")
    assert len(engine.calls) == 1
    assert encoder.is_off
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["kernels.device"]


def test_a_text_with_an_unsafe_code_point_stays_with_the_cpu() -> None:
    tier, backend = family_tier("gpt2-novelai"), TwinBackend()
    staged = tier.tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    unsafe = np.zeros(0x110000, dtype=bool)
    unsafe[0xE9] = True
    encoder = open_gpu_encoder(backend, tier.reference, tier.rule, None, staged, staged, unsafe)
    for text in ("plain ß", "café", "x" * 300 + "é"):
        assert encoder.encode(text).tolist() == tier.ids(text)
    assert (encoder.fallbacks, encoder.encoded) == ({"unsafe_code_point": 2}, 1)


def test_answers_are_the_hosts_own_arrays() -> None:
    encoder, _ = encoder_of("gpt2-novelai")
    text = sample_text(100)
    with small_rope():
        answers = [encoder.encode(text), *(ids for _, ids in encoder.encode_chunks(text))]
    assert all(ids.dtype == np.uint32 and ids.flags.owndata for ids in answers)


def test_threads_share_an_encoder() -> None:
    tier = family_tier("gpt2-novelai")
    encoder, _ = encoder_of("gpt2-novelai")
    wrong: list[str] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(5):
            text = random_text(chooser, WORDS)
            if encoder.encode(text).tolist() != tier.ids(text):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert encoder.encoded == 20


# --- positions --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.text(st.sampled_from("aé中😀\0")), st.data())
def test_byte_spans_stand_where_the_characters_do(text: str, data: st.DataObject) -> None:
    borders = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    found = [(index, start, stop) for index, (start, stop) in enumerate(zip(borders[::2], borders[1::2], strict=False))]
    spans = byte_spans(text, len(text.encode()), found)
    if not found:
        assert spans is None
        return
    assert spans is not None
    expected = [(len(text[:a].encode()), len(text[:b].encode()), id) for id, a, b in found]
    assert list(zip(*(part.tolist() for part in spans), strict=True)) == expected


def test_tokens_that_swallow_white_space_are_spans_with_it() -> None:
    added = [
        token(5_000, "<m>", lstrip=True),
        token(5_001, "<r>", rstrip=True),
        token(5_002, "word", single_word=True, normalized=True),
    ]
    tier = build_tier(tokenizer_json(byte_telltale("abword é<m>"), pre_tokenizer=byte_level(), added=added))
    backend = TwinBackend()
    staged = tier.tokenizer.text_encoder
    assert isinstance(staged, SnapshotEncoder)
    encoder = open_gpu_encoder(backend, tier.reference, tier.rule, None, staged, staged)
    chooser = random.Random(8)
    parts = ["<m>", "<r>", "<", "m>", "word", "sword", "é", " ", "  ", "\n", "ab", "a"]
    for _ in range(examples(150)):
        text = random_text(chooser, parts, 1, 20)
        assert encoder.encode(text).tolist() == tier.ids(text)
    assert encoder.fallbacks == {}
