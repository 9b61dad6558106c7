"""Whole texts through the kernels or their twins, compared with the reference: every ID and every end, by `==`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_report.subjects import Ids, Sample, Spans, Subject
from toktier_kernels.twins import pipeline

Array = NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """What was made of a batch: ids and ends of all documents in order, and how many each document has."""

    ids: Ids
    ends: Array
    document_tokens: Array


Encode = Callable[[Sequence[bytes], Spans], Answer]


@dataclass(frozen=True)
class Outcome:
    """How many of `texts` had the reference's IDs, and its ends; `difference`: of the shortest that had not."""

    texts: int
    characters: int
    added_tokens: int
    equal_ids: int
    equal_ends: int
    difference: str = ""

    @property
    def red(self) -> bool:
        return not self.texts == self.equal_ids == self.equal_ends


def compare(encode: Encode, batches: Iterable[Sequence[Sample]]) -> Outcome:
    """Each batch goes through in one call, a text a document."""
    texts = characters = added = equal_ids = equal_ends = 0
    differences: list[tuple[int, str]] = []
    for batch in batches:
        for sample, (ids, ends) in zip(batch, _each(encode, batch), strict=True):
            same_ids = ids.tobytes() == sample.ids.tobytes()
            same_ends = ends.tolist() == sample.ends.tolist()
            texts, characters, added = texts + 1, characters + len(sample.text), added + len(sample.spans[0])
            equal_ids, equal_ends = equal_ids + same_ids, equal_ends + same_ends
            if not (same_ids and same_ends):
                what = "ends" if same_ids else f"IDs: {ids[:20].tolist()} instead of {sample.ids[:20].tolist()}"
                differences.append((len(sample.text), f"{sample.text[:120]!r}: other {what}"))
    shortest = min(differences)[1] if differences else ""
    return Outcome(texts, characters, added, equal_ids, equal_ends, shortest)


def _each(encode: Encode, batch: Sequence[Sample]) -> list[tuple[Ids, Array]]:
    answer = encode([sample.data for sample in batch], spans_of(batch))
    if len(answer.document_tokens) != len(batch):
        raise ValueError("not an answer for each document")
    edges = np.cumsum([0, *answer.document_tokens.tolist()])
    ends = np.concatenate([[0], answer.ends.astype(np.int64)])  # a document begins where the token before it ends
    return [
        (answer.ids[left:right], ends[left + 1 : right + 1] - ends[left]) for left, right in pairwise(edges.tolist())
    ]


def spans_of(samples: Sequence[Sample]) -> Spans:
    """The added tokens of all samples, one behind the other."""
    starts = np.cumsum([0, *(len(sample.data) for sample in samples)])[:-1].tolist()
    empty = np.empty(0, np.int64)
    parts = [
        [sample.spans[at] + (start if at < 2 else 0) for sample, start in zip(samples, starts, strict=True)]
        for at in range(3)
    ]
    begins, stops, ids = (np.concatenate([empty, *part]) for part in parts)
    return begins, stops, ids


def hard_texts(subject: Subject, count: int, seed: int) -> list[str]:
    """At least `count` short texts: each kind of difficulty, added tokens whole and cut, and the sizes at the edges."""
    texts = subject.texts(seed)
    found = ["", "a", "é", "\U0001f600", " ", "\n", "a\u0301", "x" * 33, "word " * 13]
    found += [texts.run(length) for length in (31, 32, 33, 129)]
    while len(found) < count:
        found += (texts.adversarial(24), texts.short(12), texts.natural(30), texts.mixed(60), texts.words(20))
    return found


def by_engine(engine: Any) -> Encode:
    """An `Encode` of a `toktier_kernels.engine.Engine`, by the arrays that it brings to the host."""

    def encode(documents: Sequence[bytes], spans: Spans) -> Answer:
        found = engine.encode(documents, spans=spans, ends="uint32", host=True)
        return Answer(found.numpy(), found.numpy_ends(), found.document_tokens)

    return encode


def by_twins(subject: Subject) -> Encode:
    """An `Encode` of the NumPy twins one behind the other."""

    def encode(documents: Sequence[bytes], spans: Spans) -> Answer:
        found = pipeline.encode(
            subject.tables,
            documents,
            spans=spans,
            normalize=subject.normalize,
            encode_overlong=subject.encode_overlong,
        )
        return Answer(found.ids, found.ends, found.document_tokens)

    return encode
