"""What is timed, the most telling first: the time is limited, and what doesn't fit is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_check.texts import DECOMPOSED, NFC
from gpu_check.timing import Cell
from kernels_report.subjects import FAMILIES

MAIN = "qwen-3"
"""It normalizes to NFC, so that all kinds of text mean something."""
OTHER_SIZES = (10_000, 1_000_000)


@dataclass(frozen=True)
class Plan:
    """`sizes` in characters, `edge_sizes`, about blocks of programs, in bytes; `document_chars`, `copies`: of the bulk;
    `texts` and `twin_texts` hard ones a tokenizer."""

    families: tuple[str, ...] = tuple(FAMILIES)
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_400_000)
    other_sizes: tuple[int, ...] = OTHER_SIZES
    modes: tuple[str, ...] = ("graph", "eager")
    step_sizes: tuple[int, ...] = (10_000, 1_000_000, 4_400_000)
    edge_sizes: tuple[int, ...] = (0, 1, 31, 32, 33, 1023, 1024, 1025, 4095, 4096, 4097)
    document_chars: int = 16_000
    copies: tuple[int, ...] = (1, 4, 8)
    texts: int = 600
    twin_texts: int = 300
    broken: int = 100
    seconds: float = 0.5
    least: int = 12

    def cells(self) -> Sequence[Cell]:
        main = [family for family in self.families if family == MAIN]
        found = [
            Cell(family, NFC.name, chars, mode, "array", ends=False)
            for mode in self.modes
            for family in main
            for chars in self.sizes
        ]
        found += [
            Cell(family, DECOMPOSED.name, chars, self.modes[0], "array", ends=False)
            for family in main
            for chars in self.sizes
        ]
        found += [
            Cell(family, NFC.name, chars, self.modes[0], "array", ends=False)
            for family in self.families
            if family != MAIN
            for chars in self.other_sizes
        ]
        found += [
            Cell(family, text, chars, mode, delivery, ends)
            for ends in (False, True)
            for delivery in ("device", "array", "list")
            for mode in self.modes
            for text in (NFC.name, DECOMPOSED.name)
            for family in main
            for chars in self.sizes
            if text == NFC.name or (delivery == "array" and mode == self.modes[0])
        ]
        return list(dict.fromkeys(found))


FULL = Plan()
REHEARSAL = Plan(
    families=("gpt2-novelai", MAIN),
    sizes=(40, 160),
    other_sizes=(40,),
    modes=("eager",),
    step_sizes=(40,),
    edge_sizes=(0, 1, 33),
    document_chars=60,
    copies=(1, 2),
    texts=20,
    twin_texts=20,
    broken=3,
    seconds=0.0,
    least=1,
)
"""The same way through, without a GPU: some minutes of the interpreter, and no times."""
