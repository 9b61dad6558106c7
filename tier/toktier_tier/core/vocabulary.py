"""What the vocabulary itself proves: the second boundary rule.

For models that see a whole stretch of text as one piece (sentencepiece-style BPE), a pair of characters that stands
next to each other inside no vocabulary entry can't be inside any token, so merges on its two sides never meet.
The proof and its conditions are docs/decisions/0003-vocabulary-adjacency.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from .added_tokens import Exclusions
from .boundaries import BoundaryRule, forbidden_sides, no_rule, preimages, seal
from .classes import CODE_POINTS, Alphabet, Bools, Probe, identity_alphabet, is_scalar, replaced_alphabet
from .pipeline import Pipeline


def byte_token(byte: int) -> str:
    """How sentencepiece-style vocabularies spell a byte that falls back."""
    return f"<0x{byte:02X}>"


def vocabulary_strings(model: Mapping[str, Any]) -> Iterable[str]:
    vocab = model["vocab"]
    return vocab if isinstance(vocab, Mapping) else (entry[0] for entry in vocab)


def longest_entry_chars(model: Mapping[str, Any]) -> int:
    return max((len(token) for token in vocabulary_strings(model)), default=1)


def derive_adjacency_rule(
    pipeline: Pipeline, model: Mapping[str, Any], excluded: Exclusions, probe: Probe
) -> BoundaryRule:
    """The rule for a pre-tokenizer that never cuts; of kind `none`, with the reason, where a condition fails."""
    refusal = _refusal(pipeline, model)
    if refusal:
        return no_rule(*refusal)
    images: dict[str, str] = {}
    for step in pipeline.normalizer:
        if step.kind == "replace":
            _then_replace(images, step.literal, str(step.document["content"]))
    normalized = _alphabet(images)  # what added tokens are matched against: Metaspace acts behind them
    for cut in pipeline.pre_tokenizer:
        if cut.kind == "metaspace":
            _then_replace(images, " ", cut.source)
    adjacent: set[int] = set()
    for token in vocabulary_strings(model):
        adjacent.update(ord(u) << 21 | ord(v) for u, v in pairwise(token))
    allowed = _symbols(model, images)
    before, after = forbidden_sides(excluded, normalized, probe)
    return seal(
        BoundaryRule(
            "adjacency",
            left=(allowed & ~before).astype(np.uint8).tobytes(),
            right=(allowed & ~after).astype(np.uint8).tobytes(),
            excluded=excluded.raw.pairs | preimages(excluded.image.pairs, normalized),
            adjacent=frozenset(adjacent),
            images=images,
        )
    )


def _then_replace(images: dict[str, str], old: str, new: str) -> None:
    for char, image in images.items():
        images[char] = new if image == old else image
    images.setdefault(old, new)


def _refusal(pipeline: Pipeline, model: Mapping[str, Any]) -> tuple[str, str] | None:
    kind = model["type"]
    if kind == "Unigram":
        return (
            "rule.unigram_whole_text",
            "Unigram over a whole text adds scores from its start in floating point: equal paths can fall either way",
        )
    if kind != "BPE":
        return "rule.model", f"no whole-text rule for {kind}"
    for option in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model[option]:
            return "rule.affixed_symbols", f"{option} makes a character's symbol depend on its place in the piece"
    if model["ignore_merges"]:
        return "rule.ignore_merges", "a whole piece is looked up before merging, so a piece's end matters to its start"
    for step in pipeline.normalizer:
        if step.kind == "prepend":
            continue
        if step.kind != "replace" or len(step.literal) != 1 or len(str(step.document["content"])) != 1:
            return "rule.normalizer", f"{step.name} isn't a replacement of one character by one character"
    for cut in pipeline.pre_tokenizer:
        if cut.kind == "metaspace" and not cut.cuts:
            continue
        return "rule.cutting_pre_tokenizer", f"{cut.name} may cut, so a piece isn't the whole text"
    byte_tokens = {byte_token(byte) for byte in range(256)}
    if any(left in byte_tokens or right in byte_tokens for left, right in model["merges"]):
        return "rule.merged_bytes", "a merge uses a byte token, whose text isn't spelled in the vocabulary"
    unknown = model["unk_token"]
    if unknown is not None and any(unknown in pair for pair in model["merges"]):
        return "rule.merged_unknown", "a merge uses the unknown token"
    return None


def _symbols(model: Mapping[str, Any], images: Mapping[str, str]) -> Bools:
    """Characters that always become symbols of their own: in the vocabulary, or falling back to its byte tokens."""
    vocab = model["vocab"]
    if model["byte_fallback"] and all(byte_token(byte) in vocab for byte in range(256)):
        return is_scalar()
    known = np.zeros(CODE_POINTS, dtype=bool)
    known[[ord(token) for token in vocab if len(token) == 1]] = True
    for char, image in images.items():
        known[ord(char)] = image in vocab
    return known


def _alphabet(images: Mapping[str, str]) -> Alphabet:
    alphabet = identity_alphabet()
    for char, image in images.items():
        alphabet = replaced_alphabet(alphabet, char, image)
    return alphabet
