"""The host side of the kernels: documents in, IDs and ends out, on one device and one stream.

Rules:
1. A text takes one synchronization, and a second one where the first didn't bring all IDs, where it has overlong
   segments, or where it had to be normalized: then it runs again, with the overlong segments encoded beforehand. What
   would take a third one is `Overlong`.
2. What the device can't do exactly is done by the CPU through the two callables, or raised with a code; never guessed.
3. A call that fails leaves the engine usable, unless CUDA itself is lost to this process (`DeviceFault`, `sticky`).
4. Memory on the device: the tables, one arena within `memory_bytes`, and what deliveries and corrections hold.
5. One text at a time. At most `waiters` callers wait for their turn; further ones get `Busy` at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import Batch, Positions, Spans, gather
from .buckets import limit_text_bytes
from .delivery import Encoded, Facts
from .device import Device
from .errors import Busy, Closed, DeviceFault, InvalidArgument, Overlong, Unsettled, undecodable
from .merge import LIMIT_BYTES as MOST_MERGED_BYTES
from .passes import Passes, Placed, Run, Wanted
from .regions import Normalize, all_regions, firm_stretches, normalize_regions, unsettled_regions
from .status import ERROR, OVERLONG, UNSETTLED
from .steps import DeviceTables, Limits
from .stretches import EncodeOverlong, encode_stretches
from .tables import Tables

EndsKind = Literal["uint32", "uint64"]


class Engine:
    """Encodes with one tokenizer's tables on one device. Thread-safe.

    device           a torch device: "cuda:1" is the second one visible, a MIG slice too if CUDA_VISIBLE_DEVICES names
                     it; "cpu" runs the kernels in Triton's interpreter, for tests
    memory_bytes     limit of the arena; a text that needs more is `TextTooLarge` (see `limit_text_bytes`)
    walk_limit, walk_budget, merge_limit   see `steps.Limits`
    normalize        of UTF-8, for tables that normalize; may be given several stretches with NUL between them
    encode_overlong  IDs of stretches of normalized text between two boundaries
    graphs           all grids sized by the bucket, launched as one CUDA graph from a bucket's second text on
    waiters          callers that may wait while one encodes
    """

    def __init__(
        self,
        tables: Tables,
        *,
        device: str = "cuda:0",
        memory_bytes: int = 2 << 30,
        walk_limit: int = 2048,
        walk_budget: int = 8,
        merge_limit: int = MOST_MERGED_BYTES,
        normalize: Normalize | None = None,
        encode_overlong: EncodeOverlong | None = None,
        graphs: bool = True,
        waiters: int = 8,
    ) -> None:
        if not (walk_limit > 0 and walk_budget > 0 and walk_limit * walk_budget < 2**31):
            raise InvalidArgument("kernels.invalid_argument", "walk_limit or walk_budget is out of range")
        if not 0 < merge_limit <= MOST_MERGED_BYTES or waiters < 0:
            raise InvalidArgument("kernels.invalid_argument", f"merge_limit is 1 to {MOST_MERGED_BYTES}, waiters >= 0")
        self.memory_bytes = memory_bytes
        self._normalizes, self._lengths = tables.normalizes, tables.vocabulary.length_of
        self._normalize, self._encode_overlong = normalize, encode_overlong
        self._slots = threading.BoundedSemaphore(waiters + 1)
        self._lock = threading.Lock()
        self._state: Literal["open", "closed", "lost"] = "open"
        self._passes: Passes | None = None
        self._device = Device(device, self._recover)
        with self._device.work():
            there = DeviceTables(tables, self._device.torch)
            self._device.wait()
        self._device.waits = 0
        self._walk_limit = walk_limit
        limits = Limits(walk_limit, walk_budget, merge_limit)
        self._passes = Passes(self._device, there, limits, memory_bytes=memory_bytes, padded=graphs)

    @property
    def device(self) -> torch.device:
        return self._device.torch

    @property
    def synchronizations(self) -> int:
        """How often the host waited for the device since the engine was made."""
        return self._device.waits

    @property
    def limit_text_bytes(self) -> int:
        """Bytes of the largest text within `memory_bytes`."""
        return limit_text_bytes(self.memory_bytes)

    @property
    def arena_bytes(self) -> int:
        """Device memory that is held between calls, besides the tables."""
        return 0 if self._passes is None else self._passes.arena_bytes

    def encode(
        self, documents: Sequence[bytes], *, spans: Spans | None = None, ends: EndsKind | None = None, host: bool = True
    ) -> Encoded:
        """The IDs of all documents; `spans` are added tokens by byte position in the concatenated documents.

        `host`: the arrays are wanted on the host too, and come along. Waits for its turn. Raises `InvalidText`,
        `InvalidArgument`, `TextTooLarge`, `Unsettled`, `Overlong`, `OutOfMemory`, `DeviceFault`, `Busy`, `Closed`, and
        what the callables raise.
        """
        return self._encode(documents, spans, ends, host, wait=True)

    def try_encode(
        self, documents: Sequence[bytes], *, spans: Spans | None = None, ends: EndsKind | None = None, host: bool = True
    ) -> Encoded:
        """`encode`, but `Busy` instead of waiting for a turn."""
        return self._encode(documents, spans, ends, host, wait=False)

    def close(self) -> None:
        """Waits for the text at work, then gives the device's memory back."""
        with self._lock:
            self._state = "closed"
            if self._passes is not None:
                self._passes.drop()
            self._passes = None

    def _encode(
        self, documents: Sequence[bytes], spans: Spans | None, ends: EndsKind | None, host: bool, *, wait: bool
    ) -> Encoded:
        if ends not in (None, "uint32", "uint64"):
            raise InvalidArgument("kernels.invalid_argument", f"ends are uint32 or uint64, not {ends!r}")
        batch = gather(documents, spans)
        wanted = Wanted(ids=host, ends=host and ends is not None, unsettled=self._normalizes)
        with self._turn(wait) as passes:
            before = self._device.waits
            run = self._first(passes, batch, wanted)
            normalized = corrected = 0
            if run is not None and self._normalizes and run.status[UNSETTLED]:
                run, batch, normalized, corrected = self._settled(passes, run, wanted)
            elif run is not None and run.status[OVERLONG]:
                run, corrected = self._corrected(passes, run, wanted)
            with self._device.work():
                encoded = self._deliver(run, batch, ends, host)
            self._device.hand_over(encoded.ids, encoded.ends)
            encoded.facts = Facts(batch.size, normalized, corrected, self._device.waits - before)
            return encoded

    def _first(self, passes: Passes, batch: Batch, wanted: Wanted) -> Run | None:
        if not batch.size:
            return None
        run = passes.run(batch, wanted)
        if run.status[ERROR] < batch.size:
            raise undecodable(batch.documents, run.status[ERROR])
        return run

    def _settled(self, passes: Passes, run: Run, wanted: Wanted) -> tuple[Run | None, Batch, int, int]:
        """(the run of the normalized text; that text; bytes of it that the CPU normalized, and that it encoded).

        Which segments are overlong is told before the text is normalized: those whose edges normalizing can't touch
        are encoded whole. Raises `Overlong` if there are others then.
        """
        batch, count = run.batch, run.status[UNSETTLED]
        if self._normalize is None:
            raise Unsettled("kernels.unsettled", "the text may have to be normalized", characters=count)
        if count <= len(run.unsettled):
            starts, ends = unsettled_regions(batch, run.unsettled[:count])
        else:
            starts, ends = all_regions(batch)
        firm = firm_stretches(batch, starts, ends, *run.overlong_bounds())
        settled, firm = _normalized_with(batch, starts, ends, self._normalize, firm)
        normalized = int((ends - starts).sum()) + settled.size - batch.size
        if not settled.size:
            return None, settled, normalized, 0
        placed = self._encoded(settled, *firm) if len(firm[0]) else None
        # Of other segments, only those that a region is in or beside can have other tokens than before.
        most = run.total + normalized + 2 * len(starts) * self._walk_limit + (len(placed.ids) if placed else 0)
        run = passes.run(settled, replace(wanted, unsettled=False, tokens=most), placed)
        if run.status[ERROR] < settled.size:
            raise InvalidArgument("kernels.invalid_argument", "what the normalizer gives isn't UTF-8")
        if not _within(run.overlong_bounds(), firm):
            raise Overlong("kernels.overlong", "the normalized text has other stretches that are too long")
        return run, settled, normalized, placed.bytes if placed else 0

    def _encoded(self, batch: Batch, starts: Positions, ends: Positions) -> Placed:
        return Placed(starts, ends, *encode_stretches(batch.text, starts, ends, self._encode_overlong, self._lengths))

    def _corrected(self, passes: Passes, run: Run, wanted: Wanted) -> tuple[Run, int]:
        """The run with its overlong segments encoded by the CPU, and how many bytes they have."""
        placed = self._encoded(run.batch, *run.overlong_bounds())
        most = run.total + len(placed.ids)
        return passes.place(run, placed, replace(wanted, unsettled=False, tokens=most)), placed.bytes

    def _deliver(self, run: Run | None, batch: Batch, ends: EndsKind | None, host: bool) -> Encoded:
        """Copies out of the arena, within `work()`."""
        total = 0 if run is None else run.total
        if run is None:
            empty = torch.empty(0, dtype=torch.uint32, device=self.device)
            ids, stops, firsts = empty, empty, np.zeros(len(batch.documents), np.int32)
        else:
            ids, stops, firsts = run.arrays["ids"][:total].clone(), run.arrays["starts"][1 : total + 1], run.firsts
        encoded = Encoded(
            ids=ids,
            ends=None if ends is None else _ends_of(stops, ends),
            document_tokens=_gaps(firsts, total),
            document_bytes=_gaps(batch.documents, batch.size),
            facts=Facts(),
        )
        if run is not None and host:
            if total > len(run.ids):
                run.ids, run.ends = self._device.to_host(ids), self._device.to_host(stops if ends else stops[:0])
                self._device.wait()
            encoded.host_ids = run.ids[:total].numpy()
            if ends is not None:
                brought = run.ends[:total].numpy()
                encoded.host_ends = brought.astype(np.uint64) if ends == "uint64" else brought
        return encoded

    # --- turns and faults -------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, wait: bool) -> Iterator[Passes]:
        if not self._slots.acquire(blocking=False):
            raise Busy("kernels.busy", "as many callers wait as may")
        try:
            if not self._lock.acquire(blocking=wait):
                raise Busy("kernels.busy", "another text is at work")
            try:
                if self._passes is None or self._state == "closed":
                    raise Closed("kernels.closed", "the engine was closed")
                if self._state == "lost":
                    raise DeviceFault("kernels.device", f"{self.device} was lost to this process", sticky=True)
                yield self._passes
            finally:
                self._lock.release()
        finally:
            self._slots.release()

    def _recover(self, sticky: bool) -> None:
        if sticky:
            self._state = "lost"
        if self._passes is not None:
            with suppress(RuntimeError):  # what is lost can't be given back either
                self._passes.drop()


def _normalized_with(
    batch: Batch, starts: Positions, ends: Positions, normalize: Normalize, firm: tuple[Positions, Positions]
) -> tuple[Batch, tuple[Positions, Positions]]:
    """The normalized batch, and where the `firm` stretches are in it."""
    documents = len(batch.documents)
    marked = replace(batch, documents=np.concatenate([batch.documents, *firm]))
    settled = normalize_regions(marked, starts, ends, normalize)
    begins, stops = settled.documents[documents:].reshape(2, -1)
    return replace(settled, documents=settled.documents[:documents]), (begins, stops)


def _within(segments: tuple[Positions, Positions], stretches: tuple[Positions, Positions]) -> bool:
    """Whether each of the segments is inside one of the stretches; both are sorted and apart."""
    begins, stops = segments
    which = np.searchsorted(stretches[0], begins, "right") - 1
    return not len(begins) or bool((which >= 0).all() and (stops <= stretches[1][which]).all())


def _ends_of(stops: torch.Tensor, kind: EndsKind) -> torch.Tensor:
    """A copy. By way of signed integers: below 2**31 they are the same, and torch converts them everywhere."""
    if kind == "uint32":
        return stops.clone()
    return stops.view(torch.int32).to(torch.int64).view(torch.uint64)


def _gaps(firsts: Positions, end: int) -> NDArray[np.int64]:
    edges = np.append(firsts, end).astype(np.int64)
    return edges[1:] - edges[:-1]
