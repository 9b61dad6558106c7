"""Prompts: a request's IDs are those of its own text, whatever other requests do to the session meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from toktier_tier.core.errors import SessionBusy
from toktier_tier.core.values import Patch
from toktier_tier.sessions.registry import Registry, Served
from toktier_tier.sessions.service import SessionService
from toktier_tier.telemetry import silent
from toktier_tier.transport.prompts import Prompts
from toktier_tier.transport.work import Work
from workshop import Tier, build_tier, byte_level, byte_telltale, tokenizer_json

MINE, OTHER = "a b c. " * 40, "c, ba " * 40
NAME = "named/one"


@pytest.fixture(scope="module")
def tier() -> Tier:
    return build_tier(tokenizer_json(byte_telltale("abc ,."), pre_tokenizer=byte_level()))


@pytest.fixture
def work() -> Iterator[Work]:
    found = Work(threads=2)
    yield found
    found.close()


class Intruder(SessionService):
    """After each change, and before each look, another request closes the session and opens it with its own text."""

    def full_text(self, tenant: str, session: str, text: str, **more: Any) -> Patch:
        patch = super().full_text(tenant, session, text, **more)
        self.intrude(tenant, session)
        return patch

    def snapshot(self, tenant: str, session: str, **more: Any) -> Any:
        self.intrude(tenant, session)
        return super().snapshot(tenant, session, **more)

    def intrude(self, tenant: str, session: str) -> None:
        self.close(tenant, session)
        super().full_text(tenant, session, OTHER)


def prompts_of(sessions: SessionService, work: Work) -> tuple[Prompts, Served]:
    served = Served("one", (), sessions.tokenizer, sessions)
    return Prompts(Registry([served]), {}, work, silent()), served


@pytest.mark.parametrize("before", ["", MINE, MINE[:100], OTHER])
def test_a_session_that_is_opened_anew_in_between_gives_no_ids_of_another_text(
    tier: Tier, work: Work, before: str
) -> None:
    sessions = Intruder(tier.tokenizer)
    prompts, served = prompts_of(sessions, work)
    if before:
        SessionService.full_text(sessions, "t", NAME, before)
    patch, ids = asyncio.run(prompts._encoded(served, "text", "t", NAME, MINE, ()))
    assert ids.tolist() == tier.ids(MINE)
    assert len(ids) == patch.total
    assert sessions.ids("t", NAME).tolist() == tier.ids(OTHER)


def test_requests_that_race_for_one_name_get_their_own_ids(tier: Tier, work: Work) -> None:
    sessions = SessionService(tier.tokenizer, budget_bytes=9_000)  # two sessions: they push each other out
    prompts, served = prompts_of(sessions, work)
    expected = {text: tier.ids(text) for text in (MINE, OTHER)}
    wrong: list[str] = []

    def ask(text: str) -> None:
        for number in range(60):
            if number % 3 == 0:
                sessions.full_text("t", f"presses {text[:1]}", text)
            try:
                _, ids = asyncio.run(prompts._encoded(served, "text", "t", NAME, text, ()))
            except SessionBusy:
                continue
            if ids.tolist() != expected[text]:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(text,)) for text in (MINE, OTHER, MINE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sessions.counts()["evicted.bytes"]
