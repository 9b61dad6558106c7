"""Memory of sessions: what the tier accounts for, and what the process really grows by.

The measured figure is the growth of resident memory over many sessions of one text, after the allocator was asked
to give back what is free, and with the encoders already warm; so it holds what accounting may forget.
"""

from __future__ import annotations

import ctypes
import gc

from toktier_tier.encoders.guarded import resident_bytes
from toktier_tier.sessions.service import SessionService

from .engines import Engines
from .plan import Plan
from .results import StateRow, Unequal
from .texts import Chat, Texts

TENANT = "bench"


def state_rows(plan: Plan, engines: Engines, texts: Texts) -> list[StateRow]:
    """Plain and chat text, each with the text kept and with digests only."""
    kinds = {
        "agent": texts.context(plan.state_chars),
        "chat": Chat(plan.state_chars, engines.literals()).text,
    }
    return [
        _row(engines, kind, text, keep_text, plan.state_sessions)
        for kind, text in kinds.items()
        for keep_text in (True, False)
    ]


def _row(engines: Engines, kind: str, text: str, keep_text: bool, sessions: int) -> StateRow:
    warm = SessionService(engines.tier, keep_text=keep_text)
    warm.open(TENANT, "warm", text)
    if warm.ids(TENANT, "warm").tobytes() != engines.reference_ids(text).tobytes():
        raise Unequal(f"tier gave other IDs than the reference: a session of {kind} text")
    info = warm.info(TENANT, "warm")
    warm.close(TENANT, "warm")
    service = SessionService(engines.tier, keep_text=keep_text, budget_bytes=1 << 40)
    before = _settled_resident_bytes()
    for index in range(sessions):
        service.open(TENANT, f"session-{index}", text)
    grown = _settled_resident_bytes() - before
    if len(service) != sessions:
        raise RuntimeError("a session was evicted while memory was measured")
    accounted = info.state_bytes / info.tokens
    return StateRow(
        kind, keep_text, len(text), info.tokens, accounted, grown / (sessions * info.tokens), sessions, True
    )


def _settled_resident_bytes() -> int:
    """Resident memory after a garbage collection and after the allocator's free pages went back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return resident_bytes()
