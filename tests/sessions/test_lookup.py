"""Content finds the session that a transcript goes on with, and never another owner's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toktier_tier.sessions.lookup import (
    BLOCK_CHARS,
    MAX_MARKS,
    Chain,
    Claim,
    ContentIndex,
    blocks,
    chain_of,
)

FINGERPRINT = "f" * 64


def transcript(messages: list[str]) -> Chain:
    return chain_of(message.encode() for message in messages)


def claim(index: ContentIndex, messages: list[str], tenant: str = "a", fingerprint: str = FINGERPRINT) -> Claim:
    return index.claim(tenant, fingerprint, transcript(messages))


def test_a_longer_transcript_goes_on_with_the_session_it_extends() -> None:
    index = ContentIndex()
    first = claim(index, ["system", "hello"]).session
    assert claim(index, ["system", "hello", "answer", "more"]) == Claim(first, None, 2)
    assert claim(index, ["system", "hello", "answer", "more"]) == Claim(first, None, 4)


def test_another_conversation_under_one_system_prompt_leaves_the_first_its_session() -> None:
    index = ContentIndex()
    first = claim(index, ["system", "hello"]).session
    other = claim(index, ["system", "good day"])
    assert (other.session != first, other.parent, other.shared) == (True, first, 1)
    assert claim(index, ["system", "hello", "x"]) == Claim(first, None, 2)
    assert claim(index, ["system", "good day", "y"]) == Claim(other.session, None, 2)


def test_a_rewritten_turn_starts_as_a_copy() -> None:
    index = ContentIndex()
    long = [f"message {number}" for number in range(20)]
    first = claim(index, long).session
    rewritten = claim(index, [*long[:12], "without reasoning", "and on"])
    assert (rewritten.parent, rewritten.shared) == (first, 12)
    assert claim(index, [*long[:12], "without reasoning", "and on", "still"]).session == rewritten.session


def test_neither_tenants_nor_tokenizers_share_sessions() -> None:
    index = ContentIndex()
    found = [claim(index, ["same"], tenant, print_) for tenant in "ab" for print_ in ("f" * 64, "0" * 64)]
    assert len({each.session for each in found}) == 4
    assert {each.parent for each in found} == {None}
    assert claim(index, ["same", "more"], "b", "f" * 64).session == found[2].session


def test_the_longest_shared_prefix_wins() -> None:
    index = ContentIndex()
    claim(index, ["a", "b"])
    longer = claim(index, ["a", "c", "d"]).session
    assert claim(index, ["a", "c", "e"]).parent == longer


def test_the_index_is_bounded_and_forgets_the_oldest() -> None:
    index = ContentIndex(3)
    names = [claim(index, [str(number)]).session for number in range(5)]
    assert len(index) == 3
    assert claim(index, ["4", "x"]).session == names[4]
    assert claim(index, ["0", "x"]).session not in names
    assert len(index._by_digest) <= 6


def test_a_transcript_has_a_bounded_number_of_marks() -> None:
    index = ContentIndex()
    name = claim(index, ["m"] * (MAX_MARKS + 50)).session
    assert len(index._by_digest) == MAX_MARKS
    assert claim(index, ["m"] * (MAX_MARKS + 51)).session == name


def test_digests_are_of_the_parts_up_to_each_mark() -> None:
    assert chain_of([b"ab", b"c"])[0] == chain_of([b"ab"])[0]
    assert chain_of([b"ab", b"c"])[1] != chain_of([b"a", b"bc"])[1]
    assert chain_of([]) == ()


def test_a_longer_text_has_the_blocks_of_a_shorter_one() -> None:
    text = "é" * (2 * BLOCK_CHARS + 1)
    assert len(chain_of(blocks(text))) == 2
    assert chain_of(blocks(text + "more")) == chain_of(blocks(text))
    assert chain_of(blocks(text + "x" * BLOCK_CHARS))[:2] == chain_of(blocks(text))
    assert chain_of(blocks("short")) == ()


@given(st.lists(st.lists(st.sampled_from(["a", "b", "cc"]), min_size=1, max_size=8), min_size=1, max_size=30))
def test_a_claimed_transcript_is_found_again_at_once(transcripts: list[list[str]]) -> None:
    index = ContentIndex()
    for messages in transcripts:
        found = claim(index, messages)
        assert claim(index, messages) == Claim(found.session, None, len(messages))
    assert set(index._by_digest.values()) <= set(index._transcripts)
