"""Public tokenizer files rebuilt, byte for byte, from packages that carry their parts.

`run_recipe` runs one recipe and touches only the package that this recipe needs. Its caller checks the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from catalog import rebuild_llama_cpp, rebuild_mistral, rebuild_splintr
from catalog.rebuild_parts import ReadMember
from toktier_tier.sources import Package, read_package

Recipe = Callable[[ReadMember], bytes]

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "gpt-oss": rebuild_splintr.gpt_oss,
        "kimi-k3": rebuild_splintr.kimi_k3,
        "llama-3.1": rebuild_splintr.llama_3_1,
        "llama-3.1-instruct": rebuild_splintr.llama_3_1_instruct,
        "llama-3.3": rebuild_splintr.llama_3_3,
        "olmo-3": rebuild_splintr.olmo_3,
        "ministral-3": rebuild_mistral.ministral_3,
        "mistral-7b-v0.1": rebuild_mistral.mistral_7b_v0_1,
        "mistral-7b-v0.3": rebuild_mistral.mistral_7b_v0_3,
        "mistral-nemo": rebuild_mistral.mistral_nemo,
        "nemotron-3": rebuild_mistral.nemotron_3,
        "bert-base-uncased": rebuild_llama_cpp.bert_base_uncased,
        "gemma-4": rebuild_llama_cpp.gemma_4,
        "gpt2": rebuild_llama_cpp.gpt2,
    }
)


def run_recipe(recipe: str, *, cache_dir: Path | None = None, offline: bool = False) -> bytes:
    """The bytes that `recipe` (a key of RECIPES) makes; raises SourceUnavailable where its package can't be had."""

    def read(package: Package, member: str) -> bytes:
        return read_package(package, member, cache_dir=cache_dir, offline=offline, allow_sdist=True)

    return RECIPES[recipe](read)
