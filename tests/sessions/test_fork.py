"""A copy of a session is the same session to whoever goes on with it, and neither sees the other's changes."""

from __future__ import annotations

import random

from toktier_tier.sessions.service import SessionService
from workshop import examples, family_tier, fresh_tokenizer, random_text, sample_text, small_rope, text_parts

TENANT, OTHER = "tenant-a", "tenant-b"


def test_twins_go_their_own_ways_with_the_references_ids() -> None:
    tier = family_tier("gpt2-novelai")
    chooser = random.Random(9)
    parts = text_parts(tier)
    with small_rope():
        sessions = SessionService(fresh_tokenizer(tier))
        texts = {"s0": sample_text(3_000)}
        sessions.open(TENANT, "s0", texts["s0"])
        for round_ in range(examples(120)):
            name = chooser.choice(list(texts))
            if round_ % 10 == 9:
                twin = f"s{len(texts)}"
                assert sessions.fork(TENANT, name, twin)
                texts[twin] = texts[name]
                continue
            piece = random_text(chooser, parts, 0, 6)
            start = chooser.randint(0, len(texts[name]))
            stop = min(start + chooser.choice([0, 2, 200]), len(texts[name]))
            if chooser.random() < 0.5:
                start = stop = len(texts[name])
            texts[name] = texts[name][:start] + piece + texts[name][stop:]
            sessions.edit(TENANT, name, start, stop, piece)
            for each, text in texts.items():
                assert sessions.ids(TENANT, each).tolist() == tier.ids(text)


def test_only_what_is_there_can_be_copied_and_only_by_its_owner() -> None:
    sessions = SessionService(fresh_tokenizer(family_tier("gpt2-novelai")))
    sessions.open(TENANT, "a", "text")
    assert not sessions.fork(TENANT, "none", "b")
    assert not sessions.fork(OTHER, "a", "b")
    assert sessions.fork(TENANT, "a", "b")
    assert sessions.snapshot(TENANT, "b")[0] == sessions.snapshot(TENANT, "a")[0]


def test_a_copy_of_a_state_that_a_fast_path_made_is_mistrusted_after_a_quarantine() -> None:
    tier = family_tier("gpt2-novelai")
    tokenizer = fresh_tokenizer(tier)
    sessions = SessionService(tokenizer)
    first = sessions.open(TENANT, "a", "some text").revision
    sessions.fork(TENANT, "a", "b")
    tokenizer.quarantine()
    assert sessions.snapshot(TENANT, "b")[0].revision not in (first, first + 1)
    assert sessions.ids(TENANT, "b").tolist() == tier.ids("some text")
