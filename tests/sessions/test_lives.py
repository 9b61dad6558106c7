"""Revisions identify states: none is ever that of two, and what a change returns is what it led to."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toktier_tier.core.errors import RevisionConflict
from toktier_tier.core.values import Patch, Route
from toktier_tier.sessions.lives import CHANGE_BITS, LIFE_BITS, REVISION_LIMIT, Lives, changes_of, life_of
from toktier_tier.sessions.service import SessionService
from workshop import Tier, build_tier, byte_level, byte_telltale, tokenizer_json

KEY = ("t", "s")
LAST = (1 << CHANGE_BITS) - 1


@pytest.fixture(scope="module")
def tier() -> Tier:
    return build_tier(tokenizer_json(byte_telltale("abc .\n"), pre_tokenizer=byte_level()))


def test_no_life_comes_twice_and_all_stay_exact_in_json() -> None:
    lives = Lives(random.Random(1))
    first = [lives.begin() for _ in range(20_000)]
    assert len({life_of(revision) for revision in first}) == len(first)
    assert all(changes_of(revision) == 0 and 0 <= revision < REVISION_LIMIT for revision in first)
    assert REVISION_LIMIT == 2**53
    assert Lives().begin() != Lives().begin()
    lives._numbers = itertools.count(1 << LIFE_BITS)  # counted through: from the beginning again, and no sooner
    assert [lives.begin() for _ in range(3)] == first[:3]
    last = Lives(random.Random(1))
    last._numbers = itertools.count((1 << LIFE_BITS) - 1)
    assert last.begin() not in first


def test_a_life_doesnt_tell_how_many_others_began_before_it() -> None:
    """What follows a life is another number for each process, and nowhere the next one."""
    for seed in range(50):
        one, other = Lives(random.Random(seed)), Lives(random.Random(seed))
        assert abs(life_of(one.begin()) - life_of(one.begin())) > 64
        other.begin()
        steps = {life_of(other.begin()) - life_of(other.begin()) for _ in range(20)}
        assert len(steps) == 20


def closed(sessions: SessionService) -> None:
    sessions.close(*KEY)
    sessions.open(*KEY, "another text")


def opened_over(sessions: SessionService) -> None:
    sessions.open(*KEY, "another text")


def evicted(sessions: SessionService) -> None:
    for number in range(40):
        sessions.open("t", f"other {number}", "a b c\n" * 50)
    assert sessions.counts()["evicted.bytes"]
    sessions.full_text(*KEY, "another text")


def put_back(sessions: SessionService) -> None:
    """To a state exported earlier, which then goes on differently."""
    assert sessions.info(*KEY).chars == len("a text that goes on")
    sessions.restore(*KEY, sessions.export("t", "kept"))
    sessions.append(*KEY, " elsewhere")


@pytest.mark.parametrize("meanwhile", [closed, opened_over, evicted, put_back])
@pytest.mark.parametrize("changes", [0, 1])
def test_what_a_session_was_is_never_taken_for_what_it_is(
    tier: Tier, meanwhile: Callable[[SessionService], None], changes: int
) -> None:
    sessions = SessionService(tier.tokenizer, budget_bytes=60_000)
    revision = sessions.open(*KEY, "a text").revision
    sessions.restore("t", "kept", sessions.export(*KEY))
    revisions = [revision, sessions.append(*KEY, " that goes on").revision]
    meanwhile(sessions)
    for call, arguments in (("append", ("x",)), ("edit", (0, 1, "x")), ("full_text", ("x",))):
        with pytest.raises(RevisionConflict):
            getattr(sessions, call)(*KEY, *arguments, expected_revision=revisions[changes])


def test_a_copy_is_the_same_state_until_either_changes(tier: Tier) -> None:
    sessions = SessionService(tier.tokenizer)
    revision = sessions.open(*KEY, "a b").revision
    assert sessions.fork(*KEY, "forked")
    assert sessions.restore("t", "restored", sessions.export(*KEY)).revision == revision
    for name in ("forked", "restored"):
        assert sessions.append("t", name, "", expected_revision=revision).revision == revision
    found = [
        sessions.append("t", name, f" {name[0]}", expected_revision=revision).revision
        for name in ("s", "forked", "restored")
    ]
    assert found[0] == revision + 1
    assert len({life_of(each) for each in found}) == 3
    again = [sessions.append("t", name, ".").revision for name in ("s", "forked", "restored")]
    assert again == [each + 1 for each in found]
    assert sessions.fork("t", "forked", "of a copy")
    assert life_of(sessions.append("t", "of a copy", ".").revision) not in {life_of(each) for each in again}


def test_a_life_without_numbers_left_is_followed_by_another(tier: Tier) -> None:
    sessions = SessionService(tier.tokenizer)
    first = sessions.open(*KEY, "a b").revision
    live = sessions._find(sessions._key(*KEY))
    live.state.revision = first + LAST
    patch = sessions.append(*KEY, " c", expected_revision=first + LAST)
    assert changes_of(patch.revision) == 0
    assert life_of(patch.revision) != life_of(first)
    assert sessions.info(*KEY).revision == patch.revision != sessions.open("t", "next", "").revision


CHANGES: dict[str, tuple[Callable[..., Patch], str]] = {
    "append": (lambda sessions, **more: sessions.append(*KEY, " c", **more), "a b. c"),
    "append nothing": (lambda sessions, **more: sessions.append(*KEY, "", **more), "a b."),
    "edit": (lambda sessions, **more: sessions.edit(*KEY, 0, 1, "c", **more), "c b."),
    "full text": (lambda sessions, **more: sessions.full_text(*KEY, "a c.", **more), "a c."),
    "the same text": (lambda sessions, **more: sessions.full_text(*KEY, "a b.", **more), "a b."),
    "unrelated": (lambda sessions, **more: sessions.full_text(*KEY, "c" * 99, **more), "c" * 99),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("quarantined", [False, True])
def test_all_ids_of_a_change_are_those_of_its_moment(tier: Tier, change: str, quarantined: bool) -> None:
    tokenizer = build_tier(tokenizer_json(byte_telltale("abc .\n"), pre_tokenizer=byte_level())).tokenizer
    act, text = CHANGES[change]
    sessions = SessionService(tokenizer)
    sessions.open(*KEY, "a b.")
    if quarantined:
        tokenizer.quarantine()
    patch = act(sessions, whole=True)
    sessions.open(*KEY, "something else")
    assert patch.whole is not None
    assert patch.whole.tolist() == tier.ids(text)
    sessions.open(*KEY, "a b.")
    assert act(sessions).whole is None  # it costs something
    sessions.close(*KEY)
    opened = sessions.full_text(*KEY, "a b.", whole=True)
    assert opened.whole is not None
    assert opened.whole.tolist() == tier.ids("a b.")


def test_a_session_is_read_at_one_moment(tier: Tier) -> None:
    """IDs, revision and exported state of one writer's turns, never of two."""
    sessions = SessionService(tier.tokenizer)
    texts = {sessions.open(*KEY, "").revision: ""}
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            text = "abc" * (number % 7) + "."
            texts[sessions.open(*KEY, text).revision] = text
        done.set()

    seen: list[tuple[Any, ...]] = []
    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen.append(sessions.read(*KEY, ids=True, exported=True))
    writer.join()
    assert seen
    other = SessionService(tier.tokenizer)
    for info, ids, data in seen[:50]:
        assert ids.tolist() == tier.ids(texts[info.revision])
        assert other.restore("t", "o", data).revision == info.revision
        assert other.ids("t", "o").tolist() == ids.tolist()
    info, ids, data = sessions.read(*KEY)
    assert (info, ids, data) == (sessions.info(*KEY), None, None)


def test_an_unchanged_state_keeps_its_revision(tier: Tier) -> None:
    sessions = SessionService(tier.tokenizer)
    revision = sessions.open(*KEY, "a").revision
    patch = sessions.append(*KEY, "", expected_revision=revision)
    assert (patch.route, patch.revision) == (Route.UNCHANGED, revision)
