"""Sessions that move: lives that share no revision, and a restore that replaces nothing."""

from __future__ import annotations

import pytest

from toktier_tier.core.errors import (
    RevisionConflict,
    SessionBusy,
    SessionNotFound,
    StateCorrupt,
    StateError,
)
from toktier_tier.pods.held import PodSessions
from toktier_tier.sessions.lives import REVISION_LIMIT, life_of
from toktier_tier.sessions.table import SessionKey
from workshop import family_tier, fresh_tokenizer, sample_text

FAMILY = "gpt2-novelai"


def sessions() -> PodSessions:
    return PodSessions(fresh_tokenizer(family_tier(FAMILY)))


def key(found: PodSessions, session: str = "s", tenant: str = "t") -> SessionKey:
    return SessionKey(tenant, found.tokenizer.fingerprint, session)


def test_every_life_starts_at_a_revision_of_its_own() -> None:
    found = sessions()
    starts = [found.open("t", "s", "text").revision for _ in range(20)]
    assert len({life_of(start) for start in starts}) == 20
    assert all(0 <= start < REVISION_LIMIT for start in starts)
    patch = found.append("t", "s", " more", expected_revision=starts[-1])
    assert patch.revision == starts[-1] + 1
    assert found.full_text("t", "s", "text and other").revision == starts[-1] + 2
    with pytest.raises(RevisionConflict):
        found.append("t", "s", "x", expected_revision=starts[0])


def test_a_full_text_without_a_session_starts_a_life_and_a_rebuild_goes_on_with_it() -> None:
    found = sessions()
    first = found.full_text("t", "s", "one text").revision
    assert found.full_text("t", "s", sample_text(500)).revision == first + 1  # nothing in common
    found.tokenizer.quarantine()
    assert found.append("t", "s", "!").revision == first + 2


def test_what_is_detached_is_served_by_nobody_until_it_is_attached() -> None:
    found = sessions()
    revision = found.open("t", "s", "some text").revision
    detached = found.detach(key(found))
    with pytest.raises(SessionNotFound):
        found.append("t", "s", "x", expected_revision=revision)
    with pytest.raises(SessionNotFound):
        found.detach(key(found))
    assert found.attach(detached)
    found.append("t", "s", " more", expected_revision=revision)
    assert found.ids("t", "s").tolist() == family_tier(FAMILY).ids("some text more")


def test_what_was_opened_meanwhile_stays() -> None:
    found = sessions()
    found.open("t", "s", "old")
    detached = found.detach(key(found))
    found.open("t", "s", "new")
    assert not found.attach(detached)
    assert found.ids("t", "s").tolist() == family_tier(FAMILY).ids("new")


def test_a_session_at_work_isnt_detached() -> None:
    found = sessions()
    found.open("t", "s", "x")
    live = found._find(key(found))
    with live.lock, pytest.raises(SessionBusy):
        found.detach(key(found))
    found.detach(key(found))


def test_a_writer_that_waited_for_a_detached_session_finds_none() -> None:
    found = sessions()
    revision = found.open("t", "s", "x").revision
    waiting = found._find(key(found))
    detached = found.detach(key(found))
    assert waiting.closed
    assert detached.state.revision == revision


def test_nothing_that_a_fast_path_made_is_handed_over_after_a_quarantine() -> None:
    found = sessions()
    found.open("t", "s", "x")
    found.tokenizer.quarantine()
    with pytest.raises(StateError) as caught:
        found.detach(key(found))
    assert caught.value.code == "handoff.quarantined"
    found.open("t", "s", "x")  # by the reference now
    found.detach(key(found))


def test_the_hottest_session_is_the_one_used_last() -> None:
    found = sessions()
    for name in "abc":
        found.open("t", name, "x")
    found.append("t", "a", "y")
    assert [each.session for each in found.hottest()] == ["a", "c", "b"]
    assert found.stands_at(key(found, "nobody")) is None


def test_a_session_is_taken_where_there_is_none_and_once() -> None:
    here, there = sessions(), sessions()
    text = sample_text(20_000)
    revision = here.open("t", "s", text).revision
    state = here.export_detached(here.detach(key(here)))
    assert there.restore("t", "s", state).revision == revision
    gone_on = there.append("t", "s", " on", expected_revision=revision).revision
    assert life_of(gone_on) != life_of(revision)  # should `here` have it still, it may go on there too
    assert there.restore("t", "s", state).revision == gone_on  # it is here, and has gone on
    there.append("t", "s", "", expected_revision=gone_on)
    assert there.ids("t", "s").tolist() == family_tier(FAMILY).ids(text + " on")


def test_another_session_of_that_name_stays() -> None:
    here, there = sessions(), sessions()
    here.open("t", "s", "sent")
    there.open("t", "s", "stays")
    state = here.export("t", "s")
    with pytest.raises(StateError) as caught:
        there.restore("t", "s", state)
    assert caught.value.code == "handoff.session_exists"
    there.restore("u", "s", state)  # another tenant's
    assert there.ids("t", "s").tolist() == family_tier(FAMILY).ids("stays")


def test_an_older_state_is_never_overtaken_by_a_newer_one_of_its_life() -> None:
    here, there = sessions(), sessions()
    here.open("t", "s", "text")
    there.restore("t", "s", here.export("t", "s"))
    here.append("t", "s", " that went on in two places")
    with pytest.raises(StateError) as caught:
        there.restore("t", "s", here.export("t", "s"))
    assert caught.value.code == "handoff.session_exists"


def test_a_state_that_was_changed_on_the_way_is_refused() -> None:
    here, there = sessions(), sessions()
    here.open("t", "s", "text")
    state = here.export("t", "s")
    with pytest.raises(StateCorrupt):
        there.restore("t", "s", state[:-1] + b"?")
    assert len(there) == 0


def test_a_copy_gives_way_to_the_life_that_is_asked_for() -> None:
    here, there = sessions(), sessions()
    revision = here.open("t", "s", "the life that goes on").revision
    old = there.open("t", "s", "an old copy").revision
    state = here.export("t", "s")
    with pytest.raises(RevisionConflict):
        there.append("t", "s", "!", expected_revision=old + 1)  # of the same life: nobody asks for another
    with pytest.raises(StateError):
        there.restore("t", "s", state)
    with pytest.raises(RevisionConflict):
        there.append("t", "s", "!", expected_revision=revision)
    assert there.restore("t", "s", state).revision == revision
    there.append("t", "s", "!", expected_revision=revision)
    assert there.ids("t", "s").tolist() == family_tier(FAMILY).ids("the life that goes on!")


def test_one_that_was_opened_since_doesnt_give_way() -> None:
    here, there = sessions(), sessions()
    revision = here.open("t", "s", "sent").revision
    there.open("t", "s", "an old copy")
    with pytest.raises(RevisionConflict):
        there.append("t", "s", "!", expected_revision=revision)
    there.open("t", "s", "opened by the client meanwhile")
    with pytest.raises(StateError):
        there.restore("t", "s", here.export("t", "s"))


def test_what_is_sealed_with_the_pods_secret_is_believed_and_nothing_else() -> None:
    """Wrong IDs in a sealed segment: only who could have made them anyway can bring them in."""
    here = sessions()
    text = sample_text(30_000)
    here.open("t", "s", text)
    segment = here._find(key(here)).state.segments[0]
    segment.ids.setflags(write=True)
    segment.ids[0] ^= 1
    here.secret = lambda: b"shared"
    state = here.export_detached(here.detach(key(here)))
    for secret, taken in ((b"shared", True), (b"another", False), (None, False)):
        there = sessions()
        if secret is not None:
            there.secret = lambda secret=secret: secret  # type: ignore[misc]
        if taken:
            there.restore("t", "s", state)
            assert there.ids("t", "s").tolist() != family_tier(FAMILY).ids(text)
            there.tokenizer.quarantine()
            assert there.ids("t", "s").tolist() == family_tier(FAMILY).ids(text)
        else:
            with pytest.raises(StateCorrupt) as caught:
                there.restore("t", "s", state)
            assert caught.value.code == "handoff.witness"


def test_sessions_without_text_move_only_between_pods_that_share_a_secret() -> None:
    text = sample_text(30_000)
    here, there = (PodSessions(fresh_tokenizer(family_tier(FAMILY)), keep_text=False) for _ in range(2))
    revision = here.open("t", "s", text).revision
    with pytest.raises(StateCorrupt) as caught:
        there.restore("t", "s", here.export("t", "s"))
    assert caught.value.code == "handoff.unverifiable"
    here.secret = there.secret = lambda: b"shared"
    assert there.restore("t", "s", here.export_detached(here.detach(key(here)))).revision == revision
    there.append("t", "s", " on", expected_revision=revision)
    assert there.ids("t", "s").tolist() == family_tier(FAMILY).ids(text + " on")
