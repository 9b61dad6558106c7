"""All steps by their twins, one behind the other: what an engine's answer is, without torch. Imports NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..batch import Batch, Ids, Positions, Spans, gather
from ..errors import InvalidArgument, Unsettled, undecodable
from ..regions import Normalize, normalize_regions, unsettled_regions
from ..stretches import EncodeOverlong, encode_stretches
from ..tables import Tables
from . import compact, decode, lookup, merge, overlong, report, split

U8 = npt.NDArray[np.uint8]


class Encoding(NamedTuple):
    """ids: u32[tokens]; ends: u32[tokens], the byte behind each in the normalized text; document_tokens: i64[D]."""

    ids: Ids
    ends: Ids
    document_tokens: npt.NDArray[np.int64]


def encode(
    tables: Tables,
    documents: Sequence[bytes],
    *,
    spans: Spans | None = None,
    normalize: Normalize | None = None,
    encode_overlong: EncodeOverlong | None = None,
    walk_limit: int = 2048,
    walk_budget: int = 8,
    merge_limit: int = 512,
) -> Encoding:
    """As `engine.Engine.encode`, which has the same limits and raises the same errors of callers and states."""
    batch = gather(documents, spans)
    marks, cls, failed = decoded(batch, tables)
    if failed < batch.size:
        raise undecodable(batch.documents, failed)
    unsettled = compact.positions(decode.unsettled(cls, marks.flags, tables))[:-1]
    if len(unsettled):
        if normalize is None:
            raise Unsettled("kernels.unsettled", "the text may have to be normalized", characters=len(unsettled))
        batch = normalize_regions(batch, *unsettled_regions(batch, unsettled), normalize)
        marks, cls, failed = decoded(batch, tables)
        if failed < batch.size:
            raise InvalidArgument("kernels.invalid_argument", "what the normalizer gives isn't UTF-8")
    text, token = batch.text, marks.token
    segments = compact.positions(decode.cuts(cls, marks.flags, tables))
    piece, too_long = walked(text, cls, marks.flags, segments, tables, walk_limit, walk_budget)
    pieces = compact.positions(piece)
    lists = lookup.lookup(text, pieces, piece, segments, token, tables.vocabulary, merge_limit=merge_limit)
    for entries in (lists.short, lists.long):
        merge.merge(text, pieces, entries, token, tables.vocabulary)
    listed = np.union1d(np.array(too_long, np.int32), lists.overlong).astype(np.int32)
    if len(listed):
        starts, ends = report.bounds(segments, listed)
        at, ids = encode_stretches(text, starts, ends, encode_overlong, tables.vocabulary.length_of)
        overlong.place(token, starts, ends, at, ids)
    ids, places = compact.tokens(token)
    firsts = report.first_tokens(places, batch.documents)
    edges = np.append(firsts, len(ids)).astype(np.int64)
    return Encoding(ids, places[1:], edges[1:] - edges[:-1])


def decoded(batch: Batch, tables: Tables) -> tuple[decode.Marks, U8, int]:
    """(marks; `cls`; where decoding fails, the text's size: nowhere)."""
    marks = decode.mark(batch.size, batch.documents, batch.spans, batch.span_ends, batch.span_ids)
    cls, failed = decode.decode(batch.text, marks.flags, tables)
    return marks, cls, failed


def walked(
    text: U8, cls: U8, flags: U8, segments: Positions, tables: Tables, walk_limit: int, walk_budget: int
) -> tuple[U8, list[int]]:
    """`piece` after the last stage, and the segments that were overlong, once for each stage they were so in."""
    piece: U8 | None = None
    found: list[int] = []
    for stage in tables.stages:
        piece, overlong = split.walk(
            text, cls, flags, segments, stage, piece, walk_limit=walk_limit, walk_budget=walk_budget
        )
        found += overlong
    assert piece is not None
    return piece, found
