"""A small tokenizer's tables by hand, and texts to try kernels on.

The first stage is `` ?L+| ?D{1,3}|\\s+(?!\\S)|\\s+`` over letters, decimal digits, spaces and other characters of all
of Unicode, as `PATTERN` says on `plain(text)`. Later stages: single digits; up to two bytes past ASCII.
"""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache

import numpy as np

from toktier_kernels.status import MATCH
from toktier_kernels.tables import PAGES_OF_UNICODE, Stage, Tables
from toktier_kernels.vocabulary import Vocabulary, build_vocabulary

LETTER, DIGIT, SPACE, BLANK, OTHER, JAMO, MARK = range(1, 8)  # joint classes
_PLAIN = {LETTER: "a", DIGIT: "1", SPACE: " ", BLANK: "\n", OTHER: "!", JAMO: "a", MARK: "!"}
PATTERN = re.compile(r" ?a+| ?1{1,3}|\s+(?!\S)|\s+")


def class_of(character: str) -> int:
    point = ord(character)
    if unicodedata.combining(character):
        return MARK
    if 0x1100 <= point < 0x1200 or 0x20000 <= point < 0x20010:  # letters of three and of four bytes
        return JAMO
    if character.isalpha():
        return LETTER
    if character.isdecimal():
        return DIGIT
    if character == " ":
        return SPACE
    return BLANK if character.isspace() else OTHER


def plain(text: str) -> str:
    """The text with each character replaced by its class's representative: `PATTERN`'s alphabet."""
    return "".join(_PLAIN[class_of(character)] for character in text)


def _column(columns: dict[int, int], other: int = 0) -> np.ndarray:
    result = np.full(256, other, np.uint8)
    for symbol, column in columns.items():
        result[symbol] = column
    return result


def words() -> Stage:
    """Columns: letter, digit, space, other blank, other; end.

    States: 2 one space, 3 letters, 4 to 6 digits, 7 one other blank, 8 more blanks (all but the last of them match,
    unless the text ends).
    """
    m = MATCH
    rows = [
        [0, 0, 0, 0, 0, 0],
        [3, 4, 2, 7, 0, 0],
        [3, 4, m | 8, m | 8, m, m],
        [3, m, m, m, m, m],
        [m, 5, m, m, m, m],
        [m, 6, m, m, m, m],
        [m, m, m, m, m, m],
        [m, m, m | 8, m | 8, m, m],
        [0, 0, m | 8, m | 8, 0, m],
    ]
    columns = {LETTER: 0, JAMO: 0, DIGIT: 1, SPACE: 2, BLANK: 3, OTHER: 4, MARK: 4}
    return Stage(False, _column(columns, 4), 5, np.array(rows, np.uint16))


def digits() -> Stage:
    """Each digit for itself. Columns: digit, other; end."""
    rows = [[0, 0, 0], [2, 0, 0], [MATCH, MATCH, MATCH]]
    return Stage(False, _column({DIGIT: 0}, 1), 2, np.array(rows, np.uint16))


def high_bytes() -> Stage:
    """One or two bytes past ASCII. Columns: such a byte, other; end."""
    rows = [[0, 0, 0], [2, 0, 0], [3, MATCH, MATCH], [MATCH, MATCH, MATCH]]
    return Stage(True, _column(dict.fromkeys(range(128, 256), 0), 1), 2, np.array(rows, np.uint16))


def backtracking() -> Stage:
    """``L+O|L``: every letter of a run looks for the run's end. Columns: letter, other, blanks and digits; end."""
    m = MATCH
    rows = [[0, 0, 0, 0], [2, 0, 0, 0], [m | 3, 4, m, m], [3, 4, 0, 0], [m, m, m, m]]
    return Stage(False, _column({LETTER: 0, JAMO: 0, OTHER: 1, MARK: 1}, 2), 3, np.array(rows, np.uint16))


@cache
def _pages() -> tuple[np.ndarray, np.ndarray]:
    classes = np.full(PAGES_OF_UNICODE * 256, OTHER, np.uint8)
    for point in range(0x32000):
        classes[point] = class_of(chr(point))
    for point in range(0xE0000, 0xE0200):
        classes[point] = class_of(chr(point))
    pages, page_of = np.unique(classes.reshape(-1, 256), axis=0, return_inverse=True)
    return page_of.reshape(-1).astype(np.uint16), pages


def _cuts() -> np.ndarray:
    """Between characters that every walk splits, whatever stands around them."""
    kinds = {LETTER: "L", JAMO: "L", DIGIT: "D", OTHER: "O", MARK: "O", SPACE: "S", BLANK: "S"}
    result = np.zeros((256, 256), np.uint8)
    for left, a in kinds.items():
        for right, b in kinds.items():
            result[left, right] = a != "S" and a != b
    return result


@cache
def vocabulary() -> Vocabulary:
    """All bytes, then what a few merges make of them."""
    merges, tokens = [], {byte: bytes([byte]) for byte in range(256)}
    of_bytes = {token: identity for identity, token in tokens.items()}
    halves = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"a", b"a"), (b"aa", b"aa"), (b"1", b"2"), (b" ", b" ")]
    halves += [(b"\xc3", b"\xa9"), (b"\xe4", b"\xb8"), (b"\xe4\xb8", b"\xad"), (b"b", b"e"), (b"e", b"z")]
    for left, right in halves:
        identity = len(tokens)
        merges.append((of_bytes[left], of_bytes[right], identity))
        tokens[identity] = left + right
        of_bytes[left + right] = identity
    return build_vocabulary(np.arange(256, dtype=np.uint32), tokens, merges, None)


@cache
def tables(stages: int = 1) -> Tables:
    """The first `stages` of words, digits, high bytes."""
    page_of, pages = _pages()
    settled = np.zeros(256, np.uint8)
    settled[JAMO], settled[MARK] = 1, 2
    return Tables(page_of, pages, _cuts(), settled, (words(), digits(), high_bytes())[:stages], vocabulary())


_ALPHABET = (
    "aabez  \n\t0123456789!-.éßñЖ中国語한\u1100\u1161\U00020000\u0301\U0001d165\u3000٣𝒜𝟘😀\u00a0\u2028\U0010ffff"
)


def text(size: int, seed: int) -> str:
    """About `size` characters: words, digits and blanks, with runs."""
    rng = random.Random(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        parts.append(rng.choice(_ALPHABET) * rng.choice([1, 1, 1, 2, 3, 9]))
    return "".join(parts)[:size]


def sizes(block: int) -> list[int]:
    """Sizes at which a kernel with such blocks may go wrong."""
    return [0, 1, 2, block - 1, block, block + 1, 2 * block - 1, 3 * block + 7]
