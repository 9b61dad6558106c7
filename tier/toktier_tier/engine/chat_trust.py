"""Where the content of untrusted messages stands in the text of a chat.

The chat is rendered a second time with a mark before and behind every such content. Guarantee: without its marks that
text is the first one, or the request is refused (`InvalidRequest`, `trust.*`): a template that looks into contents
tells nobody where they went. White space around a content, which templates strip, is left outside the marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..core.errors import InvalidRequest
from ..core.trust import NO_SPANS, Spans, joined
from .chat_template import PassThrough, Rendered

OPEN, CLOSE = "\U000f8a01", "\U000f8a02"
"""Private use: characters that no text of a chat holds, or the request is refused."""
_MARKS = re.compile(f"[{OPEN}{CLOSE}]")
_CONTENT = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)

Render = Callable[[Mapping[str, Any]], Rendered | PassThrough]


def has_untrusted(body: Mapping[str, Any], roles: Collection[str]) -> bool:
    messages = body.get("messages")
    return bool(roles) and isinstance(messages, list) and any(_is_untrusted(each, roles) for each in messages)


def untrusted_spans(render: Render, body: Mapping[str, Any], text: str, roles: Collection[str]) -> Spans:
    """The spans of `text`, which is what `body` is rendered to, that messages of `roles` brought."""
    if not has_untrusted(body, roles):
        return NO_SPANS
    if _MARKS.search(text) is not None:
        raise InvalidRequest("trust.marks", "the chat holds a private-use character that marks untrusted text")
    messages = [_marked(each) if _is_untrusted(each, roles) else each for each in body["messages"]]
    rendered = render({**body, "messages": messages})
    if isinstance(rendered, PassThrough) or _MARKS.sub("", rendered.text) != text:
        raise InvalidRequest("trust.template", "the template looks into untrusted content: where it went can't be told")
    ranges: list[tuple[int, int]] = []
    start: int | None = None
    for index, mark in enumerate(_MARKS.finditer(rendered.text)):
        at = mark.start() - index
        if (mark.group() == OPEN) != (start is None):
            raise InvalidRequest("trust.template", "the template takes untrusted content apart")
        if start is None:
            start = at
        else:
            ranges.append((start, at))
            start = None
    if start is not None:
        raise InvalidRequest("trust.template", "the template takes untrusted content apart")
    return joined(ranges)


def _is_untrusted(message: Any, roles: Collection[str]) -> bool:
    return isinstance(message, Mapping) and message.get("role") in roles


def _marked(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _around(content)}
    if isinstance(content, list):
        return {**message, "content": [_marked_part(part) for part in content]}
    return message


def _marked_part(part: Any) -> Any:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": _around(part["text"])}
    return part


def _around(content: str) -> str:
    found = _CONTENT.fullmatch(content)
    assert found is not None
    before, inner, behind = found.groups()
    return f"{before}{OPEN}{inner}{CLOSE}{behind}" if inner else content
