"""Folders as SGLang is given them, at random: a small tokenizer.json and the files beside it, well and badly used."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]
LITERALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>"),
    *("<|tool|>", "<|padding|>"),
)
TEXTS = (
    *("hello the 12", " ", "a  hello\n\nthe", "na\u00efve\u4e2de\u0301 12 345"),
    *(f"a {literal} b\n{literal}hell" for literal in (*LITERALS, "<|new|>", "<|x|>")),
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER = r"\p{L}+|\p{N}+|[^\p{L}\p{N}]+"
BYTE_CLASSES = (
    *("Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizerFast", "LlamaTokenizerFast"),
    *("PreTrainedTokenizerFast", "Qwen3_5Tokenizer", "TokenizersBackend", "PreTrainedTokenizer", None),
)
PIECE_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizerFast", "PreTrainedTokenizerFast", None)
MODEL_TYPES = ("qwen2", "qwen3", "llama", "gemma2", "granite", "gpt2", "gpt_neox", "deepseek_v3", "mistral", "qwen3_5")


def random_folder(rng: random.Random) -> dict[str, Json]:
    """Documents by file name."""
    pieces = rng.random() < 0.35
    model = _model(rng, pieces=pieces)
    added = _added(rng, model["vocab"])
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "decoder": None,
        "added_tokens": added,
        "model": model,
        **(_piece_sections(rng) if pieces else _byte_sections(rng)),
        "post_processor": rng.choice([None, _template(rng.choice(added)) if added else None]),
    }
    files = {"tokenizer.json": document, "tokenizer_config.json": _config(rng, added, pieces=pieces)}
    have = [each["content"] for each in added] or ["a"]
    if rng.random() < 0.2:
        files["special_tokens_map.json"] = {
            "eos_token": rng.choice(have),
            "additional_special_tokens": [rng.choice(have)],
        }
    if rng.random() < 0.1:
        files["added_tokens.json"] = {each["content"]: each["id"] for each in added} | rng.choice([{}, {"<|x|>": 999}])
    if rng.random() < 0.5:
        files["config.json"] = {"model_type": rng.choice(MODEL_TYPES)}
    if rng.random() < 0.05:
        del files["tokenizer_config.json"]
    return files


def _model(rng: random.Random, *, pieces: bool) -> Json:
    if pieces:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if rng.random() > 0.0005)]
        tokens += list("\u2581abcdehlotw12\n")
    else:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        tokens = [*map(chr, printable), *(chr(0x100 + number) for number in range(256 - len(printable)))]
        if rng.random() < 0.1:
            tokens.remove("b")
    pairs = [("h", "e"), ("l", "l"), ("\u2581" if pieces else "\u0120", "t"), ("he", "ll"), ("1", "2")]
    merges = [list(pair) for pair in pairs]
    vocab = {token: number for number, token in enumerate([*tokens, *map("".join, pairs)])}
    fallback = {
        "byte_fallback": rng.random() < 0.8,
        "fuse_unk": rng.random() < 0.7,
        "unk_token": rng.choice([None, "<unk>"]),
    }
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "continuing_subword_prefix": rng.choice([None, ""]),
        "end_of_word_suffix": rng.choice([None, ""]),
        "ignore_merges": rng.random() < 0.1,
        **(fallback if pieces else {}),
        "vocab": vocab,
        "merges": merges,
    }


def _flags(rng: random.Random) -> Json:
    shares = {"single_word": 0.05, "lstrip": 0.1, "rstrip": 0.1, "normalized": 0.15, "special": 0.8}
    return {name: rng.random() < share for name, share in shares.items()}


def _added(rng: random.Random, vocab: dict[str, int]) -> list[Json]:
    added, following = [], len(vocab)
    for content in rng.sample(LITERALS, rng.randint(0, 9)):
        number = vocab.get(content, following)
        following += content not in vocab
        added.append({"id": number, "content": content, **_flags(rng)})
    return sorted(added, key=lambda each: int(each["id"]))


def _byte_sections(rng: random.Random) -> Json:
    def byte_level(**more: bool) -> Json:
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **more}

    def split(pattern: str) -> Json:
        parts = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "pretokenizers": [parts, byte_level(use_regex=False)]}

    steps = [byte_level(), byte_level(), byte_level(add_prefix_space=True), split(QWEN2), split(QWEN2), split(OTHER)]
    nfc = {"type": "NFC"}
    normalizers = [None, nfc, nfc, {"type": "Sequence", "normalizers": [nfc]}, {"type": "NFKC"}]
    return {"pre_tokenizer": rng.choice(steps), "normalizer": rng.choice(normalizers)}


def _piece_sections(rng: random.Random) -> Json:
    space, piece = {"String": " "}, "\u2581"
    replace = {"type": "Replace", "pattern": space, "content": piece}
    metaspace = {"type": "Metaspace", "replacement": piece, "split": rng.random() < 0.15}
    schemes = [{**metaspace, "prepend_scheme": scheme} for scheme in ("first", "first", "first", "always", "never")]
    split = {"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": False}
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": piece}, replace]}
    return {
        "pre_tokenizer": rng.choice([None, split, *schemes]),
        "normalizer": rng.choice([None, None, replace, prepended]),
    }


def _template(token: Json) -> Json:
    content = token["content"]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": content, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {content: {"id": content, "ids": [token["id"]], "tokens": [content]}},
    }


def _config(rng: random.Random, added: list[Json], *, pieces: bool) -> Json:
    have = [each["content"] for each in added] or ["a"]

    def some() -> str:
        return rng.choice(have) if rng.random() < 0.95 else rng.choice(LITERALS)

    config: Json = {}
    name = rng.choice(PIECE_CLASSES if pieces else BYTE_CLASSES)
    if name is not None:
        config["tokenizer_class"] = name
    for role in ("bos", "eos", "unk", "pad", "mask"):
        if rng.random() < 0.85:
            config[f"{role}_token"] = some() if rng.random() < 0.6 else None
    for key in ("add_bos_token", "add_eos_token", "add_prefix_space", "legacy"):
        if rng.random() < 0.3:
            config[key] = rng.choice([True, False, None])
    if rng.random() < 0.4:
        listed = {str(each["id"]): {key: each[key] for key in each if key != "id"} for each in added}
        if listed and rng.random() < 0.2:
            del listed[rng.choice(list(listed))]
        if listed and rng.random() < 0.15:
            listed[rng.choice(list(listed))].update(_flags(rng))
        if rng.random() < 0.15:
            listed["990"] = {"content": "<|new|>", **_flags(rng)}
        config["added_tokens_decoder"] = listed
    if rng.random() < 0.3:
        config[rng.choice(["additional_special_tokens", "extra_special_tokens"])] = [some()]
    if rng.random() < 0.1:
        config["image_token"] = some()
    if rng.random() < 0.05:
        config["extra_special_tokens"] = {"x_token": some()}
    return config
