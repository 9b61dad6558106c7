"""The parts of a tokenizer.json as upstream's converters write them: key order, separators and merge order are theirs.

Everything here is judged by one test only: the rebuilt file has the upstream file's SHA-256.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toktier_tier.core.errors import SourceUnavailable
from toktier_tier.sources import Package

Json = dict[str, Any]
Ranks = Mapping[bytes, int]
ReadMember = Callable[[Package, str], bytes]
"""Brings the bytes of one member of a package; a recipe that reads from an archive gets it as its argument."""

CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL_DECODER: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BYTE_LEVEL_PROCESSOR: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: printable Latin-1 is itself, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


_ALPHABET = _byte_alphabet()


def spell(token: bytes) -> str:
    """The token in GPT-2's byte alphabet."""
    return "".join([_ALPHABET[byte] for byte in token])


def byte_level_vocab(ranks: Ranks) -> dict[str, int]:
    return {spell(token): rank for token, rank in ranks.items()}


def exhaustive_merges(ranks: Ranks) -> list[list[str]]:
    """Every split of every token into two tokens, by the token's rank, then the ranks of the left and right part.

    This is what transformers' TikTokenConverter writes.
    """
    merges = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        splits = sorted(
            (ranks[token[:cut]], ranks[token[cut:]], token[:cut], token[cut:])
            for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks
        )
        merges += [[spell(left), spell(right)] for _, _, left, right in splits]
    return merges


def merges_by_cut(ranks: Ranks) -> list[list[str]]:
    """Every split of every token into two tokens, by the token's rank, then by the place of the cut."""
    return [
        [spell(token[:cut]), spell(token[cut:])]
        for token, _ in sorted(ranks.items(), key=lambda item: item[1])
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def single_merges(ranks: Ranks) -> list[list[str]]:
    """One merge a token: the last pair that byte pair encoding itself comes to, lowest rank first, leftmost first."""
    merges = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [token[at : at + 1] for at in range(len(token))]
        while len(parts) > 2:
            _, at = min((ranks.get(parts[at] + parts[at + 1], 1 << 60), at) for at in range(len(parts) - 1))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        merges.append([spell(parts[0]), spell(parts[1])])
    return merges


def joined(merges: Iterable[list[str]]) -> list[str]:
    """The older serialisation of merges: one string, the two parts parted by a space."""
    return [" ".join(pair) for pair in merges]


def added_token(token_id: int, content: str, *, special: bool = True) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": token_id, "content": content, **flags}


def bpe_model(vocab: Mapping[str, int], merges: list[list[str]] | list[str], **options: Any) -> Json:
    """A BPE model that ignores merges for whole words; `options` override its fields and keep their order."""
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
    }
    return {**defaults, **options, "vocab": vocab, "merges": merges}


def split_then_byte_level(pattern: str, behavior: str = "Isolated", *, invert: bool = False) -> Json:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def special_token(content: str, type_id: int) -> Json:
    return {"SpecialToken": {"id": content, "type_id": type_id}}


def sequence(name: str, type_id: int) -> Json:
    return {"Sequence": {"id": name, "type_id": type_id}}


def template(single: list[Json], pair: list[Json], special: Mapping[str, int]) -> Json:
    """A TemplateProcessing; `special` maps each special token to its ID."""
    tokens = {content: {"id": content, "ids": [token_id], "tokens": [content]} for content, token_id in special.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def bos_template(bos: str, special: Mapping[str, int]) -> Json:
    """A TemplateProcessing that puts `bos` before each sequence."""
    first = [special_token(bos, 0), sequence("A", 0)]
    return template(first, [*first, special_token(bos, 1), sequence("B", 1)], special)


def document(
    *,
    added_tokens: list[Json],
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    post_processor: Json | None,
    decoder: Json,
    model: Json,
) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def required(module: str, requirement: str) -> Any:
    """An optional module; SourceUnavailable `source.fetch_failed`, naming what to install, where it isn't there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"rebuilding this file needs {requirement} (the extra `catalog`)"
        raise SourceUnavailable("source.fetch_failed", message, requirement=requirement) from error


def indented(content: Json) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode()


def spaced(content: Json) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def compact(content: Json) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
