"""Where a text may be cut: the boundary rule of a snapshot, derived from its tokenizer.json.

Guarantee: if `rule.holds(a, b)` for two neighbouring characters of a text S at position p, then
F(S) = F(S[:p]) ‖ F_continuation(S[p:]) in every context, where F is the snapshot's encoding without template
tokens. A rule may miss boundaries; it never claims one too many. The proofs are docs/decisions/0002 (classes)
and 0003 (vocabulary adjacency); admission checks every derivation against the reference and rejects on one miss.

Positions are in characters (Python `str` indexes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .added_tokens import Exclusions
from .classes import (
    CODE_POINTS,
    Alphabet,
    Bools,
    Probe,
    byte_alphabet,
    normalized_alphabet,
    replaced_alphabet,
)
from .errors import TierError, UnsupportedTokenizer
from .follow import compute_follow
from .pattern import Atom, Pattern, parse
from .pipeline import Pipeline, PreTokenizerStep

MAX_CLASSES = 255
MAX_DISTINCT_ATOMS = 100


@dataclass(frozen=True, slots=True)
class StageSummary:
    """What `explain` shows of one cutting step."""

    name: str
    source: str
    atoms: int
    covered: int  # code points always inside a match


@dataclass(frozen=True)
class BoundaryRule:
    """A predicate on two neighbouring characters, by table.

    kind        classes: `table[left[a]][right[b]]`; adjacency: a, b allowed by `left` and `right` and their images
                not in `adjacent`; none: never
    left,right  one byte per code point: its class as the left and as the right neighbour; class 0 is never one
    excluded    two-character strings that stand inside an added token
    adjacent    (last image of a) << 21 | (first image of b) for pairs that some vocabulary entry contains
    images      characters that the normalizer shows as another one (adjacency only)
    reason      for kind none: a code; `detail` says it in words
    """

    kind: Literal["classes", "adjacency", "none"]
    left: bytes = b""
    right: bytes = b""
    table: tuple[bytes, ...] = ()
    excluded: frozenset[str] = frozenset()
    adjacent: frozenset[int] = frozenset()
    images: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    stages: tuple[StageSummary, ...] = ()
    digest: str = ""

    def holds(self, a: str, b: str) -> bool:
        """Whether the position between characters `a` and `b` is a boundary in every context."""
        left, right = self.left[ord(a)], self.right[ord(b)]
        if self.kind == "classes":
            return bool(self.table[left][right]) and (a + b) not in self.excluded
        if self.kind == "none" or not left or not right or (a + b) in self.excluded:
            return False
        return (ord(self.images.get(a, a)) << 21 | ord(self.images.get(b, b))) not in self.adjacent

    def last(self, text: str, end: int, floor: int = 0) -> int:
        """The last boundary p with floor < p <= end and p < len(text); -1 if there is none."""
        position = min(end, len(text) - 1)
        if self.kind == "classes":
            left, table = self.left, self.table
            while position > floor:
                if (
                    table[left[ord(text[position - 1])]][self.right[ord(text[position])]]
                    and text[position - 1 : position + 1] not in self.excluded
                ):
                    return position
                position -= 1
            return -1
        if self.kind == "none":
            return -1
        while position > floor:
            if self.holds(text[position - 1], text[position]):
                return position
            position -= 1
        return -1

    def first(self, text: str, start: int, ceiling: int | None = None) -> int:
        """The first boundary p with start <= p < ceiling (default: the end of the text), p > 0; -1 if none."""
        if self.kind == "none":
            return -1
        stop = len(text) if ceiling is None else min(ceiling, len(text))
        for position in range(max(start, 1), stop):
            if self.holds(text[position - 1], text[position]):
                return position
        return -1

    def pairs(self) -> tuple[int, int]:
        """(boundary class pairs, all class pairs) for kind classes; class 0 counts on neither side."""
        if self.kind != "classes":
            return (0, 0)
        rows = [row[1:] for row in self.table[1:]]
        return sum(sum(row) for row in rows), sum(len(row) for row in rows)


NO_RULE = BoundaryRule("none", left=bytes(1), right=bytes(1), reason="rule.not_derived", detail="no rule was derived")


def no_rule(reason: str, detail: str) -> BoundaryRule:
    blank = bytes(CODE_POINTS)
    return _sealed(BoundaryRule("none", left=blank, right=blank, reason=reason, detail=detail))


@dataclass(frozen=True)
class _Stage:
    """A cutting step over its own input alphabet.

    accepts    one membership array per atom
    follow     [atoms, atoms]: j may follow i inside one match
    tainted    atoms after which the pattern looks ahead
    covered    characters that are always inside a match
    cuts       edges: at both edges of a match; before / after: at that edge of a one-character match
    """

    summary: StageSummary
    alphabet: Alphabet
    accepts: tuple[Bools, ...]
    follow: Bools
    tainted: Bools
    covered: Bools
    cuts: Literal["edges", "before", "after"]


def derive_class_rule(pipeline: Pipeline, excluded: Exclusions, probe: Probe) -> BoundaryRule:
    """The first rule: boundaries that the pre-tokenizer alone guarantees.

    Never raises for a tokenizer it can't handle: the answer is then a rule of kind `none` with the reason.
    """
    if not any(step.cuts and step.kind != "bytes" for step in pipeline.pre_tokenizer):
        return no_rule("rule.no_cuts", "the pre-tokenizer never cuts: the model sees the whole text as one piece")
    try:
        alphabet = normalized_alphabet(pipeline.normalizer, probe)
        stages, usable = _stages(pipeline, alphabet, probe)
        if not usable:
            return no_rule("rule.prefix_after_cut", "a step that prefixes its text comes before every cut")
    except TierError as error:
        return no_rule(error.code, error.message)
    left_bits = _signatures(stages, usable, alphabet, side="left")
    right_bits = _signatures(stages, usable, alphabet, side="right")
    before, after = forbidden_sides(excluded, alphabet, probe)
    left_ids, left_rows = _distinct(left_bits, alphabet.stable & ~before)
    right_ids, right_rows = _distinct(right_bits, alphabet.stable & ~after)
    table = _table(stages, usable, left_rows, right_rows)
    left_ids, right_ids, table = _merge_equal(left_ids, right_ids, table)
    if max(table.shape) > MAX_CLASSES:
        return no_rule("rule.too_many_classes", f"{max(table.shape)} character classes")
    summaries = tuple(stage.summary for stage in stages)
    if not table.any():
        return _sealed_none("rule.no_boundary_pair", "no pair of characters is a boundary in every context", summaries)
    return _sealed(
        BoundaryRule(
            "classes",
            left=left_ids.astype(np.uint8).tobytes(),
            right=right_ids.astype(np.uint8).tobytes(),
            table=tuple(row.astype(np.uint8).tobytes() for row in table),
            excluded=excluded.raw.pairs | preimages(excluded.image.pairs, alphabet),
            stages=summaries,
        )
    )


def _sealed_none(reason: str, detail: str, stages: tuple[StageSummary, ...]) -> BoundaryRule:
    blank = bytes(CODE_POINTS)
    return _sealed(BoundaryRule("none", left=blank, right=blank, reason=reason, detail=detail, stages=stages))


def _sealed(rule: BoundaryRule) -> BoundaryRule:
    """The rule with its digest: SHA-256 over everything `holds` looks at."""
    shape = [len(row) for row in rule.table]
    digest = hashlib.sha256(f"boundary-rule/1 {rule.kind} {rule.reason} {shape} {len(rule.excluded)}\0".encode())
    digest.update(rule.left + rule.right + b"".join(rule.table))
    digest.update("\0".join(sorted(rule.excluded)).encode("utf-8", "surrogatepass"))
    digest.update(np.array(sorted(rule.adjacent), dtype="<u8").tobytes())
    digest.update(repr(sorted(rule.images.items())).encode())
    return BoundaryRule(**{**rule.__dict__, "digest": digest.hexdigest()})


seal = _sealed


def _stages(pipeline: Pipeline, alphabet: Alphabet, probe: Probe) -> tuple[list[_Stage], list[int]]:
    """All cutting steps, and the indexes of those whose cuts count.

    A step that prefixes whatever it is given sees pieces if a cutting step came before it: a boundary must then be
    cut by one of those earlier steps, or the piece would get its prefix in one reading and not in the other.
    """
    _check_size(pipeline)
    stages: list[_Stage] = []
    deadline: int | None = None
    for position, step in enumerate(pipeline.pre_tokenizer):
        if step.prefixes and position > 0 and deadline is None:
            if not stages:
                raise UnsupportedTokenizer("rule.late_prefix", f"{step.name} prefixes text that another step rewrote")
            deadline = len(stages)
        if step.kind == "bytes":
            alphabet = byte_alphabet(alphabet)
            continue
        if step.kind == "metaspace":
            alphabet = replaced_alphabet(alphabet, " ", step.source)
            if not step.cuts:
                continue
            mark = np.zeros(CODE_POINTS, dtype=bool)
            mark[ord(step.source)] = True
            stages.append(_one_character_stage(step, alphabet, mark, "next"))
            continue
        if step.kind == "regex":
            stages.append(_regex_stage(step, alphabet, probe))
        elif step.kind == "predicate":
            stages.append(_one_character_stage(step, alphabet, probe.predicate(step.source), step.joins))
        else:
            stages.append(_literal_stage(step, alphabet))
    return stages, list(range(len(stages) if deadline is None else deadline))


def _check_size(pipeline: Pipeline) -> None:
    """Each distinct character class of the patterns costs a pass over every code point and a column of the table."""
    patterns = [parse(step.source) for step in pipeline.pre_tokenizer if step.kind == "regex"]
    if len({atom.source for pattern in patterns for atom in pattern.atoms}) > MAX_DISTINCT_ATOMS:
        raise UnsupportedTokenizer("pattern.too_large", f"more than {MAX_DISTINCT_ATOMS} distinct character classes")


def _one_character_stage(
    step: PreTokenizerStep, alphabet: Alphabet, members: Bools, joins: Literal["none", "previous", "next", "run"]
) -> _Stage:
    cuts: Literal["edges", "before", "after"] = "edges"
    if joins == "next":
        cuts = "before"
    elif joins == "previous":
        cuts = "after"
    follow = np.array([[joins == "run"]])
    summary = StageSummary(step.name, step.source, 1, int(members.sum()))
    return _Stage(summary, alphabet, (members,), follow, np.array([False]), members, cuts)


def _literal_stage(step: PreTokenizerStep, alphabet: Alphabet) -> _Stage:
    if len(step.source) != 1:
        raise UnsupportedTokenizer("rule.long_literal", f"{step.name} on a literal of {len(step.source)} characters")
    members = np.zeros(CODE_POINTS, dtype=bool)
    members[ord(step.source)] = True
    return _one_character_stage(step, alphabet, members, step.joins)


def _regex_stage(step: PreTokenizerStep, alphabet: Alphabet, probe: Probe) -> _Stage:
    pattern = parse(step.source)
    if step.joins != "none":
        raise UnsupportedTokenizer(
            "rule.merged_regex", f"{step.name} merges the matches of a pattern with their neighbours"
        )
    check_case_folding(pattern, probe)
    found = compute_follow(pattern)
    accepts = tuple(accepted(atom, probe) for atom in pattern.atoms)
    follow = np.zeros((len(accepts), len(accepts)), dtype=bool)
    for i, j in found.pairs:
        follow[i, j] = True
    tainted = np.zeros(len(accepts), dtype=bool)
    tainted[list(found.tainted)] = True
    covered = np.zeros(CODE_POINTS, dtype=bool)
    for index, swallowers in found.alone:
        alone = accepts[index].copy()
        for swallower in swallowers:
            alone &= ~accepts[swallower]
        covered |= alone
    summary = StageSummary(step.name, step.source, len(accepts), int(covered.sum()))
    return _Stage(summary, alphabet, accepts, follow, tainted, covered, "edges")


def accepted(atom: Atom, probe: Probe) -> Bools:
    """The code points that `atom` accepts."""
    if atom.literal is None or atom.ignore_case:
        return probe.members(atom.source)
    members = np.zeros(CODE_POINTS, dtype=bool)
    members[ord(atom.literal)] = True
    return members


def check_case_folding(pattern: Pattern, probe: Probe) -> None:
    """Refuse a `(?i:...)` in which one character of the text could match two of the pattern (as "ß" does "ss").

    Nor may two characters match one class: under `(?i)`, Oniguruma lets "ss" match a class that holds "ß". Classes
    that are negated as a whole, and those without brackets, it leaves alone.
    """
    for atom in pattern.atoms:
        source = atom.source.removeprefix("(?i:")
        if not atom.ignore_case or source[0] != "[" or (source[1] == "^" and "[" not in source[2:]):
            continue
        if folds_together(accepted(atom, probe)):
            raise UnsupportedTokenizer("pattern.case_folding", "two characters may fold to one of a class")
    letters: dict[int, Atom] = {atom.index: atom for atom in pattern.atoms if atom.ignore_case and atom.literal}
    for index, atom in letters.items():
        following = letters.get(index + 1)
        if following is None or atom.literal is None or following.literal is None:
            continue
        both = f"(?i:\\x{{{ord(atom.literal):x}}}\\x{{{ord(following.literal):x}}})"
        if probe.members(both).any():
            raise UnsupportedTokenizer("pattern.case_folding", "one character may fold to two of the pattern")


def folds_together(members: Bools) -> bool:
    """Whether some member may fold to two characters: no ASCII one does, nor "ſ", nor the kelvin sign."""
    return bool(members[0x80:].sum() > members[[0x17F, 0x212A]].sum())


def _signatures(stages: list[_Stage], usable: list[int], alphabet: Alphabet, side: str) -> NDArray[np.uint8]:
    """[CODE_POINTS, bits packed]: per stage its atoms and whether the character is covered, seen from `side`."""
    columns: list[Bools] = []
    for stage in stages:
        own = stage.alphabet
        image = own.last if side == "left" else own.first
        for members in stage.accepts:
            seen = members[image]
            if side == "right" and len(own.right_sources):
                np.logical_or.at(seen, own.right_sources, members[own.right_images])
            columns.append(seen)
        covered = stage.covered[image]
        if side == "right" and len(own.right_sources):
            np.logical_and.at(covered, own.right_sources, stage.covered[own.right_images])
        columns.append(covered)
    return np.packbits(np.stack(columns, axis=1), axis=1)


def _distinct(bits: NDArray[np.uint8], allowed: Bools) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Class numbers (0: not allowed) per code point and the signature of each class from 1 on."""
    width = bits.shape[1]
    keys = np.ascontiguousarray(bits).view(np.dtype((np.void, width))).ravel()
    values, inverse = np.unique(keys[allowed], return_inverse=True)
    ids = np.zeros(CODE_POINTS, dtype=np.intp)
    ids[allowed] = inverse + 1
    return ids, values.view(np.uint8).reshape(len(values), width)


def _table(stages: list[_Stage], usable: list[int], left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Bools:
    """[left classes + 1, right classes + 1]: conditions 3 (no straddling match), (i) and (ii) of the proof."""
    left_bits = np.unpackbits(left, axis=1).astype(bool)
    right_bits = np.unpackbits(right, axis=1).astype(bool)
    free = np.ones((len(left), len(right)), dtype=bool)
    cut = np.zeros_like(free)
    at = 0
    for index, stage in enumerate(stages):
        count = len(stage.accepts)
        a, b = left_bits[:, at : at + count], right_bits[:, at : at + count]
        a_covered, b_covered = left_bits[:, at + count], right_bits[:, at + count]
        at += count + 1
        free &= ~((a.astype(np.uint16) @ stage.follow.astype(np.uint16) @ b.T.astype(np.uint16)) > 0)
        free &= ~(a.astype(np.uint16) @ stage.tainted.astype(np.uint16) > 0)[:, None]
        if index not in usable:
            continue
        if stage.cuts == "before":
            cut |= b_covered[None, :]
        elif stage.cuts == "after":
            cut |= a_covered[:, None]
        else:
            cut |= a_covered[:, None] | b_covered[None, :]
    table = np.zeros((len(left) + 1, len(right) + 1), dtype=bool)
    table[1:, 1:] = free & cut
    return table


def _merge_equal(
    left: NDArray[np.intp], right: NDArray[np.intp], table: Bools
) -> tuple[NDArray[np.intp], NDArray[np.intp], Bools]:
    """Join classes that no pair tells apart; class 0 stays first on both sides."""
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    columns, column_of = np.unique(rows.T, axis=0, return_inverse=True)
    row_of, column_of = row_of.ravel(), column_of.ravel()
    row_order = np.concatenate([[row_of[0]], [r for r in range(len(rows)) if r != row_of[0]]]).astype(np.intp)
    column_order = np.concatenate([[column_of[0]], [c for c in range(len(columns)) if c != column_of[0]]]).astype(
        np.intp
    )
    row_rank, column_rank = np.argsort(row_order), np.argsort(column_order)
    merged = columns.T[row_order][:, column_order]
    return row_rank[row_of[left]], column_rank[column_of[right]], merged


def forbidden_sides(excluded: Exclusions, alphabet: Alphabet, probe: Probe) -> tuple[Bools, Bools]:
    """Characters that added tokens forbid left and right of a boundary, as arrays over code points."""
    before, after = np.zeros(CODE_POINTS, dtype=bool), np.zeros(CODE_POINTS, dtype=bool)
    spaces = probe.members(r"\s") | probe.predicate("white_space")
    raw, image = excluded.raw, excluded.image
    before |= _char_set(raw.before, spaces if raw.space_before else None)
    after |= _char_set(raw.after, spaces if raw.space_after else None)
    before |= _char_set(image.before, spaces if image.space_before else None)[alphabet.last]
    shown = _char_set(image.after, spaces if image.space_after else None)
    after |= shown[alphabet.first]
    np.logical_or.at(after, alphabet.right_sources, shown[alphabet.right_images])
    return before, after


def _char_set(chars: frozenset[str], spaces: Bools | None) -> Bools:
    members = np.zeros(CODE_POINTS, dtype=bool) if spaces is None else spaces.copy()
    members[[ord(char) for char in chars]] = True
    return members


def preimages(image_pairs: frozenset[str], alphabet: Alphabet) -> frozenset[str]:
    """Raw pairs (a, b) that can show themselves as one of `image_pairs`."""
    found: set[str] = set()
    for pair in image_pairs:
        u, v = ord(pair[0]), ord(pair[1])
        lefts = np.flatnonzero(alphabet.last == u)
        rights = np.union1d(
            np.flatnonzero(alphabet.first == v), alphabet.right_sources[alphabet.right_images == v].astype(np.intp)
        )
        found.update(
            chr(a) + chr(b) for a in lefts for b in rights if not (0xD800 <= a < 0xE000 or 0xD800 <= b < 0xE000)
        )
    return frozenset(found)
