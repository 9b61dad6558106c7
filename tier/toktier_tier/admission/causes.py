"""Why two releases of a library give other IDs for a text: which of a tokenizer.json's parts they see differently.

Each part is asked for by itself. A normalizer in front of a model of bytes tells what it makes of a text. Added tokens
and pre-tokenizers are left out: they are the cause if both releases then agree. A split that removes a character
property tells which characters have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from ..core.classes import byte_characters
from ..encoders.beside import release_encode
from ..encoders.reference import REFERENCE_VERSION, encode_of, load_tokenizer
from ..ports import Ids

Outcome = tuple[int, ...] | None
"""The IDs; None: the text is refused."""
Encode = Callable[[str], Ids]
_Both = tuple[Encode, Encode] | None
CATEGORIES = (
    *("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
    *("Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"),
)
BYTES = {
    "type": "BPE",
    "vocab": {chr(char): byte for byte, char in enumerate(byte_characters())},
    "merges": [],
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_PROPERTY = re.compile(r"\\[pP]\{\^?([^}]+)\}")


@dataclass(frozen=True)
class Release:
    """A release of the library, called as `tokenizers==0.23.3`.

    `build` gives `encode` of a tokenizer.json and raises what the library raises."""

    name: str
    build: Callable[[Mapping[str, Any]], Encode]

    @property
    def version(self) -> str:
        return self.name.partition("==")[2]


def release_of(version: str) -> Release:
    """The reference itself, or one of the releases beside it (`encoders.beside`), which may not be there."""
    name = f"tokenizers=={version}"
    if name == REFERENCE_VERSION:
        return Release(name, lambda document: encode_of(load_tokenizer(dict(document))))
    return Release(name, lambda document: release_encode(version, document))


def outcome(encode: Encode, text: str) -> Outcome:
    try:
        return tuple(encode(text).tolist())
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        return None


@dataclass(frozen=True, order=True)
class Cause:
    """part    `added tokens`, `normalizer`, `pre-tokenizer`, `model` or `refused`
    detail  in words; equal for texts that differ for the same reason
    chars   the characters that the releases see differently, if it is single ones"""

    part: str
    detail: str
    chars: str = ""


class Causes:
    """For one tokenizer.json, whose `truncation` and `padding` are off, and two releases that both take it.

    whole   their `encode` of that file
    """

    def __init__(
        self, document: Mapping[str, Any], before: Release, after: Release, whole: tuple[Encode, Encode]
    ) -> None:
        self._document, self._releases, self._whole = document, (before, after), whole

    def of(self, text: str) -> Cause:
        """The cause for a text that differs; best of a text from which nothing can be left out."""
        refusing = [
            release.version
            for release, encode in zip(self._releases, self._whole, strict=True)
            if outcome(encode, text) is None
        ]
        if refusing:
            return Cause("refused", f"{refusing[0]} can't encode the text")
        asked = []
        if self._document.get("added_tokens"):
            asked.append(_differ(self._without_tokens, text))
            if asked[-1] is False:
                return self._of_tokens(text)
        if self._document.get("normalizer"):
            asked.append(_differ(self._normalized, text))
            if asked[-1]:
                return self._of_normalizer(text)
        if self._document.get("pre_tokenizer"):
            asked.append(_differ(self._uncut, self._normal_form(text)))
            if asked[-1] is False:
                return self._of_pre_tokenizer(text)
        kind = str(self._document["model"].get("type") or "no type given")
        return Cause("model", kind if None not in asked else f"{kind}, or a part that can't be asked about by itself")

    def _of_tokens(self, text: str) -> Cause:
        found = [token for token in self._document["added_tokens"] if token["content"] in text]
        flags = sorted({flag for token in found for flag, on in token.items() if on is True and flag != "special"})
        return Cause("added tokens", f"with flags {', '.join(flags)}" if flags else "without flags")

    def _of_normalizer(self, text: str) -> Cause:
        kinds = "+".join(_kinds(self._document["normalizer"], "normalizers"))
        chars = "".join(char for char in dict.fromkeys(text) if _differ(self._normalized, char))
        seen = self._seen(chars or text)
        return Cause("normalizer", f"{kinds}: {'a character' if chars else 'characters in a row'}, {seen[0]}", seen[1])

    def _of_pre_tokenizer(self, text: str) -> Cause:
        kinds = "+".join(_kinds(self._document["pre_tokenizer"], "pretokenizers"))
        seen = self._seen(text)
        return Cause("pre-tokenizer", f"{kinds}: {seen[0]}", seen[1])

    def _seen(self, text: str) -> tuple[str, str]:
        """The characters of `text` that the releases know by different properties, and the words for it.

        Where one can't be asked (1.0 has no engine for patterns of one's own): the characters that the other knows
        least, as it sees them.
        """
        first, second = self._releases
        for name in self._property_names:
            for char in dict.fromkeys(text):
                said = [_has_property(release.name, name, char) for release in self._releases]
                if None not in said and said[0] != said[1]:
                    return self._words(name, char), char
        asked = next((each for each in (first, second) if _category(each.name, "a") != "none"), None)
        rare = [char for char in dict.fromkeys(text) if not char.isascii()] or list(dict.fromkeys(text))
        if asked is None:
            return "characters", "".join(rare)
        categories = {char: _category(asked.name, char) for char in rare}
        for category in ("Cn", "Mn", "Mc", *CATEGORIES):
            chars = "".join(char for char in rare if categories[char] == category)
            if chars:
                words = "unassigned" if category == "Cn" else f"of category {category}"
                return f"{words} in {asked.version}", chars
        return "characters", "".join(rare)

    def _words(self, name: str, char: str) -> str:
        first, second = self._releases
        if name not in CATEGORIES:
            return f"\\p{{{name}}} in one of the two"
        before, after = _category(first.name, char), _category(second.name, char)
        return f"category {before} in {first.version}, {after} in {second.version}"

    def _normal_form(self, text: str) -> str:
        """Both releases normalize alike here."""
        if not self._document.get("normalizer") or self._normalized is None:
            return text
        return bytes(self._normalized[0](text).tolist()).decode()

    @cached_property
    def _property_names(self) -> list[str]:
        """General categories, then what the file's own patterns ask for."""
        named = _PROPERTY.findall(json.dumps(self._document["pre_tokenizer"]).replace("\\\\", "\\"))
        return [*CATEGORIES, *(name for name in dict.fromkeys(named) if name not in CATEGORIES)]

    @cached_property
    def _without_tokens(self) -> _Both:
        return self._both({**self._document, "added_tokens": [], "post_processor": None})

    @cached_property
    def _normalized(self) -> _Both:
        return self._both(_blank(BYTES, normalizer=self._document["normalizer"], pre_tokenizer=BYTE_LEVEL))

    @cached_property
    def _uncut(self) -> _Both:
        """The model, given the text as one piece."""
        pre_tokenizer = BYTE_LEVEL if '"ByteLevel"' in json.dumps(self._document["pre_tokenizer"]) else None
        rest: dict[str, Any] = {
            "added_tokens": [],
            "normalizer": None,
            "post_processor": None,
            "pre_tokenizer": pre_tokenizer,
        }
        return self._both({**self._document, **rest})

    def _both(self, document: Mapping[str, Any]) -> _Both:
        """None: one of the releases takes no such file."""
        first, second = self._releases
        try:
            return first.build(document), second.build(document)
        except BaseException as error:  # a Rust panic isn't an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            return None


def _differ(encoders: _Both, text: str) -> bool | None:
    if encoders is None:
        return None
    before, after = (outcome(encode, text) for encode in encoders)
    return before != after


def _blank(model: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": [], **empty, **sections, "model": dict(model)}


def _kinds(section: Mapping[str, Any], members: str) -> list[str]:
    """Types of a section's steps, in order, each once."""
    if section.get("type") != "Sequence":
        return [str(section.get("type"))]
    return list(dict.fromkeys(kind for member in section[members] for kind in _kinds(member, members)))


@cache
def _property_encode(release: str, name: str) -> Encode | None:
    split = {"type": "Split", "pattern": {"Regex": f"\\p{{{name}}}"}, "behavior": "Removed", "invert": False}
    try:
        steps = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}
        return release_of(release.partition("==")[2]).build(_blank(BYTES, pre_tokenizer=steps))
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        return None


@cache
def _has_property(release: str, name: str, char: str) -> bool | None:
    """None: the release doesn't know the property, or takes no patterns but those it has code for."""
    encode = _property_encode(release, name)
    said = None if encode is None else outcome(encode, char)
    return None if said is None else said == ()


@cache
def _category(release: str, char: str) -> str:
    return next((name for name in CATEGORIES if _has_property(release, name, char)), "none")
