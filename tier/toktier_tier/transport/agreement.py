"""Whether the engine makes the same of chats as the tier does: it is asked, with chats that tell templates apart.

A template file, a flag of the server or a model that SGLang treats by itself may make its prompts others than the
tier's. Its own `/v1/tokenize` says. Guarantee: after one answer with other IDs that model's chats go on as text.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.errors import EngineFault, TierError
from ..engine.body import JsonBody
from ..engine.chat_template import PassThrough
from ..engine.sglang_http import SGLangHttp
from .prompts import Prompts

MAX_ANSWER_BYTES = 1 << 22
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "naïve"}'}}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Hello"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " What's 1+1?\n"},
            {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n2"},
            {"role": "user", "content": "Sure, café?"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "Look up."},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"found": true}'},
        ],
        "tools": [_TOOL],
    },
)


async def agrees(prompts: Prompts, engine: SGLangHttp, model: str, tenant: str) -> bool | None:
    """Whether all of `CHATS` that the tier renders give the engine's own IDs; None if nothing could be compared."""
    compared = False
    for number, chat in enumerate(CHATS):
        fields = {"model": model, **chat}
        try:
            found = await prompts.chat(fields, tenant, f"agreement-{number}", 0)
        except TierError:
            continue
        if isinstance(found, PassThrough):
            continue
        tokens = await _ask(engine, fields)
        if tokens is None:
            continue
        compared = True
        if tokens != found.ids.array.tolist():
            return False
    return True if compared else None


async def _ask(engine: SGLangHttp, fields: dict[str, Any]) -> list[int] | None:
    body = JsonBody.parse(json.dumps(fields).encode())
    try:
        async with await engine.forward("/v1/tokenize", body, [("content-type", "application/json")]) as reply:
            answer = await reply.read(MAX_ANSWER_BYTES)
        if reply.status != 200:
            return None
        tokens = json.loads(answer)["tokens"]
    except (EngineFault, ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, list) else None
