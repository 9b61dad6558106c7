"""Our verdicts about folders against what SGLang itself loads: IDs are sent only where they are the engine's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders.reference import Reference, open_reference
from toktier_tier.engine.folder import Loading, loading_of, tokens_of

sys.path.insert(0, str(Path(__file__).parent / "sglang"))

from genuine import MODELS, write_genuine_model
from harness import variables
from install import environment
from random_folders import TEXTS, random_folder

pytestmark = pytest.mark.timeout(3600)

FOLDERS = int(400 * float(os.environ.get("TOKTIER_EXAMPLES", "1")))
MAX_LITERALS = 60
REALLY_OTHER = {"deepseek-r1-distill-llama-8b", "deepseek-v2.5", "minimax", "qwen-3.5", "qwen-3.6"}
"""Genuine models of which SGLang makes other IDs than their tokenizer.json does."""


def asked(folders: list[tuple[Path, list[str]]]) -> list[Any]:
    done = subprocess.run(
        [environment() / "bin" / "python", Path(__file__).parent / "sglang" / "loaded.py"],
        input=json.dumps([{"folder": str(folder), "texts": texts} for folder, texts in folders]),
        env=variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def verdict(folder: Path) -> tuple[Reference, Loading]:
    files = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    reference = open_reference(files["tokenizer.json"], SpecialTokenPolicy.NONE)
    return reference, loading_of(files, tokens_of(reference.added_tokens()), list(files))


def same(reference: Reference, loading: Loading, texts: list[str], answers: Any) -> bool:
    """Whether all IDs that would be sent are the engine's."""
    before, after = reference.fixed_template() if loading.prefix is None else (loading.prefix, ())
    for text, answer in zip(texts, answers, strict=True):
        if answer is not None:
            ids = reference.encode_text(text).tolist()
            if answer != [[*before, *ids, *after], ids]:
                return False
    return True


def test_random_folders_are_followed_exactly_or_refused(tmp_path: Path) -> None:
    rng = random.Random(13)
    folders = []
    for number in range(FOLDERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, document in random_folder(rng).items():
            (folder / name).write_text(json.dumps(document))
        folders.append((folder, list(TEXTS)))
    counts: Counter[str] = Counter()
    for (folder, texts), answers in zip(folders, asked(folders), strict=True):
        reference, loading = verdict(folder)
        if answers is None:
            counts["engine fails"] += 1
        elif loading.refusal is None:
            assert same(reference, loading, texts, answers), folder
            counts["sent"] += 1
        else:
            counts["refused"] += 1
            counts["needlessly"] += same(reference, loading, texts, answers)
    assert counts["sent"] >= FOLDERS / 10, counts
    assert counts["needlessly"] <= counts["refused"] / 2, counts


def test_genuine_folders_are_followed_exactly_or_really_other(tmp_path: Path) -> None:
    folders: list[tuple[Path, list[str]]] = []
    verdicts: list[tuple[Reference, Loading]] = []
    for name in MODELS:
        folder = write_genuine_model(tmp_path / name, name)
        reference, loading = verdict(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        listed = [each["content"] for each in config.get("added_tokens_decoder", {}).values()]
        own = [token.content for token in reference.added_tokens()]
        literals = list(dict.fromkeys([*listed[-MAX_LITERALS:], *own[:MAX_LITERALS]]))
        folders.append((folder, [*TEXTS, *(f"a {literal} b\n{literal}c" for literal in literals)]))
        verdicts.append((reference, loading))
    for name, (_, texts), (reference, loading), answers in zip(MODELS, folders, verdicts, asked(folders), strict=True):
        assert (loading.refusal is None) == (name not in REALLY_OTHER), (name, loading)
        assert loading.refusal is not None or same(reference, loading, texts, answers), name
