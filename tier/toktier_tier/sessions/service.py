"""The tier's sessions: open, append, edit, full text, close, hand over — each answered by a patch.

Guarantees: every patch leads to the reference's IDs; a call that raises has changed nothing; two writers of one
session are serialized, and one whose `expected_revision` is stale gets `RevisionConflict`. A repair whose witness
fails is answered by the reference, quarantines the tokenizer and is counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core.errors import InvalidRequest, RevisionConflict, SessionNotFound, StateError
from ..core.full_text import compare
from ..core.repair import WitnessMismatch
from ..core.session import SessionState
from ..core.values import Ids, Patch, Reason, Route, check_text
from ..ports import Clock
from ..tokenizer import TierTokenizer
from . import handoff
from .table import SessionKey, SessionTable

DEFAULT_BUDGET_BYTES = 1 << 30
DEFAULT_TTL_S = 3_600.0
MAX_TEXT_CHARS = 64 << 20
MAX_NAME_CHARS = 512


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What can be told of a session without its text."""

    revision: int
    chars: int
    tokens: int
    state_bytes: int


class _Live:
    """A state and the lock that its writers take. `closed` tells a writer that waited that it came too late."""

    __slots__ = ("closed", "lock", "state")

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.lock = threading.Lock()
        self.closed = False


class SessionService:
    """Sessions of one tokenizer. Thread-safe.

    keep_text   store the text (UTF-8), so that edits anywhere and any full text can be repaired; off: only digests
                of all but the last few thousand characters
    counts      requests by `route.<route>`, steps down by `reason.<code>`, evictions by `evicted.<reason>`
    on_quarantine   told once, when a witness failed, from the thread that found it
    """

    def __init__(
        self,
        tokenizer: TierTokenizer,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        ttl_s: float = DEFAULT_TTL_S,
        keep_text: bool = True,
        clock: Clock = time.monotonic,
        max_text_chars: int = MAX_TEXT_CHARS,
        on_quarantine: Callable[[str], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.keep_text = keep_text
        self.max_text_chars = max_text_chars
        self._table: SessionTable[_Live] = SessionTable(
            budget_bytes=budget_bytes, ttl_s=ttl_s, clock=clock, on_removal=_close
        )
        self._lock = threading.Lock()
        self._counts: Counter[Route | Reason] = Counter()
        self._on_quarantine = on_quarantine

    # --- calls -------------------------------------------------------------------------------------------------

    def open(self, tenant: str, session: str, text: str) -> Patch:
        """Start (or start over) a session with `text`; the patch holds all its IDs."""
        key = self._key(tenant, session)
        self._check_length(len(text) if isinstance(text, str) else 0)
        live = _Live(self._encode_anew(text))
        patch = self._whole(live.state, 0, Reason.OPENED)
        with self._lock:
            self._table.put(key, live, live.state.state_bytes())
            self._count(patch)
        return patch

    def append(self, tenant: str, session: str, delta: str, *, expected_revision: int | None = None) -> Patch:
        """Add `delta` at the end."""
        check_text(delta)

        def change(state: SessionState) -> Patch:
            self._check_length(state.chars + len(delta))
            repairer = self.tokenizer.repairer
            if repairer is None:
                return self._rebuild(state, state.text() + delta)
            try:
                return repairer.append(state, delta)
            except WitnessMismatch:
                return self._mistrust(state, lambda: state.text() + delta)

        return self._change(tenant, session, expected_revision, change)

    def edit(
        self,
        tenant: str,
        session: str,
        start: int,
        stop: int,
        replacement: str,
        *,
        expected_revision: int | None = None,
    ) -> Patch:
        """Put `replacement` in place of characters start..stop (a truncation: stop at the end, replacement empty)."""
        check_text(replacement)

        def change(state: SessionState) -> Patch:
            if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop <= state.chars):
                raise InvalidRequest("edit.out_of_range", "an edit lies within the text", text_chars=state.chars)
            self._check_length(state.chars - (stop - start) + len(replacement))
            repairer = self.tokenizer.repairer
            if repairer is None:
                return self._rebuild(state, _edited(state.text(), start, stop, replacement))
            try:
                return repairer.replace(state, start, stop, replacement)
            except WitnessMismatch:
                return self._mistrust(state, lambda: _edited(state.text(), start, stop, replacement))

        return self._change(tenant, session, expected_revision, change)

    def full_text(self, tenant: str, session: str, text: str, *, expected_revision: int | None = None) -> Patch:
        """Make the session's text `text`, using what the stored state has in common with it; opens it if need be."""
        check_text(text)
        self._check_length(len(text))

        def change(state: SessionState) -> Patch:
            repairer = self.tokenizer.repairer
            if repairer is None:
                return self._rebuild(state, text)
            difference = compare(state, text)
            if difference is None:
                return self._rebuild(state, text, Reason.TEXT_NOT_KEPT)
            kept = state.chars - (difference.stop - difference.start)
            if 4 * kept < len(text):
                return self._rebuild(state, text, Reason.UNRELATED_TEXT)
            try:
                return repairer.replace(state, difference.start, difference.stop, difference.replacement)
            except WitnessMismatch:
                return self._mistrust(state, lambda: text)
            except StateError:
                return self._rebuild(state, text, Reason.TEXT_NOT_KEPT)

        try:
            return self._change(tenant, session, expected_revision, change)
        except SessionNotFound:
            if expected_revision is not None:
                raise
            return self.open(tenant, session, text)

    def close(self, tenant: str, session: str) -> bool:
        """Forget a session; whether there was one."""
        with self._lock:
            return self._table.pop(self._key(tenant, session)) is not None

    def info(self, tenant: str, session: str) -> SessionInfo:
        live = self._find(self._key(tenant, session))
        with live.lock:
            state = live.state
            return SessionInfo(state.revision, state.chars, self._total(state), state.state_bytes())

    def ids(self, tenant: str, session: str) -> Ids:
        """All IDs of a session, template tokens included."""
        live = self._find(self._key(tenant, session))
        with live.lock:
            return self._with_template(live.state.ids())

    def export(self, tenant: str, session: str) -> bytes:
        """The session's state as bytes that another pod can `restore`."""
        live = self._find(self._key(tenant, session))
        with live.lock:
            return handoff.export_state(live.state, self.tokenizer.fingerprint)

    def restore(self, tenant: str, session: str, data: bytes) -> SessionInfo:
        """Take over an exported state. Raises `StateCorrupt` unless its digest, fingerprint and witness hold."""
        key = self._key(tenant, session)
        state = handoff.import_state(data, self.tokenizer)
        with self._lock:
            self._table.put(key, _Live(state), state.state_bytes())
        return self.info(tenant, session)

    def counts(self) -> dict[str, int]:
        with self._lock:
            counts = {f"{type(what).__name__.lower()}.{what.value}": count for what, count in self._counts.items()}
            counts.update({f"evicted.{reason}": count for reason, count in self._table.evicted.items()})
        counts.update({f"encoder.{reason}": count for reason, count in self.tokenizer.fallbacks().items()})
        return counts

    def __len__(self) -> int:
        return len(self._table)

    @property
    def state_bytes(self) -> int:
        return self._table.bytes_

    # --- inside ------------------------------------------------------------------------------------------------

    def _key(self, tenant: str, session: str) -> SessionKey:
        for name in (tenant, session):
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
                raise InvalidRequest("session.bad_name", f"a name has 1 to {MAX_NAME_CHARS} characters")
        return SessionKey(tenant, self.tokenizer.fingerprint, session)

    def _check_length(self, chars: int) -> None:
        if chars > self.max_text_chars:
            raise InvalidRequest("text.too_long", f"{chars} characters", limit=self.max_text_chars)

    def _find(self, key: SessionKey) -> _Live:
        with self._lock:
            live = self._table.get(key)
        if live is None:
            raise SessionNotFound("session.not_found", "no such session: open it with its full text")
        return live

    def _change(
        self, tenant: str, session: str, expected: int | None, change: Callable[[SessionState], Patch]
    ) -> Patch:
        key = self._key(tenant, session)
        live = self._find(key)
        with live.lock:
            state = live.state
            if live.closed:
                raise SessionNotFound("session.not_found", "the session was closed or started over meanwhile")
            if expected is not None and expected != state.revision:
                raise RevisionConflict(
                    "session.revision_conflict", "the session has moved on", expected=expected, actual=state.revision
                )
            patch = change(state)
            with self._lock:
                if not live.closed:
                    self._table.resize(key, state.state_bytes())
                self._count(patch)
        return patch

    def _count(self, patch: Patch) -> None:
        self._counts[patch.route] += 1
        if patch.reason is not Reason.NONE:
            self._counts[patch.reason] += 1

    def _encode_anew(self, text: str) -> SessionState:
        repairer = self.tokenizer.repairer
        if repairer is not None:
            return repairer.open(text, keep_text=self.keep_text)
        state = SessionState(keep_text=True)  # without a rule the next change needs the whole text again
        state.splice_tail(text, 0, self.tokenizer.encode_text(text))
        return state

    def _rebuild(self, state: SessionState, text: str, reason: Reason | None = None) -> Patch:
        """Encode the whole new text and make it the state."""
        fresh = self._encode_anew(text)
        replaced, revision = self._total(state), state.revision + 1
        for name in SessionState.__slots__:
            setattr(state, name, getattr(fresh, name))
        state.revision = revision
        if reason is None:
            reason = Reason.QUARANTINED if self.tokenizer.quarantined else Reason.NO_RULE
        return self._whole(state, replaced, reason)

    def _mistrust(self, state: SessionState, text: Callable[[], str]) -> Patch:
        """A witness failed: nothing of the fast paths is believed any more."""
        first = self.tokenizer.quarantine()
        if first and self._on_quarantine is not None:
            self._on_quarantine(Reason.WITNESS_MISMATCH.value)
        return self._rebuild(state, text(), Reason.WITNESS_MISMATCH)

    def _whole(self, state: SessionState, replaced: int, reason: Reason) -> Patch:
        """A patch that replaces all of the `replaced` old IDs."""
        ids = self._with_template(state.ids())
        route = Route.REFERENCE if self.tokenizer.text_encoder is None else Route.ENCODE
        return Patch(0, ids, replaced, len(ids), state.revision, route, reason)

    def _total(self, state: SessionState) -> int:
        template = self.tokenizer.template
        return len(template.prefix) + state.tokens + len(template.suffix)

    def _with_template(self, ids: Ids) -> Ids:
        template = self.tokenizer.template
        if not template.prefix and not template.suffix:
            return ids
        return np.concatenate(
            [np.array(template.prefix, dtype=np.uint32), ids, np.array(template.suffix, dtype=np.uint32)]
        )


def _close(live: _Live) -> None:
    live.closed = True


def _edited(text: str, start: int, stop: int, replacement: str) -> str:
    return text[:start] + replacement + text[stop:]
