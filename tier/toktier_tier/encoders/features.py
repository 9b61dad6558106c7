"""Refusal of a candidate encoder by what a tokenizer.json contains, before any text is compared.

Guarantees: a feature that a candidate is known to read differently from the reference, or that can't be shown to be
read alike by comparing texts, keeps that candidate from serving the file, with a code (`encoder.dialect`,
`encoder.split_behavior`, `encoder.model_option`, `encoder.missing_bytes`, `encoder.shared_id`). The rest is for the
campaign to show.

Whatever a candidate accepts by itself doesn't matter here: libraries accept more than they read correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.classes import byte_characters
from ..core.dialect import unportable
from ..core.errors import EncoderUnavailable
from ..core.pipeline import Pipeline, flatten
from ..core.snapshot import Snapshot
from ..core.vocabulary import byte_token
from .candidates import Fastokens, Gigatoken

ONE_LINE_FEED = ("[\r\n]", "[\n]", "\n", r"[\r\n]", r"[\n]", r"\n")
"""Patterns of one character that match a line feed: a split by one of them cuts around every line feed."""
NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


def check_features(name: str, snapshot: Snapshot) -> None:
    """Raise `EncoderUnavailable` if candidate `name` must not serve `snapshot`; the snapshot's pipeline is modelled."""
    for check in _CHECKS.get(name, ()):
        check(snapshot)


def _check_bpe(snapshot: Snapshot) -> None:
    """The libraries' own BPE: byte level or byte fallback with every byte, and IDs that name one entry each."""
    model = snapshot.model
    if model["type"] != "BPE":
        _refuse("encoder.model_option", f"the model is {model['type']}, not BPE")
    for option in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model[option]:
            _refuse("encoder.model_option", f"the model has a {option}")
    vocab = model["vocab"]
    if len(set(vocab.values())) != len(vocab):
        _refuse("encoder.shared_id", "two vocabulary entries have the same ID")
    pipeline = snapshot.pipeline
    assert pipeline is not None
    by_bytes = any(step.kind == "bytes" for step in pipeline.pre_tokenizer)
    if by_bytes and model["byte_fallback"]:
        _refuse("encoder.model_option", "byte_fallback behind a byte-level pre-tokenizer")
    if not by_bytes and not model["byte_fallback"]:
        _refuse("encoder.model_option", "neither byte-level nor byte_fallback: unknown characters have no bytes")
    alphabet = byte_characters()
    for byte in range(256):
        token = chr(alphabet[byte]) if by_bytes else byte_token(byte)
        spelled = not by_bytes and byte < 0x80 and chr(byte) in vocab
        if token not in vocab and not spelled and byte not in NEVER_IN_UTF8:
            _refuse("encoder.missing_bytes", f"the vocabulary lacks the token of byte 0x{byte:02X}")


def _check_behaviors(snapshot: Snapshot) -> None:
    """Only pieces that are the matches and what lies between them, nothing merged and nothing dropped but gaps."""
    pipeline = snapshot.pipeline
    assert pipeline is not None
    for document in flatten(snapshot.pre_tokenizer, "pretokenizers"):
        behavior, inverted = document.get("behavior", "Isolated"), bool(document.get("invert"))
        if document["type"] == "Split" and (behavior, inverted) not in (("Isolated", False), ("Removed", True)):
            if "String" in document["pattern"] and not _in_use(pipeline, document["pattern"]["String"]):
                continue  # a step that never fires is left out before any encoder sees it
            _refuse("encoder.split_behavior", f"Split with {behavior}{', inverted' if inverted else ''}")


def _check_dialect(snapshot: Snapshot) -> None:
    """Patterns that every regex engine reads alike."""
    pipeline = snapshot.pipeline
    assert pipeline is not None
    lines = True
    for step in pipeline.pre_tokenizer:
        if step.kind != "regex" or step.name != "Split":
            continue
        wrong = unportable(step.source, lines=lines)
        if wrong:
            _refuse("encoder.dialect", f"regex engines read {wrong!r} differently")
        lines = lines and step.source not in ONE_LINE_FEED


def _in_use(pipeline: Pipeline, literal: str) -> bool:
    return any(step.kind == "literal" and step.source == literal for step in pipeline.pre_tokenizer)


def _refuse(code: str, why: str) -> None:
    raise EncoderUnavailable(code, why)


_CHECKS: Mapping[str, tuple[Callable[[Snapshot], None], ...]] = {
    Gigatoken.name: (_check_bpe, _check_behaviors),
    Fastokens.name: (_check_bpe, _check_behaviors, _check_dialect),
}
"""gigatoken has no regex engine: it knows some patterns by their text, each by code of its own."""
