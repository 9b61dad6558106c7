"""Whether the engines make the same of chats and texts as the tier does: each is asked, with what tells them apart.

A template file, a flag of the server or a model that SGLang treats by itself may make its prompts others than the
tier's; what it loads beside the tokenizer.json, or in its place, other IDs of every text. Its own `/v1/tokenize` says.
Guarantee: after one answer with other IDs, from any engine, that model's chats, or its texts, go on as text.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.errors import TierError
from ..engine.chat_template import PassThrough
from ..engine.sglang_http import SGLangHttp
from ..sessions.lookup import NAMED
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


TEXTS = (
    "Hello",
    " two  spaces,\n\n\ta tab and 1234567 x=0x1F",
    " ",
    "na\u00efve cafe\u0301 \u4e2d\u6587 \ub3c4 \U0001f642 \u0935\u094d \u2028",
    "<s>a</s> <unk> <pad> <mask> <bos> <eos> <|endoftext|>b",
    "<|im_start|>user\nHi<|im_end|>\n<|tool|>call [INST] <think> <|begin_of_text|>",
)
MAX_LITERALS = 64
"""Of the tokenizer's own added tokens that are asked about, with and without blanks around."""


async def agrees(prompts: Prompts, engine: SGLangHttp, model: str, tenant: str) -> bool | None:
    """Whether all of `CHATS` that the tier renders give every engine's own IDs; None if nothing could be compared."""
    compared = False
    for number, chat in enumerate(CHATS):
        fields = {"model": model, **chat}
        try:
            found = await prompts.chat(fields, tenant, f"agreement-{number}", 0)
        except TierError:
            continue
        prompts.model(fields).served.sessions.close(tenant, f"{NAMED}agreement-{number}")
        if isinstance(found, PassThrough):
            continue
        for tokens in await _ask(engine, fields):
            if tokens != found.ids.array.tolist():
                return False
            compared = True
    return True if compared else None


async def agrees_on_texts(prompts: Prompts, engine: SGLangHttp, model: str) -> bool | None:
    """The same of `TEXTS` and the tokenizer's own added tokens, as `/generate` and `/v1/completions` encode them."""
    texts: list[str] = []
    ids: list[list[int]] = []
    for text in (*TEXTS, *_literals(prompts, model)):
        try:
            ids.append(await prompts.encoded({"model": model}, text, special=True))
        except TierError:
            continue
        texts.append(text)
    answers = await _ask(engine, {"model": model, "prompt": texts}) if texts else []
    return all(tokens == ids for tokens in answers) if answers else None


def _literals(prompts: Prompts, model: str) -> list[str]:
    tokens = prompts.model({"model": model}).served.tokenizer.reference.added_tokens()
    step = -(-len(tokens) // MAX_LITERALS) or 1
    return [f"a {token.content} b\n{token.content}c" for token in tokens[::step]]


async def _ask(engine: SGLangHttp, fields: dict[str, Any]) -> list[list[Any]]:
    """The tokens that each engine answers with, of those that do."""
    content, found = json.dumps(fields).encode(), []
    for name in engine.names:
        answer = await engine.ask(name, "/v1/tokenize", content, max_bytes=MAX_ANSWER_BYTES)
        try:
            tokens = json.loads(answer[0])["tokens"] if answer is not None else None
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(tokens, list):
            found.append(tokens)
    return found
