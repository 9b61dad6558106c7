"""Rendezvous hashing: one owner everywhere, even shares, and nothing moves that needn't."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.pods.ring import Peer, Ring
from workshop import examples

TIER = Path(__file__).parents[2] / "tier"
NAMES = st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=12, unique=True)
OWNERS = [f"toktier-{i}" for i in "123223244343"]
ODD_OWNER = "toktier-2"
KEYS = st.lists(st.tuples(st.text(max_size=20), st.text(max_size=60)), min_size=1, max_size=60)


def ring(*names: str) -> Ring:
    return Ring(Peer(name, f"{index}:1") for index, name in enumerate(names))


def name_of(peer: Peer | None) -> str:
    assert peer is not None
    return peer.name


def test_owners_are_these_forever() -> None:
    """A change here moves every session of every tier at its next upgrade."""
    found = ring(*(f"toktier-{i}" for i in range(5)))
    owners = [name_of(found.owner("default", f"session-{i}")) for i in range(12)]
    assert owners == OWNERS
    assert name_of(found.owner("mañana", "\ud800")) == ODD_OWNER


def test_another_process_finds_the_same_owners() -> None:
    program = (
        "from toktier_tier.pods.ring import *; r = Ring(Peer(f'toktier-{i}', 'elsewhere:9') for i in (3, 1, 4, 0, 2));"
        "print(*(r.owner('default', f'session-{i}').name for i in range(12)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(TIER), "PYTHONHASHSEED": "123"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == OWNERS


@settings(max_examples=examples(100))
@given(NAMES, KEYS, st.data())
def test_only_the_sessions_of_a_peer_that_leaves_move(
    names: list[str], keys: list[tuple[str, str]], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(names))
    before = ring(*names)
    after = before.without(gone)
    for tenant, key in keys:
        was, now = name_of(before.owner(tenant, key)), after.owner(tenant, key)
        if was != gone:
            assert name_of(now) == was
        elif len(names) == 1:
            assert now is None
        else:
            assert name_of(now) != gone


@settings(max_examples=examples(100))
@given(NAMES, KEYS, st.randoms(use_true_random=False))
def test_the_order_of_peers_and_what_was_asked_before_change_nothing(names, keys, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(names)
    random.shuffle(shuffled)
    one, other = ring(*names), ring(*shuffled)
    expected = [name_of(one.owner(*key)) for key in keys]
    assert [name_of(other.owner(*key)) for key in reversed(keys)] == expected[::-1]
    assert [name_of(one.owner(*key)) for key in keys] == expected


@pytest.mark.parametrize("pods", [2, 3, 10, 50])
def test_shares_are_even(pods: int) -> None:
    found = ring(*(f"toktier-7d9f{i:02}" for i in range(pods)))
    keys = 4_000
    shares = Counter(name_of(found.owner("default", f"agent/{i}")) for i in range(keys))
    mean = keys / pods
    deviation = (mean * (1 - 1 / pods)) ** 0.5
    assert len(shares) == pods
    assert all(abs(share - mean) < 5 * deviation for share in shares.values())


def test_a_peer_that_joins_takes_its_share_from_everyone() -> None:
    before, after = ring("a", "b", "c"), ring("a", "b", "c", "d")
    taken: Counter[str] = Counter()
    for i in range(4_000):
        was, now = name_of(before.owner("t", str(i))), name_of(after.owner("t", str(i)))
        if was != now:
            assert now == "d"
            taken[was] += 1
    assert set(taken) == {"a", "b", "c"}
    assert all(240 < share < 430 for share in taken.values())  # a twelfth of 4,000 each: 333, deviation 17


def test_tenant_and_session_arent_run_together() -> None:
    found = ring(*(f"p{i}" for i in range(20)))
    differ = sum(found.owner("ab", f"c{i}") != found.owner("a", f"bc{i}") for i in range(100))
    assert differ > 80


def test_one_name_is_one_peer_and_none_is_none() -> None:
    twice = [Peer("a", "1:1"), Peer("a", "2:2")]
    assert len(Ring(twice)) == 1
    assert Ring(twice).peers == Ring(twice[::-1]).peers
    assert Ring([]).owner("t", "s") is None
    assert "a" in ring("a", "b")
    assert "a" not in ring("a", "b").without("a")
    with pytest.raises(ValueError, match="a name and an address"):
        Peer("", "1:1")


def test_a_keys_second_owns_it_without_its_owner() -> None:
    ring = Ring(Peer(f"pod-{i}", f"h:{i}") for i in range(5))
    for number in range(200):
        owner, second = ring.ranked("t", f"s{number}")
        assert owner is not None
        assert owner == ring.owner("t", f"s{number}")
        assert second == ring.without(owner.name).owner("t", f"s{number}")
    assert Ring([Peer("a", "h:1")]).ranked("t", "s") == (Peer("a", "h:1"), None)
    assert Ring([]).ranked("t", "s") == (None, None)
