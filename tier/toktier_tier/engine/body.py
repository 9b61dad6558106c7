"""A client's JSON request as it came, with token IDs put in.

Guarantees: the body is parsed once; what is sent is the client's bytes with exactly one member added or replaced, and
no other byte changed; whether it is added can't depend on how the parser on the other side treats repeated keys,
because a body with repeated top-level keys is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InvalidRequest
from ..core.values import check_text

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Written as an escape; in UTF-8 itself there is none."""


@dataclass(frozen=True, slots=True)
class Member:
    """Where a top-level member stands, in bytes: key from `key_start`, value in [`value_start`, `value_end`)."""

    key_start: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class JsonBody:
    """One JSON object: its bytes, its top-level members parsed, and where they stand. Made by `parse`."""

    raw: bytes
    fields: Mapping[str, Any]
    members: Mapping[str, Member]
    close: int  # of the last "}", in bytes

    @classmethod
    def parse(cls, raw: bytes) -> JsonBody:
        """Raises `InvalidRequest` (`body.not_utf8` with the offset in bytes, `body.not_json`, `body.not_object`,
        `body.repeated_key`) and `InvalidText` (`text.lone_surrogate` with the offset in characters of its string)."""
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest("body.not_utf8", "the request's body isn't UTF-8", offset_bytes=error.start) from None
        try:
            fields, members, close = _scan(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("body.not_json", "the request's body isn't JSON") from error
        if _SURROGATE.search(raw) is not None:
            for string in _strings(fields):
                check_text(string)
        if not text.isascii():
            members = _in_bytes(text, members)
            close = len(raw) - (len(text) - close)  # only blanks follow
        return cls(raw, fields, members, close)

    def added(self, key: str, value: bytes) -> bytes:
        """The body with one more member at its end. Raises `InvalidRequest` (`body.has_member`) if it has the key."""
        if key in self.members:
            raise InvalidRequest("body.has_member", f"the request has {key!r} already", member=key)
        comma = b"," if self.members else b""
        return self._spliced(self.close, self.close, (comma, json.dumps(key).encode(), b":", value))

    def replaced(self, key: str, new_key: str, value: bytes) -> bytes:
        """The body with another member in the place of `key`.

        Raises `InvalidRequest` (`body.lacks_member`, or `body.has_member` if it has `new_key` too).
        """
        member = self.members.get(key)
        if member is None:
            raise InvalidRequest("body.lacks_member", f"the request has no {key!r}", member=key)
        if new_key == key:
            return self._spliced(member.value_start, member.value_end, (value,))
        if new_key in self.members:
            raise InvalidRequest("body.has_member", f"the request has {new_key!r} already", member=new_key)
        return self._spliced(member.key_start, member.value_end, (json.dumps(new_key).encode(), b":", value))

    def _spliced(self, start: int, end: int, parts: Sequence[bytes]) -> bytes:
        """The body with `parts` in the place of [start, end): one copy, whatever its length."""
        whole = memoryview(self.raw)
        return b"".join((whole[:start], *parts, whole[end:]))


def _strings(value: Any) -> Iterator[str]:
    """All strings and keys in `value`, which may be nested as deep as the parser allows; in order."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            for key in reversed(found):
                stack += (found[key], key)
        elif isinstance(found, list):
            stack += reversed(found)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found is not None else at


def _scan(text: str) -> tuple[dict[str, Any], dict[str, Member], int]:
    """(fields, members, position of the closing brace), in characters. Raises `ValueError`."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        _DECODER.decode(text)
        raise InvalidRequest("body.not_object", "the request's body is no JSON object")
    fields: dict[str, Any] = {}
    members: dict[str, Member] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}" or members:
        key_start = at
        if text[at : at + 1] != '"':
            raise ValueError("no key")
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        value_start = _skip(text, at + 1)
        value, at = _DECODER.raw_decode(text, value_start)
        if key in members:
            raise InvalidRequest("body.repeated_key", "the request's body has a top-level key twice")
        fields[key] = value
        members[key] = Member(key_start, value_start, at)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        raise ValueError("more than one value")
    return fields, members, at


def _in_bytes(text: str, members: dict[str, Member]) -> dict[str, Member]:
    """The same members with positions in UTF-8 bytes; each stretch of the text is measured once."""
    done_chars = done_bytes = 0

    def measure(chars: int) -> int:
        nonlocal done_chars, done_bytes
        done_bytes += len(text[done_chars:chars].encode("utf-8"))
        done_chars = chars
        return done_bytes

    return {
        key: Member(measure(each.key_start), measure(each.value_start), measure(each.value_end))
        for key, each in members.items()
    }
