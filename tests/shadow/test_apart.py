"""The reference in a process of its own gives what the reference gives, and its end is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from toktier_tier.core.values import Route
from toktier_tier.shadow.apart import ReferenceApart, ReferenceLost
from toktier_tier.shadow.sample import sample_encoding
from toktier_tier.shadow.verifier import Verifier
from workshop import bpe, build_tier, family_tier, fresh_tokenizer, sample_text, tokenizer_json


@pytest.fixture
def apart() -> Iterator[ReferenceApart]:
    found = ReferenceApart(family_tier("gpt2-novelai").reference.snapshot)
    yield found
    found.close()


@pytest.mark.parametrize("text", ["", "a", "Hello <|endoftext|> there\x00é中\U0001f600", sample_text(200_000)])
def test_it_gives_the_same_ids(apart: ReferenceApart, text: str) -> None:
    tier = family_tier("gpt2-novelai")
    for _ in range(2):
        found = apart.encode(text)
        assert found is not None
        assert found.tolist() == tier.ids(text)
    assert apart.started == 1


def test_a_text_that_the_reference_refuses_is_no_answer() -> None:
    tier = build_tier(tokenizer_json(bpe("ab", unk_token="[UNK]")))
    apart = ReferenceApart(tier.reference.snapshot)
    try:
        assert apart.encode("xyz") is None
        found = apart.encode("ab")
        assert found is not None
        assert found.tolist() == tier.ids("ab")
    finally:
        apart.close()


def test_a_process_that_is_killed_is_an_error_once(apart: ReferenceApart) -> None:
    assert apart.encode("a") is not None
    assert apart._process is not None
    os.kill(apart._process.pid, signal.SIGKILL)
    with pytest.raises(ReferenceLost):
        apart.encode("a")
    assert apart.encode("a") is not None
    assert apart.started == 2


@pytest.mark.parametrize("sent", [b"", b"\x05", b"\xff\0\0\0\0\0\0\0{"])
def test_its_process_ends_without_a_word_when_the_tier_is_killed_while_it_writes(sent: bytes) -> None:
    command = [sys.executable, "-m", "toktier_tier.shadow.apart_worker"]
    done = subprocess.run(command, input=sent, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_its_process_has_the_lowest_priority(apart: ReferenceApart) -> None:
    apart.encode("a")
    assert apart._process is not None
    assert os.getpriority(os.PRIO_PROCESS, apart._process.pid) == 19


def test_closing_ends_a_long_text(apart: ReferenceApart) -> None:
    apart.encode("a")
    ended: list[BaseException] = []

    def encode() -> None:
        try:
            apart.encode("a b c " * 20_000_000)
        except ReferenceLost as error:
            ended.append(error)

    thread = threading.Thread(target=encode)
    thread.start()
    time.sleep(0.5)
    apart.close()
    thread.join(20)
    assert len(ended) == 1
    with pytest.raises(ReferenceLost):
        apart.encode("a")


def test_a_verifier_finds_wrong_ids_by_it_and_goes_on_when_it_is_lost() -> None:
    tier = family_tier("gpt2-novelai")
    tokenizer = fresh_tokenizer(tier)
    apart = ReferenceApart(tokenizer.reference.snapshot)
    verifier = Verifier(tokenizer, apart=apart)
    verifier.start()
    try:
        text = sample_text(2_000)
        right = tokenizer.encode(text)
        for turn in range(3):
            verifier.offer(sample_encoding(text, right, Route.ENCODE))
            assert verifier.drain(30)
            if turn == 0:
                assert apart._process is not None
                os.kill(apart._process.pid, signal.SIGKILL)
        assert (verifier.counts()["verified"], verifier.counts()["lost"], apart.started) == (3, 1, 2)
        assert not tokenizer.quarantined
        wrong = right.copy()
        wrong[7] += 1
        verifier.offer(sample_encoding(text, wrong, Route.ENCODE))
        assert verifier.drain(30)
        assert verifier.counts()["diverged"] == 1
        assert tokenizer.quarantined
    finally:
        assert verifier.stop(10)
    assert apart.closed
