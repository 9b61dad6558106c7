"""How much longer a tokenizer's own normalizer and pre-tokenizer may make a text.

Guarantee: a file within `MAX_GROWTH` makes no text more than that many times as long, in characters, beyond what the
Unicode forms do to single characters (18 at most, once). Steps that write text multiply: eight steps that turn one
character into ten make 100,000,000 of it, and the reference itself dies of a line of text.

Every step counts with the most that it can make of one character, whatever text could really reach it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any
from unicodedata import normalize

from .errors import InvalidPattern, UnsupportedTokenizer
from .pattern import Alternation, Assertion, Atomic, Node, Repeat, Sequence, parse

Json = Any
MAX_GROWTH = 128
BERT_GROWTH = 3
"""Spaces before and after a Chinese character."""
BYTES_GROWTH = 4
"""What ByteLevel makes of one character. Counts from the second ByteLevel on: the vocabulary is made for one."""
PREFIX_GROWTH = 2
"""A prefix in front of a piece of one character."""


def check_growth(normalizer: Json, pre_tokenizer: Json) -> None:
    """Raises `UnsupportedTokenizer` (`tokenizer.text_growth`). Components are checked for their types before."""
    growth = growth_of(normalizer, pre_tokenizer)
    if growth > MAX_GROWTH:
        raise UnsupportedTokenizer(
            "tokenizer.text_growth",
            f"its steps may make a text more than {MAX_GROWTH} times as long: a short text would take all memory; "
            "remove Replace, Prepend, Precompiled, Metaspace or ByteLevel steps that write more than they read",
            limit=MAX_GROWTH,
        )


def growth_of(normalizer: Json, pre_tokenizer: Json) -> float:
    """The most characters that one character can become, the Unicode forms left out."""
    growth = 1.0
    bytes_steps = 0
    for step in (*_steps(normalizer, "normalizers"), *_steps(pre_tokenizer, "pretokenizers")):
        growth *= _step_growth(step)
        if step["type"] == "ByteLevel":
            bytes_steps += 1
            growth *= BYTES_GROWTH if bytes_steps > 1 else 1
        if growth > MAX_GROWTH:
            break  # before it overflows
    return growth


def _steps(component: Json, children: str) -> Iterator[Mapping[str, Json]]:
    if component is None:
        return
    if component["type"] != "Sequence":
        yield component
        return
    for child in component[children]:
        yield from _steps(child, children)


def _step_growth(step: Mapping[str, Json]) -> float:
    match step["type"]:
        case "Replace":
            return _replace_growth(step)
        case "Prepend":
            return 1.0 + _written(step.get("prepend"))
        case "Precompiled":
            return max(1.0, _longest_replacement(step.get("precompiled_charsmap")))
        case "BertNormalizer":
            return BERT_GROWTH
        case "Metaspace":
            return PREFIX_GROWTH
        case "ByteLevel":
            return PREFIX_GROWTH if step.get("add_prefix_space", True) else 1
    return 1.0


def _replace_growth(step: Mapping[str, Json]) -> float:
    """A pattern that matches the empty string writes once for every character, which stays."""
    written, pattern = _written(step.get("content")), step.get("pattern")
    least = 0
    if isinstance(pattern, Mapping):
        literal, source = pattern.get("String"), pattern.get("Regex")
        least = len(literal) if isinstance(literal, str) else _least_chars(source)
    return max(1.0, written / least) if least else 1.0 + written


def _written(text: Json) -> int:
    """The characters that `text` can be once a later step has put it into a Unicode form."""
    return max(len(text), len(normalize("NFKD", text))) if isinstance(text, str) else 0


def _least_chars(source: Json) -> int:
    """The fewest characters that the pattern matches; 0 where that isn't known."""
    try:
        return _least(parse(source).root) if isinstance(source, str) else 0
    except InvalidPattern:
        return 0


def _least(node: Node) -> int:
    match node:
        case Sequence():
            return sum(map(_least, node.items))
        case Alternation():
            return min(map(_least, node.items), default=0)
        case Repeat():
            return node.least * _least(node.item)
        case Atomic():
            return _least(node.item)
        case Assertion():
            return 0
    return 1


def _longest_replacement(charsmap: Json) -> int:
    """Of a sentencepiece map: the size of its trie (4 bytes), the trie, then texts with a zero byte behind each.

    0 for anything else: the reference refuses it.
    """
    if not isinstance(charsmap, str):
        return 0
    try:
        data = base64.b64decode(charsmap)
    except (binascii.Error, ValueError):
        return 0
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max((_written(each.decode("utf-8", "replace")) for each in texts.split(b"\0")), default=0)
