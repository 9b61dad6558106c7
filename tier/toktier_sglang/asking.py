"""From a text to its IDs by way of the tier: the change alone is sent where the tier holds the text before it.

Guarantee: the IDs returned are those that the tier answered for exactly this text, by the snapshot that was agreed on
(every request names its fingerprint). A conversation is kept only if the last call about it succeeded; after any other
its session is left to the tier's eviction and the next text opens one anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toktier_tier.client import IdBuffer, requests
from toktier_tier.core.errors import InvalidRequest, TierError
from toktier_tier.core.values import Ids
from toktier_tier.transport.messages import ids_of, patch_of
from toktier_tier.transport.v1 import toktier_pb2 as pb

from .conversations import Conversation, Conversations, difference
from .link import Link
from .reasons import Own, UseOwn
from .settings import PluginSettings

STATE_LOST = frozenset({"session.not_found", "session.revision_conflict", "session.text_not_kept", "patch.wrong_base"})
"""After these the full text is sent. Everything else is for the own tokenizer."""
CONNECTION_FAILED = frozenset(
    {"grpc.unavailable", "grpc.internal", "grpc.unknown", "grpc.cancelled", "grpc.aborted", "token.unreadable"}
)
"""The tier's own errors have codes of their own: these are gRPC's, of a connection that broke or never was."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How the tier was told of a text: `append`, `edit`, `open`, or `whole` for a text without a session."""

    kind: str
    chars: int


class Asker:
    """For one agreed snapshot. Thread-safe. IDs at or beyond `id_limit` are refused.

    Raises `UseOwn`, and the tier's coded errors.
    """

    def __init__(
        self,
        link: Link,
        settings: PluginSettings,
        conversations: Conversations,
        fingerprint: str,
        id_limit: int,
        on_lost: Callable[[str], None] = lambda code: None,
    ) -> None:
        self._link, self._settings, self._conversations = link, settings, conversations
        self._fingerprint, self._id_limit = fingerprint, id_limit
        self._on_lost = on_lost

    def ids(self, text: str) -> tuple[list[int], Sent]:
        conversation = self._conversations.take(text)
        if conversation is None:
            answer = self._call("Encode", requests.encode(self._fingerprint, "", text, None), len(text), 0.0)
            return self._checked(ids_of(answer.patch.ids), text).tolist(), Sent("whole", len(text))
        begun = time.monotonic()
        if not conversation.new:
            try:
                return self._follow(conversation, text)
            except TierError as error:
                if error.code not in STATE_LOST:
                    raise
                self._on_lost(error.code)
        return self._open(conversation, text, time.monotonic() - begun)

    def _follow(self, conversation: Conversation, text: str) -> tuple[list[int], Sent]:
        change = difference(conversation.text, text)
        model, name, revision = self._fingerprint, conversation.name, conversation.buffer.revision
        if change.start == len(conversation.text):
            kind = "append"
            request: Any = requests.append(model, name, change.replacement, revision)
        else:
            kind = "edit"
            request = requests.edit(model, name, change.start, change.stop, change.replacement, revision)
        answer = self._call(kind.capitalize(), request, len(change.replacement), 0.0)
        return self._taken(conversation, text, answer), Sent(kind, len(change.replacement))

    def _open(self, conversation: Conversation, text: str, spent_s: float) -> tuple[list[int], Sent]:
        conversation.buffer = IdBuffer()
        request = pb.OpenSessionRequest(model=self._fingerprint, session=conversation.name, text=text)
        answer = self._call("OpenSession", request, len(text), spent_s)
        return self._taken(conversation, text, answer), Sent("open", len(text))

    def _call(self, method: str, request: Any, chars: int, spent_s: float) -> Any:
        return self._link.call(method, request, self._settings.deadline_s(chars) - spent_s)

    def _taken(self, conversation: Conversation, text: str, answer: Any) -> list[int]:
        patch = patch_of(answer.patch)
        self._checked(patch.ids, "")
        conversation.buffer.apply(patch)
        conversation.text = text
        ids: list[int] = self._checked(conversation.buffer.ids, text, known=True).tolist()
        self._conversations.put(conversation)
        return ids

    def _checked(self, ids: Ids, text: str, *, known: bool = False) -> Ids:
        """`known`: these IDs were checked before, one by one."""
        if text and not len(ids):
            raise UseOwn(Own.EMPTY)
        if not known and len(ids) and int(ids.max()) >= self._id_limit:
            raise UseOwn(Own.UNKNOWN_IDS)
        return ids


def reason_of(error: TierError) -> Own:
    """What an error of the tier's means for the request that it answered."""
    if error.code in ("grpc.deadline_exceeded", "tier.late"):
        return Own.LATE
    if error.code.startswith("auth."):
        return Own.DENIED
    if error.code in CONNECTION_FAILED:
        return Own.UNREACHABLE
    if error.code == "tier.overloaded":
        return Own.OVERLOADED
    if error.code.startswith("snapshot."):
        return Own.CHANGED
    if error.code in STATE_LOST or (isinstance(error, InvalidRequest) and error.code.startswith(("patch.", "ids."))):
        return Own.NONSENSE
    return Own.REFUSED
