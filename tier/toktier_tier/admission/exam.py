"""Groups of texts with the reference's answers, asked for once and compared with every candidate.

Guarantees: every text of a group is encoded by the candidate, by itself or in a block of several; a block that differs
is taken apart, so a divergence is reported with the shortest text of the group that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..ports import Ids
from .groups import Group
from .report import Phase

Encode = Callable[[str], Ids]
BLOCK_CHARS = 20_000
"""Long enough for the reference to let other threads run (`encoders.reference.APART_CHARS`)."""
SEPARATOR = "\n"
WORKERS = 2
MAX_DIVERGENCES = 100
"""After so many a phase is no longer taken apart: the verdict is clear."""


@dataclass(frozen=True)
class Asked:
    """A group in the blocks it is compared in, and the reference's IDs for each as bytes."""

    group: Group
    blocks: Sequence[Sequence[str]]
    expected: Sequence[bytes]

    def texts(self) -> Iterator[tuple[Sequence[str], str, bytes]]:
        for block, expected in zip(self.blocks, self.expected, strict=True):
            yield block, SEPARATOR.join(block), expected


def ask(groups: Sequence[Group], reference: Encode) -> list[Asked]:
    """Ask the reference about all groups."""
    with ThreadPoolExecutor(WORKERS) as pool:
        found: list[Asked] = []
        for group in groups:
            blocks = [[text] for text in group.texts] if group.apart else list(_blocks(group.texts))
            answer = _answer(reference)
            each = map(answer, blocks) if group.apart else pool.map(answer, blocks)
            found.append(Asked(group, blocks, list(each)))
        return found


def _answer(reference: Encode) -> Callable[[Sequence[str]], bytes]:
    return lambda block: reference(SEPARATOR.join(block)).tobytes()


def _blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text) + len(SEPARATOR)
        if size >= BLOCK_CHARS:
            yield block
            block, size = [], 0
    if block:
        yield block


def check_asked(
    asked: Asked, encode: Encode, reference: Encode, name: str, *, other: Callable[[str], bool] | None = None
) -> Phase:
    """Compare `encode` with the reference on one group.

    other   whether what `encode` has to equal isn't what was asked before for a text: then `reference` is asked anew
    """
    phase = Phase(name)
    for block, text, expected in asked.texts():
        if other is not None and other(text):
            expected = reference(text).tobytes()
        if _same(encode, text, expected):
            phase.passed(len(block), len(text))
        else:
            _take_apart(phase, block, encode, reference)
    return phase


def _same(encode: Encode, text: str, expected: bytes) -> bool:
    try:
        return encode(text).tobytes() == expected
    except Exception:
        return False


def _take_apart(phase: Phase, block: Sequence[str], encode: Encode, reference: Encode) -> None:
    """Count a block that differs: by the halves that differ, down to single texts."""
    if phase.divergences >= MAX_DIVERGENCES:
        phase.compare(False, SEPARATOR.join(block))
        return
    middle = len(block) // 2
    halves = [block[:middle], block[middle:]] if middle else []
    wrong = [half for half in halves if not _same(encode, joined := SEPARATOR.join(half), reference(joined).tobytes())]
    for half in halves:
        if half not in wrong:
            phase.passed(len(half), sum(map(len, half)))
    for half in wrong:
        _take_apart(phase, half, encode, reference)
    if not wrong:  # a single text, or one that only differs beside the others
        phase.compare(False, SEPARATOR.join(block))
