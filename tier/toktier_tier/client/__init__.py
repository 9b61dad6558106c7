"""Clients of the tier: they keep a session's IDs and apply the patches that come back.

from toktier_tier.client import TierClient
with TierClient("localhost:50051") as tier:
    session = tier.open("agent-1", "some text")
    session.append(" and more")
    session.ids  # numpy uint32

Where pods may be lost: session = tier.open("agent-1", text, text_of=lambda: text_as_it_is_now).

With credentials: TierClient("tier:50051", token=TOKEN, tls=Tls(ca="ca.pem")).
"""

from .aio import AsyncSession, AsyncTierClient
from .buffer import IdBuffer
from .requests import Tls
from .sync import Session, TierClient

__all__ = ["AsyncSession", "AsyncTierClient", "IdBuffer", "Session", "TierClient", "Tls"]
