"""A tokenizer.json and what lies beside it: the files that can change what a tier sends.

The companions are those that `engine.folder`, `engine.chat_files` and the chat renderer read; everything else in a
model's folder is left where it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toktier_tier.core.errors import InvalidRequest

from .bounds import digest_of

TOKENIZER = "tokenizer.json"
COMPANIONS = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "config.json"),
)
NAMED_TEMPLATES = "additional_chat_templates"
MAX_COMPANIONS = 64
_NAMED_TEMPLATE = re.compile(NAMED_TEMPLATES + r"/[A-Za-z0-9_-][A-Za-z0-9._-]{0,100}\.jinja")


def is_companion(name: str) -> bool:
    """Whether a file of that name, relative to the tokenizer.json's folder, belongs to the tokenizer."""
    return name in COMPANIONS or _NAMED_TEMPLATE.fullmatch(name) is not None


@dataclass(frozen=True)
class TokenizerFiles:
    """`tokenizer.json` and its companions by name, and where they are from."""

    files: Mapping[str, bytes]
    origin: str

    def __post_init__(self) -> None:
        if TOKENIZER not in self.files or not all(name == TOKENIZER or is_companion(name) for name in self.files):
            raise ValueError("a tokenizer.json and its companions, nothing else")
        if len(self.files) > MAX_COMPANIONS:
            raise InvalidRequest("source.too_large", f"{len(self.files)} files belong to the tokenizer")

    @property
    def tokenizer(self) -> bytes:
        return self.files[TOKENIZER]

    @cached_property
    def sha256(self) -> str:
        """Of the tokenizer.json where it stands alone, else of the canonical JSON list of [name, SHA-256], by name."""
        if len(self.files) == 1:
            return digest_of(self.tokenizer)
        entries: list[Any] = [[name, digest_of(data)] for name, data in sorted(self.files.items())]
        return digest_of(json.dumps(entries, separators=(",", ":")).encode())
