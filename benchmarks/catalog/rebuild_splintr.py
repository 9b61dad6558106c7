"""Files rebuilt from the vocabularies that splintr-rs carries compiled in: tokens in rank order, and special tokens.

The package must be installed; nothing is fetched here.
"""

from __future__ import annotations

from typing import Any

from catalog.rebuild_parts import (
    BYTE_LEVEL_DECODER,
    BYTE_LEVEL_PROCESSOR,
    CL100K_PATTERN,
    O200K_PATTERN,
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
    merges_by_cut,
    required,
    single_merges,
    spaced,
    split_then_byte_level,
)

_LLAMA_3_NAMED = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    4: "<|finetune_right_pad_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
}


def gpt_oss(_: ReadMember) -> bytes:
    ranks = _ranks("gpt-oss", 199_998)
    return indented(
        document(
            added_tokens=[added_token(*item) for item in sorted(_special_tokens("gpt-oss").items())],
            normalizer=None,
            pre_tokenizer=split_then_byte_level(O200K_PATTERN),
            post_processor=BYTE_LEVEL_PROCESSOR,
            decoder=BYTE_LEVEL_DECODER,
            model=bpe_model(byte_level_vocab(ranks), exhaustive_merges(ranks)),
        )
    )


def llama_3_3(_: ReadMember) -> bytes:
    """Merges as pairs; Llama 3.2 has the same bytes."""
    return indented(_llama_3())


def llama_3_1_instruct(_: ReadMember) -> bytes:
    """Merges as strings, no newline at the end."""
    return indented(_with_joined_merges(_llama_3()))


def llama_3_1(_: ReadMember) -> bytes:
    """The base model's file: the Instruct model's, and a newline."""
    return indented(_with_joined_merges(_llama_3())) + b"\n"


def olmo_3(_: ReadMember) -> bytes:
    ranks = _ranks("cl100k_base", 100_256)
    added = sorted(_special_tokens("olmo2").items())
    merges = single_merges(ranks)
    return indented(
        document(
            added_tokens=[
                added_token(token_id, content, special=not content.startswith(("<|extra_id", "|||")))
                for token_id, content in added
            ],
            normalizer=None,
            pre_tokenizer=split_then_byte_level(CL100K_PATTERN, "Removed", invert=True),
            post_processor=None,
            decoder=BYTE_LEVEL_DECODER,
            model=bpe_model(
                {**byte_level_vocab(ranks), **{content: token_id for token_id, content in added}},
                merges,
                continuing_subword_prefix="",
                end_of_word_suffix="",
                ignore_merges=False,
            ),
        )
    )


def kimi_k3(_: ReadMember) -> bytes:
    ranks = _ranks("kimi_k3", 163_584)
    special = _special_tokens("kimi_k3")
    plain = {"<|open|>", "<|close|>", "<|sep|>"}
    content = document(
        added_tokens=[
            added_token(token_id, special[token_id], special=special[token_id] not in plain)
            for token_id in range(163_584, 163_840)
        ],
        normalizer=None,
        pre_tokenizer=split_then_byte_level(_splintr().KIMI_PATTERN),
        post_processor=BYTE_LEVEL_PROCESSOR,
        decoder=BYTE_LEVEL_DECODER,
        model=bpe_model(byte_level_vocab(ranks), merges_by_cut(ranks)),
    )
    return spaced(content) + b"\n"


def _llama_3() -> Json:
    ranks = _ranks("llama3", 128_000)
    bos = _LLAMA_3_NAMED[0]
    reserved = iter(range(256))
    names = [_LLAMA_3_NAMED.get(offset) or f"<|reserved_special_token_{next(reserved)}|>" for offset in range(256)]
    template = bos_template(bos, {bos: 128_000})
    return document(
        added_tokens=[added_token(128_000 + offset, name) for offset, name in enumerate(names)],
        normalizer=None,
        pre_tokenizer=split_then_byte_level(CL100K_PATTERN),
        post_processor={"type": "Sequence", "processors": [BYTE_LEVEL_PROCESSOR, template]},
        decoder=BYTE_LEVEL_DECODER,
        model=bpe_model(byte_level_vocab(ranks), exhaustive_merges(ranks)),
    )


def _with_joined_merges(content: Json) -> Json:
    model = content["model"]
    return {**content, "model": {**model, "merges": joined(model["merges"])}}


def _ranks(name: str, count: int) -> dict[bytes, int]:
    """The first `count` tokens of a compiled-in vocabulary, in rank order."""
    tokenizer = _splintr().Tokenizer.from_pretrained(name)
    return {bytes(tokenizer.decode_token_bytes(rank)): rank for rank in range(count)}


def _special_tokens(name: str) -> dict[int, str]:
    """The upstream special tokens by ID, without the ones that splintr appends behind the vocabulary."""
    splintr = _splintr()
    bound: int = splintr.base_vocab_size(name)
    special: dict[str, int] = splintr.Tokenizer.from_pretrained(name).special_tokens()
    return {token_id: content for content, token_id in special.items() if token_id < bound}


def _splintr() -> Any:
    return required("splintr", "splintr-rs==0.22.0")
