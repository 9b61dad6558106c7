"""A byte-level BPE model as the kernels' vocabulary.

Guarantees: a piece of bytes has exactly one reading in ByteLevel's alphabet, so what the model does with the piece it
does with the bytes; a model that does anything but rank merges over the bytes of UTF-8 is refused by name
(`UnsupportedTokenizer`, codes `kernels.*`). Knows nothing of pre-tokenizers and normalizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toktier_kernels.errors import KernelsError
from toktier_kernels.status import NONE
from toktier_kernels.vocabulary import NEVER_IN_UTF8, Vocabulary, build_vocabulary

from ..core.classes import byte_characters
from ..core.errors import UnsupportedTokenizer
from .reference import Reference


def kernel_vocabulary(reference: Reference) -> Vocabulary:
    """Raises `UnsupportedTokenizer`: `kernels.model`, `kernels.subword_prefix`, `kernels.word_suffix`,
    `kernels.byte_fallback`, `kernels.dropout`, `kernels.missing_bytes`, `kernels.duplicate_id`, and what
    `build_vocabulary` refuses."""
    model = reference.snapshot.model
    _check_options(model)
    vocab: Mapping[str, int] = model["vocab"]
    bytes_of = {chr(point): byte for byte, point in enumerate(byte_characters())}
    tokens = _spelled(vocab, bytes_of)
    byte_id = _byte_ids(vocab, bytes_of)
    merges = [(vocab[left], vocab[right], vocab[left + right]) for left, right in model["merges"]]
    try:
        return build_vocabulary(byte_id, tokens, merges, _whole(reference, tokens))
    except KernelsError as error:
        raise UnsupportedTokenizer(error.code, error.message, **error.details) from None


def _check_options(model: Mapping[str, Any]) -> None:
    if model["type"] != "BPE":
        _refuse("kernels.model", f"the model is {model['type']}, not BPE")
    for option, code in (
        ("continuing_subword_prefix", "kernels.subword_prefix"),
        ("end_of_word_suffix", "kernels.word_suffix"),
        ("byte_fallback", "kernels.byte_fallback"),
        ("dropout", "kernels.dropout"),
    ):
        if model[option]:
            _refuse(code, f"the model has a {option}")


def _spelled(vocab: Mapping[str, int], bytes_of: Mapping[str, int]) -> dict[int, bytes]:
    """The bytes of each ID. Entries with characters that stand for no byte are never made of bytes, and left out."""
    tokens: dict[int, bytes] = {}
    for entry, id in vocab.items():
        if not entry:
            continue
        try:
            spelled = bytes([bytes_of[char] for char in entry])
        except KeyError:
            continue
        if id in tokens:
            _refuse("kernels.duplicate_id", f"two entries of the vocabulary have the ID {id}")
        tokens[id] = spelled
    return tokens


def _byte_ids(vocab: Mapping[str, int], bytes_of: Mapping[str, int]) -> NDArray[np.uint32]:
    """u32[256], `NONE` for a byte that no text holds and the model doesn't know."""
    byte_id = np.full(256, NONE, dtype=np.uint32)
    for char, byte in bytes_of.items():
        byte_id[byte] = vocab.get(char, NONE)
    missing = [byte for byte in np.flatnonzero(byte_id == NONE).tolist() if byte not in NEVER_IN_UTF8]
    if missing:
        _refuse("kernels.missing_bytes", f"the vocabulary lacks {len(missing)} bytes, {min(missing):#04x} first")
    return byte_id


def _whole(reference: Reference, tokens: Mapping[int, bytes]) -> Iterable[int]:
    """The IDs that a piece with their bytes becomes: all of them if that goes before merges, else as the model says.

    Asking the model takes half as long as merging every entry here, which gives the same (a test compares them).
    """
    model = reference.snapshot.model
    if model["ignore_merges"]:
        return tokens
    tokenize = reference.tokenizer.model.tokenize
    candidates = [(entry, id) for entry, id in model["vocab"].items() if id in tokens]
    return [id for entry, id in candidates if len(found := tokenize(entry)) == 1 and found[0].id == id]


def _refuse(code: str, why: str) -> NoReturn:
    raise UnsupportedTokenizer(code, why)
