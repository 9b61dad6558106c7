"""A real SGLang as the front, with the plugin: the same IDs and outputs as without it, whatever becomes of the tier."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent / "sglang"))

from genuine import write_genuine_model
from harness import Sglang, serve, variables
from install import environment as sglang_environment
from plugin import TierProcess, counted, environment, installed

from agent_session import plain_text
from sglang_demo.__main__ import demo_model

TURNS = 40
LOST = ("tier.unreachable", "tier.late", "tier.breaker_open")
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look up", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True)
class Turn:
    """A request and what SGLang without the tier made of it."""

    path: str
    body: dict[str, Any]
    ids: list[int]
    output: Any


def ask(url: str, path: str, body: dict[str, Any]) -> tuple[list[int], Any]:
    """(the prompt's IDs, the output)."""
    answer = httpx.post(f"{url}{path}", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if path == "/generate":
        return found["prompt_token_ids"], found["output_ids"]
    (choice,) = found["choices"]
    return choice["prompt_token_ids"], choice["message"]["content"]


def chat_turns(url: str, model: str) -> list[Turn]:
    source = plain_text(TURNS * 500 + 3_000, 31)
    messages = [{"role": "system", "content": "You are an agent. " + source[:2_000]}]
    turns = []
    for number in range(TURNS):
        start = 2_000 + number * 500
        messages.append(
            {"role": "user", "content": f"<result>{source[start : start + 500]}</result> naïve 中文 \U0001f600"}
        )
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": 6,
            "return_prompt_token_ids": True,
        }
        if number % 9 == 8:
            body["tools"] = [TOOL]  # another head: another conversation
        ids, output = ask(url, "/v1/chat/completions", body)
        turns.append(Turn("/v1/chat/completions", body, ids, output))
        messages.append({"role": "assistant", "content": output or "."})
    return turns


def generate_turns(url: str) -> list[Turn]:
    text, turns = "", []
    for number in range(TURNS):
        text += plain_text(300, 900 + number) + "<|im_end|>\n"
        body = {
            "text": text,
            "sampling_params": {"temperature": 0, "max_new_tokens": 6},
            "return_prompt_token_ids": True,
        }
        ids, output = ask(url, "/generate", body)
        turns.append(Turn("/generate", body, ids, output))
    return turns


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def without(model_dir: Path, plugin_folder: Path) -> list[Turn]:
    """What SGLang does by itself: the plugin is there, but has no address."""
    with serve(model_dir, env=environment(plugin_folder)) as sglang:
        turns = chat_turns(sglang.url, str(model_dir)) + generate_turns(sglang.url)
        assert counted(sglang.url) == {}
    return turns


@pytest.fixture(scope="module")
def tier(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierProcess]:
    found = TierProcess(model_dir, tmp_path_factory.mktemp("tier"))
    found.start()
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def sglang(without: list[Turn], model_dir: Path, plugin_folder: Path, tier: TierProcess) -> Iterator[Sglang]:
    """With the plugin on. It waits for `without`, so that one SGLang runs at a time."""
    with serve(model_dir, env=environment(plugin_folder, tier.address)) as found:
        wait_until_on(found)
        yield found


def wait_until_on(sglang: Sglang, processes: int = 1, wait_s: float = 120) -> None:
    deadline = time.monotonic() + wait_s
    while sglang.log.read_text(errors="replace").count("TokTier is on") < processes:
        assert time.monotonic() < deadline, sglang.log.read_text(errors="replace")[-4_000:]
        time.sleep(0.2)


def since(sglang: Sglang, before: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    return counted(sglang.url) - before


def by_tier(found: Counter[tuple[str, str, str]], path: str) -> int:
    return sum(count for (each, answer, _), count in found.items() if each == path and answer != "own")


def by_own(found: Counter[tuple[str, str, str]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for (_, answer, reason), count in found.items():
        if answer == "own":
            totals[reason] += count
    return dict(totals)


@pytest.mark.timeout(1_200)
def test_chat_and_generate_get_the_same_ids_and_outputs_with_the_plugin(sglang: Sglang, without: list[Turn]) -> None:
    before = counted(sglang.url)
    for turn in without:
        assert ask(sglang.url, turn.path, turn.body) == (turn.ids, turn.output)
    found = since(sglang, before)
    assert (by_tier(found, "chat"), by_tier(found, "text"), by_own(found)) == (TURNS, TURNS, {})
    assert found["text", "append", "none"] >= TURNS - 4
    assert found["chat", "append", "none"] + found["chat", "edit", "none"] >= TURNS - 14


@pytest.mark.timeout(300)
def test_completions_go_through_the_tier_and_lists_dont(sglang: Sglang, model_dir: Path) -> None:
    before = counted(sglang.url)
    body = {"model": str(model_dir), "prompt": plain_text(3_000, 5), "temperature": 0, "max_tokens": 4}
    answer = httpx.post(f"{sglang.url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200
    tokenized = httpx.post(
        f"{sglang.url}/v1/tokenize", json={"model": str(model_dir), "prompt": body["prompt"]}, trust_env=False
    )
    assert answer.json()["usage"]["prompt_tokens"] == tokenized.json()["count"]
    assert by_tier(since(sglang, before), "text") == 1


@pytest.mark.timeout(300)
def test_what_runs_on_the_event_loop_isnt_kept_waiting(sglang: Sglang, without: list[Turn]) -> None:
    before = counted(sglang.url)
    body = {"model": without[0].body["model"], "messages": without[0].body["messages"]}
    answer = httpx.post(f"{sglang.url}/v1/tokenize", json=body, timeout=60, trust_env=False)
    assert answer.json()["tokens"] == without[0].ids
    assert by_own(since(sglang, before)) == {"thread.event_loop": 1}


@pytest.mark.timeout(600)
def test_a_tier_killed_in_mid_run_is_counted_and_used_again_when_it_is_back(
    sglang: Sglang, without: list[Turn], tier: TierProcess
) -> None:
    before = counted(sglang.url)
    turns = without[5:25] + without[TURNS + 5 : TURNS + 25]
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(ask, sglang.url, turn.path, turn.body) for turn in turns]
        while sum(each.done() for each in asked) < len(turns) // 4:
            time.sleep(0.01)
        tier.kill()
        assert [each.result()[0] for each in asked] == [turn.ids for turn in turns]
    found = since(sglang, before)
    lost = by_own(found)
    assert set(lost) <= set(LOST)
    assert sum(lost.values()) >= len(turns) // 4
    assert sum(found.values()) == len(turns)

    before = counted(sglang.url)
    for turn in without[:3]:  # and it goes on
        begun = time.monotonic()
        assert ask(sglang.url, turn.path, turn.body)[0] == turn.ids
        assert time.monotonic() - begun < 5
    assert sum(by_own(since(sglang, before)).values()) == 3

    tier.start()
    deadline = time.monotonic() + 60
    while not by_tier(since(sglang, before), "chat"):
        assert time.monotonic() < deadline, "the tier isn't used again"
        assert ask(sglang.url, without[0].path, without[0].body)[0] == without[0].ids
        time.sleep(0.2)
    before = counted(sglang.url)
    for turn in without[TURNS - 5 : TURNS + 5]:
        assert ask(sglang.url, turn.path, turn.body)[0] == turn.ids
    found = since(sglang, before)
    assert (by_tier(found, "chat"), by_tier(found, "text"), by_own(found)) == (5, 5, {})


@pytest.mark.timeout(300)
def test_every_answer_was_checked_by_the_own_tokenizer(sglang: Sglang) -> None:
    page = httpx.get(f"{sglang.url}/metrics", timeout=30, trust_env=False).text
    checks = {
        line.split('"')[1]: float(line.split()[-1]) for line in page.splitlines() if "plugin_shadow_total{" in line
    }
    assert checks["same"] >= 2 * TURNS
    assert set(checks) <= {"same", "dropped"}
    assert "toktier_plugin_off_total{" not in page


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_every_tokenizer_worker_asks_the_tier(
    without: list[Turn], model_dir: Path, plugin_folder: Path, tier: TierProcess
) -> None:
    # On a busy CPU a worker imports for longer than the 10 s after which it counts as hung.
    patience = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300"}
    settings = environment(plugin_folder, tier.address, **patience)
    with serve(model_dir, "--tokenizer-worker-num", "2", env=settings) as workers:
        wait_until_on(workers, processes=2)
        before = counted(workers.url)
        turns = without[:12] + without[TURNS : TURNS + 12]
        with ThreadPoolExecutor(4) as clients:
            found = list(clients.map(lambda turn: ask(workers.url, turn.path, turn.body)[0], turns))
        assert found == [turn.ids for turn in turns]
        counts = since(workers, before)
        assert (by_tier(counts, "chat"), by_tier(counts, "text"), by_own(counts)) == (12, 12, {})


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_tokenizers_that_loading_changes_are_refused(plugin_folder: Path, tmp_path: Path) -> None:
    models = [write_genuine_model(tmp_path / name, name) for name in ("qwen-3", "deepseek-v3", "minimax", "qwen-3.5")]
    done = subprocess.run(
        [sglang_environment() / "bin" / "python", Path(__file__).parent / "sglang" / "inspect_own.py"],
        input=json.dumps([str(model) for model in models]),
        env=variables(environment(plugin_folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        {"text": 0, "chat_plain": 0},
        {"text": 1, "chat_plain": 0},
        {"off": "tokenizer.differs_from_file"},  # its normalizer is dropped
        {"off": "tokenizer.differs_from_file"},  # tokens of tokenizer_config.json are added
    ]
