"""Numbers of a tokenizer.json under their own text: two JSON parsers may read one text as two numbers.

The reference's parser reads "-7.1830561225468910423" as another number than Python's does (they differ on a third of
such texts), so what decides IDs is the text; `exact` says of which texts every parser makes the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .errors import InvalidTokenizer

EXACT_INTEGERS, EXACT_POWERS = 1 << 53, 22
"""Integers and powers of ten up to these are numbers of 64 bits as they stand, and one division of two such is rounded
once, correctly, by every processor."""


class Number(float):
    """A JSON number that isn't written as an integer, with its text. Raises `InvalidTokenizer` (`tokenizer.bad_number`)
    for one that is out of range."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str | float) -> Number:
        number = super().__new__(cls, text)
        if number in (float("inf"), float("-inf")):
            raise InvalidTokenizer("tokenizer.bad_number", "a number is out of range")
        number.text = str(text)
        return number


def number_texts(value: Any) -> list[str]:
    """The texts of every `Number` in parsed JSON, in an order that the layout of its objects doesn't change."""
    texts: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Number):
            texts.append(item.text)
        elif isinstance(item, Mapping):
            left += (item[key] for key in sorted(item))
        elif isinstance(item, list):
            left += item
    return texts


def exact(number: float) -> bool:
    """Whether every parser reads the text of `number`, and what Python writes for it, as the same number."""
    if isinstance(number, int):
        return abs(number) <= EXACT_INTEGERS
    texts = {float.__repr__(number)} | ({number.text} if isinstance(number, Number) else set())
    return all(map(_exact_text, texts))


def _exact_text(text: str) -> bool:
    _, digits, exponent = Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        return False
    return int("".join(map(str, digits))) <= EXACT_INTEGERS and abs(exponent) <= EXACT_POWERS
