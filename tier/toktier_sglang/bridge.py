"""One tokenizer's requests: to the tier if nothing speaks against it, otherwise to nobody, and SGLang does it itself.

States: checking → on ⇄ checking, and off from anywhere, for good. `checking` until `agreement` has compared the tier's
tokenizer (tried again while the tier can't be asked), and again when the tier no longer serves what was compared.

Guarantee: `ids` never raises and takes no longer than the settings allow; None means that the own tokenizer is to be
used, and was counted with its reason.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from toktier_tier.core.errors import TierError
from toktier_tier.engine.breaker import Breaker, BreakerPolicy

from .agreement import agree
from .asking import Asker, reason_of
from .conversations import Conversations
from .counts import Counts, log
from .link import Link
from .own import Call, Inspected, OwnTokenizer, Specials
from .reasons import Off, Own, PluginOff, UseOwn
from .settings import PluginSettings
from .shadow import ShadowCheck

WAITING = 32
"""Requests that wait for the tier at once, in threads."""
RETRY_S, MOST_RETRY_S = 0.5, 15.0
FAILURES = frozenset(
    {
        *(Own.LATE, Own.UNREACHABLE, Own.OVERLOADED, Own.DENIED, Own.REFUSED),
        *(Own.NONSENSE, Own.UNKNOWN_IDS, Own.EMPTY),
    }
)
"""Of the tier; the others say nothing about it."""
BREAKER = BreakerPolicy(failures_to_open=3, open_s=1.0, max_open_s=10.0, trial_s=70.0)


class Bridge:
    """`start` once, then `ids` from any thread and `ids_on_loop` on an event loop."""

    def __init__(self, settings: PluginSettings, own: OwnTokenizer, counts: Counts) -> None:
        self.settings, self.own, self.counts = settings, own, counts
        self.off: Off | None = None
        self._link = Link(settings.address, settings.token_file, settings.tls)
        self._asker: Asker | None = None
        self._specials: dict[Call, Specials] = {}
        self._lock = threading.Lock()
        self._breaker = Breaker(BREAKER)
        self._room = threading.Semaphore(WAITING)
        self._threads = ThreadPoolExecutor(WAITING, thread_name_prefix="toktier-ask")
        self._on_loop = 0
        self._check = threading.Event()
        self._shadow = ShadowCheck(
            own, settings.shadow_rate, counts, lambda detail: self.switch_off(Off.SHADOW, detail)
        )

    # --- states ------------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        return self._asker is not None

    def start(self) -> None:
        """Look at the own tokenizer (seconds, for a large vocabulary), then at the tier's, in a thread."""
        try:
            inspected = self.own.inspect()
        except PluginOff as found:
            self.switch_off(found.code, found.detail)
            return
        self._specials = dict(inspected.specials)
        self._check.set()
        threading.Thread(target=self._agree, args=(inspected,), name="toktier-check", daemon=True).start()

    def switch_off(self, code: Off, detail: str) -> None:
        with self._lock:
            if self.off is not None:
                return
            self.off, self._asker = code, None
        self._check.set()
        self.counts.off(code.value)
        log.error("TokTier is off, SGLang tokenizes by itself [%s]: %s", code.value, detail)

    def close(self) -> None:
        """For tests: end the threads and the connection."""
        with self._lock:
            self.off, self._asker = self.off or Off.FAILED, None
        self._check.set()
        self._threads.shutdown(wait=False)
        self._link.close()

    def _agree(self, inspected: Inspected) -> None:
        wait_s, told = RETRY_S, ""
        while self.off is None:
            self._check.wait()
            if self.off is not None:
                return
            begun = time.monotonic()
            try:
                fingerprint = agree(self.own, inspected, self._link, self.settings.model)
            except PluginOff as found:
                self.switch_off(found.code, found.detail)
                return
            except TierError as error:
                if error.code != told:
                    told = error.code
                    log.warning("TokTier: the tier at %s can't be used yet: %s", self.settings.address, error)
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, MOST_RETRY_S)
                continue
            except Exception as error:
                log.exception("TokTier: comparing the tier's tokenizer failed")
                self.switch_off(Off.FAILED, type(error).__name__)
                return
            self._switch_on(inspected, fingerprint)
            wait_s, told = RETRY_S, ""
            log.info(
                "TokTier is on: %s has SGLang's tokenizer, snapshot %s, compared in %.1f s",
                *(self.settings.address, fingerprint, time.monotonic() - begun),
            )

    def _switch_on(self, inspected: Inspected, fingerprint: str) -> None:
        prefix = f"sglang/{socket.gethostname()[:64]}/{os.getpid()}/{uuid.uuid4().hex}"
        asker = Asker(
            self._link,
            self.settings,
            Conversations(self.settings.memory_bytes, prefix),
            fingerprint,
            inspected.id_limit,
            self.counts.state_lost,
        )
        with self._lock:
            self._check.clear()
            if self.off is None:
                self._asker, self._breaker = asker, Breaker(BREAKER)
            else:
                self._check.set()

    def _check_again(self, asker: Asker) -> None:
        with self._lock:
            if self._asker is asker:
                self._asker = None
                self._check.set()

    # --- requests ----------------------------------------------------------------------------------------------

    def ids(self, call: Call, text: str) -> list[int] | None:
        try:
            self._refuse(call, text)
            return self._ask(call, text)
        except UseOwn as found:
            self.counts.by_own(call, found.reason)
        except Exception:
            log.exception("TokTier: a request failed in the plugin")
            self.counts.by_own(call, Own.FAILED)
        return None

    async def ids_on_loop(self, call: Call, text: str) -> list[int] | None:
        """As `ids`; the event loop goes on meanwhile."""
        try:
            self._refuse(call, text)
            if self._on_loop >= WAITING:  # then a thread would have to be waited for
                raise UseOwn(Own.BUSY)
        except UseOwn as found:
            self.counts.by_own(call, found.reason)
            return None
        self._on_loop += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.ids, call, text)
        finally:
            self._on_loop -= 1

    def _refuse(self, call: Call, text: str) -> None:
        if not isinstance(text, str):
            raise UseOwn(Own.NOT_TEXT)
        if len(text) < self.settings.min_chars or not text:
            raise UseOwn(Own.SHORT)
        if self.off is not None:
            raise UseOwn(Own.OFF)
        if self._asker is None:
            raise UseOwn(Own.CHECKING)
        if call not in self._specials:
            raise UseOwn(Own.SPECIALS)
        if self._breaker.until_s > time.monotonic():
            raise UseOwn(Own.BREAKER)

    def _ask(self, call: Call, text: str) -> list[int]:
        asker = self._asker
        if asker is None:
            raise UseOwn(Own.CHECKING)
        if not self._room.acquire(blocking=False):
            raise UseOwn(Own.BUSY)
        try:
            ticket = self._admitted()
            begun = time.monotonic()
            try:
                body, sent = asker.ids(text)
            except UnicodeEncodeError:
                self._settled(ticket, None)
                raise UseOwn(Own.SURROGATE) from None
            except (TierError, UseOwn) as error:
                reason = error.reason if isinstance(error, UseOwn) else reason_of(error)
                self._settled(ticket, reason)
                if reason is Own.CHANGED:
                    self._check_again(asker)
                raise UseOwn(reason, str(error)) from None
            except BaseException:
                self._settled(ticket, Own.REFUSED)
                raise
            self._settled(ticket, None)
        finally:
            self._room.release()
        if self._asker is not asker:  # switched off, or to another snapshot, meanwhile
            raise UseOwn(Own.OFF if self.off is not None else Own.CHECKING)
        ids = self._specials[call].around(body)
        self.counts.by_tier(call, sent, len(text), time.monotonic() - begun)
        self._shadow.offer(call, text, ids)
        return ids

    def _admitted(self) -> int:
        with self._lock:
            self._breaker, ticket = self._breaker.admit(time.monotonic())
        if ticket is None:
            raise UseOwn(Own.BREAKER)
        return ticket

    def _settled(self, ticket: int, reason: Own | None) -> None:
        with self._lock:
            if reason in FAILURES:
                self._breaker = self._breaker.failed(ticket, time.monotonic())
            else:
                self._breaker = self._breaker.succeeded(ticket)
