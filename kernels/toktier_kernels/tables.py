"""What the kernels know of a tokenizer: plain NumPy arrays that validate themselves. Imports NumPy only.

Classes are *joint* classes, 1 to 254, as `docs/decisions/0009-kernels.md` defines them: 0 stands for a lead of no valid
character and 255 for a byte that continues one, and as a class 255 also stands for the end of a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import InvalidTables
from .status import CONTINUATION, START, STATE

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

PAGES_OF_UNICODE = 0x110000 >> 8
SYMBOLS = 256  # classes or bytes: the width of `Stage.dense`
END = CONTINUATION  # the symbol for the end of a piece: neither a class nor a byte of valid UTF-8


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidTables("kernels.invalid_tables", message)


def _frozen(array: npt.NDArray[np.generic], dtype: type[np.generic], name: str) -> npt.NDArray[np.generic]:
    _require(isinstance(array, np.ndarray) and array.dtype == dtype, f"{name} isn't an array of {dtype.__name__}")
    result = np.array(array, order="C")
    result.setflags(write=False)
    return result


@dataclass(frozen=True, eq=False)
class Stage:
    """One split automaton. Raises `InvalidTables` (`kernels.invalid_tables`).

    Of characters: `column[joint class]`; `of_bytes`: `column[byte]`. Column `columns` is the end of the piece.
    `step[state, column] & STATE` is the next state, `DEAD` = 0 or `START` = 1 and more; bit `MATCH` says that a match
    ends before this character. No match is empty: `step[START]` has no `MATCH`.
    """

    of_bytes: bool
    column: U8  # [256]
    columns: int
    step: U16  # [states, columns + 1]

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", _frozen(self.column, np.uint8, "column"))
        object.__setattr__(self, "step", _frozen(self.step, np.uint16, "step"))
        _require(self.column.shape == (SYMBOLS,), "column has not 256 entries")
        _require(1 <= self.columns <= SYMBOLS and int(self.column.max()) < self.columns, "a column past `columns`")
        _require(self.step.ndim == 2 and self.step.shape[1] == self.columns + 1, "step is not [states, columns + 1]")
        _require(len(self.step) > START, "no start state")
        _require(int((self.step & STATE).max()) < len(self.step), "a step to no state")
        _require(not (self.step[START] > STATE).any(), "a pattern matches the empty string")

    @cached_property
    def dense(self) -> U16:
        """u16[states, 256], indexed by class or byte; symbol `END` = 255 is the end: one load a step on the device."""
        result = self.step[:, self.column]
        result[:, END] = self.step[:, self.columns]
        result.setflags(write=False)
        return result


@dataclass(frozen=True, eq=False)
class Tables:
    """A tokenizer for the kernels; 0009 defines each array. Raises `InvalidTables` (`kernels.invalid_tables`)."""

    page_of: U16  # [4352]
    class_of: U8  # [pages, 256]
    cuts: U8  # [256, 256]
    settled: U8  # [256]
    stages: tuple[Stage, ...]
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        for name, dtype in (("page_of", np.uint16), ("class_of", np.uint8), ("cuts", np.uint8), ("settled", np.uint8)):
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype, name))
        _require(self.page_of.shape == (PAGES_OF_UNICODE,), "page_of has not 4352 entries")
        _require(self.class_of.ndim == 2 and self.class_of.shape[1] == 256, "class_of is not [pages, 256]")
        _require(int(self.page_of.max()) < len(self.class_of), "a page past class_of")
        _require(int(self.class_of.min()) >= 1 and int(self.class_of.max()) < END, "classes are 1 to 254")
        _require(
            self.cuts.shape == (SYMBOLS, SYMBOLS) and int(self.cuts.max()) <= 1, "cuts is not [256, 256] of 0 and 1"
        )
        _require(self.settled.shape == (SYMBOLS,) and int(self.settled.max()) <= 2, "settled is not [256] of 0 to 2")
        _require(len(self.stages) > 0, "no stage")
        kinds = [stage.of_bytes for stage in self.stages]
        _require(kinds == sorted(kinds), "a stage of characters behind one of bytes")

    @property
    def normalizes(self) -> bool:
        """Whether some text isn't what the normalizer makes of it: `unsettle` has to run."""
        return bool(self.settled.any())
