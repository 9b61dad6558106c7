"""The shadow verifier: wrong IDs are found in the time that takes, right ones never, and nobody waits."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toktier_tier.admission.compiled import EncoderVerdict, Verdict, whole_name
from toktier_tier.core.errors import InvalidText, StateError
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.core.values import Ids, Reason, Route
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.encoders.reference import Reference
from toktier_tier.sessions.lives import changes_of
from toktier_tier.sessions.service import SessionService
from toktier_tier.shadow.evidence import Divergence, EvidenceFolder
from toktier_tier.shadow.faults import plant_wrong_ids
from toktier_tier.shadow.sample import Sample, sample_change, sample_encoding
from toktier_tier.shadow.sampler import Sampler
from toktier_tier.shadow.verifier import Verifier, difference, encode_apart
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    Tier,
    bracketed_json,
    build_tier,
    examples,
    family_tier,
    fresh_tokenizer,
    random_text,
    repairer_of,
    sample_text,
    small_rope,
    text_parts,
)

POLICY = SpecialTokenPolicy
MISSED = 1e-9
"""With this probability a test may fail to see a fault that is there."""
SAFE = [chr(point) for point in range(0x20, 0x7F)] + ["\n", "é", "中", " the", "  ", "'s", "\r\n"]
"""Characters on which no candidate was ever seen to differ: what admission keeps from them is tested elsewhere."""


def samples_needed(rate: float) -> int:
    """After so many independent draws, each wrong with probability `rate`, all were right with less than `MISSED`."""
    return math.ceil(math.log(MISSED) / math.log1p(-rate))


@pytest.fixture(scope="module")
def tier() -> Tier:
    return family_tier("gpt2-novelai")


class Shadowed:
    """A service, its shadow, and what they told."""

    def __init__(self, tokenizer: TierTokenizer, rate: float = 1.0, *, seed: int = 0, **options: Any) -> None:
        self.reports: list[Divergence] = []
        self.mistrusted: list[str] = []
        keep_text = options.pop("keep_text", True)
        options = {"queue_samples": 1 << 20, "queue_bytes": 1 << 32, "on_divergence": self.reports.append, **options}
        self.tokenizer = tokenizer
        self.verifier = Verifier(tokenizer, **options)
        self.sampler = Sampler(self.verifier, rate=rate, randomness=random.Random(seed))
        self.service = SessionService(
            tokenizer, observer=self.sampler, on_quarantine=self.mistrusted.append, keep_text=keep_text
        )

    def check_accounts(self) -> dict[str, int]:
        counts = self.verifier.counts()
        held, _ = self.verifier.held()
        assert counts["sampled"] == sum(counts[name] for name in ("skipped", "dropped", "verified", "failed")) + held
        return counts


@contextmanager
def shadowed(tokenizer: TierTokenizer, rate: float = 1.0, **options: Any) -> Iterator[Shadowed]:
    shadow = Shadowed(tokenizer, rate, **options)
    shadow.verifier.start()
    try:
        yield shadow
    finally:
        shadow.verifier.stop(30.0)
    shadow.check_accounts()


def tokenizer_of(form: str) -> TierTokenizer:
    if form != "whole":
        return fresh_tokenizer(family_tier("gpt2-novelai", encoder=form))
    tier, version = family_tier("gpt2-novelai"), encoder_version("gigatoken")
    verdicts = {
        name: EncoderVerdict(name, version, Verdict.ADMITTED) for name in ("gigatoken", whole_name("gigatoken"))
    }
    compiled = dataclasses.replace(tier.compiled, encoder="gigatoken", encoders=verdicts)
    return TierTokenizer(tier.reference, compiled, workers=1)


def short_texts(count: int, seed: int = 0) -> list[str]:
    chooser = random.Random(seed)
    return [random_text(chooser, SAFE, 3, 25) for _ in range(count)]


def check_everything(service: SessionService, tier: Tier, turns: int = 30) -> None:
    """Every call there is, from now on, gives the reference's IDs; sessions opened earlier aren't looked at."""
    chooser = random.Random(turns)
    parts = text_parts(tier)
    for turn in range(turns):
        text = random_text(chooser, parts, 1, 30)
        assert service.encode(text).ids.tolist() == tier.reference.encode(text).tolist()
        name = f"afterwards {turn}"
        ids = service.open("t", name, text).ids
        ids = service.append("t", name, " more").apply(ids)
        ids = service.edit("t", name, 0, 1, "é").apply(ids)
        text = "é" + text[1:] + " more"
        assert ids.tolist() == tier.reference.encode(text).tolist()
        ids = service.full_text("t", name, text + "!").apply(ids)
        assert ids.tolist() == service.ids("t", name).tolist() == tier.reference.encode(text + "!").tolist()
        info = service.restore("t", name + "'", service.export("t", name))
        assert service.snapshot("t", name + "'")[1].tolist() == ids.tolist()
        assert info == service.info("t", name)


# --- wrong IDs are found ----------------------------------------------------------------------------------------------


def test_how_many_samples_it_takes() -> None:
    assert samples_needed(0.01) == 2_062
    assert 0.99**2_062 < MISSED < 0.99**2_061
    assert samples_needed(0.01 * 0.05) == 41_437


@pytest.mark.parametrize(
    ("form", "share"), [("reference", 1.0), ("gigatoken", 1.0), ("fastokens", 1.0), ("whole", 1.0), ("gigatoken", 0.05)]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_one_percent_of_wrong_ids_is_found_in_time(tier: Tier, form: str, share: float, seed: int) -> None:
    tokenizer = tokenizer_of(form)
    texts = short_texts(200)
    with shadowed(tokenizer, share, seed=seed) as shadow:
        planted = plant_wrong_ids(tokenizer, rate=0.01, seed=seed, allow=True)
        answers = samples_needed(0.01 * share)  # an encode of these texts is one call of the encoder
        for number in range(answers):
            shadow.service.encode(texts[number % len(texts)])
            if number % 100 == 99:
                assert shadow.verifier.drain(60.0)
                if tokenizer.quarantined:
                    break
        assert shadow.verifier.drain(60.0)
        assert tokenizer.quarantined, f"{planted.lies} lies in {answers} answers went unseen"
        (report,) = shadow.reports
        assert report.quarantined_now
        assert (report.fingerprint, report.route, report.revision) == (tokenizer.fingerprint, "encode", None)
        counts = shadow.check_accounts()
        assert 1 <= counts["diverged"] <= planted.lies
        lies = planted.lies
        check_everything(shadow.service, tier)
        assert planted.lies == lies
        assert shadow.mistrusted == []  # this was no witness's doing


@pytest.mark.parametrize("seed", range(4))
def test_sessions_under_a_fault_end_in_quarantine_by_one_road_or_the_other(tier: Tier, seed: int) -> None:
    """The witness sees most of it first; either way no later answer is wrong, whatever left before."""
    tokenizer = fresh_tokenizer(tier)
    chooser = random.Random(seed)
    texts: dict[str, str] = {}
    with shadowed(tokenizer, seed=seed) as shadow, small_rope():
        for number in range(8):
            texts[str(number)] = sample_text(300, number)
            shadow.service.open("t", str(number), texts[str(number)])
        planted = plant_wrong_ids(tokenizer, rate=0.01, seed=seed, allow=True)
        for turn in range(samples_needed(0.01)):  # every one of these calls the encoder at least once
            name, delta = str(chooser.randrange(8)), f" {turn}"
            shadow.service.append("t", name, delta)
            texts[name] += delta
            if turn % 20 == 19:
                assert shadow.verifier.drain(60.0)
            if tokenizer.quarantined:
                break
        assert tokenizer.quarantined, f"{planted.lies} lies went unseen"
        first_of_witness = shadow.mistrusted == [Reason.WITNESS_MISMATCH.value]
        first_of_shadow = [report.quarantined_now for report in shadow.reports] == [True]
        assert first_of_witness != first_of_shadow
        for name, text in texts.items():
            info, ids = shadow.service.snapshot("t", name)
            assert ids.tolist() == tier.ids(text)
            patch = shadow.service.append("t", name, "!")
            assert (patch.route, patch.revision) == (Route.REFERENCE, info.revision + 1)
            assert patch.apply(ids).tolist() == tier.ids(text + "!")
        check_everything(shadow.service, tier, 5)


def test_the_shadow_finds_what_no_witness_looks_at(tier: Tier) -> None:
    """A wrong ID far from every change: repair keeps it without encoding it again."""
    tokenizer = fresh_tokenizer(tier)
    with shadowed(tokenizer) as shadow, small_rope():
        tokenizer.repairer = repairer_of(tier, 4)
        encode_chunks = tokenizer.repairer._encode_chunks
        text = sample_text(600)

        def wrong_at_first(given: str, position: Any) -> Any:
            chunks = encode_chunks(given, position)
            chunks[0][1][1] ^= 1
            return chunks

        tokenizer.repairer._encode_chunks = wrong_at_first
        ids = shadow.service.open("t", "s", text).ids
        assert ids.tolist() != tier.ids(text)
        assert shadow.verifier.drain(30.0)
        (report,) = shadow.reports
        assert (report.first_difference, changes_of(report.revision or -1), report.reason) == (
            1,
            0,
            Reason.OPENED.value,
        )
        assert shadow.mistrusted == []
        patch = shadow.service.append("t", "s", " more")
        assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.QUARANTINED)
        assert patch.revision == (report.revision or 0) + 1
        assert patch.apply(ids).tolist() == tier.ids(text + " more")


def test_ids_kept_with_the_wrong_segment_are_found_though_all_of_them_are_right() -> None:
    """The last ID before each border counts as the first one behind it: no full encode shows that."""
    tier = build_tier(bracketed_json(), policy=POLICY.TEMPLATE)
    tokenizer = tier.tokenizer
    with shadowed(tokenizer) as shadow, small_rope():
        text = "ab se.\n" * 40
        assert shadow.service.open("t", "right", text).ids.tolist() == tier.reference.encode(text).tolist()
        assert shadow.verifier.drain(30.0)
        assert not tokenizer.quarantined
        tokenizer.repairer = repairer_of(tier, 4)
        encode_chunks = tokenizer.repairer._encode_chunks

        def shifted(given: str, position: Any) -> Any:
            chunks = encode_chunks(given, position)
            for at in range(len(chunks) - 1):
                (left, left_ids), (right, right_ids) = chunks[at : at + 2]
                chunks[at : at + 2] = [(left, left_ids[:-1]), (right, np.insert(right_ids, 0, left_ids[-1]))]
            return chunks

        tokenizer.repairer._encode_chunks = shifted
        ids = shadow.service.open("t", "s", text).ids
        assert ids.tolist() == tier.reference.encode(text).tolist()
        assert shadow.verifier.drain(30.0)
        (report,) = shadow.reports
        assert 0 < report.first_difference < len(ids)
        assert report.expected_around == report.answered_around
        assert tokenizer.quarantined


def test_the_witness_finds_what_is_near_a_change_without_any_shadow(tier: Tier) -> None:
    tokenizer = fresh_tokenizer(tier)
    shadow = Shadowed(tokenizer, 0.0)
    text = sample_text(300)
    ids = shadow.service.open("t", "s", text).ids
    plant_wrong_ids(tokenizer, rate=1.0, seed=0, allow=True)
    patch = shadow.service.append("t", "s", " more")
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.WITNESS_MISMATCH)
    assert patch.apply(ids).tolist() == tier.ids(text + " more")
    assert shadow.mistrusted == [Reason.WITNESS_MISMATCH.value]
    assert shadow.verifier.counts()["sampled"] == 0
    check_everything(shadow.service, tier, 5)


def test_a_patch_that_misleads_is_found_though_the_state_is_right(tier: Tier) -> None:
    state = repairer_of(tier, 4).open(sample_text(300))
    patch = repairer_of(tier, 4).replace(state, 150, 155, "other")
    right = sample_change(patch, state)
    expected = tier.reference.encode(state.text())
    assert difference(right, expected, tier.reference) is None
    wrong: list[dict[str, Any]] = [
        {"keep": patch.keep + 1},
        {"keep": patch.keep - 1},
        {"total": patch.total + 1},
        {"total": patch.total - 1},
        {"ids": patch.ids[:-1], "total": patch.total - 1},
        {"ids": patch.ids ^ 1},
        {"ids": patch.ids[:0], "keep": 0, "total": 0},
    ]
    for change in wrong:
        found = difference(dataclasses.replace(right, **change), expected, tier.reference)
        assert found is not None, change
        assert found.tobytes() != expected.tobytes()


def test_a_text_that_the_reference_refuses_should_have_had_no_answer(tier: Tier) -> None:
    tokenizer = fresh_tokenizer(tier)
    tokenizer.reference = Stub(tier.reference, encode=refuse, batch=refuse)  # type: ignore[assignment]
    with shadowed(tokenizer) as shadow:
        shadow.verifier.offer(sample_encoding("abc", np.array([1], dtype=np.uint32), Route.ENCODE))
        assert shadow.verifier.drain(30.0)
    (report,) = shadow.reports
    assert (report.expected_tokens, report.answered_tokens, report.first_difference) == (None, 1, 0)
    assert tokenizer.quarantined


# --- right ones never -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "policy", "requests"),
    [
        ("gpt2-novelai", POLICY.NONE, 10_000),
        ("llama-3.1", POLICY.TEMPLATE, 500),
        ("mixtral-8x22b-v0.1", POLICY.TEMPLATE, 1_500),
        ("bracketed", POLICY.TEMPLATE, 1_500),
    ],
)
def test_clean_requests_never_diverge(name: str, policy: POLICY, requests: int) -> None:
    tier = build_tier(bracketed_json(), policy=policy) if name == "bracketed" else family_tier(name, policy=policy)
    tokenizer = fresh_tokenizer(tier)
    tokenizer.repairer = repairer_of(tier, 4)
    chooser, parts = random.Random(name), text_parts(tier)
    lengths = [0] * 12
    requests = examples(requests)
    with shadowed(tokenizer) as shadow, small_rope():
        service = shadow.service
        for number in range(requests):
            session = number if number < len(lengths) else chooser.randrange(len(lengths))
            key, length, text = ("t", str(session)), lengths[session], random_text(chooser, parts, 0, 8)
            act = chooser.randrange(5)
            if number < len(lengths) or (act == 0 and chooser.random() < 0.2) or length > 400:
                service.full_text(*key, text * 3)
                lengths[session] = 3 * len(text)
            elif act < 3:
                service.append(*key, text)
                lengths[session] += len(text)
            elif act == 3:
                start, stop = sorted((chooser.randint(0, length), chooser.randint(0, length)))
                service.edit(*key, start, stop, text)
                lengths[session] += len(text) - (stop - start)
            else:
                service.encode(text)
        assert shadow.verifier.drain(120.0)
        counts = shadow.check_accounts()
    assert not tokenizer.quarantined
    assert shadow.reports == shadow.mistrusted == []
    assert counts["sampled"] == counts["verified"] == requests - service.counts().get("route.reference", 0)
    assert counts["diverged"] == counts["failed"] == counts["dropped"] == 0
    assert service.counts()["observer.failed"] == 0


def test_a_difference_that_the_reference_itself_does_not_confirm_is_none(tier: Tier) -> None:
    def wrong(text: str) -> list[int]:
        return [1, *tier.ids(text)]

    tokenizer = fresh_tokenizer(tier)
    tokenizer.reference = Stub(tier.reference, batch=wrong)  # type: ignore[assignment]
    with shadowed(tokenizer) as shadow:
        shadow.service.encode("some text")
        assert shadow.verifier.drain(30.0)
        assert shadow.verifier.counts()["verified"] == 1
        assert shadow.verifier.counts()["diverged"] == 0
    assert not tokenizer.quarantined


def test_sessions_without_text_are_skipped_and_counted(tier: Tier) -> None:
    with small_rope(), shadowed(fresh_tokenizer(tier), keep_text=False) as shadow:
        shadow.service.open("t", "s", sample_text(600))
        shadow.service.append("t", "s", " more")
        assert shadow.check_accounts()["skipped"] == 2


# --- nobody waits -----------------------------------------------------------------------------------------------------


class Stub:
    """A reference of which single parts behave otherwise."""

    def __init__(
        self,
        inner: Reference,
        *,
        encode: Callable[[str], Ids] | None = None,
        batch: Callable[[str], list[int]] | None = None,
    ) -> None:
        self._inner, self.tokenizer = inner, self
        self.encode = encode or inner.encode
        self._batch = batch or (lambda text: inner.encode_text(text).tolist())

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        assert not add_special_tokens
        return [type("Encoding", (), {"ids": self._batch(text)}) for text in texts]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def refuse(text: str) -> Any:
    raise InvalidText("text.reference_refuses", "no")


def stuck(tier: Tier) -> tuple[TierTokenizer, threading.Event, threading.Event]:
    """(a tokenizer whose reference hangs in the verifier, set once it does, what lets it go on)."""
    entered, release = threading.Event(), threading.Event()

    def batch(text: str) -> list[int]:
        entered.set()
        assert release.wait(60)
        return tier.ids(text)

    tokenizer = fresh_tokenizer(tier)
    tokenizer.reference = Stub(tier.reference, batch=batch)  # type: ignore[assignment]
    return tokenizer, entered, release


def test_under_overload_answers_go_on_and_drops_are_counted(tier: Tier) -> None:
    tokenizer, entered, release = stuck(tier)
    with shadowed(tokenizer, queue_samples=4) as shadow:
        shadow.service.encode("first")
        assert entered.wait(30)
        for number in range(50):
            text = f"answer {number}"
            assert shadow.service.encode(text).ids.tolist() == tier.ids(text)
        counts = shadow.check_accounts()
        assert (counts["sampled"], counts["dropped"], shadow.verifier.held()[0]) == (51, 47, 4)
        release.set()
        assert shadow.verifier.drain(30.0)
        counts = shadow.check_accounts()
        assert (counts["verified"], counts["dropped"], shadow.verifier.held()) == (4, 47, (0, 0))


def test_the_bytes_waiting_are_bounded_and_a_large_text_alone_is_verified_whole(tier: Tier) -> None:
    tokenizer, entered, release = stuck(tier)
    with shadowed(tokenizer, queue_bytes=20_000) as shadow:
        shadow.service.encode(sample_text(50_000))
        assert entered.wait(30)
        shadow.service.encode("small")
        assert shadow.verifier.counts()["dropped"] == 1
        release.set()
        assert shadow.verifier.drain(30.0)
        for _ in range(3):
            shadow.service.encode(sample_text(300))
        assert shadow.verifier.drain(30.0)
        assert shadow.check_accounts()["verified"] == 4


def test_without_a_thread_the_queue_fills_and_then_drops(tier: Tier) -> None:
    shadow = Shadowed(fresh_tokenizer(tier), queue_samples=4)
    for number in range(20):
        shadow.service.encode(f"answer {number}")
    assert shadow.check_accounts()["dropped"] == 16
    assert not shadow.verifier.drain(0.01)
    assert not shadow.verifier.stop(30.0)  # at once: nobody would ever come for them
    assert shadow.check_accounts()["dropped"] == 20


def test_stopping_verifies_what_is_waiting(tier: Tier) -> None:
    tokenizer = fresh_tokenizer(tier)
    planted = plant_wrong_ids(tokenizer, rate=1.0, seed=0, allow=True)
    shadow = Shadowed(tokenizer)
    for number in range(20):
        shadow.service.encode(f"answer {number}")
    shadow.verifier.start()
    shadow.verifier.start()  # once is enough
    assert shadow.verifier.stop(60.0)
    counts = shadow.check_accounts()
    assert counts["verified"] == counts["diverged"] == planted.lies == 20
    assert len(shadow.reports) == 1
    assert tokenizer.quarantined
    shadow.verifier.offer(sample_encoding("abc", np.array([1], dtype=np.uint32), Route.ENCODE))
    assert shadow.check_accounts()["dropped"] == 1
    assert shadow.verifier.stop(60.0)  # again


def test_stopping_abandons_what_takes_too_long(tier: Tier) -> None:
    tokenizer, entered, release = stuck(tier)
    shadow = Shadowed(tokenizer)
    shadow.verifier.start()
    for number in range(10):
        shadow.service.encode(f"answer {number}")
    assert entered.wait(30)
    started = time.monotonic()
    assert not shadow.verifier.stop(0.1)
    assert time.monotonic() - started < 5.0
    assert shadow.check_accounts()["dropped"] == 9
    release.set()
    assert shadow.verifier.drain(30.0)
    assert shadow.check_accounts()["verified"] == 1


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, BaseException])
def test_a_reference_that_breaks_down_is_counted_and_verifying_goes_on(tier: Tier, error: type[BaseException]) -> None:
    broken = True

    def fail(text: str) -> Any:
        if broken:
            raise error("broken")
        return tier.reference.encode(text)

    tokenizer = fresh_tokenizer(tier)
    tokenizer.reference = Stub(  # type: ignore[assignment]
        tier.reference, encode=fail, batch=lambda text: fail(text).tolist()
    )
    with shadowed(tokenizer) as shadow:
        shadow.service.encode("abc")
        assert shadow.verifier.drain(30.0)
        assert shadow.check_accounts()["failed"] == 1
        broken = False
        shadow.service.encode("abc")
        assert shadow.verifier.drain(30.0)
        assert shadow.check_accounts()["verified"] == 1
    assert not tokenizer.quarantined


def test_the_interpreter_goes_on_while_the_reference_encodes(tier: Tier) -> None:
    # Found here: `encode` holds the interpreter's lock from start to end, 1.9 s for 2 million characters.
    text, ticks, over = sample_text(400_000), 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.is_set():
            time.sleep(0.001)
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    ids = encode_apart(tier.reference, text)
    over.set()
    ticker.join(30)
    assert ids is not None
    assert ids.tobytes() == tier.reference.encode(text).tobytes()
    assert ticks >= 10


# --- what is told and written -----------------------------------------------------------------------------------------


def wrong_sample(tier: Tier, text: str) -> Sample:
    return sample_encoding(text, np.array(tier.ids(text), dtype=np.uint32) ^ 1, Route.ENCODE)


@pytest.mark.parametrize("redact", [True, False])
def test_a_divergence_is_written_and_told_once(
    tier: Tier, tmp_path: Path, redact: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    tokenizer = fresh_tokenizer(tier)
    evidence = EvidenceFolder(tmp_path, redact=redact, max_files=3)
    with shadowed(tokenizer, evidence=evidence, now=iter(range(100)).__next__) as shadow:
        for number in range(5):
            shadow.verifier.offer(wrong_sample(tier, f"very secret {number}"))
        assert shadow.verifier.drain(30.0)
        counts = shadow.check_accounts()
    assert (counts["diverged"], counts["unwritten"], counts["untold"]) == (5, 2, 0)
    (report,) = shadow.reports
    documents = [json.loads(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert len(documents) == 3
    assert sorted(document["quarantined_now"] for document in documents) == [False, False, True]
    assert report.sample_path is not None
    assert json.loads(Path(report.sample_path).read_bytes())["text_sha256"] == report.text_sha256
    assert {document.get("text") for document in documents} == (
        {None} if redact else {f"very secret {number}" for number in range(3)}
    )
    captured = capfd.readouterr()
    assert "secret" not in caplog.text + captured.out + captured.err + repr(report)


@pytest.mark.parametrize("error", [RuntimeError, BaseException])
def test_a_callback_that_raises_disturbs_nobody(tier: Tier, error: type[BaseException]) -> None:
    def tell(report: Divergence) -> None:
        raise error("deaf")

    tokenizer = fresh_tokenizer(tier)
    with shadowed(tokenizer, on_divergence=tell) as shadow:
        for _ in range(2):
            shadow.verifier.offer(wrong_sample(tier, "abc"))
        assert shadow.verifier.drain(30.0)
        counts = shadow.check_accounts()
    assert tokenizer.quarantined
    assert (counts["diverged"], counts["unwritten"], counts["untold"], counts["failed"]) == (2, 2, 1, 0)


def test_evidence_that_cannot_be_written_disturbs_nobody(tier: Tier, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tokenizer = fresh_tokenizer(tier)
    with shadowed(tokenizer, evidence=EvidenceFolder(tmp_path / "file")) as shadow:
        shadow.verifier.offer(wrong_sample(tier, "abc"))
        assert shadow.verifier.drain(30.0)
        assert shadow.check_accounts()["unwritten"] == 1
    (report,) = shadow.reports
    assert report.sample_path is None
    assert tokenizer.quarantined


def test_the_quarantine_comes_before_everything_else(tier: Tier, tmp_path: Path) -> None:
    tokenizer = fresh_tokenizer(tier)
    seen: list[bool] = []

    class Slow(EvidenceFolder):
        def write(self, divergence: Divergence, text: str) -> Path | None:
            seen.append(tokenizer.quarantined)
            return super().write(divergence, text)

    with shadowed(tokenizer, evidence=Slow(tmp_path)) as shadow:
        shadow.verifier.offer(wrong_sample(tier, "abc"))
        assert shadow.verifier.drain(30.0)
    assert seen == [True]


def test_many_threads_quarantine_once(tier: Tier) -> None:
    for _ in range(examples(8)):
        tokenizer = fresh_tokenizer(tier)
        shadows = [Shadowed(tokenizer) for _ in range(3)]
        service = shadows[0].service
        service.open("t", "s", sample_text(300))
        lying = repairer_of(tier, 4)
        encode = lying._encode
        lying._encode = lambda text, position, encode=encode: encode(text, position) ^ 1  # type: ignore[misc]
        tokenizer.repairer = lying
        for shadow in shadows:
            shadow.verifier.offer(wrong_sample(tier, "abc"))
        together = threading.Barrier(8)
        outcomes: list[bool] = []

        def quarantine(tokenizer: TierTokenizer = tokenizer, outcomes: list[bool] = outcomes) -> None:
            together.wait(30)  # noqa: B023
            outcomes.append(tokenizer.quarantine())

        def append(service: SessionService = service) -> None:
            together.wait(30)  # noqa: B023
            service.append("t", "s", " more")

        def verify(shadow: Shadowed) -> None:
            together.wait(30)  # noqa: B023
            shadow.verifier.start()

        threads = [threading.Thread(target=quarantine) for _ in range(4)]
        threads += [threading.Thread(target=verify, args=(shadow,)) for shadow in shadows]
        threads.append(threading.Thread(target=append))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for shadow in shadows:
            assert shadow.verifier.stop(60.0)
        told = [report.quarantined_now for shadow in shadows for report in shadow.reports]
        assert len(told) == 3
        assert sum(told) + sum(outcomes) + len(shadows[0].mistrusted) == 1
        assert service.ids("t", "s").tolist() == tier.ids(sample_text(300) + " more")


def test_answers_made_while_the_quarantine_comes_are_right_from_then_on(tier: Tier) -> None:
    """Writers in full flight; whatever is asked after `quarantine` returned is the reference's."""
    tokenizer = fresh_tokenizer(tier)
    service = SessionService(tokenizer)
    plant_wrong_ids(tokenizer, rate=0.3, seed=5, allow=True)
    over = threading.Event()
    wrong: list[str] = []

    def write(name: str) -> None:
        text = ""
        try:
            service.open("t", name, text)
            while not over.is_set() or len(text) < 200:
                quarantined = tokenizer.quarantined
                text += " some 12 words"
                service.append("t", name, " some 12 words")
                if quarantined and service.ids("t", name).tolist() != tier.ids(text):
                    wrong.append(text)
                if len(text) > 400:
                    text = ""
                    service.open("t", name, text)
        except StateError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    tokenizer.quarantine()
    time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
