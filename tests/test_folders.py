"""A folder with a tokenizer_config.json in service: the engine gets its IDs, or its text, from the first request on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers import TEMPLATE, Engine, OnThread, WholeTier, rendered, whole_tier
from toktier_tier.settings import TokenizerSettings, UpstreamSettings
from workshop import build_tier, byte_level, byte_telltale, token, tokenizer_json

FILE = tokenizer_json(
    byte_telltale("Helo "),
    added=[token(1_000, "<s>", special=True), token(1_001, "</s>", special=True), token(1_002, "<unk>", special=True)],
    pre_tokenizer=byte_level(),
)
TIER = build_tier(FILE)
BOS = TIER.reference.id_of("<s>")
LLAMA = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": "<s>", "chat_template": TEMPLATE}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
CHAT = [{"role": "user", "content": "Hello"}]


class Served:
    def __init__(self, tier: WholeTier, engine: Engine) -> None:
        self.tier, self.engine = tier, engine

    def sent(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"http://{self.tier.http}{path}", json=body, trust_env=False, timeout=30)
        assert answer.status_code == 200, answer.text
        return next(body for at, body, _ in reversed(self.engine.requests) if at == path)

    def texts(self) -> list[Any]:
        """What the engine gets for "Hello" by both routes."""
        prompt = self.sent("/v1/completions", {"prompt": "Hello"})["prompt"]
        return [prompt, self.sent("/generate", {"text": "Hello"}).get("input_ids", "Hello")]

    def chat(self) -> Any:
        return self.sent("/v1/chat/completions", {"messages": CHAT}).get("input_ids")

    def tokenized(self, **body: Any) -> tuple[Any, Any]:
        answer = httpx.post(f"http://{self.tier.http}/tokenize", json=body, trust_env=False, timeout=30).json()
        return answer.get("tokens"), answer.get("error", {}).get("code")


@contextmanager
def served(folder: Path, config: Any, engine: Engine | None = None, **files: Any) -> Iterator[Served]:
    """A tier that serves a folder, or, with `source` among `files`, that source and the folder as the model's."""
    model = folder / "model"
    model.mkdir()
    source = files.pop("source", None)
    if source is None:
        (model / "tokenizer.json").write_bytes(FILE)
    documents = {"tokenizer_config": config, **files}
    for name, document in documents.items():
        (model / f"{name}.json").write_text(json.dumps(document))
    found = engine or Engine()
    behind = OnThread(found.app)
    each = TokenizerSettings("it", str(source or model), chat_template=str(model))
    upstream = UpstreamSettings(urls=(behind.url,))
    try:
        with whole_tier(folder, tokenizers=(each,), upstream=upstream, unadmitted="reference") as tier:
            yield Served(tier, found)
    finally:
        behind.stop()


@pytest.mark.parametrize("apart", [False, True], ids=["one folder", "source and model apart"])
def test_bos_that_only_the_configuration_asks_for_is_sent(tmp_path: Path, apart: bool) -> None:
    source = tmp_path / "alone.json"
    source.write_bytes(FILE)
    with served(tmp_path, LLAMA, **({"source": source} if apart else {})) as it:
        assert it.texts() == [[BOS, *TIER.ids("Hello")]] * 2
        assert it.chat() == TIER.ids(rendered(CHAT))
        assert it.tokenized(prompt="Hello") == ([BOS, *TIER.ids("Hello")], None)
        assert it.tokenized(prompt="Hello", add_special_tokens=False) == (TIER.ids("Hello"), None)
        special = it.tokenized(messages=CHAT, add_generation_prompt=True, add_special_tokens=True)
        assert special == ([BOS, *TIER.ids(rendered(CHAT))], None)
        assert it.tier.tier.http.passed_through == {}


@pytest.mark.parametrize(
    ("config", "files", "code"),
    [
        (PLAIN | {"additional_special_tokens": ["<|tool|>"]}, {}, "folder.added_tokens"),
        (PLAIN, {"added_tokens": {"<|tool|>": 1_003}}, "folder.added_tokens"),
        (LLAMA | {"bos_token": "<|begin|>"}, {}, "folder.added_tokens"),
        (PLAIN | {"tokenizer_class": "Qwen2Tokenizer"}, {}, "folder.components"),
        (PLAIN | {"tokenizer_class": "SomebodysTokenizer"}, {}, "folder.tokenizer_class"),
    ],
)
def test_what_the_files_make_otherwise_goes_on_as_text(tmp_path: Path, config: Any, files: Any, code: str) -> None:
    with served(tmp_path, config, **files) as it:
        assert it.texts() == ["Hello", "Hello"]
        assert it.chat() is None
        assert it.tokenized(prompt="Hello") == (None, code)
        assert it.tokenized(messages=CHAT)[0] is None
        assert sum(it.tier.tier.http.passed_through.values()) == 3
        assert it.tier.tier.http.passed_through[code] >= 2


def test_two_folders_that_say_different_things_are_no_ground_to_send_ids(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes(FILE)
    (other / "tokenizer_config.json").write_text(json.dumps(PLAIN))
    with served(tmp_path, LLAMA, source=other) as it:
        assert it.texts() == ["Hello", "Hello"]
        assert set(it.tier.tier.http.passed_through) == {"folder.contradiction"}


def test_an_engine_that_encodes_otherwise_gets_text_from_the_first_request_on(tmp_path: Path) -> None:
    engine = Engine()
    engine.encoded = lambda texts: [[7, *TIER.ids(text)] for text in texts]
    engine.tokenized = lambda messages: TIER.ids(
        rendered([{**each, "content": each["content"] or ""} for each in messages])
    )
    with served(tmp_path, PLAIN, engine) as it:
        assert it.texts() == ["Hello", "Hello"]
        assert it.chat() == TIER.ids(rendered(CHAT))
        assert it.tier.tier.http.passed_through == {"text.engine_disagrees": 2}
