"""SGLang's own tokenizer: the calls that SGLang makes to it, and what is known of it without asking the tier.

Guarantee: `inspect` returns only for a tokenizer whose pipeline, as loaded, is that of its tokenizer.json, so that who
serves that file by the same pipeline makes the same IDs; and it gives, for each of SGLang's calls, the fixed tokens
that the call adds around a text, or nothing where they aren't fixed. Raises `PluginOff`.

Loading doesn't always keep a file as it is: transformers puts parts of its own in place of some model types' (a
normalizer dropped, tokens added), and SGLang repairs some tokenizers. Such a tokenizer is refused here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .probes import special_probes
from .reasons import Off, PluginOff

FILE = "tokenizer.json"
ID_PARTS = ("normalizer", "pre_tokenizer", "model", "added_tokens")
"""Of a tokenizer.json: what decides a text's IDs. The post-processor's tokens are found by trying."""


class Call(StrEnum):
    """How SGLang asks its tokenizer."""

    TEXT = "text"  # TokenizerManager: the tokenizer's default special tokens
    CHAT = "chat"  # encode(text)
    CHAT_PLAIN = "chat_plain"  # encode(text, add_special_tokens=False)
    CHAT_SPECIAL = "chat_special"  # encode(text, add_special_tokens=True)


_OPTIONS: dict[Call, dict[str, bool]] = {
    Call.CHAT: {},
    Call.CHAT_PLAIN: {"add_special_tokens": False},
    Call.CHAT_SPECIAL: {"add_special_tokens": True},
}


def chat_call(options: Mapping[str, Any] | None) -> Call | None:
    """The call with these options of `encode`; None for any that aren't known here."""
    return next((call for call, known in _OPTIONS.items() if known == (options or {})), None)


@dataclass(frozen=True, slots=True)
class Specials:
    """Token IDs before and behind those of the text itself."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def around(self, ids: list[int]) -> list[int]:
        return [*self.prefix, *ids, *self.suffix] if self.prefix or self.suffix else ids


@dataclass(frozen=True, slots=True)
class Inspected:
    """sha256: of the tokenizer.json; id_limit: one more than the highest ID; added: contents of added tokens."""

    sha256: str
    id_limit: int
    added: tuple[str, ...]
    specials: Mapping[Call, Specials]


class OwnTokenizer:
    """A transformers tokenizer, as SGLang uses it. `revision` is the model's, where its name is a hub's."""

    def __init__(self, tokenizer: Any, revision: str | None = None) -> None:
        self.tokenizer, self._revision = tokenizer, revision

    def ids(self, call: Call, text: str) -> list[int]:
        if call is Call.TEXT:
            return list(self.tokenizer([text])["input_ids"][0])
        return list(self.tokenizer.encode(text, **_OPTIONS[call]))

    def inspect(self) -> Inspected:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if not getattr(self.tokenizer, "is_fast", False) or backend is None:
            raise PluginOff(Off.NOT_FAST, f"{type(self.tokenizer).__name__} has no `tokenizers` backend")
        path = self._file()
        if path is None:
            raise PluginOff(Off.NO_FILE, f"no {FILE} beside {self.tokenizer.name_or_path!r}")
        data = path.read_bytes()
        loaded = json.loads(backend.to_str())
        refuse_other_pipeline(loaded, json.loads(type(backend).from_str(data.decode()).to_str()))
        added = tuple(token["content"] for token in loaded["added_tokens"])
        specials = self._specials(added)
        if Call.TEXT not in specials and Call.CHAT not in specials:
            raise PluginOff(Off.NO_SPECIALS, "what it adds around a text isn't fixed")
        id_limit = 1 + max(self.tokenizer.get_vocab().values())
        return Inspected(hashlib.sha256(data).hexdigest(), id_limit, added, specials)

    def _file(self) -> Path | None:
        name = str(getattr(self.tokenizer, "name_or_path", ""))
        path = Path(name) / FILE
        if path.is_file():
            return path
        try:
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(name, FILE, revision=self._revision)
        except (ImportError, ValueError):  # ValueError: no name of a hub's
            return None
        return Path(cached) if isinstance(cached, str) else None

    def _specials(self, added: Sequence[str]) -> dict[Call, Specials]:
        probes = special_probes(added)
        bodies = [self.ids(Call.CHAT_PLAIN, text) for text in probes]
        found = {Call.CHAT_PLAIN: Specials()}
        for call in (Call.TEXT, Call.CHAT, Call.CHAT_SPECIAL):
            specials = specials_between(bodies, [self.ids(call, text) for text in probes])
            if specials is not None:
                found[call] = specials
        return found


def specials_between(bodies: Sequence[list[int]], wholes: Sequence[list[int]]) -> Specials | None:
    """The fixed tokens with which every whole is its body; None if there are none such."""
    more = len(wholes[0]) - len(bodies[0])
    for count in range(more + 1):
        suffix = wholes[0][len(wholes[0]) - more + count :]
        specials = Specials(tuple(wholes[0][:count]), tuple(suffix))
        if all(specials.around(body) == whole for body, whole in zip(bodies, wholes, strict=True)):
            return specials
    return None


def refuse_other_pipeline(loaded: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Raises `PluginOff` unless both documents, as the same library writes them, give the same IDs for every text."""
    for part in ID_PARTS:
        ours, theirs = (_essence(document[part], _has_every_byte(document)) for document in (loaded, file))
        if ours != theirs:
            raise PluginOff(Off.PIPELINE, f"its {part} isn't that of the {FILE}")


def _essence(part: Any, every_byte: bool) -> Any:
    """Without what can't change an ID: offsets, and, where every byte is a token, what is done with unknown ones."""
    if isinstance(part, list):
        return [_essence(each, every_byte) for each in part]
    if not isinstance(part, dict):
        return part
    if "vocab" in part:
        ignored = {"fuse_unk", "byte_fallback", "unk_token"} if every_byte else set()
        return {key: value for key, value in part.items() if key not in ignored}
    for steps in ("normalizers", "pretokenizers"):
        if part.get("type") == "Sequence" and part.get(steps) == []:
            return None
    return {key: _essence(value, every_byte) for key, value in part.items() if key != "trim_offsets"}


def _has_every_byte(document: Mapping[str, Any]) -> bool:
    """Whether the model sees bytes only, by ByteLevel at the end of the pre-tokenizer, and has a token for each."""
    last = document["pre_tokenizer"] or {}
    if last.get("type") == "Sequence" and last["pretokenizers"]:
        last = last["pretokenizers"][-1]
    if last.get("type") != "ByteLevel" or document["model"].get("type") != "BPE":
        return False
    vocab = document["model"]["vocab"]
    return all(character in vocab for character in _byte_characters())


def _byte_characters() -> list[str]:
    """GPT-2's characters for the bytes of UTF-8: printable Latin-1 as it is, the other bytes from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = {byte: 0x100 + number for number, byte in enumerate(sorted(set(range(256)) - printable))}
    return [chr(others.get(byte, byte)) for byte in range(0xF5) if byte not in (0xC0, 0xC1)]
