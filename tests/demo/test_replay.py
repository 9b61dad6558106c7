"""The demo's check: it finds a planted difference, and says how much it looked at."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_session import Append, TailEdit, Turn, render
from demo.replay import Replay, TurnRecord, spread, verify
from toktier_tier.core.values import Certificate, Patch, Reason, Route

SESSION: list[Turn] = [Append("ab"), Append("cd"), TailEdit(1, "xyz"), Append("e")]


def code_points(text: str) -> Any:
    return np.array([ord(char) for char in text], dtype=np.uint32)


SERVICE: Any = SimpleNamespace(
    tokenizer=SimpleNamespace(
        reference=SimpleNamespace(encode=code_points),
        fingerprint="f",
        compiled=SimpleNamespace(rule=SimpleNamespace(digest="d", holds=lambda a, b: True)),
    )
)


def replayed(route: Route = Route.ENCODE, certificate: Certificate | None = None) -> Replay:
    ids = [code_points(render(SESSION[: at + 1])) for at in range(len(SESSION))]
    patches = [Patch(0, now, 0, len(now), 1, route, Reason.NONE, certificate) for now in ids]
    return Replay([TurnRecord("append", len(p.ids), 1, 0.0, p) for p in patches], ids)


def silent(done: int, total: int) -> None:
    pass


def test_right_ids_are_all_checked_and_pass() -> None:
    found = verify(SERVICE, SESSION, replayed(), 60.0, silent)
    assert (found.checked, found.certificates, found.failures, found.divergences) == (4, 0, [], 0)


@pytest.mark.parametrize("turn", range(len(SESSION)))
def test_one_wrong_id_in_any_turn_is_found_and_located(turn: int) -> None:
    done = replayed()
    done.ids[turn] = done.ids[turn].copy()
    done.ids[turn][1] += 1
    found = verify(SERVICE, SESSION, done, 60.0, silent)
    assert found.failures == [(turn, "IDs differ from token 1 on")]
    assert found.divergences == 1


def test_a_missing_id_at_the_end_is_found() -> None:
    done = replayed()
    done.ids[2] = done.ids[2][:-1]
    assert verify(SERVICE, SESSION, done, 60.0, silent).failures == [(2, "IDs differ from token 5 on")]


def test_a_repair_whose_certificate_does_not_hold_is_a_divergence() -> None:
    wrong = Certificate("another", "d", 0, 0, 0, 0, 0, b"")
    found = verify(SERVICE, SESSION, replayed(Route.REPAIR, wrong), 60.0, silent)
    assert found.certificates == found.divergences == 4


def test_what_the_time_does_not_allow_stays_unchecked() -> None:
    assert verify(SERVICE, SESSION, replayed(), -1.0, silent).checked == 0


@pytest.mark.parametrize("count", [1, 2, 3, 8, 300])
def test_the_order_of_checks_holds_every_turn_once_the_last_one_first(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))
    assert spread(count)[0] == count - 1


def test_any_beginning_of_the_order_is_spread_over_the_session() -> None:
    first = sorted(spread(300)[:40])
    assert max(b - a for a, b in pairwise(first)) <= 20
