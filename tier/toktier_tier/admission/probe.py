"""On which code points a candidate encoder differs from the reference.

Every scalar value is encoded by both, in a frame that tells its class, in blocks; a block that differs is taken
apart until the code points are known. A block that differs though none of its characters does alone is unsafe as a
whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..core.classes import CODE_POINTS, Bools, Ranges, ranges_of
from ..ports import Ids

FRAME = "{0}.v 1{0}123 {0}'s\n{0}a'{0}"
"""Where a character's class shows in the IDs even though the character itself joins with nothing: what follows it
is one token or two depending on whether the character is a letter, a digit, a symbol or space to the pattern. Behind
an apostrophe it may fold to a letter of a contraction."""
UNASSIGNED_FRAME = "{0}.v {0}'s{0}123"
"""For what the reference knows as unassigned: a library with newer tables may take it for a letter or a digit."""
EMPTY_PLANE_FRAME = "{0}'s"
"""For the planes in which Unicode has assigned no characters (4 to 13) and those for private use (15 and 16)."""
BLOCK_POINTS = {FRAME: 32, UNASSIGNED_FRAME: 128, EMPTY_PLANE_FRAME: 512}
MAX_UNSAFE_POINTS = 20_000

Encode = Callable[[str], Ids]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`unsafe` as ranges (first, last); `checks` counts code points."""

    unsafe: Ranges
    checks: int

    @property
    def too_many(self) -> bool:
        """Whether a library that differs so widely, or on ASCII, isn't worth guarding."""
        return self.points > MAX_UNSAFE_POINTS or any(first < 0x80 for first, _ in self.unsafe)

    @property
    def points(self) -> int:
        return sum(last - first + 1 for first, last in self.unsafe)


def probe_encoders(
    candidates: Mapping[str, Encode],
    reference: Encode,
    assigned: Bools,
    progress: Callable[[float], None],
    *,
    only: Bools | None = None,
    answers: dict[str, bytes] | None = None,
) -> dict[str, ProbeResult]:
    """Compare each candidate with `reference` on every code point; `assigned` are those the reference knows.

    only      leave out all other code points
    answers   takes in what the reference made of each block of assigned code points
    """
    probes = {name: _Probe(encode, reference) for name, encode in candidates.items()}
    jobs = _blocks(assigned, only)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        expected = pool.map(lambda block: reference(block.text()).tobytes(), jobs)
        for index, (block, ids) in enumerate(zip(jobs, expected, strict=True)):
            if index % 256 == 0:
                progress(index / len(jobs))
            for probe in probes.values():
                probe.check(block, ids)
            if answers is not None and block.frame == FRAME:
                answers[block.text()] = ids
    return {name: probe.result() for name, probe in probes.items()}


def _blocks(assigned: Bools, only: Bools | None = None) -> list[_Block]:
    """Every scalar value in one block; without what isn't in `only`, but the others still in the same blocks."""
    frames: dict[str, list[int]] = {FRAME: [], UNASSIGNED_FRAME: [], EMPTY_PLANE_FRAME: []}
    for point in range(CODE_POINTS):
        if 0xD800 <= point < 0xE000:
            continue
        if 0x40000 <= point < 0xE0000 or point >= 0xF0000:
            frames[EMPTY_PLANE_FRAME].append(point)
        else:
            frames[FRAME if assigned[point] else UNASSIGNED_FRAME].append(point)
    blocks = [
        _Block(points[start : start + BLOCK_POINTS[frame]], frame)
        for frame, points in frames.items()
        for start in range(0, len(points), BLOCK_POINTS[frame])
    ]
    if only is None:
        return blocks
    kept = (_Block([point for point in block.points if only[point]], block.frame) for block in blocks)
    return [block for block in kept if block.points]


@dataclass(frozen=True, slots=True)
class _Block:
    points: Sequence[int]
    frame: str

    def text(self) -> str:
        return "".join(self.frame.format(chr(point)) for point in self.points)

    def halves(self) -> tuple[_Block, _Block]:
        middle = len(self.points) // 2
        return _Block(self.points[:middle], self.frame), _Block(self.points[middle:], self.frame)


class _Probe:
    """Collects what one candidate gets wrong."""

    def __init__(self, candidate: Encode, reference: Encode) -> None:
        self._candidate, self._reference = candidate, reference
        self._unsafe = np.zeros(CODE_POINTS, dtype=bool)
        self._found = self._checks = 0

    def check(self, block: _Block, expected: bytes) -> None:
        self._checks += len(block.points)
        if self._found <= MAX_UNSAFE_POINTS and self._differs(block, expected):
            points = self._take_apart(block)
            self._unsafe[points] = True
            self._found += len(points)

    def result(self) -> ProbeResult:
        return ProbeResult(ranges_of(self._unsafe), self._checks)

    def _differs(self, block: _Block, expected: bytes | None = None) -> bool:
        text = block.text()
        try:
            ids = self._candidate(text)
        except Exception:
            return True
        return ids.tobytes() != (expected if expected is not None else self._reference(text).tobytes())

    def _take_apart(self, block: _Block) -> list[int]:
        if len(block.points) == 1:
            return list(block.points)
        bad = [half for half in block.halves() if self._differs(half)]
        return [point for half in bad for point in self._take_apart(half)] if bad else list(block.points)
