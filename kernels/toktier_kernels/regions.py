"""What the CPU normalizes of a text, and the text spliced together again. NumPy only.

Guarantee: the spliced text is what normalizing every stretch between two hard positions gives, as long as `normalize`
is one Unicode normalization form and "settled" means what 0009 says: any text may be cut before each settled
character, and a stretch of settled ones is normal already.

Unsettled characters that stand next to each other are a whole run of characters that aren't settled: in a run of two
or more each has a neighbour that isn't. So their positions are all that is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .batch import Batch, Positions
from .errors import InvalidArgument

Normalize = Callable[[bytes], bytes]
SEPARATOR = b"\0"
"""Settled in every normalization form, and nothing joins with it."""


def unsettled_regions(batch: Batch, unsettled: Positions) -> tuple[Positions, Positions]:
    """(starts, ends) of the regions around `unsettled`, the positions of all such characters, in order.

    A region reaches from the settled character before (or a hard position) to the next settled one.
    """
    if not len(unsettled):
        return unsettled, unsettled
    text, hard = batch.text, batch.hard()
    lead = text[unsettled]
    follow = unsettled + 1 + (lead >= 0xC0).astype(np.int32) + (lead >= 0xE0) + (lead >= 0xF0)
    at_hard = np.isin(unsettled, hard, assume_unique=True)
    first = np.concatenate([[True], (unsettled[1:] != follow[:-1]) | at_hard[1:]])
    starts = unsettled[first]
    before = np.maximum(starts - 1, 0)
    for _ in range(3):
        before = before - ((text[before] & 0xC0) == 0x80)
    last = np.concatenate([first[1:], [True]])
    begins: Positions = np.where(at_hard[first], starts, before).astype(np.int32)
    return begins, follow[last].astype(np.int32)


def all_regions(batch: Batch) -> tuple[Positions, Positions]:
    """Every stretch between hard positions that isn't a span: for texts with unsettled characters everywhere."""
    edges = np.unique(np.concatenate([batch.hard(), [0, batch.size]])).astype(np.int32)
    kept = ~np.isin(edges[:-1], batch.spans)
    return edges[:-1][kept], edges[1:][kept]


def firm_stretches(
    batch: Batch, starts: Positions, ends: Positions, begins: Positions, stops: Positions
) -> tuple[Positions, Positions]:
    """Those of the segments [begins[k], stops[k]) that stand between boundaries in the normalized text, too.

    A boundary depends on the characters on its two sides alone: it stays where no region [starts[k], ends[k]) holds
    either of them, and at hard positions.
    """
    if not len(begins):
        return begins, stops
    hard = np.append(batch.hard(), batch.size)
    edges = np.stack([begins, stops])
    before = np.searchsorted(ends, edges, "left")
    after = np.searchsorted(starts, edges, "right")
    firm = ((before == after) | np.isin(edges, hard)).all(axis=0)
    return begins[firm], stops[firm]


def normalize_regions(batch: Batch, starts: Positions, ends: Positions, normalize: Normalize) -> Batch:
    """The batch with the regions normalized, and with its positions where they are then."""
    view = batch.text.data
    images = _images([view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)], normalize)
    parts: list[bytes | memoryview] = []
    done = 0
    for start, end, image in zip(starts.tolist(), ends.tolist(), images, strict=True):
        parts += (view[done:start], image)
        done = end
    parts.append(view[done:])
    lengths = np.fromiter(map(len, images), dtype=np.int64, count=len(images))
    moved = np.concatenate([[0], np.cumsum(lengths - (ends - starts))])

    def shifted(positions: Positions) -> Positions:
        there: Positions = (positions + moved[np.searchsorted(ends, positions, "right")]).astype(np.int32)
        return there

    return Batch(
        np.frombuffer(b"".join(parts), dtype=np.uint8),
        shifted(batch.documents),
        shifted(batch.spans),
        shifted(batch.span_ends),
        batch.span_ids,
    )


def _images(regions: list[memoryview], normalize: Normalize) -> list[bytes]:
    """`normalize` of each region, by one call where none of them holds the separator."""
    images = normalize(SEPARATOR.join(regions)).split(SEPARATOR)
    if len(images) != len(regions) or any(SEPARATOR in bytes(region) for region in regions):
        images = [normalize(bytes(region)) for region in regions]
    if sum(map(len, images)) >= 2**31:
        raise InvalidArgument("kernels.invalid_argument", "normalized text of 2**31 bytes or more")
    return images
