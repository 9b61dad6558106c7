"""A session that the tier has lost is opened again with the text that its client has."""

from __future__ import annotations

import asyncio

import pytest

from servers import FAMILY, grpc_tier
from toktier_tier.client import AsyncTierClient, TierClient
from toktier_tier.core.errors import RevisionConflict, SessionNotFound
from workshop import family_tier

TEXT = "def hello():\n    return 1\n"


def test_changes_of_a_lost_session_open_it_again() -> None:
    text = TEXT
    with grpc_tier() as tier, TierClient(tier.address) as client:
        session = client.open("s", text, text_of=lambda: text)
        for turn, kind in enumerate(("append", "edit", "full_text")):
            tier.sessions.close("default", "s")
            text += f"# {turn}\n"
            if kind == "append":
                session.append(f"# {turn}\n")
            elif kind == "edit":
                session.edit(len(text) - 4, len(text) - 4, f"# {turn}\n")
            else:
                session.full_text(text)
            assert session.ids.tolist() == family_tier(FAMILY).ids(text)
            text += "\n"
            session.append("\n")
            assert session.ids.tolist() == family_tier(FAMILY).ids(text)
        assert session.reopened == {"session.not_found": 3}


def test_a_session_that_is_another_by_now_is_opened_again() -> None:
    text = TEXT
    with grpc_tier() as tier, TierClient(tier.address) as client:
        session = client.open("s", text, text_of=lambda: text)
        session.append("")
        for _ in range(3):
            tier.sessions.append("default", "s", "somebody else's")
        text += "x"
        session.append("x")
        assert session.reopened == {"session.revision_conflict": 1}
        assert session.ids.tolist() == family_tier(FAMILY).ids(text)


def test_without_its_text_the_caller_is_told() -> None:
    with grpc_tier() as tier, TierClient(tier.address) as client:
        session = client.open("s", TEXT)
        tier.sessions.append("default", "s", "x")
        with pytest.raises(RevisionConflict):
            session.append("y")
        tier.sessions.close("default", "s")
        with pytest.raises(SessionNotFound):
            session.full_text(TEXT)
        assert not session.reopened


def test_the_asyncio_client_does_the_same() -> None:
    text = TEXT

    async def talk(address: str) -> None:
        nonlocal text
        async with AsyncTierClient(address) as client:
            session = await client.open("s", text, text_of=lambda: text)
            await client._channel.unary_unary("/toktier.v1.TokenizerService/CloseSession")(b"\x12\x01s")
            text += "more"
            await session.append("more")
            assert session.reopened == {"session.not_found": 1}
            assert session.ids.tolist() == family_tier(FAMILY).ids(text)

    with grpc_tier() as tier:
        asyncio.run(talk(tier.address))
