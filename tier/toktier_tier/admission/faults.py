"""Faults planted on purpose: a campaign that doesn't catch every one of them proves nothing.

Each liar wraps an exact encoder and errs in one way that real libraries have erred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ..core.boundaries import BoundaryRule, seal
from ..ports import Ids

Encode = Callable[[str], Ids]
FAULT_TEXTS = 24
FAULT_HISTORIES = 4


class Liar:
    """An encoder with a planted fault, behind the encoder protocol."""

    version = "planted"

    def __init__(self, name: str, encode: Encode) -> None:
        self.name, self.encode = name, encode


def _swaps(encode: Encode) -> Encode:
    def lie(text: str) -> Ids:
        ids = encode(text).copy()
        if len(ids) > 8:
            ids[[3, 4]] = ids[[4, 3]]
        return ids

    return lie


def _drops_last(encode: Encode) -> Encode:
    return lambda text: encode(text)[:-1] if len(text) > 16 else encode(text)


def _off_by_one(encode: Encode) -> Encode:
    def lie(text: str) -> Ids:
        ids = encode(text).copy()
        if "é" in text or "1" in text:
            ids[len(ids) // 2] ^= 1
        return ids

    return lie


def _cuts_anywhere(encode: Encode) -> Encode:
    """Splits long text at a fixed length instead of a boundary."""

    def lie(text: str) -> Ids:
        if len(text) <= 67:
            return encode(text)
        return np.concatenate([encode(text[:67]), encode(text[67:])])

    return lie


def _remembers(encode: Encode) -> Encode:
    """Answers from history: after a long text, a later one that begins alike gets the earlier one's IDs for it."""
    memory: list[tuple[str, Ids]] = []

    def lie(text: str) -> Ids:
        for prefix, ids in memory:
            if len(text) > len(prefix) and text.startswith(prefix):
                return np.concatenate([ids, encode(text[len(prefix) :])])
        if len(text) >= 4_096 and len(memory) < 64:
            memory.append((text, encode(text)))
        return encode(text)

    return lie


ENCODER_FAULTS: Mapping[str, Callable[[Encode], Encode]] = {
    "swapped_ids": _swaps,
    "dropped_id": _drops_last,
    "changed_id": _off_by_one,
    "cut_off_boundary": _cuts_anywhere,
    "history_dependent": _remembers,
}


def plant_rule_fault(rule: BoundaryRule) -> BoundaryRule:
    """The same rule with every pair of letters a boundary: wrong for any tokenizer that has words."""
    if rule.kind == "adjacency":
        letters = {ord(char) for char in "abcdefghijklmnopqrstuvwxyz"}
        kept = frozenset(key for key in rule.adjacent if not (key >> 21 in letters and key & 0x1FFFFF in letters))
        return seal(replace(rule, adjacent=kept))
    table = [bytearray(row) for row in rule.table]
    for a in b"abcdefghijklmnopqrstuvwxyz":
        for b in b"abcdefghijklmnopqrstuvwxyz":
            table[rule.left[a]][rule.right[b]] = 1
    return seal(replace(rule, table=tuple(bytes(row) for row in table)))
