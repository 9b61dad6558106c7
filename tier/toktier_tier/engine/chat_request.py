"""An OpenAI chat body as SGLang 0.5.23 understands it: pure functions from JSON to what the chat template is given.

1. What `understand` returns holds the values that SGLang's request models and message processing would hand to the
   template, in the same order of keys; a field that SGLang drops is dropped, one that it adds (`null` for a tool's
   missing description) is added.
2. Where SGLang would refuse the body, or would bend a value into its type, `Refusal` is raised with a reason code:
   the body then goes to SGLang as it is, which answers what it has to answer.
3. The body given isn't changed.

Source: the behaviour of `entrypoints/openai/{protocol,serving_chat}.py` and `parser/jinja_template_utils.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ChatRequest", "ContentFormat", "Refusal", "decode_json", "understand"]

ContentFormat = Literal["string", "parts"]
"""What a template expects as a message's content: text, or a list of typed parts where the client sent one."""

BAD_REQUEST = "chat.bad_request"
MULTIMODAL = "chat.multimodal"
TOOL_SCHEMA = "chat.tool_schema"
INPUT_IDS = "chat.input_ids"

_ROLES = frozenset({"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"})
_ROLES_WITH_TOOLS = frozenset({"root", "system", "developer"})
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"})
_YES = frozenset({"1", "true", "yes", "y", "on"})
_MEDIA_PARTS = frozenset({"image_url", "video_url", "audio_url", "input_audio"})
_SCHEMA_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_INTEGERS = range(-(2**63), 2**64)


class Refusal(Exception):
    """The text of this request can't be told with certainty; `reason` is the code, `detail` safe to log."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"[{reason}] {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`messages` and `tools` as the template sees them, `variables` its further variables, and the effort asked for.

    `continuation` is the final assistant message's text where the answer shall go on from it; `messages` is then
    without it.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    effort: str | float | None
    continuation: str | None


def understand(
    body: Mapping[str, Any],
    *,
    content_format: ContentFormat,
    default_variables: Mapping[str, Any],
    as_given: bool = False,
) -> ChatRequest:
    """`default_variables` are the server's `--default-chat-template-kwargs`; `as_given`: a final assistant message
    that isn't to be continued stays one. Raises `Refusal`."""
    if body.get("input_ids") is not None:
        raise Refusal(INPUT_IDS, "the client sent token IDs")
    raw_messages = _list(body, "messages")
    if not raw_messages:
        raise Refusal(BAD_REQUEST, "no messages")
    messages = [_message(_object(raw, "a message")) for raw in raw_messages]
    effort, variables = _effort_and_variables(body, default_variables)
    processed = [_for_template(message, content_format) for message in messages]
    continuation = None
    goes_on = _flag(body, "continue_final_message") is True
    if goes_on or not as_given:
        processed, continuation = _settle_final_message(processed, goes_on=goes_on)
    return ChatRequest(processed, _tools_for_template(body, messages), variables, effort, continuation)


# Messages


def _message(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All fields that SGLang keeps, `None` where the client sent none, in the order of its models."""
    role = raw.get("role")
    if not isinstance(role, str):
        raise Refusal(BAD_REQUEST, "a message without a role")
    if role == "user":
        if raw.get("content") is None:
            raise Refusal(BAD_REQUEST, "a user message without content")
        return {"role": role, "content": _content(raw, role)}
    role = role.lower()
    if role not in _ROLES:
        raise Refusal(BAD_REQUEST, "an unknown role")
    phase = _text(raw, "phase")
    if phase not in (None, "commentary", "final_answer"):
        raise Refusal(BAD_REQUEST, "an unknown phase")
    calls, tools = _list(raw, "tool_calls"), _list(raw, "tools")
    return {
        "role": role,
        "content": _content(raw, role),
        "tool_call_id": _text(raw, "tool_call_id"),
        "name": _text(raw, "name"),
        "phase": phase,
        "reasoning_content": _text(raw, "reasoning_content"),
        "tool_calls": None if calls is None else [_tool_call(_object(call, "a tool call"), role) for call in calls],
        "tools": None if tools is None else [_tool(_object(tool, "a tool")) for tool in tools],
        "prefix": _flag(raw, "prefix"),
    }


def _content(raw: Mapping[str, Any], role: str) -> str | list[dict[str, Any]] | None:
    content = raw.get("content")
    if content is None or isinstance(content, str):
        return content
    return [_part(_object(part, "a content part"), role) for part in _list(raw, "content") or ()]


def _part(raw: Mapping[str, Any], role: str) -> dict[str, Any]:
    kind = raw.get("type")
    if kind == "text" and isinstance(raw.get("text"), str):
        return {"type": kind, "text": raw["text"]}
    if kind == "tool_reference" and isinstance(raw.get("name"), str):
        return {"type": kind, "name": raw["name"]}
    if kind in ("thinking", "reasoning") and role == "assistant":
        texts = [_text(raw, "thinking"), _text(raw, "text")]
        if texts.count(None) == 1:
            return {"type": "thinking"}  # no template sees it
    if kind in _MEDIA_PARTS:
        raise Refusal(MULTIMODAL, "a message with media")
    raise Refusal(BAD_REQUEST, "an unknown content part")


def _tool_call(raw: Mapping[str, Any], role: str) -> dict[str, Any]:
    function = _object(raw.get("function"), "a tool call's function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        if role == "assistant":
            try:
                arguments = decode_json(arguments)
            except ValueError as error:
                raise Refusal(BAD_REQUEST, "a tool call's arguments aren't JSON") from error
            arguments = _object(arguments, "a tool call's arguments")
    elif arguments is not None:
        arguments = _object(arguments, "a tool call's arguments")
    index = raw.get("index")
    if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
        raise Refusal(BAD_REQUEST, "a tool call's index isn't a number")
    if raw.get("type", "function") != "function":
        raise Refusal(BAD_REQUEST, "a tool call that isn't of a function")
    named = {"name": _text(function, "name"), "arguments": arguments}
    return {"id": _text(raw, "id"), "index": index, "type": "function", "function": named}


def _for_template(message: dict[str, Any], content_format: ContentFormat) -> dict[str, Any]:
    """Without what is `None`, content as text or as parts: parts move to the end of the message, as in SGLang."""
    content = message["content"]
    if not isinstance(content, list):
        return {key: value for key, value in (message | {"content": content or ""}).items() if value is not None}
    texts = [part["text"] for part in content if part["type"] == "text"]
    if content_format == "string":
        return {key: value for key, value in message.items() if value is not None} | {"content": " ".join(texts)}
    parts = [part for part in content if part["type"] != "thinking"]
    rest = {key: value for key, value in message.items() if value is not None and key != "content"}
    if message["role"] == "tool" and len(texts) == len(parts):
        return rest | {"content": " ".join(texts)}
    return rest | {"content": parts}


def _settle_final_message(messages: list[dict[str, Any]], *, goes_on: bool) -> tuple[list[dict[str, Any]], str | None]:
    """A final assistant message of text is cut off to be continued, or becomes the user's."""
    final = messages[-1]
    if final["role"] != "assistant" or not isinstance(final["content"], str):
        return messages, None
    if goes_on:
        return messages[:-1], final["content"] or None
    return [*messages[:-1], {"role": "user", "content": final["content"]}], None


# Tools


def _tools_for_template(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    raw_tools = _list(body, "tools")
    tools = [_tool(_object(tool, "a tool")) for tool in raw_tools or ()]
    of_messages = any(message.get("tools") for message in messages if message["role"] in _ROLES_WITH_TOOLS)
    choice = body.get("tool_choice")
    if choice is None:
        choice = "none" if raw_tools is None and not of_messages else "auto"
    if isinstance(choice, Mapping):
        if choice.get("type", "function") != "function":
            raise Refusal(BAD_REQUEST, "an unknown tool choice")
        name = _text(_object(choice.get("function"), "a tool choice's function"), "name")
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    elif choice not in ("auto", "required", "none"):
        raise Refusal(BAD_REQUEST, "an unknown tool choice")
    if choice == "none":
        return None
    return tools or None


def _tool(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The function's keys in the client's order, then those that the client left out."""
    kind, function = raw.get("type", "function"), _object(raw.get("function"), "a tool's function")
    if not isinstance(kind, str) or not isinstance(function.get("name"), str):
        raise Refusal(BAD_REQUEST, "a tool without a name")
    deferred = _flag(raw, "defer_loading")
    of_function = _flag(function, "defer_loading")
    known: dict[str, Any] = {
        "description": _text(function, "description"),
        "name": function["name"],
        "parameters": function.get("parameters"),
        "strict": _flag(function, "strict"),
        "defer_loading": deferred if of_function is None else of_function,
    }
    _check_schema_types(known["parameters"])
    kept = {key for key, value in known.items() if value is not None or key in ("description", "parameters")}
    order = [key for key in function if key in kept] + [key for key in known if key in kept and key not in function]
    return {"type": kind, "function": {key: known[key] for key in order}, "defer_loading": deferred}


def _check_schema_types(schema: object) -> None:
    """SGLang renames types that JSON Schema doesn't know ("varchar" to "string"): such tools are left to it."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            kind = node.get("type")
            kinds = kind if isinstance(kind, list) else [kind] if isinstance(kind, str) else []
            names = [name for name in kinds if isinstance(name, str)]
            if len(set(names)) < len(kinds) or not _SCHEMA_TYPES.issuperset(names):
                raise Refusal(TOOL_SCHEMA, "a tool's parameters have a type that isn't JSON Schema's")
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


# Variables


def _effort_and_variables(
    body: Mapping[str, Any], default_variables: Mapping[str, Any]
) -> tuple[str | float | None, dict[str, Any]]:
    """The reasoning effort, and the variables beside messages and tools.

    An effort among the request's own variables counts as the request's effort; one among the defaults overrides
    it for the template, as in SGLang.
    """
    effort, thinks = _reasoning(body)
    given = body.get("chat_template_kwargs")
    if thinks is not None:
        given = dict(given) if isinstance(given, Mapping) else {}
        given.setdefault("thinking", thinks)
        given.setdefault("enable_thinking", thinks)
    variables = {} if given is None else dict(_object(given, "chat_template_kwargs"))
    own = variables.pop("reasoning_effort", None)
    effort = effort if own is None else own
    for key, value in default_variables.items():
        variables.setdefault(key, value)
    if effort is None:
        effort = variables.get("reasoning_effort")
    return effort, variables if effort is None else {"reasoning_effort": effort} | variables


def _reasoning(body: Mapping[str, Any]) -> tuple[str | float | None, bool | None]:
    """The effort, and whether thinking is asked for (None: nothing is said)."""
    effort, thinks = body.get("reasoning_effort"), None
    reasoning = body.get("reasoning")
    if isinstance(reasoning, Mapping):
        inner = reasoning.get("effort")
        inner = reasoning.get("reasoning_effort") if inner is None else inner
        effort = effort if inner is None else inner
        enabled = reasoning.get("enabled")
        enabled = reasoning.get("enable", False) if enabled is None else enabled
        thinks = True if (enabled.strip().lower() in _YES if isinstance(enabled, str) else enabled) else None
    if effort is None:
        return None, thinks
    if isinstance(effort, str) and effort in _EFFORTS:
        return effort, effort != "none"
    if isinstance(effort, int | float) and not isinstance(effort, bool) and 0 <= effort <= 0.99:
        return float(effort), True
    raise Refusal(BAD_REQUEST, "an unknown reasoning effort")


# JSON


def decode_json(text: str | bytes) -> Any:
    """As SGLang decodes: integers beyond 64 bits become floats; NaN, infinities and lone surrogates are errors.

    ValueError if it isn't JSON by these rules, or nested deeper than can be followed.
    """
    if isinstance(text, str):
        text.encode("utf-8")
    else:
        text = text.decode("utf-8")
    try:
        document = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    return document


def _integer(digits: str) -> int | float:
    value = int(digits) if len(digits) <= 20 else None
    return value if value is not None and value in _INTEGERS else _finite(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number that no float holds")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refusal(BAD_REQUEST, f"{what} isn't an object")
    return value


def _list(of: Mapping[str, Any], key: str) -> list[Any] | None:
    value = of.get(key)
    if value is not None and not isinstance(value, list):
        raise Refusal(BAD_REQUEST, f"{key} isn't a list")
    return value


def _text(of: Mapping[str, Any], key: str) -> str | None:
    value = of.get(key)
    if value is not None and not isinstance(value, str):
        raise Refusal(BAD_REQUEST, f"{key} isn't text")
    return value


def _flag(of: Mapping[str, Any], key: str) -> bool | None:
    value = of.get(key)
    if value is not None and not isinstance(value, bool):
        raise Refusal(BAD_REQUEST, f"{key} isn't a boolean")
    return value
