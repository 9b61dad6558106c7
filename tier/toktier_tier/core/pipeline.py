"""The normalizer and pre-tokenizer of a tokenizer.json as typed stages, and their variants by position.

Guarantees: a component whose effect on piece boundaries isn't modelled here is refused by name
(`UnsupportedTokenizer`, code `pipeline.*`); the snapshot then serves by full encodes with the reference.

What only happens where a stretch of text begins (`Prepend`, Metaspace's prefix, ByteLevel's `add_prefix_space`)
depends on what stands to the left, so each component has three variants, one per `Position`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NoReturn

from .errors import UnsupportedTokenizer

Json = Any


class Position(IntEnum):
    """What stands directly left of a stretch of text between two added tokens."""

    TEXT_START = 0
    AFTER_TOKEN = 1
    CONTINUATION = 2


@dataclass(frozen=True, slots=True)
class NormalizerStep:
    kind: Literal["prepend", "replace", "unicode", "local"]
    name: str
    literal: str = ""  # replace: what is replaced
    document: Mapping[str, Json] = field(default_factory=dict)

    @property
    def by_character(self) -> bool:
        """Whether the step writes the image of each character in its place, whatever stands next to it."""
        if self.kind == "replace":
            return len(self.literal) == 1
        return self.kind == "local" and not self.strips_accents

    @property
    def strips_accents(self) -> bool:
        """Whether a BertNormalizer decomposes (and so reorders) what it is given; left open, as it lowers case."""
        asked = self.document.get("strip_accents")
        return self.name == "BertNormalizer" and bool(self.document.get("lowercase") if asked is None else asked)


@dataclass(frozen=True, slots=True)
class PreTokenizerStep:
    """One splitting (or rewriting) step.

    kind      regex       `source` is a split pattern
              literal     `source` is a literal string to split on
              predicate   `source` names a character predicate of the reference
              bytes       every character becomes its UTF-8 bytes, written in ByteLevel's alphabet
              metaspace   " " becomes `source`; the text is cut before it when `cuts`
    joins     for regex, literal and predicate: "none", "previous", "next" or "run" (what a match is merged with)
    prefixes  the step may put a prefix in front of the text it is given
    """

    kind: Literal["regex", "literal", "predicate", "bytes", "metaspace"]
    name: str
    source: str = ""
    joins: Literal["none", "previous", "next", "run"] = "none"
    cuts: bool = True
    prefixes: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    normalizer: tuple[NormalizerStep, ...]
    pre_tokenizer: tuple[PreTokenizerStep, ...]
    normalizer_documents: Mapping[Position, Json]
    pre_tokenizer_documents: Mapping[Position, Json]

    @property
    def position_matters(self) -> bool:
        """Whether a stretch that follows an added token is treated differently from a continuation."""
        return not self._alike(Position.AFTER_TOKEN)

    @property
    def uniform(self) -> bool:
        """Whether every stretch is treated alike, wherever it stands."""
        return self._alike(Position.AFTER_TOKEN) and self._alike(Position.TEXT_START)

    def _alike(self, position: Position) -> bool:
        documents = (self.normalizer_documents, self.pre_tokenizer_documents)
        return all(bool(found[position] == found[Position.CONTINUATION]) for found in documents)


GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel splits with when `use_regex` is on (its default)."""


def parse_pipeline(normalizer: Json, pre_tokenizer: Json) -> Pipeline:
    """Raises `UnsupportedTokenizer` naming the component that isn't modelled."""
    normalizers = flatten(normalizer, "normalizers")
    steps = tuple(_normalizer_step(document) for document in normalizers)
    _check_mix(steps)
    pre_tokenizers = _firing(flatten(pre_tokenizer, "pretokenizers"), steps)
    _check_first(pre_tokenizers, steps)
    return Pipeline(
        normalizer=steps,
        pre_tokenizer=tuple(step for document in pre_tokenizers for step in _pre_tokenizer_steps(document)),
        normalizer_documents={
            position: _sequence(
                [d for d in normalizers if position is not Position.CONTINUATION or d["type"] != "Prepend"],
                "normalizers",
            )
            for position in Position
        },
        pre_tokenizer_documents={
            position: _sequence(_at_position(pre_tokenizers, position), "pretokenizers") for position in Position
        },
    )


def literal_never_occurs(literal: str, normalizer: tuple[NormalizerStep, ...]) -> bool:
    """Whether no normalized text contains `literal`: it holds a character that is always replaced by another.

    In whatever order the steps come: one of them removes every such character and none writes it.
    """
    if any(step.kind not in ("replace", "prepend") for step in normalizer):
        return False
    written = "".join(str(s.document.get("content", "")) + str(s.document.get("prepend", "")) for s in normalizer)
    replaced = {step.literal for step in normalizer if len(step.literal) == 1}
    return any(char in replaced and char not in written for char in literal)


_WRITES = ("ByteLevel", "Metaspace")
"""Pre-tokenizers that rewrite text: what stands behind them may see characters that no normalized text holds."""


def _firing(documents: list[Mapping[str, Json]], normalizer: tuple[NormalizerStep, ...]) -> list[Mapping[str, Json]]:
    """Without the splits that never find anything in any text: Gemma's on " ", which its normalizer replaces."""
    kept: list[Mapping[str, Json]] = []
    as_normalized = True
    for document in documents:
        if not (as_normalized and _never_fires(document, normalizer)):
            kept.append(document)
        as_normalized = as_normalized and document["type"] not in _WRITES
    return kept


def _never_fires(document: Mapping[str, Json], normalizer: tuple[NormalizerStep, ...]) -> bool:
    """Whether `document` splits on a literal that no normalized text contains; inverted, it splits on all the rest."""
    if document["type"] == "CharDelimiterSplit":
        return literal_never_occurs(str(document["delimiter"]), normalizer)
    if document["type"] != "Split" or document.get("invert"):
        return False
    return literal_never_occurs(str(document["pattern"].get("String", "")), normalizer)


def _check_mix(steps: tuple[NormalizerStep, ...]) -> None:
    """Refuse to combine what reads more than one character at a time with anything else that acts.

    Steps that write each character by itself make one such step together, whatever they write: each is judged by
    what all of them make of it. Behind or before a step that composes, decomposes, reorders or looks for a longer
    literal that is no judgement: it meets characters that no text contains, and moves what another one wrote.
    """
    acting = [step for step in steps if step.kind != "prepend"]
    mixed = [step.name for step in acting if not step.by_character] if len(acting) > 1 else []
    if mixed:
        _refuse(
            "pipeline.mixed_normalizer", f"{mixed[0]}, which joins or moves characters, comes with another normalizer"
        )


def _check_first(pre_tokenizers: list[Mapping[str, Json]], normalizer: tuple[NormalizerStep, ...]) -> None:
    """Refuse a Metaspace that prefixes the first piece only, where what is first isn't a matter of the text it sees.

    The reference looks where its piece came from in the raw text: behind a normalizer that deletes the first
    character, or joins it with the next, there is no first piece.
    """
    first = [d["type"] == "Metaspace" and _metaspace_scheme(d) == "first" for d in pre_tokenizers]
    if any(first[1:]):
        _refuse("pipeline.first_behind", "a Metaspace that prefixes the first piece only comes after another step")
    kept = (len(step.literal) == 1 and len(str(step.document.get("content"))) == 1 for step in normalizer)
    if any(first) and not all(kept):
        _refuse("pipeline.first_normalized", "a Metaspace that prefixes the first piece only comes after a normalizer")


def _refuse(code: str, what: str) -> NoReturn:
    raise UnsupportedTokenizer(code, what)


def flatten(document: Json, key: str) -> list[Mapping[str, Json]]:
    """The components of a normalizer or pre-tokenizer in order; `key` names the list of a Sequence."""
    if document is None:
        return []
    if document.get("type") != "Sequence":
        return [document]
    return [leaf for item in document[key] for leaf in flatten(item, key)]


def _sequence(documents: list[Json], key: str) -> Json:
    if len(documents) <= 1:
        return documents[0] if documents else None
    return {"type": "Sequence", key: documents}


def _normalizer_step(document: Mapping[str, Json]) -> NormalizerStep:
    kind = document["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return NormalizerStep("unicode", kind, document=document)
    if kind in ("Lowercase", "BertNormalizer"):
        return NormalizerStep("local", kind, document=document)
    if kind == "Prepend":
        return NormalizerStep("prepend", kind, document=document)
    if kind == "Replace":
        literal = document["pattern"].get("String")
        if literal is None:
            _refuse("pipeline.replace_regex", "the normalizer replaces by a regular expression")
        if not literal:
            _refuse("pipeline.replace_empty", "the normalizer replaces the empty string")
        return NormalizerStep("replace", kind, literal=literal, document=document)
    _refuse("pipeline.normalizer", f"the normalizer {kind} isn't modelled")


_JOINS: Mapping[str, Literal["none", "previous", "next", "run"]] = {
    "Isolated": "none",
    "Removed": "none",
    "MergedWithPrevious": "previous",
    "MergedWithNext": "next",
    "Contiguous": "run",
}


def _pre_tokenizer_steps(document: Mapping[str, Json]) -> list[PreTokenizerStep]:
    kind = document["type"]
    if kind == "Split":
        joins = _JOINS[document["behavior"]]
        if document.get("invert") and joins != "none":
            _refuse("pipeline.split_inverted", f"Split is inverted with {document['behavior']}")
        pattern = document["pattern"]
        if "Regex" in pattern:
            return [PreTokenizerStep("regex", "Split", pattern["Regex"], joins)]
        if not pattern["String"]:
            _refuse("pipeline.split_empty", "Split on the empty string")
        return [PreTokenizerStep("literal", "Split", pattern["String"], joins)]
    if kind == "ByteLevel":
        prefixes = bool(document.get("add_prefix_space", True))
        if not document.get("use_regex", True):
            return [PreTokenizerStep("bytes", "ByteLevel", prefixes=prefixes)]
        return [
            PreTokenizerStep("regex", "ByteLevel", GPT2_PATTERN, prefixes=prefixes),
            PreTokenizerStep("bytes", "ByteLevel"),
        ]
    if kind == "Digits":
        joins = "none" if document.get("individual_digits") else "run"
        return [PreTokenizerStep("predicate", kind, "numeric", joins)]
    if kind == "Punctuation":
        return [PreTokenizerStep("predicate", kind, "punctuation", _JOINS[document.get("behavior", "Isolated")])]
    if kind == "WhitespaceSplit":
        return [PreTokenizerStep("predicate", kind, "white_space")]
    if kind == "BertPreTokenizer":
        return [
            PreTokenizerStep("predicate", kind, "white_space"),
            PreTokenizerStep("predicate", kind, "bert_punctuation"),
        ]
    if kind == "CharDelimiterSplit":
        return [PreTokenizerStep("literal", kind, document["delimiter"])]
    if kind == "Metaspace":
        return [
            PreTokenizerStep(
                "metaspace",
                kind,
                document.get("replacement", "▁"),
                cuts=document.get("split", True) is not False,
                prefixes=_metaspace_scheme(document) != "never",
            )
        ]
    _refuse("pipeline.pre_tokenizer", f"the pre-tokenizer {kind} isn't modelled")


def _metaspace_scheme(document: Mapping[str, Json]) -> str:
    if document.get("add_prefix_space") is False:
        return "never"
    return str(document.get("prepend_scheme", "always")).lower()


def _at_position(documents: list[Mapping[str, Json]], position: Position) -> list[Json]:
    """Switch off the prefix of the first step where nothing begins here; later steps see pieces, not text."""
    if position is Position.TEXT_START or not documents:
        return list(documents)
    head = dict(documents[0])
    if head["type"] == "Metaspace" and (position is Position.CONTINUATION or _metaspace_scheme(head) == "first"):
        head = {
            "type": "Metaspace",
            "replacement": head.get("replacement", "▁"),
            "prepend_scheme": "never",
            "split": head.get("split", True) is not False,
        }
    elif head["type"] == "ByteLevel" and position is Position.CONTINUATION:
        head["add_prefix_space"] = False
    return [head, *documents[1:]]
