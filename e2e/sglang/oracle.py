"""SGLang's own prompts for chat bodies, without a server. Runs in SGLang's environment, not in the project's.

stdin: [{"model": folder, "settings": {fields of ServerArgs}, "bodies": [texts of JSON]}, ...]; stdout, last line: for
each a list with, per body, {"ids", "text", "add_special_tokens"} or {"error"}. All between a body and its IDs is
SGLang's: decoding, request model, validation, tokenizer, template manager, chat handler. Only what would need an
engine is stood in for.
"""

from __future__ import annotations

import functools
import json
import sys
from types import SimpleNamespace
from typing import Any

import orjson
from sglang.srt.entrypoints.openai import serving_chat
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.parser.template_manager import TemplateManager
from sglang.srt.runtime_context import get_context
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from transformers import AutoConfig

encode = serving_chat.parallel_prompt_encode
encoded: list[tuple[str, dict[str, Any]]] = []


def noting_encode(tokenizer: Any, text: str, options: dict[str, Any]) -> list[int]:
    encoded.append((text, options))
    return encode(tokenizer, text, options)  # type: ignore[no-any-return]


serving_chat.parallel_prompt_encode = noting_encode


@functools.cache
def tokenizer_of(model: str) -> tuple[Any, Any]:
    """The tokenizer as SGLang loads it, and the chat template that it came with."""
    tokenizer = get_tokenizer(model)
    return tokenizer, tokenizer.chat_template


def handler(model: str, settings: dict[str, Any]) -> serving_chat.OpenAIServingChat:
    arguments = ServerArgs(model_path=model, device="cpu", attention_backend="torch_native", **settings)
    get_context().set_server_args(arguments)
    config = AutoConfig.from_pretrained(model)
    tokenizer, tokenizer.chat_template = tokenizer_of(model)
    manager = SimpleNamespace(
        server_args=arguments,
        model_path=model,
        served_model_name=model,
        tokenizer=tokenizer,
        processor=None,
        model_config=SimpleNamespace(hf_config=config, is_multimodal=False, get_default_sampling_params=dict),
        config_value=get_context().config_leaf,
    )
    templates = TemplateManager()
    templates.initialize_templates(manager, model, arguments.chat_template)
    return serving_chat.OpenAIServingChat(manager, templates)


def answer(chat: serving_chat.OpenAIServingChat, body: str) -> dict[str, Any]:
    encoded.clear()
    try:
        request = ChatCompletionRequest.model_validate(orjson.loads(body))
        refusal = chat._validate_request(request)
        if refusal:
            return {"error": refusal}
        adapted, _ = chat._convert_to_internal_request(request)
    except Exception as error:  # whatever SGLang's routes would turn into an answer
        return {"error": f"{type(error).__name__}: {error}"}
    text, options = encoded[-1] if encoded else (None, {})  # none where the client sent IDs
    return {
        "ids": list(adapted.input_ids),
        "text": text,
        "add_special_tokens": options.get("add_special_tokens", True),
    }


def main() -> None:
    answers = []
    for task in json.load(sys.stdin):
        chat = handler(task["model"], task["settings"])
        answers.append([answer(chat, body) for body in task["bodies"]])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
