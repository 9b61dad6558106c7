"""Files rebuilt from the vocabularies in mistral-common: tekken's for NeMo and its heirs, sentencepiece's for 7B."""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

from catalog.rebuild_parts import (
    BYTE_LEVEL_DECODER,
    BYTE_LEVEL_PROCESSOR,
    Json,
    ReadMember,
    added_token,
    bos_template,
    bpe_model,
    byte_level_vocab,
    document,
    exhaustive_merges,
    indented,
    joined,
    required,
    split_then_byte_level,
)
from toktier_tier.sources import Package

_PACKAGE = Package("pypi", "mistral-common", "1.13.1")
_FOLDER = "mistral_common/data"

_SPECIAL_IDS = 1000  # tekken's own ranks follow these
_TEKKEN_TOKENS = 130_072

_BASE_NAMES = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    3: "[INST]",
    4: "[/INST]",
    5: "[AVAILABLE_TOOLS]",
    6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]",
    8: "[/TOOL_RESULTS]",
    9: "[TOOL_CALLS]",
}
_NEMO_NAMES = {**_BASE_NAMES, 10: "<pad>", 11: "[PREFIX]", 12: "[MIDDLE]", 13: "[SUFFIX]"}
_MINISTRAL_3_NAMES = {
    **_BASE_NAMES,
    10: "[IMG]",
    11: "<pad>",
    12: "[IMG_BREAK]",
    13: "[IMG_END]",
    14: "[PREFIX]",
    15: "[MIDDLE]",
    16: "[SUFFIX]",
    17: "[SYSTEM_PROMPT]",
    18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]",
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    32: "[ARGS]",
    33: "[CALL_ID]",
}
_NEMOTRON_3_NAMES = {
    **_BASE_NAMES,
    10: "<|im_start|>",
    11: "<|im_end|>",
    12: "<think>",
    13: "</think>",
    14: "<tool_call>",
    15: "</tool_call>",
    16: "<tool_response>",
    17: "</tool_response>",
}

SENTENCEPIECE_DECODER: Json = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


@dataclass(frozen=True)
class _Tekken:
    pattern: str
    ranks: dict[bytes, int]


@dataclass(frozen=True)
class _Pieces:
    """A sentencepiece BPE model: pieces by ID, the IDs of its unknown and control pieces, merges as strings."""

    vocab: dict[str, int]
    control: list[int]
    merges: list[str]


def mistral_nemo(read: ReadMember) -> bytes:
    tekken = _tekken(read)
    merges = joined(exhaustive_merges(tekken.ranks))
    processor = bos_template("<s>", {"</s>": 2, "<s>": 1})
    return indented(_tekken_document(tekken, _NEMO_NAMES, processor, merges))


def ministral_3(read: ReadMember) -> bytes:
    tekken = _tekken(read)
    merges = exhaustive_merges(tekken.ranks)
    return indented(_tekken_document(tekken, _MINISTRAL_3_NAMES, bos_template("<s>", {"<s>": 1}), merges))


def nemotron_3(read: ReadMember) -> bytes:
    tekken = _tekken(read)
    merges = exhaustive_merges(tekken.ranks)
    return indented(_tekken_document(tekken, _NEMOTRON_3_NAMES, BYTE_LEVEL_PROCESSOR, merges, plain=range(12, 18)))


def mistral_7b_v0_1(read: ReadMember) -> bytes:
    """Mixtral has the same bytes. The model lacks `ignore_merges`, which its converter didn't know."""
    pieces = _pieces(read, "tokenizer.model.v1")
    names = list(pieces.vocab)
    model = bpe_model(pieces.vocab, pieces.merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    del model["ignore_merges"]
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return indented(
        document(
            added_tokens=[added_token(token_id, names[token_id]) for token_id in range(3)],
            normalizer={"type": "Sequence", "normalizers": [prepend, replace]},
            pre_tokenizer=None,
            post_processor=bos_template("<s>", {"<s>": 1}),
            decoder=SENTENCEPIECE_DECODER,
            model=model,
        )
    )


def mistral_7b_v0_3(read: ReadMember) -> bytes:
    pieces = _pieces(read, "mistral_instruct_tokenizer_240216.model.v2")
    names = list(pieces.vocab)
    flags = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
    return indented(
        document(
            added_tokens=[added_token(token_id, names[token_id]) for token_id in pieces.control],
            normalizer=None,
            pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
            post_processor=bos_template("<s>", {"<s>": 1}),
            decoder=SENTENCEPIECE_DECODER,
            model=bpe_model(pieces.vocab, pieces.merges, **flags),
        )
    )


def _tekken(read: ReadMember) -> _Tekken:
    content = json.loads(read(_PACKAGE, f"{_FOLDER}/tekken_240911.json"))
    entries = content["vocab"][:_TEKKEN_TOKENS]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] + _SPECIAL_IDS for entry in entries}
    return _Tekken(content["config"]["pattern"], ranks)


def _tekken_document(
    tekken: _Tekken,
    named: Mapping[int, str],
    post_processor: Json,
    merges: list[list[str]] | list[str],
    *,
    plain: Container[int] = (),
) -> Json:
    """`named` are the special tokens that have a name; those in `plain` are added, but not special."""
    names = [named.get(token_id, f"<SPECIAL_{token_id}>") for token_id in range(_SPECIAL_IDS)]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    return document(
        added_tokens=[
            added_token(token_id, name, special=token_id not in plain) for token_id, name in enumerate(names)
        ],
        normalizer=None,
        pre_tokenizer=split_then_byte_level(tekken.pattern),
        post_processor=post_processor,
        decoder=BYTE_LEVEL_DECODER,
        model=bpe_model({**vocab, **byte_level_vocab(tekken.ranks)}, merges),
    )


def _pieces(read: ReadMember, member: str) -> _Pieces:
    model = required("sentencepiece.sentencepiece_model_pb2", "sentencepiece and protobuf").ModelProto()
    model.ParseFromString(read(_PACKAGE, f"{_FOLDER}/{member}"))
    kinds = model.SentencePiece
    vocab: dict[str, int] = {entry.piece: token_id for token_id, entry in enumerate(model.pieces)}
    scores: dict[str, float] = {entry.piece: entry.score for entry in model.pieces}
    normal = {entry.piece for entry in model.pieces if entry.type == kinds.NORMAL}
    control = [vocab[entry.piece] for entry in model.pieces if entry.type in (kinds.UNKNOWN, kinds.CONTROL)]
    splits = [
        (piece[:cut], piece[cut:])
        for piece in vocab
        if piece in normal
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]

    def order(split: tuple[str, str]) -> tuple[float, int, int, int]:
        """Best score first, then the IDs of the whole, the left and the right piece."""
        left, right = split
        return -scores[left + right], vocab[left + right], vocab[left], vocab[right]

    return _Pieces(vocab, control, [f"{left} {right}" for left, right in sorted(splits, key=order)])
