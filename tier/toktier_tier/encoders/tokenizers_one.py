"""The candidate `tokenizers-1`: release 1.0 of Hugging Face's library, beside 0.23 in the same process.

Its encode path is new (no alignments, caches of fixed size) and frees the interpreter's lock; it also takes models and
pre-tokenizers that the other candidates refuse (Unigram, WordPiece, BertPreTokenizer). Where another candidate is
exact, that one is as fast or faster, so this one is tried where none is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..ports import Ids
from .beside import installed_version, release_encode

NAME = "tokenizers-1"
VERSION = "1.0.0rc3"


class TokenizersOne:
    """Raises `ImportError` if the release isn't there (see `beside`), and what the library raises for a document."""

    name = NAME

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.version = f"{NAME}=={VERSION}"
        self.encode: Callable[[str], Ids] = release_encode(VERSION, document)
        self.encode("first")  # a pattern that it has no code for is refused at the first text only


def installed() -> str:
    """The version that is there, '' if none is."""
    return installed_version(VERSION)
