"""A whole pre-tokenizer as automata, run in turn: where the pieces of a text start.

Guarantees: the pieces are exactly the reference's, or `compile_split` refuses the pre-tokenizer by name
(`UnsupportedTokenizer` codes `automaton.*` and `pattern.case_folding`, `InvalidPattern` codes `pattern.*`). It knows
no text but what it is given: one stretch between added tokens, already normalized.

`SplitAutomaton.pieces` is the slow, obvious twin of the kernels' walk (docs/decisions/0009-kernels.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .automaton import Automaton, compile_pattern
from .boundaries import accepted, check_case_folding, folds_together
from .classes import CODE_POINTS, Bools, Probe, byte_characters
from .errors import UnsupportedTokenizer
from .instructions import Question
from .pattern import Alternation, Assertion, Atom, Node, Pattern, Repeat, Sequence, parse
from .pipeline import Pipeline, Position, PreTokenizerStep


@dataclass(frozen=True)
class SplitStage:
    """One cutting step. Its automaton reads code points, or bytes where the step stands behind ByteLevel."""

    name: str
    source: str
    of_bytes: bool
    automaton: Automaton


@dataclass(frozen=True)
class SplitAutomaton:
    """The cutting steps of a pre-tokenizer in order, each run on the pieces of the one before."""

    stages: tuple[SplitStage, ...]

    def pieces(self, text: str) -> list[int]:
        """Where each piece of `text` starts, as byte positions in its UTF-8; the first is 0, an empty text has none."""
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        starts = [0] if text else []
        of_points = [stage.automaton for stage in self.stages if not stage.of_bytes]
        of_bytes = [stage.automaton for stage in self.stages if stage.of_bytes]
        for automaton in of_points:
            starts = _cut_each(automaton, points, starts)
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        starts = (np.cumsum(widths) - widths)[starts].tolist()
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        for automaton in of_bytes:
            starts = _cut_each(automaton, data, starts)
        return starts


def _cut_each(automaton: Automaton, characters: NDArray[Any], starts: list[int]) -> list[int]:
    columns = automaton.column_of[characters].tolist()
    found: list[int] = []
    for start, stop in pairwise([*starts, len(columns)]):
        automaton.cut(columns, start, stop, found)
    return found


def compile_split(pipeline: Pipeline, probe: Probe) -> SplitAutomaton:
    """The automata of a pre-tokenizer.

    Besides what `compile_pattern` refuses: `automaton.prefix` (a step that puts something in front of its text),
    `automaton.metaspace`, `automaton.removes` (a step that drops part of the text), `automaton.joins` (longer
    matches that are merged with their neighbours) and `automaton.bytes_twice`.
    """
    only_matches = _only_matches(pipeline)
    stages: list[SplitStage] = []
    behind_bytes = False
    for step in pipeline.pre_tokenizer:
        if step.prefixes:
            raise UnsupportedTokenizer("automaton.prefix", f"{step.name} may put a prefix in front of a piece")
        if step.kind == "metaspace":
            raise UnsupportedTokenizer("automaton.metaspace", f"{step.name} rewrites the text")
        if step.kind == "bytes":
            if behind_bytes:
                raise UnsupportedTokenizer("automaton.bytes_twice", f"{step.name} after {step.name}")
            behind_bytes = True
            continue
        automaton = step_automaton(step, probe, byte_characters() if behind_bytes else None)
        if step.source in only_matches and automaton.has_gaps:
            raise UnsupportedTokenizer("automaton.removes", f"{step.name} drops what its pattern doesn't match")
        stages.append(SplitStage(step.name, step.source, behind_bytes, automaton))
    return SplitAutomaton(tuple(stages))


def _only_matches(pipeline: Pipeline) -> frozenset[str]:
    """Patterns of which only the matches are kept; refuses steps that drop their matches."""
    document = pipeline.pre_tokenizer_documents[Position.TEXT_START] or {"type": "Sequence", "pretokenizers": []}
    found: set[str] = set()
    for part in document["pretokenizers"] if document["type"] == "Sequence" else [document]:
        removes = part["type"] in ("WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")
        if removes or (part.get("behavior") == "Removed" and not part.get("invert")):
            raise UnsupportedTokenizer("automaton.removes", f"{part['type']} drops what it matches")
        if part.get("behavior") == "Removed":
            found.update(part["pattern"].values())
    return frozenset(found)


def step_automaton(step: PreTokenizerStep, probe: Probe, alphabet: NDArray[np.uint32] | None) -> Automaton:
    """The automaton of one cutting step, over all code points or over `alphabet` (ByteLevel's 256 characters).

    Its pieces are those of `Isolated`, whatever the step then drops. Raises what `compile_pattern` raises,
    `automaton.joins`, and `InvalidPattern`.
    """
    if step.kind == "regex":
        pattern = parse(step.source)
        check_case_folding(pattern, probe)
        accepts = [accepted(atom, probe) for atom in pattern.atoms]
        questions = [assertion_question(assertion, probe) for assertion in pattern.assertions]
        pattern = _joined(step, pattern)
    elif step.kind == "literal" and len(step.source) > 1:
        accepts, questions = [_only(char) for char in step.source], []
        pattern = _joined(step, _pattern(Sequence(tuple(_atom(index) for index in range(len(accepts))))))
    else:
        members = probe.predicate(step.source) if step.kind == "predicate" else _only(step.source)
        accepts, questions = [members, ~members], []
        pattern = _one_character("next" if step.kind == "metaspace" else step.joins)
    accepts = [_over(alphabet, members) for members in accepts]
    questions = [Question(_over(alphabet, question.members), question.at_end) for question in questions]
    return compile_pattern(pattern, accepts, questions)


def _over(alphabet: NDArray[np.uint32] | None, members: Bools) -> Bools:
    """`members` seen by a step: as bytes behind ByteLevel; else surrogates, which no text holds, are like U+E000."""
    if alphabet is not None:
        return members[alphabet]
    members = members.copy()
    members[0xD800:0xE000] = members[0xE000]
    return members


def _only(char: str) -> Bools:
    members = np.zeros(CODE_POINTS, dtype=bool)
    members[ord(char)] = True
    return members


def _atom(index: int) -> Atom:
    return Atom(index, "", None, ignore_case=False)


def _pattern(root: Node) -> Pattern:
    return Pattern("", root, (), ())


def _joined(step: PreTokenizerStep, pattern: Pattern) -> Pattern:
    """Matches that follow each other without a gap are one piece if the step joins runs.

    A repeat never goes back into an earlier round here, since it may always end.
    """
    if step.joins == "none":
        return pattern
    if step.joins == "run":
        return _pattern(Repeat(pattern.root, 1, None, "greedy"))
    raise UnsupportedTokenizer("automaton.joins", f"{step.name} merges longer matches with their neighbours")


def _one_character(joins: str) -> Pattern:
    """Atom 0 is the character that the step cuts at, atom 1 any other. Of a run of them, one joins its neighbour."""
    match, other = _atom(0), _atom(1)
    others = Repeat(other, 1, None, "greedy")
    if joins == "previous":
        return _pattern(Alternation((Sequence((Repeat(other, 0, None, "greedy"), match)), others)))
    if joins == "next":
        return _pattern(Alternation((Sequence((match, Repeat(other, 0, None, "greedy"))), others)))
    return _pattern(Repeat(match, 1, None, "greedy") if joins == "run" else match)


def assertion_question(assertion: Assertion, probe: Probe) -> Question:
    """`$` holds before a line feed and at the end; a look-ahead is the character class that it holds."""
    if assertion.source == "$":
        return Question(_only("\n"), at_end=True)
    if assertion.source == r"\z":
        return Question(np.zeros(CODE_POINTS, dtype=bool), at_end=True)
    source = assertion.source
    fold = source.startswith("(?i:")
    if fold:
        source = source[len("(?i:") : -1]
    inner = source[len("(?=") : -1]
    members = probe.members(f"(?i:{inner})" if fold else f"(?:{inner})")
    if "(?i:" in assertion.source and folds_together(members):
        raise UnsupportedTokenizer("pattern.case_folding", "two characters may fold to one of a look-ahead")
    negative = source.startswith("(?!")
    return Question(~members if negative else members, at_end=negative)
