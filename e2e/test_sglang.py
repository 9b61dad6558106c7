"""A real SGLang in the loop: what it generates from the tier's IDs is what it generates from text.

One server for HTTP and native gRPC, one for SMG gRPC, each on the CPU; the first run installs SGLang.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent / "sglang"))

from harness import Sglang, serve

from agent_session import plain_text
from sglang_demo.__main__ import (
    TURNS,
    Outcome,
    conversation,
    demo_model,
    read_tier,
    tier_in_front,
)

GRPC_TURNS = 12
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


@dataclass
class Both:
    """The same SGLang, straight and through the tier."""

    sglang: Sglang
    tier: str
    model: str

    def ask(self, path: str, body: dict[str, Any], *, timeout_s: float = 120) -> tuple[httpx.Response, httpx.Response]:
        """The answers by text and by IDs, in this order, each from a KV cache of its own."""
        answers = []
        for url, salt in ((self.sglang.url, "text"), (self.tier, "ids")):
            salted = {"model": self.model, **body, "cache_salt": salt} if path.startswith("/v1") else body
            answers.append(httpx.post(f"{url}{path}", json=salted, timeout=timeout_s, trust_env=False))
        return answers[0], answers[1]

    def passed_through(self) -> int:
        page = httpx.get(f"{self.tier}/metrics", trust_env=False).text
        return int(sum(map(float, re.findall(r"^toktier_passed_through\{[^}]*\} (\S+)$", page, re.MULTILINE))))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def both(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with (
        serve(model_dir, grpc_port=0) as sglang,
        tier_in_front(sglang.url, model_dir, tmp_path_factory.mktemp("tier")) as tier,
    ):
        yield Both(sglang, tier, str(model_dir))


def content(answer: httpx.Response) -> tuple[Any, Any, int]:
    """(message, why it ended, prompt tokens)."""
    assert answer.status_code == 200, answer.text
    document = answer.json()
    (choice,) = document["choices"]
    return choice["message"], choice["finish_reason"], document["usage"]["prompt_tokens"]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12, **more}


@pytest.mark.timeout(900)
def test_an_agents_conversation_gives_the_same_by_text_and_by_ids(both: Both) -> None:
    outcome = Outcome()
    conversation(outcome, both.sglang.url, both.tier, both.model, Console(quiet=True))
    read_tier(outcome, both.tier)
    assert (outcome.turns, outcome.equal_outputs, outcome.equal_prompt_tokens) == (TURNS, TURNS, TURNS)
    assert outcome.cached_ids == outcome.cached_text > 0
    assert (outcome.divergences, outcome.passed_through) == (0, 0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", ["text", "ids"])
def test_text_and_ids_share_one_cache_in_both_orders(both: Both, first: str) -> None:
    body = {"model": both.model, **chat(f"{first} first. " + plain_text(3_000, 77))}
    urls = [both.sglang.url, both.tier] if first == "text" else [both.tier, both.sglang.url]
    usages = [
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False).json()["usage"]
        for url in urls
    ]
    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]
    cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= usages[1]["prompt_tokens"] - 1  # all but the last, with pages of one token


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "body",
    [
        chat("What's the weather in Oslo, café?", tools=[WEATHER]),
        chat("Use it.", tools=[WEATHER], tool_choice="none"),
        chat("naïve 中文 \U0001f600  <|im_start|> text", stop=["a", "e", "i"]),
        chat("Think.", chat_template_kwargs={"enable_thinking": False}),
        {
            "messages": [
                {"role": "user", "content": "Go on:"},
                {"role": "assistant", "content": "The answer is that "},
            ],
            "continue_final_message": True,
            "temperature": 0,
            "max_tokens": 8,
        },
        {
            "messages": [
                {"role": "user", "content": "Call."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"place": "Oslo"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": '{"c": 3.5}'},
            ],
            "tools": [WEATHER],
            "temperature": 0,
            "max_tokens": 8,
        },
        chat("As parts", messages=[{"role": "user", "content": [{"type": "text", "text": "one"}]}]),
    ],
    ids=["tools", "no tool choice", "stop", "template kwargs", "continued", "tool results", "parts"],
)
def test_chats_of_every_kind_give_the_same(both: Both, body: dict[str, Any]) -> None:
    before = both.passed_through()
    by_text, by_ids = both.ask("/v1/chat/completions", body)
    assert content(by_text) == content(by_ids)
    assert both.passed_through() == before


@pytest.mark.timeout(300)
def test_streams_give_the_same_pieces(both: Both) -> None:
    streams = []
    for url in (both.sglang.url, both.tier):
        body = {"model": both.model, **chat("Stream this.", stream=True, stream_options={"include_usage": True})}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        events = [json.loads(line) for line in lines]
        pieces = "".join((each["choices"][0]["delta"].get("content") or "") for each in events if each.get("choices"))
        streams.append((pieces, [each["usage"]["prompt_tokens"] for each in events if each.get("usage")][-1]))
    assert streams[0] == streams[1]


@pytest.mark.timeout(300)
def test_generate_and_completions_give_the_same(both: Both) -> None:
    text = plain_text(2_500, 41)
    by_text, by_ids = both.ask("/generate", {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 9}})
    assert by_text.json()["output_ids"] == by_ids.json()["output_ids"]
    assert by_text.json()["meta_info"]["prompt_tokens"] == by_ids.json()["meta_info"]["prompt_tokens"]
    by_text, by_ids = both.ask("/v1/completions", {"prompt": text, "temperature": 0, "max_tokens": 9})
    assert by_text.json()["choices"] == by_ids.json()["choices"]
    assert by_text.json()["usage"]["prompt_tokens"] == by_ids.json()["usage"]["prompt_tokens"]


@pytest.mark.timeout(300)
def test_a_client_that_leaves_aborts_the_request_in_sglang(both: Both) -> None:
    def running() -> float:
        page = httpx.get(f"{both.sglang.url}/metrics", timeout=30, trust_env=False).text
        return sum(map(float, re.findall(r"^sglang:num_running_reqs\{[^}]*\} (\S+)$", page, re.MULTILINE)))

    body = {"model": both.model, **chat("Never end.", stream=True, max_tokens=20_000, ignore_eos=True)}
    with httpx.stream("POST", f"{both.tier}/v1/chat/completions", json=body, timeout=120, trust_env=False) as answer:
        lines = answer.iter_lines()
        for _ in range(8):
            next(lines)
    until = time.monotonic() + 60
    while running() > 0:
        assert time.monotonic() < until, "still running"
        time.sleep(0.5)


def test_the_tokenize_route_answers_as_sglangs_does(both: Both) -> None:
    for body in ({"prompt": "Hello, naïve café"}, chat("As messages", tools=[WEATHER])):
        straight, tier = (
            httpx.post(f"{url}/v1/tokenize", json={"model": both.model, **body}, timeout=60, trust_env=False).json()
            for url in (both.sglang.url, both.tier)
        )
        assert (straight["tokens"], straight["count"]) == (tier["tokens"], tier["count"])


# --- gRPC -------------------------------------------------------------------------------------------------------------


def growing_texts(turns: int) -> list[str]:
    pieces = [plain_text(400, 500 + turn) for turn in range(turns)]
    return ["".join(pieces[: turn + 1]) for turn in range(turns)]


def answers_of(url: str, texts: list[str]) -> list[tuple[list[int], str, int]]:
    """(output IDs, text, prompt tokens) of each."""
    answers = []
    for text in texts:
        body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
        answer = httpx.post(f"{url}/generate", json=body, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        answers.append((found["output_ids"], found["text"], found["meta_info"]["prompt_tokens"]))
    return answers


def last_event(url: str, text: str) -> tuple[list[int], str]:
    body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 6}, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=120, trust_env=False) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    for before, after in itertools.pairwise(events):  # cumulative
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    return events[-1]["output_ids"], events[-1]["text"]


@pytest.mark.timeout(600)
def test_native_grpc_generates_from_ids_what_http_generates_from_text(both: Both, tmp_path: Path) -> None:
    assert both.sglang.grpc is not None
    texts = growing_texts(GRPC_TURNS)
    with tier_in_front(both.sglang.grpc, Path(both.model), tmp_path, protocol="native") as tier:
        found = answers_of(tier, texts)
        assert last_event(tier, texts[0]) == found[0][:2]
    assert found == answers_of(both.sglang.url, texts)


@pytest.mark.timeout(900)
def test_smg_grpc_generates_from_ids_what_http_generates_from_text(both: Both, tmp_path: Path) -> None:
    texts = growing_texts(GRPC_TURNS)
    with serve(Path(both.model), "--smg-grpc-mode", port=_low_port()) as smg:
        assert smg.grpc is not None
        with tier_in_front(smg.grpc, Path(both.model), tmp_path, protocol="smg") as tier:
            found = answers_of(tier, texts)
            assert last_event(tier, texts[0]) == found[0][:2]
    assert found == answers_of(both.sglang.url, texts)


def _low_port() -> int:
    """SGLang listens at 10,000 above it too."""
    chooser = random.Random()
    while True:
        port = chooser.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
