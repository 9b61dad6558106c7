"""Exact, stateful tokenization: open a tokenizer once, then repair its sessions instead of encoding them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import open_tokenizer
    from .sessions.service import SessionService

__all__ = ["SessionService", "open_tokenizer"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `toktier_tier.core` stays importable without any tokenizer library."""
    if name == "open_tokenizer":
        from .app import open_tokenizer

        return open_tokenizer
    if name == "SessionService":
        from .sessions.service import SessionService

        return SessionService
    raise AttributeError(name)
