"""What the kernels know of a snapshot: its boundary rule, split automata, normalizer and model as plain arrays.

Guarantees: every array is what docs/decisions/0009-kernels.md defines, made of nothing but the reference's own answers
and the admitted rule; a snapshot that the device can't do exactly is refused by name (`UnsupportedTokenizer`, codes
`kernels.*`, `automaton.*`, `pattern.*`). Imports NumPy only, and nothing of torch or Triton.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from toktier_kernels.errors import KernelsError
from toktier_kernels.tables import Stage, Tables

from ..core.boundaries import BoundaryRule
from ..core.classes import CODE_POINTS, Settled
from ..core.errors import UnsupportedTokenizer
from ..core.pipeline import Pipeline
from ..core.splitting import SplitStage, compile_split
from .gpu_vocabulary import kernel_vocabulary
from .reference import Reference, ReferenceProbe

MAX_CLASSES = 254
PAGE = 256
SETTLED, ALONE, TOUCHED = 0, 1, 2

Column = NDArray[np.uint8] | NDArray[np.uint16]


def build_tables(reference: Reference, rule: BoundaryRule, settled: Settled | None) -> Tables:
    """`settled`: of `settled_points`, or as the compiled snapshot has it. Takes a second or two.

    Raises `UnsupportedTokenizer`: `kernels.no_class_rule`, `kernels.not_byte_level`, `kernels.position_matters`,
    `kernels.normalizer`, `kernels.normalized_tokens`, `kernels.no_split`, `kernels.too_many_classes`, what
    `compile_split` and `kernel_vocabulary` refuse, and `kernels.invalid_tables`.
    """
    pipeline = check_pipeline(reference, rule, settled)
    split = compile_split(pipeline, ReferenceProbe(reference))
    if not split.stages:
        _refuse("kernels.no_split", "the pre-tokenizer never cuts")
    vocabulary = kernel_vocabulary(reference)
    left, right = (np.frombuffer(side, dtype=np.uint8) for side in (rule.left, rule.right))
    touch = _touch(settled)
    columns = [stage.automaton.column_of for stage in split.stages if not stage.of_bytes]
    class_of, firsts = _join([left, right, touch, *columns])
    page_of, pages = _paged(class_of)
    table = np.array([list(row) for row in rule.table], dtype=np.uint8)
    cuts = np.zeros((256, 256), dtype=np.uint8)
    joint = slice(1, len(firsts) + 1)
    cuts[joint, joint] = table[left[firsts]][:, right[firsts]] != 0
    of_class = np.zeros(256, dtype=np.uint8)
    of_class[joint] = touch[firsts]
    try:
        return Tables(page_of, pages, cuts, of_class, tuple(_stage(s, firsts) for s in split.stages), vocabulary)
    except KernelsError as error:
        raise UnsupportedTokenizer(error.code, error.message, **error.details) from None


def check_pipeline(reference: Reference, rule: BoundaryRule, settled: Settled | None) -> Pipeline:
    """Refuse what the tables can't say; the cheap part of `build_tables`."""
    pipeline = reference.snapshot.pipeline
    if pipeline is None or rule.kind != "classes":
        _refuse("kernels.no_class_rule", f"the boundary rule isn't one of character classes: {rule.kind}")
    kinds = [step.kind for step in pipeline.pre_tokenizer]
    if kinds.count("bytes") != 1:
        _refuse("kernels.not_byte_level", "the pre-tokenizer doesn't write bytes")
    if not pipeline.uniform or any(step.prefixes for step in pipeline.pre_tokenizer):
        _refuse("kernels.position_matters", "a stretch is treated otherwise where a text begins")
    if pipeline.normalizer and settled is None:
        _refuse("kernels.normalizer", "the normalizer isn't one Unicode normalization form")
    if pipeline.normalizer and any(token.normalized for token in reference.added_tokens()):
        _refuse("kernels.normalized_tokens", "added tokens are searched in normalized text")
    return pipeline


def _touch(settled: Settled | None) -> NDArray[np.uint8]:
    if settled is None:
        return np.zeros(CODE_POINTS, dtype=np.uint8)
    return np.where(settled.always, SETTLED, np.where(settled.alone, ALONE, TOUCHED)).astype(np.uint8)


def _join(parts: list[Column]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """(joint class of every code point, from 1 on; a code point of each): equal classes are equal in every part.

    Neighbouring code points are mostly alike, so only the first of each run is compared.
    """
    changes = np.zeros(CODE_POINTS, dtype=bool)
    changes[0] = True
    for part in parts:
        changes[1:] |= part[1:] != part[:-1]
    runs = np.flatnonzero(changes)
    rows = np.stack([part[runs].astype(np.uint16) for part in parts], axis=1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(first) > MAX_CLASSES:
        _refuse("kernels.too_many_classes", f"{len(first)} classes of characters, at most {MAX_CLASSES} fit")
    lengths = np.diff(runs, append=CODE_POINTS)
    return np.repeat((inverse.ravel() + 1).astype(np.uint8), lengths), runs[first]


def _paged(class_of: NDArray[np.uint8]) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    pages, page_of = np.unique(class_of.reshape(-1, PAGE), axis=0, return_inverse=True)
    return page_of.ravel().astype(np.uint16), pages


def _stage(stage: SplitStage, firsts: NDArray[np.intp]) -> Stage:
    """The columns of joint classes are those of their code points; bytes have their own."""
    automaton = stage.automaton
    if automaton.columns > 255:
        _refuse("kernels.too_many_classes", f"{automaton.columns} columns in the automaton of {stage.name}")
    column = np.zeros(256, dtype=np.uint8)
    if stage.of_bytes:
        column[:] = automaton.column_of
    else:
        column[1 : len(firsts) + 1] = automaton.column_of[firsts]
    return Stage(stage.of_bytes, column, automaton.columns, automaton.step)


def tables_bytes(tables: Tables) -> int:
    """Of all arrays, as the device holds them at least."""
    stages = sum(stage.column.nbytes + stage.step.nbytes for stage in tables.stages)
    own = sum(array.nbytes for array in (tables.page_of, tables.class_of, tables.cuts, tables.settled))
    vocabulary = sum(part.nbytes for part in vars(tables.vocabulary).values() if isinstance(part, np.ndarray))
    return own + stages + vocabulary


def _refuse(code: str, why: str) -> NoReturn:
    raise UnsupportedTokenizer(code, why)
