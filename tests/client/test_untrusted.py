"""Untrusted spans over the wire: what the definition says comes back, and a session isn't opened again without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from servers import GrpcTier, grpc_tier
from toktier_tier.client import AsyncTierClient, TierClient
from toktier_tier.core.errors import InvalidRequest, SessionNotFound
from toktier_tier.core.trust import Spans, spliced

TOKEN = "<|endoftext|>"


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcTier]:
    with grpc_tier() as found:
        yield found


@pytest.fixture
def client(server: GrpcTier) -> Iterator[TierClient]:
    with TierClient(server.address) as found:
        yield found


def right(server: GrpcTier, text: str, spans: Spans) -> list[int]:
    found: list[int] = server.served[0].tokenizer.trust.encode(text, spans).tolist()
    return found


def test_a_session_keeps_control_tokens_in_untrusted_text_ordinary(server: GrpcTier, client: TierClient) -> None:
    text = f"Tool said: {TOKEN} and{TOKEN}"
    spans: Spans = ((11, 11 + len(TOKEN)),)
    assert client.encode(text, untrusted=spans).tolist() == right(server, text, spans)
    assert client.encode(text, untrusted=spans).tolist() != server.tier.ids(text)
    session = client.open("agent", text, untrusted=spans)
    assert session.ids.tolist() == right(server, text, spans)
    delta = f" more {TOKEN}"
    session.append(delta, untrusted=[(0, len(delta))])
    spans = spliced(spans, len(text), len(text), ((0, len(delta)),), len(delta))
    text += delta
    assert session.ids.tolist() == right(server, text, spans)
    session.edit(0, 4, f"{TOKEN}x", untrusted=[(2, 5)])
    spans = spliced(spans, 0, 4, ((2, 5),), len(TOKEN) + 1)
    text = f"{TOKEN}x{text[4:]}"
    assert session.ids.tolist() == right(server, text, spans)
    session.full_text(text)  # all of it trusted from now on
    assert session.ids.tolist() == server.tier.ids(text)


@pytest.mark.parametrize(
    ("spans", "code"),
    [
        ([(3, 99)], "trust.out_of_range"),
        ([(2, 1)], "trust.unordered"),
        ([(-1, 2)], "trust.bad_span"),
        ([3], "trust.bad_span"),
    ],
)
def test_spans_that_cant_be_are_refused_and_change_nothing(
    client: TierClient, spans: list[tuple[int, int]], code: str
) -> None:
    session = client.open("agent", "some text")
    with pytest.raises(InvalidRequest) as caught:
        session.append("abc", untrusted=spans)
    assert caught.value.code == code
    before = session.revision
    assert session.append("d").revision == before + 1


def test_a_lost_session_isnt_opened_again_as_trusted(server: GrpcTier, client: TierClient) -> None:
    text = f"a {TOKEN}"
    spans: Spans = ((2, len(text)),)
    forgetful = client.open("one", text, untrusted=spans, text_of=lambda: f"{text} b")
    server.sessions.close("default", "one")
    with pytest.raises(SessionNotFound):
        forgetful.append(" b")
    careful = client.open("two", text, untrusted=spans, text_of=lambda: (f"{text} b", spans))
    server.sessions.close("default", "two")
    careful.append(" b")
    assert careful.ids.tolist() == right(server, f"{text} b", spans)


def test_the_async_client_sends_them_too(server: GrpcTier) -> None:
    async def talk() -> None:
        async with AsyncTierClient(server.address) as client:
            session = await client.open("async", TOKEN, untrusted=[(0, 3)])
            await session.append(TOKEN, untrusted=[(0, 1)])
            spans: Spans = ((0, 3), (len(TOKEN), len(TOKEN) + 1))
            assert session.ids.tolist() == right(server, TOKEN + TOKEN, spans)

    asyncio.run(talk())
