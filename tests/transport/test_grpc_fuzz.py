"""Whatever is sent to a method: an answer or a stated error, and a session changes only by calls that were answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odd_calls import CHANGING, KEPT, STATED, ask, check_kept, requests, state_of
from servers import GrpcTier, grpc_tier
from toktier_tier.transport.status import CODE_KEY
from workshop import examples


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcTier]:
    with grpc_tier() as found:
        yield found


@pytest.fixture(scope="module")
def channel(server: GrpcTier) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as found:
        yield found


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(requests(), min_size=1, max_size=6))
def test_any_call_is_answered_or_refused_with_a_code(
    server: GrpcTier, channel: Any, calls: list[tuple[str, bytes]]
) -> None:
    sessions = server.sessions
    sessions.open("default", "kept", KEPT)
    for method, data in calls:
        before = state_of(server)
        _, refused = ask(channel, method, data)
        if refused is not None:
            trailing = dict(refused.trailing_metadata() or ())
            assert refused.code() in STATED, (method, refused.details())
            assert trailing.get(CODE_KEY), (method, refused.details())
        if refused is not None or method not in CHANGING:
            assert state_of(server) == before
    check_kept(server, channel)
