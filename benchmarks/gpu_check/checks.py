"""What has to be true before a time means anything: each step like its twin, whole texts like the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_check.steps import Chain, batches
from kernels_report.exactness import Outcome, by_engine, compare, hard_texts
from kernels_report.subjects import Sample, Subject


@dataclass(frozen=True)
class Check:
    """One comparison: `what` of `cases` cases was right in `right`; `difference` is the first that wasn't."""

    family: str
    what: str
    cases: int
    right: int
    difference: str = ""

    @property
    def red(self) -> bool:
        return not self.cases or self.right != self.cases


def steps_like_twins(
    subject: Subject, device: str, texts: int, sizes: Sequence[int], broken: int, seed: int
) -> Iterator[Check]:
    """Every array of the chain after hard texts and texts of `sizes` bytes; then what is no UTF-8, `broken` times."""
    chain = Chain(subject, device)
    samples = subject.samples(hard_texts(subject, texts, seed))
    found = [(batch.size, chain.differences(batch)) for batch in batches(samples, sizes)]
    wrong = [f"{size} bytes: {', '.join(names)}" for size, names in found if names]
    yield Check(subject.family, "steps like their twins", len(found), len(found) - len(wrong), "".join(wrong[:1]))
    draw = random.Random(seed)
    right, difference = 0, ""
    for _ in range(broken):
        data = _broken(draw)
        error, expected = chain.error(data), _python_error(data)
        right += error == expected
        difference = difference or ("" if error == expected else f"{data!r}: {error}")
    yield Check(subject.family, "where UTF-8 is broken", broken, right, difference)


def like_the_reference(family: str, what: str, engine: Any, samples: Sequence[Sample], at_once: bool = True) -> Check:
    """IDs and ends of every sample, in one call or one by one."""
    outcome: Outcome = compare(by_engine(engine), [samples] if at_once else [[sample] for sample in samples])
    right = min(outcome.equal_ids, outcome.equal_ends)
    return Check(family, what, outcome.texts, right, outcome.difference)


def _broken(draw: random.Random) -> bytes:
    """A few characters, of which some bytes are changed, dropped or doubled."""
    data = bytearray("".join(draw.choices("a é中\U0001f600\ud7ff\ue000\U0010ffff", k=draw.randint(1, 12))).encode())
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data))
        data[at : at + 1] = draw.choice((b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80"))
        data = data or bytearray(b"\xe4\xb8")
    return bytes(data)


def _python_error(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)
