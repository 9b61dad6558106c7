"""Our prompts against SGLang's own: genuine models' templates and ours, every body of the unit tests and random ones.

Installs SGLang (a few minutes, 2 to 6 GB) and fetches a package of tokenizers on first use: `make e2e`. Most are
compared with SGLang's classes in a process of their own, two with a running server.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from catalog import path_of
from toktier_tier.engine.chat_files import load_chat_template
from toktier_tier.engine.chat_request import decode_json
from toktier_tier.engine.chat_template import ChatRenderer, Rendered, Server

sys.path.insert(0, str(Path(__file__).parent / "sglang"))

from genuine import MODELS, write_genuine_model
from harness import Sglang, SglangFailed, Task, prompts_of, serve
from record import cases, templates, write_bare_model
from tiny_model import write_model

pytestmark = pytest.mark.timeout(3600)

FULL = float(os.environ.get("TOKTIER_EXAMPLES", "1")) > 1
"""Every genuine model, more bodies and both servers; by default half of it, to keep within CI's time."""
RANDOM_BODIES = 150 if FULL else 30
GENUINE = (
    MODELS
    if FULL
    else (
        *("deepseek-r1-distill-llama-8b", "deepseek-v2.5", "deepseek-v3.1", "glm-4.7-flash"),
        *("minimax", "qwen-2.5", "qwen-3", "qwen-3.5"),
    )
)
SERVED = ("llama-3.1", "qwen-3") if FULL else ("llama-3.1",)
DEFAULTS = {"enable_thinking": False, "thinking": False, "reasoning_effort": "high", "custom": [1]}
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "defaults": ({"default_chat_template_kwargs": DEFAULTS}, {"default_template_kwargs": DEFAULTS}),
    "parsers": ({"reasoning_parser": "qwen3", "tool_call_parser": "qwen"},) * 2,
}
"""How the server is started: fields of SGLang's ServerArgs, and the same as our `Server` says it."""

# SGLang renders these, after changing what the client sent.
LEFT_TO_SGLANG = {"chat.tool_schema", "chat.template_kwargs", "chat.bad_request", "chat.continuation"}
# SGLang refuses these for another reason than their text, also with IDs.
REFUSED_BY_SGLANG = re.compile(
    r"Tool '.*' not found in tools list|Tool \d+ function has invalid 'parameters' schema|Tools c"
)


def long_body() -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}]
    for turn in range(40):
        messages.append({"role": "user", "content": f"Question {turn}: " + "lorem ipsum 漢字 " * (turn % 7)})
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
    return {"messages": [*messages, {"role": "user", "content": "And?"}]}


def random_body(seed: int) -> dict[str, Any]:
    """Fields of the protocol, well and badly used, in any order."""
    rng = random.Random(seed)
    texts = ["", " ", "a\n\n b", "Grüße 漢字 🌤", "<think>x</think>\n y", "<|im_end|>", "{{ 1 }}", "\ttab ", "9.5e3"]

    def text() -> str:
        return "".join(rng.choices(texts, k=rng.randint(0, 3)))

    def value(depth: int = 0) -> Any:
        simple = [None, True, 0, -7, 1.50, 1e22, 2**63, 2**70, text(), "ß"]
        if depth < 2 and rng.random() < 0.3:
            return {text(): value(depth + 1) for _ in range(rng.randint(0, 3))}
        return [value(depth + 1) for _ in range(2)] if depth < 2 and rng.random() < 0.2 else rng.choice(simple)

    def tool(name: str) -> dict[str, Any]:
        properties = {f"p{number}": {"type": "string", "default": value()} for number in range(rng.randint(0, 2))}
        fields = {
            "name": name,
            "description": text(),
            "parameters": {"type": "object", "properties": properties},
            "strict": rng.random() < 0.5,
        }
        kept = [key for key in fields if key == "name" or rng.random() < 0.7]
        rng.shuffle(kept)
        return {"type": "function", "function": {key: fields[key] for key in kept}}

    def content() -> Any:
        return text() if rng.random() < 0.7 else [{"type": "text", "text": text()} for _ in range(rng.randint(0, 3))]

    def call(number: int) -> dict[str, Any]:
        arguments = {f"p{index}": value() for index in range(rng.randint(0, 2))}
        spelled: Any = arguments if rng.random() < 0.4 else json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        return {"id": f"call{number:05}", "type": "function", "function": {"name": "f", "arguments": spelled}}

    messages: list[dict[str, Any]] = [{"role": "system", "content": content()}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": content()})
        if rng.random() < 0.8:
            answer: dict[str, Any] = {"role": "assistant", "content": content() if rng.random() < 0.9 else None}
            if rng.random() < 0.3:
                answer["reasoning_content"] = text()
            if rng.random() < 0.4:
                answer["tool_calls"] = [call(number) for number in range(rng.randint(1, 2))]
                messages.append(answer)
                answer = {"role": "tool", "tool_call_id": "call00000", "content": content()}
            messages.append(answer)
    if rng.random() < 0.2:
        rng.shuffle(messages)
    body: dict[str, Any] = {"messages": messages}
    if rng.random() < 0.5:
        body["tools"] = [tool(name) for name in rng.sample(["f", "g", "h"], k=rng.randint(0, 3))]
    if rng.random() < 0.2:
        body["tool_choice"] = rng.choice(["auto", "none", {"type": "function", "function": {"name": "f"}}])
    if rng.random() < 0.3:
        body["reasoning_effort"] = rng.choice(["none", "low", "medium", "high", 0.25, 1])
    if rng.random() < 0.2:
        body["reasoning"] = rng.choice([{"effort": "high"}, {"enabled": True}, {"enable": "no"}, {}])
    if rng.random() < 0.3:
        body["chat_template_kwargs"] = {key: value() for key in ("enable_thinking", "thinking", "documents", "x")}
    if rng.random() < 0.3:
        body["continue_final_message"] = True
    return body


BODIES: dict[str, str] = (
    cases()
    | {"long": json.dumps(long_body())}
    | {f"random {seed}": json.dumps(random_body(seed)) for seed in range(RANDOM_BODIES)}
)


def encoder_of(model: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))


def renderer_of(model: Path, chat_template: Path | None = None, **server: Any) -> ChatRenderer:
    template = load_chat_template(model, chat_template=chat_template)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    encoder = encoder_of(model)
    bos = template.special_tokens.get("bos_token")
    facts = Server(
        empty_text_ids=tuple(encoder.encode("").ids),
        bos_id=None if bos is None else encoder.token_to_id(bos),
        model_path="" if chat_template else str(model),
        model_type=config["model_type"],
        architecture=config["architectures"][0],
    )
    return ChatRenderer(
        template.text,
        special_tokens=template.special_tokens,
        content_format=template.content_format,
        server=replace(facts, **server),
    )


def check(chat: ChatRenderer, model: Path, prompts: list[dict[str, Any]]) -> Counter[str]:
    """Every text and its IDs equal SGLang's; passed through is what it refuses, and a few that are known."""
    encoder = encoder_of(model)
    counts: Counter[str] = Counter()
    for (case, body), prompt in zip(BODIES.items(), prompts, strict=True):
        try:
            made = chat.render(decode_json(body))
        except ValueError:
            assert "error" in prompt, case
            continue
        if isinstance(made, Rendered):
            if "error" in prompt:
                assert case == "surrogate_kwargs" or REFUSED_BY_SGLANG.match(prompt["error"]), (case, prompt)
                continue
            assert made.text == prompt["text"], case
            assert made.ids(lambda text: encoder.encode(text, add_special_tokens=False).ids) == prompt["ids"], case
            counts["equal"] += 1
        elif prompt.get("text") is not None:
            assert made.reason in LEFT_TO_SGLANG or made.reason == "chat.reasoning_effort", (case, made)
            counts["left"] += 1
        else:
            counts["refused"] += 1
    return counts


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: write_genuine_model(place / name, name) for name in GENUINE}


@pytest.fixture(scope="module")
def genuine(models: dict[str, Path]) -> dict[str, list[dict[str, Any]]]:
    tasks = [Task(model, list(BODIES.values())) for model in models.values()]
    return dict(zip(models, prompts_of(tasks), strict=True))


@pytest.mark.parametrize("name", GENUINE)
def test_genuine_models(name: str, models: dict[str, Path], genuine: dict[str, list[dict[str, Any]]]) -> None:
    counts = check(renderer_of(models[name]), models[name], genuine[name])
    assert counts["equal"] >= 0.35 * len(BODIES), counts
    assert counts["left"] <= 0.1 * len(BODIES), counts


@pytest.fixture(scope="module")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bare_model(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def own(bare_model: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By template and mode."""
    keys = [(path, mode) for mode in MODES for path in templates()]
    tasks = [
        Task(bare_model, list(BODIES.values()), {"chat_template": str(path)} | MODES[mode][0]) for path, mode in keys
    ]
    return {(path.stem, mode): prompts for (path, mode), prompts in zip(keys, prompts_of(tasks), strict=True)}


@pytest.mark.parametrize("path", templates(), ids=[path.stem for path in templates()])
@pytest.mark.parametrize("mode", MODES)
def test_own_templates(
    path: Path, mode: str, bare_model: Path, own: dict[tuple[str, str], list[dict[str, Any]]]
) -> None:
    counts = check(renderer_of(bare_model, path, **MODES[mode][1]), bare_model, own[path.stem, mode])
    assert counts["equal"] >= 0.2 * len(BODIES), counts
    assert counts["left"] <= 0.15 * len(BODIES), counts


# Running servers


def test_a_server_that_cannot_start_is_told_by_its_log(bare_model: Path) -> None:
    with pytest.raises(SglangFailed, match="no-such-flag"), serve(bare_model, "--no-such-flag"):
        pass


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sglang, Path]]:
    """Llama 3.1's tokenizer adds a BOS by itself, Qwen 3's adds nothing."""
    names = {
        "llama-3.1": ("header_blocks", {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
        "qwen-3": ("chatml_thinking", {"bos_token": None, "eos_token": "<|im_end|>"}),
    }
    shape, tokens = names[request.param]
    (template,) = (path for path in templates() if path.stem == shape)
    model = write_model(
        tmp_path_factory.mktemp("served") / request.param,
        tokenizer=path_of(request.param).read_bytes(),
        settings={"tokenizer_class": "PreTrainedTokenizerFast", **tokens},
        template=template.read_text(encoding="utf-8"),
    )
    with serve(model) as server:
        yield server, model


def test_a_running_server_reads_the_same_prompts(served: tuple[Sglang, Path]) -> None:
    server, model = served
    chat, encoder = renderer_of(model), encoder_of(model)
    equal = 0
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for case, body in BODIES.items():
            if "surrogate" in case or case == "response_format":
                continue
            given = decode_json(body)
            made = chat.render(given)
            answer = client.post(
                "/v1/chat/completions",
                content=json.dumps({**given, "model": "m", "max_tokens": 1, "return_prompt_token_ids": True}),
                headers={"content-type": "application/json"},
            )
            if not isinstance(made, Rendered):
                assert answer.status_code == 400 or made.reason in LEFT_TO_SGLANG | {"chat.input_ids"}, (case, made)
                continue
            if answer.status_code != 200:
                message = answer.json()["message"]
                assert REFUSED_BY_SGLANG.match(message) or "grammar" in message, (case, message)
                continue
            ids = made.ids(lambda text: encoder.encode(text, add_special_tokens=False).ids)
            assert answer.json()["choices"][0]["prompt_token_ids"] == ids, case
            equal += 1
    assert equal >= 0.35 * len(BODIES)


def test_ids_handed_in_share_the_cache_with_the_text(served: tuple[Sglang, Path]) -> None:
    server, model = served
    body = {"model": "m", "max_tokens": 2, "temperature": 0, "messages": long_body()["messages"]}
    made = renderer_of(model).render(body)
    assert isinstance(made, Rendered)
    encoder = encoder_of(model)
    ids = made.ids(lambda text: encoder.encode(text, add_special_tokens=False).ids)
    with httpx.Client(base_url=server.url, timeout=120) as client:
        tokenized = client.post("/v1/tokenize", json={"model": "m", "messages": body["messages"]}).json()
        first = client.post("/v1/chat/completions", json=body).json()
        again = client.post("/v1/chat/completions", json={**body, "input_ids": ids}).json()
    assert tokenized["tokens"] == ids
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"] == len(ids)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(ids) - 1
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
