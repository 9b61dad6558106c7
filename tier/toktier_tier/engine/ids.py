"""Token IDs on their way to the engine: checked once, written fast.

Guarantee: a `CheckedIds` is never empty, holds no ID outside the vocabulary, and doesn't change any more. The clients
of this package take nothing else, because one ID outside the vocabulary kills SGLang's server, and an empty list its
gRPC server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InvalidRequest
from ..ports import Ids

MAX_ID_LIMIT = 1 << 31  # the native gRPC service carries an ID as int32
_CELL_DIGITS = 7
_MAX_TABLE = 1 << 20  # cells, 8 MiB


class CheckedIds:
    """IDs that `check_ids` let through; `array` is a read-only copy of its own."""

    __slots__ = ("array",)

    def __init__(self, array: Ids) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)


def check_ids(ids: Ids | Sequence[int], limit: int, *, max_ids: int = 1 << 24) -> CheckedIds:
    """The IDs, if there is one at least, `max_ids` at most, and each is in [0, limit).

    `limit` is the smaller of the tokenizer's and the model's number of IDs (what the server says of itself was wrong
    over SMG gRPC). Raises `InvalidRequest` (`ids.empty`, `ids.too_many`, `ids.not_integers`, `ids.out_of_range`,
    `ids.limit`); `details` name the position of the first bad ID, counted from 0.
    """
    if not 0 < limit <= MAX_ID_LIMIT:
        raise InvalidRequest("ids.limit", "the number of IDs in the vocabulary can't be", limit=limit)
    if len(ids) == 0:
        raise InvalidRequest("ids.empty", "a prompt has one ID at least")
    if len(ids) > max_ids:
        raise InvalidRequest("ids.too_many", f"more than {max_ids} IDs", count=len(ids), limit=max_ids)
    try:
        array: NDArray[Any] = np.asarray(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("ids.not_integers", "the IDs are no list of integers") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidRequest("ids.not_integers", "the IDs are no list of integers")
    if int(array.max()) >= limit or int(array.min()) < 0:
        bad = int(np.flatnonzero((array >= limit) | (array < 0))[0])
        raise InvalidRequest("ids.out_of_range", "an ID is outside the vocabulary", position=bad, limit=limit)
    own = array.astype(np.uint32)
    own.flags.writeable = False
    return CheckedIds(own)


def ids_json(ids: CheckedIds) -> bytes:
    """The IDs as a JSON array, padded with blanks: equal to `ids_json_plain` for every JSON parser.

    One table look-up per ID: a cell holds an ID's digits, right-aligned, and a comma. 1 M IDs take about 2.5 ms.
    """
    top = int(ids.array.max())
    if top >= _MAX_TABLE:
        return ids_json_plain(ids)
    cells = np.take(_cells(max(1 << 17, 1 << top.bit_length())), ids.array)
    return b"".join((b"[", cells.data.cast("B")[:-1], b"]"))


def ids_json_plain(ids: CheckedIds) -> bytes:
    """The obvious twin of `ids_json`."""
    return ("[" + ",".join(str(each) for each in ids.array.tolist()) + "]").encode()


@lru_cache(maxsize=4)
def _cells(size: int) -> NDArray[np.uint64]:
    """For each number below `size` its eight bytes: blanks, digits, comma."""
    numbers = np.arange(size)
    cells = np.full((size, _CELL_DIGITS + 1), ord(" "), dtype=np.uint8)
    cells[:, _CELL_DIGITS] = ord(",")
    for place in range(_CELL_DIGITS):
        rest = numbers // 10**place
        written = (rest > 0) | (place == 0)
        cells[written, _CELL_DIGITS - 1 - place] = (ord("0") + rest[written] % 10).astype(np.uint8)
    return cells.view(np.uint64).reshape(-1)
