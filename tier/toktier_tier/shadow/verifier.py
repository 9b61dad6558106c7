"""The shadow verifier: answers that have left, encoded again by the reference, off the request path.

Guarantees:
 1. No request waits for it: a sample is accepted or dropped at once, and the interpreter's lock is let go while the
    reference encodes.
 2. Every sample is accounted for: sampled = skipped + dropped + verified + failed + those still held.
 3. IDs are compared byte for byte, over the whole text: those that the session holds, and those that a client holds
    who applied the patch to right ones. The difference that quarantines is confirmed by the reference's own `encode`;
    for a text with untrusted spans `encoders.trust` says what is right. Where all IDs are right, every border between
    a session's segments is looked at by itself (`core.witness`): IDs that belong to one segment and are kept with the
    next would be wrong after a change, and show in no full encode.
 4. A confirmed divergence quarantines the tokenizer before anything else is done about it.
 5. Nothing that goes wrong here, in the reference, the file system or the callback, ends the verifying thread.

Text is written nowhere but into the sample files of a folder that isn't redacted.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..core.errors import InvalidText
from ..core.pipeline import Position
from ..core.repair import TemplateIds, WitnessMismatch
from ..core.trust import Spans
from ..core.values import Ids
from ..encoders.reference import Reference
from ..tokenizer import TierTokenizer
from .apart import ReferenceApart, ReferenceLost
from .apart_worker import LOWEST_PRIORITY
from .backlog import Backlog
from .evidence import Divergence, EvidenceFolder, describe
from .sample import Sample

DEFAULT_QUEUE_SAMPLES = 256
DEFAULT_QUEUE_BYTES = 256 << 20
MAX_LOST = 3
"""After so many lost processes in a row the reference is asked in this one."""
COUNTS = ("sampled", "skipped", "dropped", "verified", "diverged", "failed", "lost", "unwritten", "untold")


class Verifier:
    """Checks one tokenizer's samples on a thread of its own, from `start` to `stop`.

    queue_samples, queue_bytes    see `Backlog`; the bytes are those of text and IDs
    apart           the reference in a process of its own; without it this process encodes, which now and then keeps
                    requests waiting for some 30 ms (closed by `stop`)
    evidence        where samples of divergences go
    on_divergence   told of the first divergence, from the verifying thread
    now             Unix time in seconds, for reports
    """

    def __init__(
        self,
        tokenizer: TierTokenizer,
        *,
        queue_samples: int = DEFAULT_QUEUE_SAMPLES,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        apart: ReferenceApart | None = None,
        evidence: EvidenceFolder | None = None,
        on_divergence: Callable[[Divergence], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.tokenizer = tokenizer
        self._backlog = Backlog(queue_samples, queue_bytes)
        self._apart, self._lost_in_a_row = apart, 0
        self._evidence = evidence or EvidenceFolder(None)
        self._on_divergence, self._now = on_divergence, now
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._thread: threading.Thread | None = None

    # --- in the request's thread ---------------------------------------------------------------------------------

    def offer(self, sample: Sample) -> None:
        """Verify `sample` later, or drop it if too much is waiting."""
        accepted = self._backlog.offer(sample)
        with self._lock:
            self._counts["sampled"] += 1
            if not accepted:
                self._counts["dropped"] += 1

    def skip(self) -> None:
        """An answer was sampled of which no text is left to encode."""
        with self._lock:
            self._counts["sampled"] += 1
            self._counts["skipped"] += 1

    # --- around it -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """From now on samples are verified. A second call does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toktier-shadow", daemon=True)
                self._thread.start()

    def drain(self, timeout_s: float) -> bool:
        """Whether nothing is waiting any more, giving it `timeout_s`."""
        return self._backlog.wait_until_empty(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Accept no more, verify what is waiting, and after `timeout_s` drop the rest; whether nothing was left.

        A text that the reference is at in this process can't be interrupted: its thread ends once that is done, and
        reports.
        """
        deadline = time.monotonic() + timeout_s
        self._backlog.close()
        thread = self._thread
        if thread is not None:
            self._backlog.wait_until_empty(timeout_s)
        abandoned = self._backlog.abandon()
        with self._lock:
            self._counts["dropped"] += abandoned
        if self._apart is not None:
            self._apart.close()
        if thread is not None:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not abandoned and not len(self._backlog)

    def counts(self) -> dict[str, int]:
        """By what became of them: `sampled`, `skipped` (no text kept), `dropped`, `verified`, of those `diverged`,
        and `failed` (the reference broke down). Of the divergences: `unwritten` samples and `untold` reports. `lost`
        are the processes of the reference that ended by themselves."""
        with self._lock:
            return dict(self._counts)

    def held(self) -> tuple[int, int]:
        """(samples, bytes) waiting or under way."""
        return len(self._backlog), self._backlog.bytes_

    # --- in the verifying thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # Linux: of this thread alone; what requests leave is enough
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        with suppress(ReferenceLost):
            if self._apart is not None:
                self._apart.encode("")  # its process takes a second or two to start
        while (sample := self._backlog.take()) is not None:
            try:
                self._verify(sample)
            except BaseException:  # a Rust panic isn't an Exception, and there is nobody here to tell of it
                self._count("failed")
            finally:
                del sample
                self._backlog.done()

    def _verify(self, sample: Sample) -> None:
        text, tokenizer, reference = sample.text(), self.tokenizer, self.tokenizer.reference
        untrusted = sample.untrusted
        expected = encode_untrusted(tokenizer, text, untrusted) if untrusted else self._encode(text)
        answered = difference(sample, expected, reference)
        if answered is not None and not untrusted and (expected is None or not tokenizer.quarantined):
            try:
                expected = reference.encode(text)
            except InvalidText:
                expected = None
            answered = difference(sample, expected, reference)
        border = self._wrong_border(sample) if answered is None else None
        if answered is None and border is None:
            self._count("verified")
            return
        if answered is None:
            answered = expected
        assert answered is not None
        quarantined_now = tokenizer.quarantine()
        first = self._count("verified", "diverged")
        try:
            self._report(sample, text, expected, answered, quarantined_now, first, border)
        except BaseException:  # out of memory, or whatever the callback has in store
            self._count("untold")

    def _wrong_border(self, sample: Sample) -> int | None:
        """How many IDs stand before a border that the reference doesn't confirm; None if it confirms all of them."""
        tokenizer = self.tokenizer
        stored = sample.stored()
        if tokenizer.cuts is None or not sample.segments or sample.tail_ids is None or stored is None:
            return None
        pieces = [(segment.decoded(), segment.ids) for segment in sample.segments]
        if sample.tail:
            pieces.append((sample.tail, sample.tail_ids))
        try:
            tokenizer.cuts.check_every(pieces, Position.TEXT_START, sample.untrusted, self._window)
        except WitnessMismatch as found:
            return len(tokenizer.template.prefix) + int(found.details["cut_tokens"])
        return None

    def _window(self, text: str, untrusted: Spans) -> Ids:
        if untrusted:
            return self.tokenizer.trust.encode(text, untrusted)
        found = self._encode(text)
        if found is None:
            raise InvalidText("text.reference_refuses", "the reference can't encode this text")
        return self.tokenizer.template.within(found)

    def _encode(self, text: str) -> Ids | None:
        """The reference's IDs; None if it refuses, or can't be asked apart from other threads."""
        reference = self.tokenizer.reference
        if self._apart is not None and self._lost_in_a_row < MAX_LOST:
            try:
                found = self._apart.encode(text)
            except ReferenceLost:
                if self._apart.closed:
                    raise
                self._lost_in_a_row += 1
                self._count("lost")
            else:
                self._lost_in_a_row = 0
                return None if found is None else _with_template(reference, found)
        return encode_apart(reference, text)

    def _report(
        self,
        sample: Sample,
        text: str,
        expected: Ids | None,
        answered: Ids,
        quarantined_now: bool,
        first: bool,
        border: int | None,
    ) -> None:
        divergence = describe(
            sample,
            text,
            expected,
            answered,
            time_s=self._now(),
            fingerprint=self.tokenizer.fingerprint,
            quarantined_now=quarantined_now,
            first=border,
        )
        path = self._evidence.write(divergence, text)
        if path is None:
            self._count("unwritten")
        if first and self._on_divergence is not None:
            self._on_divergence(dataclasses.replace(divergence, sample_path=str(path) if path is not None else None))

    def _count(self, *names: str) -> bool:
        """Whether the last of `names` is counted for the first time."""
        with self._lock:
            for name in names:
                self._counts[name] += 1
            return self._counts[names[-1]] == 1


def difference(sample: Sample, expected: Ids | None, reference: Reference) -> Ids | None:
    """The IDs that left where they aren't `expected` (template tokens included); None where they are.

    `expected` is None where the reference refuses the text: then any answer is wrong.
    """
    stored = sample.stored()
    held = _with_template(reference, stored) if stored is not None else sample.ids
    if expected is None or held.tobytes() != expected.tobytes():
        return held
    held = patched(sample, expected)
    return held if held.tobytes() != expected.tobytes() else None


def patched(sample: Sample, known: Ids) -> Ids:
    """What a client holds after the patch whose old IDs were right: those that it kept are among `known`."""
    after = max(sample.total - sample.keep - len(sample.ids), 0)
    return np.concatenate([known[: sample.keep], sample.ids, known[max(len(known) - after, 0) :]])


def encode_apart(reference: Reference, text: str) -> Ids | None:
    """`reference.encode(text)` with the interpreter's lock let go (measured: `encode` holds it from start to end, 0.9 s
    per million characters; a batch doesn't). None if it can't: whoever asks then has to ask `encode`."""
    try:
        (encoding,) = reference.tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        return None
    return _with_template(reference, np.array(encoding.ids, dtype=np.uint32))


def encode_untrusted(tokenizer: TierTokenizer, text: str, untrusted: Spans) -> Ids | None:
    """What is defined for a text with untrusted spans, by the reference alone; None where it refuses the text."""
    try:
        return tokenizer.template.around(tokenizer.trust.encode(text, untrusted))
    except InvalidText:
        return None


def _with_template(reference: Reference, ids: Ids) -> Ids:
    return TemplateIds(reference.prefix_ids, reference.suffix_ids).around(ids)
