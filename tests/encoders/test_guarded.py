"""Whatever a candidate does, the answer is right: unsafe text, exceptions, memory and quarantine."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from toktier_tier.core.classes import CODE_POINTS, Bools
from toktier_tier.encoders import guarded
from toktier_tier.encoders.guarded import Guarded, resident_bytes
from toktier_tier.ports import Ids


class Fake:
    """An encoder that answers with its own mark and then the text's code points."""

    def __init__(self, mark: int, error: BaseException | None = None) -> None:
        self.name, self.version, self.mark, self.error = f"fake-{mark}", f"fake-{mark}==1", mark, error
        self.calls = 0

    def encode(self, text: str) -> Ids:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return np.array([self.mark, *map(ord, text)], dtype=np.uint32)


REFERENCE, CANDIDATE, FRESH = 1, 2, 3


def by(guard: Guarded, text: str) -> int:
    """Which encoder answered."""
    ids = guard.encode(text)
    assert ids[1:].tolist() == list(map(ord, text))
    return int(ids[0])


def unsafe(*points: int) -> Bools:
    found = np.zeros(CODE_POINTS, dtype=bool)
    found[list(points)] = True
    return found


def test_without_a_candidate_the_reference_answers_uncounted() -> None:
    guard = Guarded(None, Fake(REFERENCE))
    assert by(guard, "any é") == REFERENCE
    assert (guard.name, guard.version) == ("fake-1", "fake-1==1")
    assert guard.fallbacks == {}


def test_a_candidate_answers_what_it_is_trusted_with() -> None:
    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE))
    assert [by(guard, text) for text in ("", "abc", "é\U0010ffff")] == [CANDIDATE] * 3
    assert (guard.name, guard.fallbacks) == ("fake-2", {})


@pytest.mark.parametrize("point", [0x80, 0xE9, 0x4E2D, 0x1F600, 0x10FFFF])
def test_one_unsafe_code_point_anywhere_sends_the_text_to_the_reference(point: int) -> None:
    candidate = Fake(CANDIDATE)
    guard = Guarded(candidate, Fake(REFERENCE), unsafe(point))
    char = chr(point)
    for count, text in enumerate((char, f"a{char}", f"{char}a", f"a{char}b" * 3), start=1):
        assert by(guard, text) == REFERENCE
        assert guard.fallbacks == {"unsafe_code_point": count}
    assert candidate.calls == 0
    for text in ("a", "ascii only " * 50, "ü" + chr(point - 1)):
        assert by(guard, text) == CANDIDATE


@pytest.mark.parametrize("point", [0xE9, 0x4E2D, 0x1F600])
def test_one_unsafe_code_point_in_a_long_text_sends_it_to_the_reference(point: int) -> None:
    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE), unsafe(point))
    long = "plain text, and ü " * guarded.PICK_CHARS
    assert by(guard, long) == CANDIDATE
    for text in (long + chr(point), chr(point) + long, f"{long}{chr(point)}{long}"):
        assert by(guard, text) == REFERENCE


class RustPanic(BaseException):
    """As pyo3's PanicException: no `Exception`."""


@pytest.mark.parametrize(
    "error", [ValueError("no"), RuntimeError("Already borrowed"), RustPanic("panicked"), MemoryError()]
)
def test_what_a_candidate_raises_is_answered_by_the_reference(error: BaseException) -> None:
    guard = Guarded(Fake(CANDIDATE, error), Fake(REFERENCE))
    assert [by(guard, "abc"), by(guard, "d")] == [REFERENCE] * 2
    assert guard.fallbacks == {"encoder_exception": 2}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_swallowed(error: type[BaseException]) -> None:
    guard = Guarded(Fake(CANDIDATE, error()), Fake(REFERENCE))
    with pytest.raises(error):
        guard.encode("abc")
    assert guard.fallbacks == {}


def test_what_the_reference_raises_reaches_the_caller() -> None:
    guard = Guarded(Fake(CANDIDATE, ValueError()), Fake(REFERENCE, RuntimeError("the reference's own")))
    with pytest.raises(RuntimeError, match="the reference's own"):
        guard.encode("abc")


def test_quarantine_is_for_good_and_counted() -> None:
    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE), rebuild=lambda: Fake(FRESH), resident=lambda: 0)
    assert by(guard, "a") == CANDIDATE
    guard.quarantine()
    assert [by(guard, text) for text in ("a", "é")] == [REFERENCE] * 2
    assert guard.fallbacks == {"quarantined": 1}


def test_a_planted_encoder_serves_from_the_next_call_on() -> None:
    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE), unsafe(0xE9))
    guard.replace(Fake(FRESH))
    assert [by(guard, "a"), by(guard, "é")] == [FRESH, REFERENCE]


# --- memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at after every call instead of every few million characters."""
    monkeypatch.setattr(guarded, "CHECK_EVERY_CHARS", 0)


def joined() -> None:
    """Wait for a rebuild that is under way."""
    for thread in threading.enumerate():
        if thread.name == "toktier-rebuild":
            thread.join()


class Resident:
    """Memory as the test says."""

    def __init__(self) -> None:
        self.bytes_ = 1_000

    def __call__(self) -> int:
        return self.bytes_


def watched(rebuild: Callable[[], Fake], resident: Resident) -> Guarded:
    return Guarded(Fake(CANDIDATE), Fake(REFERENCE), rebuild=rebuild, memory_bytes=100, resident=resident)


@pytest.mark.usefixtures("every_call")
def test_a_candidate_is_rebuilt_and_swapped_in_when_memory_passes_the_budget() -> None:
    resident = Resident()
    guard = watched(lambda: Fake(FRESH), resident)
    resident.bytes_ = 1_100  # exactly the budget: nothing happens
    assert by(guard, "a") == CANDIDATE
    joined()
    assert by(guard, "a") == CANDIDATE
    resident.bytes_ = 1_101
    assert by(guard, "a") == CANDIDATE  # the one that found out is still served by the old one
    joined()
    assert by(guard, "a") == FRESH
    assert guard.fallbacks == {"rebuilt": 1}


@pytest.mark.usefixtures("every_call")
def test_after_a_rebuild_memory_is_counted_from_there() -> None:
    resident = Resident()
    built: list[int] = []
    guard = watched(lambda: Fake(built.append(1) or FRESH), resident)
    resident.bytes_ = 1_200
    for _ in range(5):
        guard.encode("a")
        joined()
    assert len(built) == 1
    resident.bytes_ = 1_301
    guard.encode("a")
    joined()
    assert (len(built), guard.fallbacks["rebuilt"]) == (2, 2)


@pytest.mark.usefixtures("every_call")
def test_one_rebuild_at_a_time_and_the_old_candidate_serves_meanwhile() -> None:
    resident, release, entered, built = Resident(), threading.Event(), threading.Event(), []

    def rebuild() -> Fake:
        built.append(1)
        entered.set()
        release.wait(60)
        return Fake(FRESH)

    guard = watched(rebuild, resident)
    resident.bytes_ = 9_999
    guard.encode("a")
    assert entered.wait(60)
    assert [by(guard, "a") for _ in range(20)] == [CANDIDATE] * 20
    release.set()
    joined()
    assert (by(guard, "a"), len(built)) == (FRESH, 1)


@pytest.mark.usefixtures("every_call")
def test_a_quarantine_during_a_rebuild_wins() -> None:
    resident, release, entered = Resident(), threading.Event(), threading.Event()

    def rebuild() -> Fake:
        entered.set()
        release.wait(60)
        return Fake(FRESH)

    guard = watched(rebuild, resident)
    resident.bytes_ = 9_999
    guard.encode("a")
    assert entered.wait(60)
    guard.quarantine()
    release.set()
    joined()
    assert by(guard, "a") == REFERENCE
    assert guard.fallbacks == {"quarantined": 1}


@pytest.mark.usefixtures("every_call")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rebuild_that_fails_leaves_the_candidate_and_may_be_tried_again() -> None:
    resident, tries = Resident(), []

    def rebuild() -> Fake:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("no memory")
        return Fake(FRESH)

    guard = watched(rebuild, resident)
    resident.bytes_ = 9_999
    guard.encode("a")
    joined()
    assert by(guard, "a") == CANDIDATE
    joined()
    assert (by(guard, "a"), len(tries)) == (FRESH, 2)


def test_memory_is_looked_at_once_in_many_characters_only() -> None:
    looks: list[int] = []

    def resident() -> int:
        looks.append(1)
        return 0

    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE), rebuild=lambda: Fake(FRESH), resident=resident)
    for _ in range(100):
        guard.encode("a" * 50)
    assert len(looks) == 1  # the baseline


def test_resident_memory_is_read_from_the_system() -> None:
    assert resident_bytes() > 1 << 20


def test_many_threads_get_their_own_answers_across_a_rebuild_and_a_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "CHECK_EVERY_CHARS", 100)
    resident = Resident()
    guard = watched(lambda: Fake(FRESH), resident)
    wrong: list[str] = []

    def work(text: str) -> None:
        for _ in range(300):
            if guard.encode(text)[1:].tolist() != list(map(ord, text)):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(f"text {number} é",)) for number in range(4)]
    for thread in threads:
        thread.start()
    resident.bytes_ = 9_999
    guard.quarantine()
    for thread in threads:
        thread.join()
    joined()
    assert wrong == []
    assert by(guard, "a") == REFERENCE


def test_the_search_for_unsafe_points_finds_what_the_array_holds() -> None:
    chooser = np.random.default_rng(5)
    table = np.zeros(0x110000, dtype=bool)
    for start in chooser.integers(0x80, 0x110000, 300):
        table[start : start + int(chooser.integers(1, 40))] = True
    table[0xD7F0:0xE010] = True  # across the surrogates, which no text holds
    guard = Guarded(Fake(CANDIDATE), Fake(REFERENCE), table)
    points = np.concatenate([chooser.integers(0x80, 0x110000, 20_000), np.flatnonzero(np.diff(table)) + 1])
    for point in points.tolist():
        for near in (point - 1, point):
            assert guard._holds_unsafe(f"é{chr(near)}\U0001f600"[: 2 + (near % 2)]) == bool(
                table[near] or table[0xE9] or (near % 2 and table[0x1F600])
            )
