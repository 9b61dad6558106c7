"""Texts that ask a tokenizer.json about all that is in it, to compare releases of a library by.

Guarantee: the same file gives the same texts. They come as units, short texts that stand by themselves, by kind:

    entries       the text of every vocabulary entry, ByteLevel's alphabet read back into characters
    code points   every code point up to the last character of Unicode 17, in a frame that shows its class
    marks         only with a normalizer: every code point that is a mark or unassigned, between two marks that change
                  places; every character's canonical and compatible decomposition; marks in pairs
    added tokens  every one alone, doubled, cut, in other letters, with something around it, and next to others
    classes       every pair of the campaign's pieces, which stand for the classes of the patterns
    natural       lines of code, JSON and prose in many scripts
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.classes import byte_characters
from ..core.vocabulary import vocabulary_strings
from .texts import NATURAL, PIECES

FRAME = "{0}'s {0}a{0}1\n"
SYLLABLE_FRAME = "{0}'s\n"
"""For ideographs and Hangul, half of all characters: they are letters to every release that knows them."""
LAST_POINT, TAGS = 0x33479, range(0xE0000, 0xE01F0)
MARKS_FRAME = "a\u0323{0}\u0301 "
MARK_PAIRS = 6_000
Units = Iterator[tuple[str, str]]


def units_of(document: Mapping[str, Any]) -> Units:
    """(kind, unit), kind by kind."""
    yield from (("entries", text + "\n") for text in entry_texts(document))
    for point in code_points():
        frame = SYLLABLE_FRAME if _is_syllable(point) else FRAME
        yield "code points", frame.format(chr(point))
    if document.get("normalizer") is not None:
        yield from (("marks", text) for text in _mark_texts())
    yield from (("added tokens", text) for text in _added_token_texts(document))
    yield from (("classes", left + right + "a") for left in PIECES for right in PIECES)
    yield from (("natural", line) for line in NATURAL.split("\n") if line)


def code_points() -> Iterator[int]:
    """Scalar values up to Unicode 17's last character, and the tags and variation selectors of plane 14; not those for
    private use in planes 15 and 16."""
    yield from (point for point in range(LAST_POINT + 1) if not 0xD800 <= point < 0xE000)
    yield from TAGS


def _is_syllable(point: int) -> bool:
    return 0x3400 <= point < 0xA000 or 0xAC00 <= point < 0xD7A4 or point >= 0x20000


def entry_texts(document: Mapping[str, Any]) -> Iterator[str]:
    """Vocabulary entries as text; those that are no text by themselves are left out."""
    entries = sorted(vocabulary_strings(document["model"]))
    if not _has_bytes(document.get("pre_tokenizer")) and not _has_bytes(document.get("normalizer")):
        yield from (entry.replace("▁", " ") for entry in entries)
        return
    byte_of = {chr(char): byte for byte, char in enumerate(byte_characters())}
    for entry in entries:
        try:
            yield bytes(byte_of[char] for char in entry).decode()
        except (KeyError, UnicodeDecodeError):
            continue


def _has_bytes(section: Any) -> bool:
    if isinstance(section, Mapping):
        return section.get("type") == "ByteLevel" or any(map(_has_bytes, section.values()))
    return isinstance(section, list) and any(map(_has_bytes, section))


def _mark_texts() -> Iterator[str]:
    marks = []
    for point in range(0x300, 0x20000):
        category = unicodedata.category(chr(point))
        if category in ("Mn", "Mc", "Cn"):
            yield MARKS_FRAME.format(chr(point))
        if category in ("Mn", "Mc"):
            marks.append(chr(point))
    for point in code_points():
        char = chr(point)
        for form in ("NFD", "NFKD"):
            decomposed = unicodedata.normalize(form, char)
            if decomposed != char and not 0xAC00 <= point < 0xD7A4:
                yield f"{decomposed}\n"
    draw = random.Random(1)
    for _ in range(MARK_PAIRS):
        yield f"a{draw.choice(marks)}{draw.choice(marks)} "


def _added_token_texts(document: Mapping[str, Any]) -> Iterator[str]:
    literals = [token["content"] for token in document.get("added_tokens") or []]
    for literal, following in zip(literals, [*literals[1:], *literals[:1]], strict=True):
        middle = len(literal) // 2
        yield from (literal, literal * 2, literal + following, literal[:middle], literal[middle:])
        yield from (f"x{literal}y", f" {literal} ", f"\n{literal}\n", f"1{literal}'s", literal.upper(), literal.lower())
