"""The proof of an adjacency rule: every neighbouring pair of every vocabulary entry, and the conditions once more.

Guarantees: `proved` only if no claimed pair stands side by side inside any vocabulary entry, as the normalizer shows
it, and the conditions of docs/decisions/0003-vocabulary-adjacency.md hold. The vocabulary is finite, so the check is
exhaustive. Written without the code that derives the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np

from ..boundaries import BoundaryRule
from ..classes import CODE_POINTS, Bools, Points, Probe, is_scalar
from ..errors import UnsupportedTokenizer
from ..pipeline import Pipeline
from .characters import Characters
from .result import Contradiction, Counts, Proof

MAX_OUTSIDE = 100

_Pairs = set[tuple[int, int]]
_Strings = set[tuple[str, str]]


def prove_adjacency(
    rule: BoundaryRule, pipeline: Pipeline, model: Mapping[str, Any], characters: Characters, probe: Probe
) -> Proof:
    """The verdict on a rule of kind `adjacency`."""
    failed = _failed_condition(pipeline, model)
    if failed:
        return Proof("adjacency", "refuted", "rule.refuted", failed)
    shown = _shown(pipeline, probe)
    own_symbol = _symbols(model, shown)
    left, right = characters.left & own_symbol, characters.right & own_symbol
    rule_left, rule_right = (np.frombuffer(side, dtype=np.uint8) > 0 for side in (rule.left, rule.right))
    rule_left, rule_right = rule_left & is_scalar(), rule_right & is_scalar()
    neighbours: _Pairs = set()
    vocabulary = model["vocab"]
    for entry in vocabulary:
        neighbours.update((ord(u), ord(v)) for u, v in pairwise(entry))

    by_rule = np.arange(CODE_POINTS, dtype=np.uint32)
    for char, image in rule.images.items():
        by_rule[ord(char)] = ord(image)
    adjacent = {(key >> 21, key & 0x1FFFFF) for key in rule.adjacent}
    claimed = _count(rule_left, rule_right, by_rule, adjacent, rule.excluded)
    complete = _count(left, right, shown, neighbours, characters.inside)
    wrong = _outside(rule, rule_left & ~left, rule_right & ~right, rule_left, rule_right)
    wrong |= _inside_entries(rule, neighbours, shown, rule_left, rule_right)
    wrong |= {(pair[0], pair[1]) for pair in characters.inside if rule.holds(*pair)}
    missed = complete - (claimed - len(wrong))
    counts = Counts(claimed, len(wrong), complete, missed)
    if not wrong:
        return Proof("adjacency", "proved", counts=counts)
    a, b = min(wrong, key=lambda pair: (max(pair), pair))
    condition = "added_token"
    if (int(shown[ord(a)]), int(shown[ord(b)])) in neighbours:
        condition = "adjacent"
    elif not (left[ord(a)] and right[ord(b)]):
        condition = "right_character" if left[ord(a)] else "left_character"
    found = Contradiction(a, b, condition, "", a + b, 1)
    detail = f"{len(wrong)} or more of {claimed} claimed pairs are not shown to be boundaries in every context"
    return Proof("adjacency", "refuted", "rule.refuted", detail, counts=counts, contradiction=found)


def _failed_condition(pipeline: Pipeline, model: Mapping[str, Any]) -> str:
    """The condition of decision 0003 that doesn't hold, in words; '' if all do."""
    if model["type"] != "BPE":
        return f"the model is {model['type']}, not BPE"
    for option in ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            return f"the model has {option}"
    opaque = {f"<0x{byte:02X}>" for byte in range(256)} | {model["unk_token"]}
    for left, right in model["merges"]:
        if left in opaque or right in opaque:
            return f"a merge uses {left if left in opaque else right}, which doesn't spell the text it stands for"
    for step in pipeline.pre_tokenizer:
        if step.kind != "metaspace" or step.cuts:
            return f"{step.name} may cut the text, so that a piece isn't the whole text"
    for normalizer in pipeline.normalizer:
        if normalizer.kind not in ("prepend", "replace") or len(normalizer.literal) > 1:
            return f"{normalizer.name} isn't a replacement of single characters"
    return ""


def _shown(pipeline: Pipeline, probe: Probe) -> Points:
    """The one character that each character becomes. Raises `UnsupportedTokenizer` (`proof.normalizer`) for others."""
    shown = np.arange(CODE_POINTS, dtype=np.uint32)
    if pipeline.normalizer:
        for point, image in enumerate(probe.images()):
            if image is None:
                continue
            if len(image) != 1:
                raise UnsupportedTokenizer("proof.normalizer", "a character becomes none or several")
            shown[point] = ord(image)
    for step in pipeline.pre_tokenizer:
        shown[shown == ord(" ")] = ord(step.source)
    return shown


def _symbols(model: Mapping[str, Any], shown: Points) -> Bools:
    """Characters that are a symbol of their own, or fall back to bytes that no merge uses."""
    vocabulary = model["vocab"]
    if model["byte_fallback"] and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return is_scalar()
    known = np.zeros(CODE_POINTS, dtype=bool)
    known[[ord(entry) for entry in vocabulary if len(entry) == 1]] = True
    return known[shown] & is_scalar()


def _count(left: Bools, right: Bools, shown: Points, neighbours: _Pairs, inside: Iterable[str]) -> int:
    """Pairs (a, b) of the two sides that neither show a pair of `neighbours` nor are `inside` a literal."""
    lefts = np.bincount(shown[left], minlength=CODE_POINTS)
    rights = np.bincount(shown[right], minlength=CODE_POINTS)
    total = int(left.sum()) * int(right.sum())
    if neighbours:
        u, v = np.array(sorted(neighbours), dtype=np.intp).T
        total -= int((lefts[u] * rights[v]).sum())
    for a, b in (map(ord, pair) for pair in inside):
        total -= bool(left[a] and right[b] and (int(shown[a]), int(shown[b])) not in neighbours)
    return total


def _outside(rule: BoundaryRule, lefts: Bools, rights: Bools, rule_left: Bools, rule_right: Bools) -> _Strings:
    """A claimed pair for each character that may not stand on its side, for some hundred of them."""
    found: _Strings = set()
    for a in map(chr, np.flatnonzero(lefts)[:MAX_OUTSIDE].tolist()):
        found.update(_first((a, chr(b)) for b in np.flatnonzero(rule_right).tolist() if rule.holds(a, chr(b))))
    for b in map(chr, np.flatnonzero(rights)[:MAX_OUTSIDE].tolist()):
        found.update(_first((chr(a), b) for a in np.flatnonzero(rule_left).tolist() if rule.holds(chr(a), b)))
    return found


def _first(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair in (next(iter(pairs), None),) if pair is not None]


def _inside_entries(
    rule: BoundaryRule, neighbours: _Pairs, shown: Points, rule_left: Bools, rule_right: Bools
) -> _Strings:
    """Claimed pairs that show themselves as a neighbouring pair of some entry."""
    lefts, rights = _sources(shown, rule_left), _sources(shown, rule_right)
    return {pair for u, v in neighbours for pair in product(lefts(u), rights(v)) if rule.holds(*pair)}


def _sources(shown: Points, side: Bools) -> Callable[[int], list[str]]:
    """The characters of a side that show a given one."""
    points = np.arange(CODE_POINTS, dtype=np.uint32)
    plain = (shown == points) & side
    others: dict[int, list[str]] = {}
    for point in np.flatnonzero((shown != points) & side).tolist():
        others.setdefault(int(shown[point]), []).append(chr(point))
    return lambda image: ([chr(image)] if plain[image] else []) + others.get(image, [])
