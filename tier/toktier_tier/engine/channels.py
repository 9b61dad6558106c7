"""Channels of grpc.aio to servers whose absence is noticed by the caller: engines, and other pods of the tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

Options = Sequence[tuple[str, Any]]


def connect_option(connect_s: float) -> tuple[str, int]:
    """The shortest time between two attempts to connect, which to gRPC is also the longest that one may take."""
    return "grpc.min_reconnect_backoff_ms", int(connect_s * 1_000)


def open_channel(target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> grpc.aio.Channel:
    """Without credentials, in the clear."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


async def connected(channel: grpc.aio.Channel) -> bool:
    """Whether there is a connection; no, as soon as an attempt to make one failed. Raises `UsageError` once closed."""
    while True:
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            return False
        await channel.wait_for_state_change(state)
