"""Sessions that content finds keep what finds them when they move between pods."""

from __future__ import annotations

import pytest

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.sessions.affinity import found_by_content_alone, ring_key
from toktier_tier.sessions.lookup import MAX_MARKS, Claim, ContentIndex, chain_of, packed, unpacked

KEY = "content/" + "0" * 32
OWNER = ("tenant", "f" * 64)


def chain(*parts: str) -> tuple[bytes, ...]:
    return chain_of(part.encode() for part in parts)


def test_names_with_a_key_are_placed_by_it_and_no_two_pods_give_the_same() -> None:
    here, there = ContentIndex(), ContentIndex()
    first = here.claim(*OWNER, chain("a"), KEY).session
    second = there.claim(*OWNER, chain("a"), KEY).session
    assert first != second
    assert ring_key(first) == ring_key(second) == KEY
    assert not found_by_content_alone(first)
    assert found_by_content_alone(here.claim(*OWNER, chain("b")).session)
    assert not found_by_content_alone("named/x")


def test_a_session_that_was_adopted_goes_on() -> None:
    here, there = ContentIndex(), ContentIndex()
    session = here.claim(*OWNER, chain("a", "b"), KEY).session
    known = here.chain(*OWNER, session)
    assert known == chain("a", "b")
    there.adopt(*OWNER, session, unpacked(packed(known)))
    assert there.find(*OWNER, chain("a", "b", "c")) == session
    assert there.claim(*OWNER, chain("a", "b", "c"), KEY) == Claim(session, None, 2)
    there.adopt(*OWNER, session, chain("a"))  # again, with less
    assert there.find(*OWNER, chain("a", "b", "c")) == session
    assert len(there) == 1


def test_other_owners_find_nothing_and_take_nothing_over() -> None:
    index = ContentIndex()
    session = index.claim(*OWNER, chain("a"), KEY).session
    other = ("another", OWNER[1])
    assert index.chain(*other, session) == ()
    assert index.find(*other, chain("a")) is None
    index.adopt(*other, session, chain("a"))
    assert index.find(*other, chain("a")) is None
    assert index.find(*OWNER, chain("a")) == session


@pytest.mark.parametrize("data", [b"x", bytes(16 * (MAX_MARKS + 1))])
def test_a_chain_that_cant_be_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        unpacked(data)
    assert caught.value.code == "chain.malformed"
