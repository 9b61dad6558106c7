"""Sessions that can move between pods.

Guarantees: a detached session is served by nobody until it is attached here or restored elsewhere; `restore` puts a
state in the place of another only if a client has asked for that very life since: then the one here is an old copy. A
state that has come from elsewhere stands at the revision that it had there, and begins a life with its first change:
should the pod that sent it still have it, the two are never taken for one another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import RevisionConflict, SessionNotFound, StateError
from ..core.session import SessionState
from ..core.values import Patch
from ..sessions import handoff
from ..sessions.lives import life_of
from ..sessions.service import SessionInfo, SessionService, _Live
from ..sessions.table import SessionKey

MOST_WANTED = 65_536
"""Sessions of which this pod remembers another life that was asked for."""
EXISTS = "handoff.session_exists"
QUARANTINED = "handoff.quarantined"


@dataclass(frozen=True, slots=True)
class Detached:
    """A session that was taken out of service here, and is no one else's yet."""

    key: SessionKey
    state: SessionState
    by_reference: bool
    copied_at: int | None


class PodSessions(SessionService):
    """`SessionService` for one of several pods.

    secret  gives what the pods share and nobody else has, once there is such: what was sealed with it is believed
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.secret: Callable[[], bytes] | None = None
        self._wanted: OrderedDict[SessionKey, int] = OrderedDict()

    def _change(self, tenant: str, session: str, expected: int | None, *more: Any, **options: Any) -> Patch:
        try:
            return super()._change(tenant, session, expected, *more, **options)
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
            return Detached(key, live.state, live.by_reference, live.copied_at)
        finally:
            live.lock.release()

    def attach(self, detached: Detached) -> bool:
        """Put a session back into service, unless there is one of its name by now; whether that was so."""
        with self._lock:
            if self._table.get(detached.key) is not None:
                return False
            live = _Live(detached.state, detached.by_reference, detached.copied_at)
            self._table.put(detached.key, live, detached.state.state_bytes())
            return True

    def export_detached(self, detached: Detached) -> bytes:
        state = handoff.export_state(detached.state, self.tokenizer.fingerprint)
        return state if self.secret is None else handoff.sealed(state, self.secret())

    def _imported(self, data: bytes) -> SessionState:
        state, believed = handoff.unsealed(data, self.secret() if self.secret is not None else None)
        return handoff.import_state(state, self.tokenizer, believed=believed)

    def restore(self, tenant: str, session: str, data: bytes) -> SessionInfo:
        """Take over an exported state; if it is here already, at that revision or a later one, that one stays.

        Raises `StateCorrupt`, and `StateError` (`handoff.session_exists`) if there is another one of that name, unless
        the state is of the life that was last asked for in vain.
        """
        key = self._key(tenant, session)
        by_reference = self.tokenizer.staged is None
        state = self._imported(data)
        info = self._info(state)
        with self._lock:
            present = self._table.get(key)
            wanted = self._wanted.pop(key, None)
            if present is None or (
                wanted is not None and wanted == life_of(state.revision) != life_of(present.state.revision)
            ):
                self._table.put(key, _Live(state, by_reference, state.revision), state.state_bytes())
                return info
            if not _went_on(present, state.revision):
                here = present.state.revision
                raise StateError(EXISTS, "there is another session of that name", here=here, sent=state.revision)
            return self._info(present.state)


def _went_on(live: _Live, revision: int) -> bool:
    """Whether a session is the state of that `revision`, or what became of it here."""
    at = live.state.revision if live.copied_at is None else live.copied_at
    return life_of(at) == life_of(revision) and at >= revision
