"""Sessions that can move between pods.

Guarantees: two lives of a session (from one opening to the next, on whichever pod) share no revision, but by a chance
of 2**-39; a detached session is served by nobody until it is attached here or restored elsewhere; `restore` puts a
state in the place of another only if a client has asked for that very life since: then the one here is an old copy.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..core.errors import RevisionConflict, SessionNotFound, StateError
from ..core.session import SessionState
from ..core.values import Patch
from ..sessions import handoff
from ..sessions.service import SessionInfo, SessionService, _Live
from ..sessions.table import SessionKey

LIFE_BITS, CHANGE_BITS = 39, 24
"""Of a revision: which life it is of, and the count of its changes. 63 bits: it is positive in every language."""
MOST_WANTED = 65_536
"""Sessions of which this pod remembers another life that was asked for."""
EXISTS = "handoff.session_exists"
QUARANTINED = "handoff.quarantined"


def life_of(revision: int) -> int:
    return revision >> CHANGE_BITS


@dataclass(frozen=True, slots=True)
class Detached:
    """A session that was taken out of service here, and is no one else's yet."""

    key: SessionKey
    state: SessionState
    by_reference: bool


class PodSessions(SessionService):
    """`SessionService` for one of several pods. `randomness` starts the revisions of each life."""

    def __init__(self, *arguments: Any, randomness: random.Random | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._random = randomness or random.SystemRandom()
        self._wanted: OrderedDict[SessionKey, int] = OrderedDict()

    def _encode_anew(self, *arguments: Any, **more: Any) -> tuple[SessionState, bool]:
        state, by_reference = super()._encode_anew(*arguments, **more)
        state.revision = self._random.getrandbits(LIFE_BITS) << CHANGE_BITS
        return state, by_reference

    def _change(self, tenant: str, session: str, expected: int | None, *more: Any) -> Patch:
        try:
            return super()._change(tenant, session, expected, *more)
        except RevisionConflict as conflict:
            if expected is not None and life_of(expected) != life_of(conflict.details["actual"]):
                with self._lock:
                    self._wanted[self._key(tenant, session)] = life_of(expected)
                    if len(self._wanted) > MOST_WANTED:
                        self._wanted.popitem(last=False)
            raise

    def open(self, tenant: str, session: str, text: str, **more: Any) -> Patch:
        patch = super().open(tenant, session, text, **more)
        if self._wanted:
            with self._lock:
                self._wanted.pop(self._key(tenant, session), None)
        return patch

    def hottest(self) -> list[SessionKey]:
        """The sessions, the one used last first."""
        with self._lock:
            return list(self._table)[::-1]

    def stands_at(self, key: SessionKey) -> int | None:
        """The session's revision at this moment; None if it isn't here."""
        with self._lock:
            live = self._table.get(key)
            return None if live is None else live.state.revision

    def detach(self, key: SessionKey) -> Detached:
        """Take a session out of service without waiting for anyone.

        Raises `SessionNotFound`, `SessionBusy`, and `StateError` (`handoff.quarantined`) for a state that a fast path
        made before a quarantine: nothing of it may leave.
        """
        live = self._take(key, wait=False)
        try:
            if self.tokenizer.quarantined and not live.by_reference:
                raise StateError(QUARANTINED, "the state was made by a fast path that is quarantined")
            with self._lock:
                if live.closed:
                    raise SessionNotFound("session.not_found", "the session was closed or started over meanwhile")
                self._table.pop(key)
            return Detached(key, live.state, live.by_reference)
        finally:
            live.lock.release()

    def attach(self, detached: Detached) -> bool:
        """Put a session back into service, unless there is one of its name by now; whether that was so."""
        with self._lock:
            if self._table.get(detached.key) is not None:
                return False
            live = _Live(detached.state, detached.by_reference)
            self._table.put(detached.key, live, detached.state.state_bytes())
            return True

    def export_detached(self, detached: Detached) -> bytes:
        return handoff.export_state(detached.state, self.tokenizer.fingerprint)

    def restore(self, tenant: str, session: str, data: bytes) -> SessionInfo:
        """Take over an exported state; if it is here already, at that revision or a later one, that one stays.

        Raises `StateCorrupt`, and `StateError` (`handoff.session_exists`) if there is another one of that name, unless
        the state is of the life that was last asked for in vain.
        """
        key = self._key(tenant, session)
        by_reference = self.tokenizer.text_encoder is None
        state = handoff.import_state(data, self.tokenizer)
        info = self._info(state)
        with self._lock:
            present = self._table.get(key)
            wanted = self._wanted.pop(key, None)
            if present is None or (
                wanted is not None and wanted == life_of(state.revision) != life_of(present.state.revision)
            ):
                self._table.put(key, _Live(state, by_reference), state.state_bytes())
                return info
            revision = present.state.revision
            if life_of(revision) != life_of(state.revision) or revision < state.revision:
                raise StateError(EXISTS, "there is another session of that name", here=revision, sent=state.revision)
            return self._info(present.state)
