"""The chat template and special tokens of a model's folder, chosen as transformers 5.19 and SGLang 0.5.23 choose them.

What the files leave open (a token that only a tokenizer class names, an order that only the file system knows) is
refused by a code rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta

from toktier_tier.core.errors import InvalidTokenizer, UnsupportedTokenizer

from .chat_request import ContentFormat
from .chat_template import content_format_of, parse_template

__all__ = ["ChatTemplate", "load_chat_template"]

# Those that every tokenizer class may have; further `*_token` entries of the configuration are the model's own.
_STANDARD_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TEMPLATE_FILE = "chat_template.jinja"
_NAMED_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What a `ChatRenderer` is made from."""

    text: str
    special_tokens: Mapping[str, str]
    content_format: ContentFormat


def load_chat_template(directory: Path, *, chat_template: Path | None = None, name: str | None = None) -> ChatTemplate:
    """`chat_template` and `name` stand for SGLang's `--chat-template FILE.jinja` and `--hf-chat-template-name`.

    Without them a template file beside the tokenizer comes before the configuration's entry, and of several named
    ones the first is taken. What a multimodal model's processor brings along isn't read. Raises InvalidTokenizer for
    files that can't be read (`chat.bad_config`), UnsupportedTokenizer where they don't decide (`chat.no_template`,
    `chat.template_choice`, `chat.unknown_special_token`) or SGLang takes no Jinja (`chat.unsupported_template`).
    """
    config = _config(directory / "tokenizer_config.json")
    if chat_template is not None and chat_template.suffix != ".jinja":
        raise UnsupportedTokenizer("chat.unsupported_template", "a conversation template, or the name of one")
    if chat_template is None:
        detected = text = _chosen(_templates(directory, config, name), name)
    else:
        detected = _text(chat_template).strip("\n")
        text = detected.replace("\\n", "\n")
    tokens = _special_tokens(directory, config)
    for token in _variables_of(text).intersection(_STANDARD_TOKENS):
        if token not in tokens:
            raise UnsupportedTokenizer("chat.unknown_special_token", f"the files don't tell {token}", token=token)
    known = {key: token for key, token in tokens.items() if token is not None}
    return ChatTemplate(text, known, content_format_of(detected))


def _templates(directory: Path, config: Mapping[str, Any], name: str | None) -> str | dict[str, str] | None:
    """One template, or several by name in their order; among files only "default" has a place in it, the first."""
    found: dict[str, str] = {}
    if (directory / _TEMPLATE_FILE).is_file():
        found["default"] = _text(directory / _TEMPLATE_FILE)
    found |= {path.stem: _text(path) for path in (directory / _NAMED_TEMPLATES).glob("*.jinja")}
    if list(found) == ["default"]:
        return found["default"]
    if len(found) > 1 and name is None and "default" not in found:
        raise UnsupportedTokenizer("chat.template_choice", "several template files, no default", names=sorted(found))
    if found:
        return found
    template = config.get("chat_template")
    if isinstance(template, list):
        try:
            return {entry["name"]: entry["template"] for entry in template}
        except (TypeError, KeyError) as error:
            raise InvalidTokenizer("chat.bad_config", "chat_template isn't a list of named templates") from error
    if template is None or isinstance(template, str | dict):
        return template
    raise InvalidTokenizer("chat.bad_config", "chat_template is neither text nor named templates")


def _chosen(templates: str | dict[str, str] | None, name: str | None) -> str:
    if isinstance(templates, dict):
        chosen = templates.get(next(iter(templates), "") if name is None else name)
    else:
        chosen = templates
    if not isinstance(chosen, str) or not chosen:
        raise UnsupportedTokenizer("chat.no_template", "no chat template")
    return chosen


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str | None]:
    """Names to tokens, None for one that is explicitly absent."""
    entries = dict(config)
    own = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
    if "added_tokens_decoder" not in config:
        entries |= _config(directory / "special_tokens_map.json")
    for extra in (config.get("extra_special_tokens"), entries.get("extra_special_tokens")):
        if isinstance(extra, dict):
            own |= extra
    standard = {key: entries[key] for key in _STANDARD_TOKENS if key in entries}
    return {key: _token(value) for key, value in (own | standard).items()}


def _token(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    if content is not None and not isinstance(content, str):
        raise InvalidTokenizer("chat.bad_config", "a special token that isn't text")
    return content


def _variables_of(template: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(parse_template(template))
    except (TemplateError, RecursionError):
        return set()  # the renderer will say so for every request


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise InvalidTokenizer("chat.bad_config", f"{path.name} isn't JSON") from error
    if not isinstance(document, dict):
        raise InvalidTokenizer("chat.bad_config", f"{path.name} isn't an object")
    return document


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTokenizer("chat.bad_config", f"{path.name} can't be read") from error
