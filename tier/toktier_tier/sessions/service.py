"""The tier's sessions: open, append, edit, full text, close, hand over — each answered by a patch.

Guarantees: every patch leads to the reference's IDs; a call that raises has changed nothing; two writers of one
session are serialized, and one whose `expected_revision` is stale gets `RevisionConflict`: a revision is one state's
and never another's (`lives`), whatever was evicted, closed, opened or copied since. What a call returns is of one
moment: a change with `whole` gives all IDs that it led to, so that nobody has to read them in a second step. A repair
whose witness fails is answered by the reference, quarantines the tokenizer and is counted.

After a quarantine, whoever ordered it, no ID made by a fast path leaves: every answer is made by the reference, also
one that was under way, and a state that a fast path made is encoded anew before anything of it is told. Where its
text isn't kept that can't be done, and the caller is asked for it.

Every call that brings text takes the untrusted spans of that text: ranges of its characters (start, stop), in order,
in which no added token is recognized. What isn't brought keeps its trust. Where no fast path is admitted for such
texts (`TierTokenizer.trust_admitted`) the reference encodes the whole text on every change of one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..core.errors import InvalidRequest, RevisionConflict, SessionBusy, SessionNotFound, StateError
from ..core.full_text import compare
from ..core.repair import Repairer, TrustNotAdmitted, WitnessMismatch
from ..core.session import SessionState
from ..core.trust import NO_SPANS, Spans, check_spans, spliced
from ..core.values import Ids, Patch, Reason, Route, check_text
from ..ports import Clock, Observer
from ..tokenizer import TierTokenizer
from . import handoff
from .lives import Lives, changes_of, life_of
from .table import SessionKey, SessionTable

DEFAULT_BUDGET_BYTES = 1 << 30
DEFAULT_TTL_S = 3_600.0
MAX_TEXT_CHARS = 64 << 20
MAX_NAME_CHARS = 512

Answer = TypeVar("Answer")
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What can be told of a session without its text."""

    revision: int
    chars: int
    tokens: int
    state_bytes: int


class _Live:
    """A state and the lock that its writers take. `closed` tells a writer that waited that it came too late.

    by_reference    no fast path had a part in the state's IDs
    copied_at       the revision at which the state was copied from another, whose life it mustn't go on with
    """

    __slots__ = ("by_reference", "closed", "copied_at", "lock", "state")

    def __init__(self, state: SessionState, by_reference: bool, copied_at: int | None = None) -> None:
        self.state, self.by_reference, self.copied_at = state, by_reference, copied_at
        self.lock = threading.Lock()
        self.closed = False

    def must_begin(self) -> bool:
        """Whether a state that has just been changed needs a life of its own."""
        revision = self.state.revision
        return not changes_of(revision) or (self.copied_at is not None and life_of(revision) == life_of(self.copied_at))


class SessionService:
    """Sessions of one tokenizer. Thread-safe.

    keep_text   store the text (UTF-8), so that edits anywhere and any full text can be repaired; off: only digests
                of all but the last few thousand characters
    counts      requests by `route.<route>`, steps down by `reason.<code>`, evictions by `evicted.<reason>`
    on_quarantine   told once, when a witness failed, from the thread that found it
    observer    sees every answer; what it raises is counted as `observer.failed`
    lives       where the revisions of new states come from

    With `wait` off, a call that would have to wait for another writer raises `SessionBusy` (`session.busy`) instead.
    With `whole`, a change's patch also holds all IDs of the session as they are right after it (`Patch.whole`).
    """

    def __init__(
        self,
        tokenizer: TierTokenizer,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        tenant_budget_bytes: int | None = None,
        ttl_s: float = DEFAULT_TTL_S,
        keep_text: bool = True,
        clock: Clock = time.monotonic,
        max_text_chars: int = MAX_TEXT_CHARS,
        on_quarantine: Callable[[str], None] | None = None,
        observer: Observer | None = None,
        lives: Lives | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._lives = lives or Lives()
        self.keep_text = keep_text
        self.max_text_chars = max_text_chars
        self._table: SessionTable[_Live] = SessionTable(
            budget_bytes=budget_bytes,
            tenant_budget_bytes=tenant_budget_bytes,
            ttl_s=ttl_s,
            clock=clock,
            on_removal=_close,
        )
        self._lock = threading.Lock()
        self._counts: Counter[Route | Reason] = Counter()
        self._on_quarantine = on_quarantine
        self._observer, self._observer_failures = observer, 0

    # --- calls -------------------------------------------------------------------------------------------------

    def open(self, tenant: str, session: str, text: str, *, untrusted: Ranges = NO_SPANS) -> Patch:
        """Start (or start over) a session with `text`, in a life of its own; the patch holds all its IDs."""
        key = self._key(tenant, session)
        self._check_length(len(text) if isinstance(text, str) else 0)
        state, by_reference, mistrusted = self._encode_anew(text, self._spans(untrusted, text))
        state.revision = self._lives.begin()
        live = _Live(state, by_reference)
        patch = self._whole(live, 0, Reason.WITNESS_MISMATCH if mistrusted else Reason.OPENED)
        with live.lock:
            with self._lock:
                self._table.put(key, live, live.state.state_bytes())
                self._count(patch)
            self._observe(patch, live.state)
        return patch

    def append(
        self,
        tenant: str,
        session: str,
        delta: str,
        *,
        expected_revision: int | None = None,
        wait: bool = True,
        untrusted: Ranges = NO_SPANS,
        whole: bool = False,
    ) -> Patch:
        """Add `delta` at the end."""
        if not isinstance(delta, str) or self._repairer() is None:
            check_text(delta)  # otherwise the repairer does
        spans = self._spans(untrusted, delta) if untrusted else NO_SPANS

        def change(live: _Live) -> Patch:
            state = live.state
            self._check_length(state.chars + len(delta))
            repairer = self._repairer()
            if repairer is None:
                return self._rebuild(live, *_edited(state, state.chars, state.chars, delta, spans))
            try:
                return repairer.append(state, delta, spans)
            except WitnessMismatch:
                return self._mistrust(live, lambda: _edited(state, state.chars, state.chars, delta, spans))
            except TrustNotAdmitted:
                return self._rebuild(live, *_edited(state, state.chars, state.chars, delta, spans))

        return self._change(tenant, session, expected_revision, wait, change, whole=whole)

    def edit(
        self,
        tenant: str,
        session: str,
        start: int,
        stop: int,
        replacement: str,
        *,
        expected_revision: int | None = None,
        wait: bool = True,
        untrusted: Ranges = NO_SPANS,
        whole: bool = False,
    ) -> Patch:
        """Put `replacement` in place of characters start..stop (a truncation: stop at the end, replacement empty)."""
        check_text(replacement)
        spans = self._spans(untrusted, replacement)

        def change(live: _Live) -> Patch:
            state = live.state
            if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop <= state.chars):
                raise InvalidRequest("edit.out_of_range", "an edit lies within the text", text_chars=state.chars)
            self._check_length(state.chars - (stop - start) + len(replacement))
            repairer = self._repairer()
            if repairer is None:
                return self._rebuild(live, *_edited(state, start, stop, replacement, spans))
            try:
                return repairer.replace(state, start, stop, replacement, spans)
            except WitnessMismatch:
                return self._mistrust(live, lambda: _edited(state, start, stop, replacement, spans))
            except TrustNotAdmitted:
                return self._rebuild(live, *_edited(state, start, stop, replacement, spans))

        return self._change(tenant, session, expected_revision, wait, change, whole=whole)

    def full_text(
        self,
        tenant: str,
        session: str,
        text: str,
        *,
        expected_revision: int | None = None,
        wait: bool = True,
        untrusted: Ranges = NO_SPANS,
        whole: bool = False,
    ) -> Patch:
        """Make the session's text `text`, using what the stored state has in common with it; opens it if need be.

        `untrusted` are all the spans there are: what is equal but for its trust counts as changed.
        """
        check_text(text)
        self._check_length(len(text))
        spans = self._spans(untrusted, text)

        def change(live: _Live) -> Patch:
            state = live.state
            repairer = self._repairer()
            if repairer is None:
                return self._rebuild(live, text, spans)
            difference = compare(state, text, spans)
            if difference is None:
                return self._rebuild(live, text, spans, Reason.TEXT_NOT_KEPT)
            start, stop = difference.start, difference.stop
            if 4 * (state.chars - (stop - start)) < len(text):
                return self._rebuild(live, text, spans, Reason.UNRELATED_TEXT)
            try:
                return repairer.replace(state, start, stop, difference.replacement, difference.untrusted)
            except WitnessMismatch:
                return self._mistrust(live, lambda: (text, spans))
            except TrustNotAdmitted:
                return self._rebuild(live, text, spans)
            except StateError:
                return self._rebuild(live, text, spans, Reason.TEXT_NOT_KEPT)

        try:
            return self._change(tenant, session, expected_revision, wait, change, text, whole=whole)
        except SessionNotFound:
            if expected_revision is not None:
                raise
            patch = self.open(tenant, session, text, untrusted=spans)
            return replace(patch, whole=patch.ids) if whole else patch

    def encode(self, text: str, *, untrusted: Ranges = NO_SPANS) -> Patch:
        """All IDs of `text` without a session, as a patch of nothing."""
        check_text(text)
        self._check_length(len(text))
        spans = self._spans(untrusted, text)
        body, by_reference = self._encode_text(text, spans)
        ids = self.tokenizer.template.around(body)
        reason = self._why_not_faster(spans) if by_reference else Reason.NONE
        patch = Patch(0, ids, 0, len(ids), 0, Route.REFERENCE if by_reference else Route.ENCODE, reason)
        with self._lock:
            self._count(patch)
        if self._observer is not None:
            try:
                self._observer.encoded(text, ids, patch.route, spans)
            except Exception:
                self._count_failed_observer()
        return patch

    def fork(self, tenant: str, session: str, twin: str, *, wait: bool = True) -> bool:
        """Start `twin` as a copy of `session`, at its revision; whether there was a session to copy.

        The first change of the copy begins a life. Text and IDs are shared with it, but count in full in the budget.
        """
        source, target = self._key(tenant, session), self._key(tenant, twin)
        try:
            live = self._take(source, wait)
        except SessionNotFound:
            return False
        try:
            copied = _Live(live.state.copy(), live.by_reference, live.state.revision)
        finally:
            live.lock.release()
        with self._lock:
            self._table.put(target, copied, copied.state.state_bytes())
        return True

    def close(self, tenant: str, session: str) -> bool:
        """Forget a session; whether there was one."""
        with self._lock:
            return self._table.pop(self._key(tenant, session)) is not None

    def info(self, tenant: str, session: str) -> SessionInfo:
        live = self._find(self._key(tenant, session))
        with live.lock:
            return self._info(live.state)

    def ids(self, tenant: str, session: str) -> Ids:
        """All IDs of a session, template tokens included."""
        return self._read(tenant, session, True, lambda state: self.tokenizer.template.around(state.ids()))

    def snapshot(self, tenant: str, session: str, *, wait: bool = True) -> tuple[SessionInfo, Ids]:
        """`info` and `ids` of one moment."""
        return self._read(
            tenant, session, wait, lambda state: (self._info(state), self.tokenizer.template.around(state.ids()))
        )

    def read(
        self, tenant: str, session: str, *, ids: bool = False, exported: bool = False
    ) -> tuple[SessionInfo, Ids | None, bytes | None]:
        """`info`, with `ids` and `export` if they are asked for, of one moment."""
        if not ids and not exported:
            return self.info(tenant, session), None, None
        around, fingerprint = self.tokenizer.template.around, self.tokenizer.fingerprint
        return self._read(
            tenant,
            session,
            True,
            lambda state: (
                self._info(state),
                around(state.ids()) if ids else None,
                handoff.export_state(state, fingerprint) if exported else None,
            ),
        )

    def export(self, tenant: str, session: str) -> bytes:
        """The session's state as bytes that can be restored, as a copy at its revision."""
        fingerprint = self.tokenizer.fingerprint
        return self._read(tenant, session, True, lambda state: handoff.export_state(state, fingerprint))

    def restore(self, tenant: str, session: str, data: bytes) -> SessionInfo:
        """Take over an exported state, at its revision; its first change begins a life.

        Takes about as long as opening it with its text. Raises `StateCorrupt` unless fingerprint and digest hold and
        its text gives its IDs.
        """
        key = self._key(tenant, session)
        by_reference = self.tokenizer.staged is None  # then all of the text is encoded again by the reference
        state = self._imported(data)
        info = self._info(state)
        with self._lock:
            self._table.put(key, _Live(state, by_reference, state.revision), state.state_bytes())
        return info

    def _imported(self, data: bytes) -> SessionState:
        return handoff.import_state(handoff.unsealed(data, None)[0], self.tokenizer)

    def counts(self) -> dict[str, int]:
        with self._lock:
            counts = {f"{type(what).__name__.lower()}.{what.value}": count for what, count in self._counts.items()}
            counts.update({f"evicted.{reason}": count for reason, count in self._table.evicted.items()})
            counts["observer.failed"] = self._observer_failures
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

    def _spans(self, untrusted: Ranges, text: str) -> Spans:
        """`untrusted` in canonical form; raises `trust.*` for what isn't ranges of `text`, and without a definition."""
        if not untrusted:
            return NO_SPANS
        check_text(text)
        spans = check_spans(untrusted, len(text))
        if spans:
            _ = self.tokenizer.trust
        return spans

    def _find(self, key: SessionKey) -> _Live:
        with self._lock:
            live = self._table.get(key)
        if live is None:
            raise SessionNotFound("session.not_found", "no such session: open it with its full text")
        return live

    def _take(self, key: SessionKey, wait: bool) -> _Live:
        """The session, with its lock held: the caller releases it."""
        live = self._find(key)
        if not live.lock.acquire(wait):
            raise SessionBusy("session.busy", "another writer is at this session")
        return live

    def _change(
        self,
        tenant: str,
        session: str,
        expected: int | None,
        wait: bool,
        change: Callable[[_Live], Patch],
        text: str | None = None,
        *,
        whole: bool = False,
    ) -> Patch:
        """`text`: the whole new text, where the caller gave it."""
        key = self._key(tenant, session)
        live = self._take(key, wait)
        try:
            revision = live.state.revision
            if live.closed:
                raise SessionNotFound("session.not_found", "the session was closed or started over meanwhile")
            if expected is not None and expected != revision:
                raise RevisionConflict(
                    "session.revision_conflict", "the session has moved on", expected=expected, actual=revision
                )
            patch = change(live)
            if self.tokenizer.quarantined and not live.by_reference:
                patch = self._overtaken(key, live, patch, text)
            patch = self._answer(key, live, patch)
            if whole:
                complete = patch.keep == 0 and patch.total == len(patch.ids)
                ids = patch.ids if complete else self.tokenizer.template.around(live.state.ids())
                patch = replace(patch, whole=ids)
        finally:
            live.lock.release()
        return patch

    def _read(self, tenant: str, session: str, wait: bool, read: Callable[[SessionState], Answer]) -> Answer:
        """What `read` makes of the session's state, once that is one whose IDs may leave.

        Raises `StateError` (`session.text_not_kept`) after a quarantine if the state can't be made anew.
        """
        key = self._key(tenant, session)
        live = self._take(key, wait)
        try:
            if self.tokenizer.quarantined and not live.by_reference:
                self._answer(key, live, self._rebuild(live, live.state.text(), live.state.untrusted))
            return read(live.state)
        finally:
            live.lock.release()

    def _answer(self, key: SessionKey, live: _Live, patch: Patch) -> Patch:
        """Note that the session has changed; its lock is held. `patch`, with the revision that it leads to."""
        if patch.route is not Route.UNCHANGED and live.must_begin():
            live.state.revision = self._lives.begin()
            patch = replace(patch, revision=live.state.revision)
        with self._lock:
            if not live.closed:
                self._table.resize(key, live.state.state_bytes())
            self._count(patch)
        self._observe(patch, live.state)
        return patch

    def _observe(self, patch: Patch, state: SessionState) -> None:
        if self._observer is not None:
            try:
                self._observer.changed(patch, state)
            except Exception:
                self._count_failed_observer()

    def _count_failed_observer(self) -> None:
        with self._lock:
            self._observer_failures += 1

    def _count(self, patch: Patch) -> None:
        self._counts[patch.route] += 1
        if patch.reason is not Reason.NONE:
            self._counts[patch.reason] += 1

    def _repairer(self) -> Repairer | None:
        return None if self.tokenizer.quarantined else self.tokenizer.repairer

    def _encode_text(self, text: str, untrusted: Spans) -> tuple[Ids, bool]:
        """(IDs without the template's tokens, whether the reference made them). Nothing fast outlasts a quarantine."""
        tokenizer = self.tokenizer
        encoder = None if tokenizer.quarantined else tokenizer.text_encoder
        if encoder is not None and (tokenizer.trust_admitted or not untrusted):
            try:
                ids = encoder.encode_untrusted(text, untrusted) if untrusted else encoder.encode_full(text)
            except WitnessMismatch:
                self._distrust()
            if not tokenizer.quarantined:
                return ids, False
        return tokenizer.encode_by_reference(text, untrusted), True

    def _encode_anew(self, text: str, untrusted: Spans) -> tuple[SessionState, bool, bool]:
        """(the state of `text`, whether the reference alone made it, whether that is since a witness failed here)."""
        repairer, mistrusted = self._repairer(), False
        if repairer is not None and (repairer.takes_untrusted or not untrusted):
            try:
                state = repairer.open(text, keep_text=self.keep_text, untrusted=untrusted)
            except WitnessMismatch:
                mistrusted = True
                self._distrust()
            if not self.tokenizer.quarantined:
                return state, False, False
        check_text(text)
        ids, by_reference = self._encode_text(text, untrusted)
        state = SessionState(keep_text=True)  # without a rule the next change needs the whole text again
        state.splice_tail(text, 0, ids)
        state.mark_untrusted(untrusted)
        return state, by_reference, mistrusted

    def _rebuild(
        self,
        live: _Live,
        text: str,
        untrusted: Spans,
        reason: Reason | None = None,
        *,
        replaced: int | None = None,
        revision: int | None = None,
    ) -> Patch:
        """Encode the whole new text and make it the state.

        `replaced` IDs of revision `revision` are the caller's; by default those of the state.
        """
        before = live.state
        fresh, by_reference, mistrusted = self._encode_anew(text, untrusted)
        if mistrusted:
            reason = Reason.WITNESS_MISMATCH
        fresh.revision = (before.revision if revision is None else revision) + 1
        live.state, live.by_reference = fresh, by_reference
        return self._whole(
            live, self._total(before) if replaced is None else replaced, reason or self._why_not_faster(untrusted)
        )

    def _why_not_faster(self, untrusted: Spans) -> Reason:
        if self.tokenizer.quarantined:
            return Reason.QUARANTINED
        return Reason.TRUST_NOT_ADMITTED if untrusted and self.tokenizer.text_encoder is not None else Reason.NO_RULE

    def _mistrust(self, live: _Live, new: Callable[[], tuple[str, Spans]]) -> Patch:
        """The answer after a witness failed. `new`: the text to come, and its spans."""
        self._distrust()
        return self._rebuild(live, *new(), Reason.WITNESS_MISMATCH)

    def _distrust(self) -> None:
        """A witness failed: nothing of the fast paths is believed any more."""
        first = self.tokenizer.quarantine()
        if first and self._on_quarantine is not None:
            self._on_quarantine(Reason.WITNESS_MISMATCH.value)

    def _overtaken(self, key: SessionKey, live: _Live, patch: Patch, text: str | None) -> Patch:
        """The tokenizer was quarantined while a fast path made `patch`: the reference's answer in its place.

        Where the new text is known to nobody the session is forgotten, as if evicted: the state has already changed.
        """
        if text is None:
            if not live.state.has_text():
                with self._lock:
                    if not live.closed:
                        self._table.pop(key)
                raise SessionNotFound("session.not_found", "quarantined meanwhile: open it with its full text")
            text = live.state.text()
        return self._rebuild(
            live,
            text,
            live.state.untrusted,
            replaced=patch.total - patch.keep - len(patch.ids) + patch.resume,
            revision=patch.revision - (patch.route is not Route.UNCHANGED),
        )

    def _whole(self, live: _Live, replaced: int, reason: Reason) -> Patch:
        """A patch that replaces all of the `replaced` old IDs."""
        ids = self.tokenizer.template.around(live.state.ids())
        route = Route.REFERENCE if live.by_reference else Route.ENCODE
        return Patch(0, ids, replaced, len(ids), live.state.revision, route, reason)

    def _info(self, state: SessionState) -> SessionInfo:
        return SessionInfo(state.revision, state.chars, self._total(state), state.state_bytes())

    def _total(self, state: SessionState) -> int:
        template = self.tokenizer.template
        return len(template.prefix) + state.tokens + len(template.suffix)


def _close(live: _Live) -> None:
    live.closed = True


def _edited(state: SessionState, start: int, stop: int, replacement: str, untrusted: Spans) -> tuple[str, Spans]:
    """The state's text and untrusted spans with `replacement` and its spans in place of characters start..stop."""
    text = state.text()
    spans = spliced(state.untrusted, start, stop, untrusted, len(replacement))
    return text[:start] + replacement + text[stop:], spans
