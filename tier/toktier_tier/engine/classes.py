"""What the tokenizer classes of transformers 5.19 make of a tokenizer.json, in the terms of that file.

Most folders name a class that takes the file as it is. Some classes keep its vocabulary, merges and post-processor
only, and put parts of their own in the place of the others; SGLang 0.5.23 then takes the file's pre-tokenizer back
where the two are of different types. `kept` says whether the outcome gives the same IDs as the file: where it can't
tell, it doesn't.

A pattern is known by its SHA-256. Source: the behaviour of `models/*/tokenization_*.py` of transformers and of
`utils/hf_transformers/tokenizer.py` of SGLang.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]
Make = Callable[[Json], Any]
"""From tokenizer_config.json to a component as a tokenizer.json has it; `_UNKNOWN` where it isn't known."""

_UNKNOWN = object()
_QWEN2 = "1ff7f41064896984db5d1bb6ff64fa4bc29007d08c1b439e505b7392777a319e"
_QWEN3_5 = "00431aed57e696b747435f734d1e3b9b1bfd931a121fb5cac7129e97c181e9ba"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A class with parts of its own.

    named           tokens that it has where the configuration names none, by role
    unk             what its model has as `unk_token`; None for none
    plain_specials  its special tokens lose their flags
    no_template     it adds no tokens around a text, whatever the file says
    """

    normalizer: Any
    pre_tokenizer: Make
    named: Mapping[str, str]
    fuse_unk: bool = False
    byte_fallback: bool = False
    unk: Make = field(default=lambda config: None)
    plain_specials: bool = False
    no_template: bool = False


def _space(config: Json, default: bool) -> Any:
    value = config.get("add_prefix_space", default)
    return default if value is None else value if isinstance(value, bool) else _UNKNOWN


def _byte_level(config: Json, *, use_regex: bool, lax: bool = False) -> Any:
    space = _space(config, False)
    if space is _UNKNOWN or (config.get("add_prefix_space", False) is None and not lax):
        return _UNKNOWN
    return {"type": "ByteLevel", "add_prefix_space": space, "use_regex": use_regex}


def _split_byte_level(pattern: str) -> Make:
    def make(config: Json) -> Any:
        last = _byte_level(config, use_regex=False, lax=True)
        split = {"type": "Split", "pattern": {"sha256": pattern}, "behavior": "Isolated", "invert": False}
        return _UNKNOWN if last is _UNKNOWN else {"type": "Sequence", "pretokenizers": [split, last]}

    return make


def _metaspace(config: Json) -> Any:
    space, legacy = _space(config, True), config.get("legacy", False)
    if space is _UNKNOWN or not isinstance(legacy, bool | None):
        return _UNKNOWN
    scheme = ("always" if legacy else "first") if space else "never"
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def _same(*roles: str, token: str) -> dict[str, str]:
    return dict.fromkeys(roles, token)


_NFC = {"type": "NFC"}
_END = "<|endoftext|>"
_QWEN = _same("unk_token", "eos_token", "pad_token", token=_END)
REBUILT: Mapping[str, Rebuilt] = {
    "LlamaTokenizer": Rebuilt(
        None,
        _metaspace,
        {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
        fuse_unk=True,
        byte_fallback=True,
    ),
    "GemmaTokenizer": Rebuilt(
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        lambda config: {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        {f"{role}_token": f"<{role}>" for role in ("unk", "bos", "eos", "pad", "mask")},
        fuse_unk=True,
        byte_fallback=True,
        unk=lambda config: config.get("unk_token", "<unk>"),
    ),
    "Qwen2Tokenizer": Rebuilt(_NFC, _split_byte_level(_QWEN2), _QWEN, plain_specials=True),
    "Qwen3_5Tokenizer": Rebuilt(_NFC, _split_byte_level(_QWEN3_5), _QWEN),
    "GPT2Tokenizer": Rebuilt(
        None,
        lambda config: _byte_level(config, use_regex=True),
        _same("unk_token", "bos_token", "eos_token", token=_END),
    ),
    "GPTNeoXTokenizer": Rebuilt(
        _NFC,
        lambda config: _byte_level(config, use_regex=True),
        {**_same("unk_token", "bos_token", "eos_token", token=_END), "pad_token": "<|padding|>"},
        no_template=True,
    ),
}
AS_THE_FILE = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer"})


def kept(document: Json, made: Rebuilt, config: Json) -> str | None:
    """None if the file's normalizer, pre-tokenizer and model give the class's IDs, else what differs."""
    own, pre = document.get("pre_tokenizer"), made.pre_tokenizer(config)
    if pre is _UNKNOWN:
        return "pre_tokenizer"
    restored = own is not None and own.get("type") != pre["type"]
    if not restored and canonical(own) != canonical(pre):
        return "pre_tokenizer"
    if canonical(document.get("normalizer")) != canonical(made.normalizer):
        return "normalizer"
    return None if _model_kept(document, made, config) else "model"


def canonical(component: Any) -> Any:
    """A normalizer or pre-tokenizer without what changes no ID."""
    if component is None:
        return None
    kind = component.get("type")
    for key in ("normalizers", "pretokenizers"):
        if kind == "Sequence" and key in component:
            parts = [part for part in map(canonical, component[key]) if part is not None]
            return parts[0] if len(parts) == 1 else tuple(map(str, parts)) or None
    entries = {key: value for key, value in component.items() if key != "trim_offsets"}
    if kind == "ByteLevel":
        entries.setdefault("use_regex", True)
    pattern = entries.get("pattern")
    if kind == "Split" and isinstance(pattern, Mapping) and "Regex" in pattern:
        entries["pattern"] = {"sha256": hashlib.sha256(str(pattern["Regex"]).encode()).hexdigest()}
    return str(sorted(entries.items(), key=lambda entry: entry[0]))


def _model_kept(document: Json, made: Rebuilt, config: Json) -> bool:
    model = document.get("model") or {}
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, Mapping) or "merges" not in model:
        return False
    if any(model.get(key) for key in ("dropout", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")):
        return False
    if _ends_in_bytes(document.get("pre_tokenizer")) and _BYTE_LEVEL.issubset(vocab):
        return True  # no character is unknown
    fallback = bool(model.get("byte_fallback"))
    if fallback and made.byte_fallback and _FALLBACK.issubset(vocab):
        return True
    unknown = (model.get("unk_token"), bool(model.get("fuse_unk")), fallback)
    return unknown == (made.unk(config), made.fuse_unk, made.byte_fallback)


def _ends_in_bytes(pre_tokenizer: Any) -> bool:
    while pre_tokenizer is not None and pre_tokenizer.get("type") == "Sequence":
        parts = pre_tokenizer.get("pretokenizers") or [None]
        pre_tokenizer = parts[-1]
    return pre_tokenizer is not None and pre_tokenizer.get("type") == "ByteLevel"


def _byte_characters() -> frozenset[str]:
    """What the ByteLevel pre-tokenizer writes for bytes: a printable one as itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return frozenset(map(chr, [*printable, *range(0x100, 0x100 + 256 - len(printable))]))


_BYTE_LEVEL = _byte_characters()
_FALLBACK = frozenset(f"<0x{byte:02X}>" for byte in range(256))
