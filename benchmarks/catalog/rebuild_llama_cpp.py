"""Files rebuilt from the test vocabularies (GGUF) in llama-cpp-python's source distribution."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from catalog.rebuild_mistral import SENTENCEPIECE_DECODER
from catalog.rebuild_parts import (
    Json,
    ReadMember,
    added_token,
    bpe_model,
    compact,
    document,
    indented,
    required,
    sequence,
    special_token,
    template,
)
from toktier_tier.sources import Package

_PACKAGE = Package("pypi", "llama-cpp-python", "0.3.36")
_FOLDER = "vendor/llama.cpp/models"

_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"
_ADDED_TYPES = (3, 4)  # GGUF's control and user-defined


def bert_base_uncased(read: ReadMember) -> bytes:
    """GGUF marks the starts of words with ▁, BERT their continuations with ##."""
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(_fields(read, "bert-bge")[_TOKENS]):
        bracketed = len(token) > 2 and token[0] == "[" and token[-1] == "]"
        vocab[token if bracketed else token[1:] if token[0] == "▁" else f"##{token}"] = token_id
    first = [special_token("[CLS]", 0), sequence("A", 0), special_token("[SEP]", 0)]
    pair = [*first, sequence("B", 1), special_token("[SEP]", 1)]
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return compact(
        document(
            added_tokens=[_old_added_token(vocab[name], name) for name in names],
            normalizer={
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            pre_tokenizer={"type": "BertPreTokenizer"},
            post_processor=template(first, pair, {name: vocab[name] for name in ("[CLS]", "[SEP]")}),
            decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
            model={
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocab,
            },
        )
    )


def gemma_4(read: ReadMember) -> bytes:
    fields = _fields(read, "gemma-4")
    tokens: list[str] = fields[_TOKENS]
    added = [token_id for token_id, kind in enumerate(fields[_TOKEN_TYPES]) if kind in _ADDED_TYPES]
    space = {"String": " "}
    single = [sequence("A", 0)]
    return indented(
        document(
            added_tokens=[added_token(token_id, tokens[token_id]) for token_id in added],
            normalizer={"type": "Replace", "pattern": space, "content": "▁"},
            pre_tokenizer={"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": False},
            post_processor=template(single, [*single, sequence("B", 1)], {}),
            decoder={"type": "Sequence", "decoders": SENTENCEPIECE_DECODER["decoders"][:3]},
            model=bpe_model(
                {token: token_id for token_id, token in enumerate(tokens)},
                [merge.split(" ") for merge in fields[_MERGES]],
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
                ignore_merges=False,
            ),
        )
    )


def gpt2(read: ReadMember) -> bytes:
    """A file of the first format: no `type` in the model, no `use_regex`."""
    fields = _fields(read, "gpt-2")
    vocab = {token: token_id for token_id, token in enumerate(fields[_TOKENS])}
    return compact(
        document(
            added_tokens=[{**_old_added_token(50_256, "<|endoftext|>"), "normalized": True}],
            normalizer=None,
            pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
            decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            model={
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "vocab": vocab,
                "merges": fields[_MERGES],
            },
        )
    )


def _old_added_token(token_id: int, content: str) -> Json:
    """`special` stood before `content` in the first format."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "special": True, "content": content, **flags}


def _fields(read: ReadMember, name: str) -> dict[str, Any]:
    """The vocabulary's metadata that a recipe may ask for; GGUFReader maps a file, so it gets one."""
    gguf = required("gguf", "gguf")
    data = read(_PACKAGE, f"{_FOLDER}/ggml-vocab-{name}.gguf")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        path.write_bytes(data)
        fields = gguf.GGUFReader(path).fields
        return {key: fields[key].contents() for key in (_TOKENS, _TOKEN_TYPES, _MERGES) if key in fields}
