"""Whole texts through the kernels on a CPU, by Triton's interpreter.

The interpreter's time goes by programs and steps, whatever their width: most texts therefore run with more pieces and
segments a program than on a GPU (`WIDE_*`); the first few, and all of tests/kernels, with a GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest import mock

from kernels_report.exactness import Encode, by_engine
from kernels_report.subjects import Sample, Subject

WIDE_LANES = 256
WIDE_ROWS = 64
AS_ON_A_GPU = 8
"""Texts that run in the shapes of a GPU."""


def interpreted(subject: Subject) -> Encode:
    """Needs TRITON_INTERPRET=1 from before the first import of Triton."""
    from toktier_kernels.engine import Engine

    return by_engine(
        Engine(
            subject.tables,
            device="cpu",
            normalize=subject.normalize,
            encode_overlong=subject.encode_overlong,
            graphs=False,
        )
    )


def batches(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """All samples: some as on a GPU, the rest in wide programs while the consumer holds the batch."""
    ordered = sorted(samples, key=lambda sample: len(sample.data))
    middle = len(ordered) // 2
    few = ordered[middle : middle + AS_ON_A_GPU]
    yield few
    with wide_programs():
        yield ordered[:middle] + ordered[middle + AS_ON_A_GPU :]


@contextmanager
def wide_programs() -> Iterator[None]:
    from toktier_kernels import lookup, merge, split

    tiles = tuple(
        replace(tile, rows=WIDE_ROWS) if tile.constants.get("ROWS") is not None else tile for tile in merge._TILES
    )
    with (
        mock.patch.object(split, "walk", partial(split.walk, lanes=WIDE_LANES)),
        mock.patch.object(lookup, "lookup", partial(lookup.lookup, lanes=WIDE_LANES)),
        mock.patch.object(merge, "_TILES", tiles),
    ):
        yield
