"""Writes tests/engine/chat_expectations.jsonl: the prompts that SGLang makes of the test bodies by the test templates.

    PYTHONPATH=benchmarks python e2e/sglang/record.py

One line a template: the date that it was told, and for each case a digest of the text, or null where SGLang refuses.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import tempfile
from pathlib import Path

from harness import Task, prompts_of
from tiny_model import write_model

from catalog import path_of

TESTS = Path(__file__).parents[2] / "tests" / "engine"
SPECIAL_TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": None}
"""Tokens that the tokenizer below has: transformers would add others to it."""


def write_bare_model(directory: Path) -> Path:
    """A model without a chat template of its own, to which one is given on the command line."""
    return write_model(
        directory,
        tokenizer=path_of("qwen-3").read_bytes(),
        settings={"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS},
        instead_of={"model_type": "granite", "architectures": ["GraniteForCausalLM"]},
    )


def cases() -> dict[str, str]:
    """Name to body."""
    lines = (TESTS / "chat_bodies.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["case"]: json.dumps(case["body"]) for case in map(json.loads, lines)}


def templates() -> list[Path]:
    return sorted((TESTS / "chat_templates").glob("*.jinja"))


def main() -> None:
    bodies = cases()
    today = datetime.date.today().isoformat()
    with tempfile.TemporaryDirectory() as folder:
        model = write_bare_model(Path(folder))
        tasks = [Task(model, list(bodies.values()), {"chat_template": str(path)}) for path in templates()]
        answers = prompts_of(tasks)
    lines = []
    for path, prompts in zip(templates(), answers, strict=True):
        digests = {
            case: hashlib.sha256(prompt["text"].encode()).hexdigest()[:16] if prompt.get("text") is not None else None
            for case, prompt in zip(bodies, prompts, strict=True)
        }
        lines.append(json.dumps({"template": path.name, "date": today, "digests": digests}))
    (TESTS / "chat_expectations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
