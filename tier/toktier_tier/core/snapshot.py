"""A frozen tokenizer: tokenizer.json bytes, reference version and special-token policy, under one fingerprint.

Guarantees: `parse_snapshot` either returns a snapshot whose fields have the types the rest of the core relies on,
or raises a coded error in bounded time and memory; two files get the same fingerprint only if nothing that can
change an ID differs (layout of the JSON, `decoder`, the post-processor's offsets options, truncation and padding don't
count; numbers that aren't integers count by their text, since parsers differ on what they are).

It doesn't know whether the reference accepts the file: `encoders.reference` asks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from .added_tokens import MAX_ADDED_TOKENS, AddedToken
from .errors import InvalidTokenizer, TierError, UnsupportedTokenizer
from .growth import check_growth
from .numbers import Number, number_texts
from .pipeline import Pipeline, parse_pipeline
from .post_processor import check_post_processor, deciding_ids

MAX_FILE_BYTES = 192 << 20
MAX_NESTING = 64
FINGERPRINT_FORMAT = "toktier-snapshot/2"


class SpecialTokenPolicy(Enum):
    """Whether the template's tokens (BOS, EOS, ...) are put around the text: `add_special_tokens` of the reference."""

    NONE = "none"
    TEMPLATE = "template"


@dataclass(frozen=True)
class Snapshot:
    """A parsed tokenizer.json.

    data       the file's own bytes: what the reference is built from
    model      type, every option with its default filled in, `vocab`, and `merges` as pairs
    pipeline   None if `unsupported` names a component that isn't modelled: serve by full encodes only
    notes      what was stripped and why, for the report
    """

    data: bytes
    sha256: str
    fingerprint: str
    reference_version: str
    policy: SpecialTokenPolicy
    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any
    decoder: Any
    model: Mapping[str, Any]
    added_tokens: tuple[AddedToken, ...]
    pipeline: Pipeline | None
    unsupported: TierError | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The tokenizer.json that decides IDs: as given, without truncation and padding."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": token.id,
                    "content": token.content,
                    "single_word": token.single_word,
                    "lstrip": token.lstrip,
                    "rstrip": token.rstrip,
                    "normalized": token.normalized,
                    "special": token.special,
                }
                for token in self.added_tokens
            ],
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": self.post_processor,
            "decoder": self.decoder,
            "model": self.model,
        }


def parse_snapshot(
    data: bytes,
    *,
    reference_version: str,
    policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE,
    chat_template: bytes | None = None,
) -> Snapshot:
    """Raises `InvalidTokenizer` for what is no tokenizer.json and `UnsupportedTokenizer` for refused features."""
    document = _load_json(data)
    if not isinstance(document.get("model"), dict):
        _invalid("tokenizer.no_model", "there is no model section")
    model = _parse_model(document["model"])
    added_tokens = _parse_added_tokens(document.get("added_tokens"))
    notes = tuple(
        f"{key} stripped: the tier returns the whole text's IDs"
        for key in ("truncation", "padding")
        if document.get(key)
    )
    normalizer = _component(document, "normalizer", "normalizers")
    pre_tokenizer = _component(document, "pre_tokenizer", "pretokenizers")
    post_processor = _component(document, "post_processor", "processors")
    check_growth(normalizer, pre_tokenizer)
    pipeline, unsupported = None, None
    try:
        check_post_processor(post_processor)
        pipeline = parse_pipeline(normalizer, pre_tokenizer)
    except UnsupportedTokenizer as error:
        unsupported = error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidTokenizer(
            "tokenizer.bad_component", "a component lacks a field or has one of wrong type"
        ) from error
    canonical = {
        "format": FINGERPRINT_FORMAT,
        "reference": reference_version,
        "policy": policy.value,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": deciding_ids(post_processor),
        "model": model,
        "added_tokens": [
            [t.id, t.content, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word] for t in added_tokens
        ],
        "chat_template": hashlib.sha256(chat_template).hexdigest() if chat_template is not None else None,
        "numbers": [
            number_texts(value)
            for value in (
                normalizer,
                pre_tokenizer,
                post_processor,
                model["vocab"] if model["type"] == "Unigram" else None,
            )
        ],
    }
    return Snapshot(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        fingerprint=_digest(canonical),
        reference_version=reference_version,
        policy=policy,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        post_processor=post_processor,
        decoder=document.get("decoder"),
        model=model,
        added_tokens=added_tokens,
        pipeline=pipeline,
        unsupported=unsupported,
        notes=notes,
    )


def _digest(canonical: Any) -> str:
    try:
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError as error:
        raise InvalidTokenizer("tokenizer.lone_surrogate", "a string holds a lone surrogate") from error
    except ValueError as error:
        raise InvalidTokenizer("tokenizer.bad_number", "a number is out of range") from error
    except RecursionError as error:
        raise InvalidTokenizer("tokenizer.too_deep", "nested too deeply") from error


def _invalid(code: str, why: str, **details: Any) -> NoReturn:
    raise InvalidTokenizer(code, why, **details)


def _load_json(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_FILE_BYTES:
        _invalid("tokenizer.too_large", f"{len(data)} bytes", limit=MAX_FILE_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTokenizer("tokenizer.not_utf8", "not UTF-8", offset_bytes=error.start) from error
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys, parse_float=Number, parse_constant=_no_constant)
    except TierError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidTokenizer("tokenizer.not_json", "not JSON") from error
    if not isinstance(document, dict):
        _invalid("tokenizer.not_an_object", "the file holds no JSON object")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        _invalid("tokenizer.duplicate_key", "an object has the same key twice")
    return result


def _no_constant(name: str) -> NoReturn:
    _invalid("tokenizer.not_json", f"{name} is not JSON")


def _component(document: Mapping[str, Any], key: str, children: str) -> Any:
    component = document.get(key)
    _check_component(component, key, children, 0)
    return component


def _check_component(component: Any, key: str, children: str, depth: int) -> None:
    if component is None:
        return
    if depth > MAX_NESTING:
        _invalid("tokenizer.too_deep", f"{key} is nested too deeply")
    if not isinstance(component, dict) or not isinstance(component.get("type"), str):
        _invalid("tokenizer.bad_component", f"{key} is neither null nor an object with a type")
    if component["type"] == "Sequence":
        items = component.get(children)
        if not isinstance(items, list) or len(items) > 1_000 or any(item is None for item in items):
            _invalid("tokenizer.bad_component", f"{key} is a Sequence without its list")
        for item in items:
            _check_component(item, key, children, depth + 1)


_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


def _parse_added_tokens(entries: Any) -> tuple[AddedToken, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        _invalid("tokenizer.bad_added_tokens", "added_tokens is no list")
    if len(entries) > MAX_ADDED_TOKENS:
        _invalid("tokenizer.too_many_added_tokens", f"{len(entries)} added tokens", limit=MAX_ADDED_TOKENS)
    tokens: list[AddedToken] = []
    for entry in entries:
        if (
            not isinstance(entry, dict)
            or not _is_id(entry.get("id"))
            or not isinstance(entry.get("content"), str)
            or not all(isinstance(entry.get(flag, False), bool) for flag in _FLAGS)
        ):
            _invalid("tokenizer.bad_added_tokens", "an added token lacks a field or has one of wrong type")
        tokens.append(
            AddedToken(entry["id"], entry["content"], **{flag: bool(entry.get(flag, False)) for flag in _FLAGS})
        )
    return tuple(tokens)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _parse_model(model: Mapping[str, Any]) -> dict[str, Any]:
    kind = model.get("type", ...)
    if kind is ...:
        kind = _infer_model_type(model)
    if kind == "BPE":
        return _parse_bpe(model)
    if kind == "Unigram":
        vocab = model.get("vocab")
        if not isinstance(vocab, list) or not all(
            isinstance(e, list) and len(e) == 2 and isinstance(e[0], str) and isinstance(e[1], int | float)
            for e in vocab
        ):
            _invalid("tokenizer.bad_vocab", "a Unigram vocabulary is a list of [token, score]")
        return {
            "type": "Unigram",
            "unk_id": model.get("unk_id"),
            "byte_fallback": bool(model.get("byte_fallback", False)),
            "vocab": vocab,
        }
    if kind in ("WordPiece", "WordLevel"):
        parsed = {"type": kind, "unk_token": _optional_string(model, "unk_token"), "vocab": _vocab(model)}
        if kind == "WordPiece":
            longest = model.get("max_input_chars_per_word", 100)
            if not _is_id(longest):
                _invalid("tokenizer.bad_model", "max_input_chars_per_word is no number")
            parsed["continuing_subword_prefix"] = _optional_string(model, "continuing_subword_prefix")
            parsed["max_input_chars_per_word"] = longest
        return parsed
    raise UnsupportedTokenizer("tokenizer.model_type", f"model type {kind!r}")


def _infer_model_type(model: Mapping[str, Any]) -> str:
    """Files from before 2020 don't name their model; the reference goes by the fields, and so do we."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def _parse_bpe(model: Mapping[str, Any]) -> dict[str, Any]:
    dropout = model.get("dropout")
    if dropout:
        raise UnsupportedTokenizer("tokenizer.dropout", "BPE dropout makes the reference itself random")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": _optional_string(model, "unk_token"),
        "continuing_subword_prefix": _optional_string(model, "continuing_subword_prefix") or None,
        "end_of_word_suffix": _optional_string(model, "end_of_word_suffix") or None,
        "fuse_unk": _flag(model, "fuse_unk"),
        "byte_fallback": _flag(model, "byte_fallback"),
        "ignore_merges": _flag(model, "ignore_merges"),
        "vocab": _vocab(model),
        "merges": _merges(model.get("merges")),
    }


def _optional_string(model: Mapping[str, Any], key: str) -> str | None:
    value = model.get(key)
    if value is not None and not isinstance(value, str):
        _invalid("tokenizer.bad_model", f"{key} is neither null nor a string")
    return value


def _flag(model: Mapping[str, Any], key: str) -> bool:
    value = model.get(key)
    if value is not None and not isinstance(value, bool):
        _invalid("tokenizer.bad_model", f"{key} is neither null nor a boolean")
    return bool(value)


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(_is_id(value) for value in vocab.values()):
        _invalid("tokenizer.bad_vocab", "the vocabulary is no object of token: id")
    return vocab


def _merges(merges: Any) -> list[list[str]]:
    if not isinstance(merges, list):
        _invalid("tokenizer.bad_merges", "merges is no list")
    pairs: list[list[str]] = []
    for entry in merges:
        if isinstance(entry, str) and entry.startswith("#version"):
            continue  # a header line, wherever it stands: the reference skips it
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            _invalid("tokenizer.bad_merges", "a merge is neither 'a b' nor [a, b]")
        pairs.append(pair)
    return pairs
