"""The plugin's memory of conversations: it finds the one a text goes on with, and never a wrong one for good."""

from __future__ import annotations

import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toktier_sglang.conversations import (
    BLOCK_CHARS,
    FREE_TO_REPLACE_CHARS,
    Conversation,
    Conversations,
    chain_of,
    difference,
)
from toktier_tier.core.values import Patch, Reason, Route

MANY = 1 << 30
TEXT = "".join(f"line {number} of a conversation\n" for number in range(2_000))


def answered(conversation: Conversation | None, text: str, tokens: int = 4) -> Conversation:
    assert conversation is not None
    ids = np.arange(tokens, dtype=np.uint32)
    conversation.buffer.apply(Patch(0, ids, 0, tokens, conversation.buffer.revision + 1, Route.ENCODE, Reason.OPENED))
    conversation.text = text
    return conversation


def told(kept: Conversations, text: str) -> str:
    """Take the conversation for `text`, let it be answered, put it back: its name."""
    conversation = answered(kept.take(text), text)
    kept.put(conversation)
    return conversation.name


@given(st.text("ab", max_size=40), st.text("abc", max_size=40))
def test_a_change_makes_the_new_text_of_the_old_one_and_is_as_small_as_can_be(old: str, new: str) -> None:
    change = difference(old, new)
    assert old[: change.start] + change.replacement + old[change.stop :] == new
    kept, dropped = old[change.start : change.stop], change.replacement
    assert not (kept and dropped and (kept[0] == dropped[0] or kept[-1] == dropped[-1]))
    if new.startswith(old):
        assert (change.start, change.stop) == (len(old), len(old))


def test_a_longer_text_goes_on_with_its_conversation_turn_after_turn() -> None:
    kept = Conversations(MANY, "p")
    names = {told(kept, TEXT[:chars]) for chars in range(2_000, len(TEXT), 900)}
    assert len(names) == len(kept) == 1


def test_a_rewritten_tail_goes_on_and_another_branch_starts_anew() -> None:
    kept = Conversations(MANY, "p")
    first = told(kept, TEXT[:30_000])
    assert told(kept, TEXT[: 30_000 - FREE_TO_REPLACE_CHARS + 1] + "other words" * 500) == first
    assert told(kept, TEXT[:5_000] + "another agent under one system prompt" * 1_000) != first
    assert len(kept) == 2
    assert told(kept, TEXT[: 30_000 - FREE_TO_REPLACE_CHARS + 1] + "other words" * 510) == first


def test_nobody_finds_a_conversation_that_another_has_taken() -> None:
    kept = Conversations(MANY, "p")
    first = told(kept, TEXT[:5_000])
    taken = kept.take(TEXT[:6_000])
    assert taken is not None
    assert taken.name == first
    second = kept.take(TEXT[:6_000])
    assert second is not None
    assert second.new
    assert second.name != first


def test_the_same_text_taken_twice_is_kept_once() -> None:
    kept = Conversations(MANY, "p")
    one, two = kept.take(TEXT[:6_000]), kept.take(TEXT[:6_000])
    kept.put(answered(one, TEXT[:6_000]))
    kept.put(answered(two, TEXT[:6_000]))
    assert len(kept) == 1


def test_memory_stays_within_its_bound_and_the_oldest_go_first() -> None:
    limit = 400_000
    kept = Conversations(limit, "p")
    texts = [f"{number}: " + TEXT[:8_000] for number in range(40)]
    names = []
    for text in texts:
        names.append(told(kept, text))
        assert kept.bytes_ <= limit
    assert 3 < len(kept) < 40
    assert told(kept, texts[-1]) == names[-1]
    assert told(kept, texts[0]) not in names
    while len(kept):
        conversation = kept.take(texts.pop())
        assert conversation is not None
    assert kept.bytes_ == 0


def test_what_is_too_short_to_be_found_or_too_long_to_be_kept_has_no_conversation() -> None:
    kept = Conversations(100_000, "p")
    assert kept.take(TEXT[: BLOCK_CHARS - 1]) is None
    assert kept.take(TEXT[:BLOCK_CHARS]) is not None
    assert sys.getsizeof(TEXT) > 50_000
    assert kept.take(TEXT) is None


def test_colliding_marks_only_cost_a_conversation() -> None:
    forged = Conversations(MANY, "p")
    stranger = answered(forged.take("x" * 30_000), "x" * 30_000)
    stranger.chain = chain_of("y" * 30_000)
    forged.put(stranger)
    found = forged.take("y" * 30_000)  # the marks say yes, the texts say no
    assert found is not None
    assert found.new
    assert found.name != stranger.name


def test_marks_depend_on_everything_before_them() -> None:
    assert chain_of(TEXT[:9_000])[:5] == chain_of(TEXT[:5_200])
    assert len(set(chain_of("a" * 50 * BLOCK_CHARS))) == 50
    assert chain_of("b" + TEXT[1:9_000])[-1] != chain_of(TEXT[:9_000])[-1]
