"""Which tokenizers are compared, one for each distinct normalizer, pre-tokenizer and kind of model of the catalog."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

import toktier_tier
from catalog import path_of
from toktier_tier.admission.compiled import DERIVER_VERSION
from toktier_tier.app import open_tokenizer
from toktier_tier.sources import default_cache_dir
from toktier_tier.tokenizer import TierTokenizer

FAMILIES = (
    "gpt2-novelai",
    "qwen-3",
    "deepseek-v4",
    "llama-3.1",
    "gpt-oss",
    "kimi_k3",
    "claude-legacy",
    "gpt-neox-20b-pii",
    "pile-novelai",
    "genji-novelai",
    "mistral-nemo",
    "mistral-7b-v0.3",
    "mixtral-8x22b-v0.1",
    "gemma-2",
    "bert-base-uncased",
    "all-minilm-l6-v2",
    "moonshine",
    "jiutian-139moe-chat",
    "deepseek-v2",
    "deepseek-coder-33b-base",
    "janus-1.3b",
    "minimax",
    "qwen-3.5",
    "o200k_base-xenova",
    "olmo2-dolma2",
    "olmo-3",
    "aya-expanse",
    "yi-34b",
)
ADMISSION_S = 1.0
DECIDING = ("core", "encoders", "admission", "sessions", "tokenizer.py", "ports.py")
"""What of the tier decides IDs; the digest of these files names the code that was compared."""


@cache
def code_digest() -> str:
    """SHA-256 (12 digits) over the tier's files that decide IDs."""
    root = Path(toktier_tier.__file__).parent
    digest = hashlib.sha256()
    for name in DECIDING:
        found = root / name
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    return {"tokenizers": tokenizers.__version__, "deriver": str(DERIVER_VERSION), "code": code_digest()}


def file_text(family: str) -> str:
    return path_of(family).read_text(encoding="utf-8")


def own_reference(text: str) -> Any:
    """The reference by itself: from the file's own characters, nothing of the tier's in between."""
    own = tokenizers.Tokenizer.from_str(text)
    own.no_truncation()
    own.no_padding()
    return own


def served(family: str) -> TierTokenizer:
    """As the tier serves it: admitted with its candidates, now or before (kept under the cache)."""
    directory = default_cache_dir() / "exactness" / "compiled"
    return open_tokenizer(str(path_of(family)), compiled_dir=directory, budget_s=ADMISSION_S, workers=1)


def pre_tokenizer_alone(text: str) -> tuple[Any, Any]:
    """(the file's pre-tokenizer, the same without a last ByteLevel step that only renames bytes).

    Such a step cuts nowhere and takes a third of the time; every 16th text is compared under both.
    """
    document = json.loads(text)["pre_tokenizer"]
    steps = document["pretokenizers"] if document["type"] == "Sequence" else [document]
    full = _blank(document)
    last = steps[-1]
    if len(steps) > 1 and last["type"] == "ByteLevel" and not last["use_regex"] and not last["add_prefix_space"]:
        return full, _blank({"type": "Sequence", "pretokenizers": steps[:-1]})
    return full, full


def _blank(pre_tokenizer: Any) -> Any:
    document = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False)).pre_tokenizer
