"""What a request is placed by: its session's name, or the beginning of its content.

Guarantees: all turns of one conversation have the same key, from the size on from which it is placed at all; it is one
pure function of the content, so that every pod finds the same.

Sessions that a pod names itself, by content, carry their key in the name: so they are handed over to the pod that later
turns are asked of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .lookup import CONTENT, CONVERSATION, NAMED, Chain

TEXT_BLOCKS = 4
"""Blocks of a plain text that place it: with fewer, it is encoded in less time than it is sent elsewhere."""
LEAST_CHARS = 16_384
"""The same for any other text."""


def chat_key(messages: Sequence[Mapping[str, Any]], chain: Chain, chars: int) -> str | None:
    """The key of a chat of `chars` characters, whose chain is that of everything before the messages and of each.

    It ends with the first message of a user: agents that share their tools and system prompt are spread over the pods,
    and no later turn changes it. None: serve it here.
    """
    if chars < LEAST_CHARS:
        return None
    first = next((i for i, message in enumerate(messages) if message.get("role") == "user"), 0)
    return CONTENT + chain[first + 1].hex() if first + 1 < len(chain) else None


def text_key(chain: Chain) -> str | None:
    """The key of a plain text by the chain of its blocks. None: serve it here."""
    return CONTENT + chain[TEXT_BLOCKS - 1].hex() if len(chain) >= TEXT_BLOCKS else None


def ring_key(session: str) -> str:
    """What a session is placed by: `content/<digest>/<number>` by all before the number, a further conversation under
    a request's name by that name, any other name by itself."""
    if session.startswith(CONTENT):
        end = session.find("/", len(CONTENT))
        if end > 0:
            return session[:end]
    return session.partition(CONVERSATION)[0] if session.startswith(NAMED) else session


def found_by_content_alone(session: str) -> bool:
    """Whether a session is one that a pod has named without a key: any pod may be asked next, and finds nothing."""
    return session.startswith(CONTENT) and session.removeprefix(CONTENT).isdecimal()
