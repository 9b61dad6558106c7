"""What SGLang 0.5.23 makes of a tokenizer.json with the files beside it: whether the file alone gives the engine's IDs.

The engine doesn't read a tokenizer.json by itself: a tokenizer_config.json names the class that loads it, adds tokens,
and may ask for a BOS that the file doesn't add, or forbid what it does. Guarantee: where `Loading.refusal` is None, the
engine's IDs of a text are the file's, with the tokens of `Loading.prefix` before them in the place of the file's own
where that isn't None. Everything that isn't known to be so is refused, by a code:

    folder.bad_config       a file can't be read as what it should be
    folder.remote_code      the folder brings a tokenizer of its own
    folder.setting          a setting changes how the file is read
    folder.tokenizer_class  a class that isn't known here, or is chosen by what isn't known here
    folder.components       the class puts a normalizer, pre-tokenizer or model of its own in the place of the file's
    folder.added_tokens     it adds tokens that the file lacks, drops some, or changes their flags
    folder.bos              a BOS is to be added that has no ID

Source: the behaviour of SGLang's `utils/hf_transformers/tokenizer.py` and of transformers 5.19
(`models/auto/tokenization_auto.py`, `tokenization_utils_{base,tokenizers}.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .chat_template import PassThrough
from .classes import AS_THE_FILE, REBUILT, Rebuilt, kept

__all__ = ["FOLDER_FILES", "Loading", "Token", "loading_of"]

TOKENIZER, CONFIG, MODEL = "tokenizer.json", "tokenizer_config.json", "config.json"
SPECIALS, ADDED = "special_tokens_map.json", "added_tokens.json"
FOLDER_FILES = (CONFIG, SPECIALS, ADDED, MODEL)
"""Those that decide, beside the tokenizer.json."""

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Classes for which SGLang brings back `add_bos_token`, which transformers drops beside a tokenizer.json.
_WITH_BOS = frozenset(
    (
        *("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"),
        *("GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast"),
    )
)
# Model types whose own class comes before the one that the folder names.
_CLASS_BY_MODEL = {
    "qwen2": "Qwen2Tokenizer",
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"), "Qwen3_5Tokenizer"),
    "hyperclovax_vision_v2": "GPT2Tokenizer",
}
# The same where the folder names none.
_CLASS_WITHOUT_NAME = _CLASS_BY_MODEL | {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2", "codegen"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv"), "GPTNeoXTokenizer"),
    **dict.fromkeys(
        (
            *("glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe", "gpt_bigcode", "granite"),
            *("granitemoe", "granitemoehybrid", "granitemoeshared", "olmo2", "olmo3", "stablelm", "persimmon"),
            *("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "nemotron", "phi3", "phimoe", "jamba"),
            *("minicpm3", "minimax_m2", "internlm2", "ernie4_5", "ernie4_5_moe", "arctic", "mimo_v2_flash"),
        ),
        "TokenizersBackend",
    ),
}
# With the package mistral-common and a tekken.json they are encoded by neither a class nor the tokenizer.json.
_MISTRAL = frozenset(
    ("ministral", "ministral3", "mistral", "mistral3", "mixtral", "pixtral", "voxtral", "voxtral_realtime")
)
_TEKKEN = "tekken.json"
# Settings that reach the loading itself, with the values that leave it as it is.
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "split_special_tokens": (None, False),
    "fix_mistral_regex": (None, False),
    "backend": (None, "tokenizers"),
    "init_inputs": (None, [], ()),
    **dict.fromkeys(("fast_tokenizer_files", "tokenizer_object", "vocab", "merges", "post_processor"), (None,)),
    **dict.fromkeys(("tokenizer_truncation", "tokenizer_padding"), (None,)),
}


class Token(NamedTuple):
    """An added token as a text meets it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Loading:
    """See the module. `prefix` are IDs."""

    refusal: PassThrough | None = None
    prefix: tuple[int, ...] | None = None


class _Refused(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.verdict = PassThrough(reason, detail)


def loading_of(files: Mapping[str, bytes], added: Mapping[int, Token], names: Collection[str] | None = None) -> Loading:
    """`files` by name, the tokenizer.json among them; `added` are its added tokens under the IDs that they really have;
    `names` are all names in the folder, None where they aren't known.

    Takes a second for a large tokenizer.json where a class puts parts of its own in the place of the file's.
    """
    if not any(name in files for name in FOLDER_FILES):
        return Loading()
    try:
        return _Folder(files, added, names).loading()
    except _Refused as refused:
        return Loading(refused.verdict)
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
        return Loading(PassThrough("folder.bad_config", f"the files can't be understood ({type(error).__name__})"))


class _Folder:
    def __init__(self, files: Mapping[str, bytes], added: Mapping[int, Token], names: Collection[str] | None) -> None:
        self._files, self._added, self._names = files, added, names
        self._config = self._object(CONFIG)
        self._model = self._object(MODEL)
        self._document: dict[str, Any] | None = None

    def loading(self) -> Loading:
        for key, harmless in _SETTINGS.items():
            if self._config.get(key) not in harmless:
                raise _Refused("folder.setting", f"{CONFIG} sets {key}")
        name = self._class()
        made = REBUILT.get(name)
        if made is None and name not in AS_THE_FILE:
            raise _Refused("folder.tokenizer_class", f"what {name[:60]!r} makes of a tokenizer.json isn't known here")
        if made is not None and (part := kept(self._tokenizer(), made, self._config)) is not None:
            raise _Refused("folder.components", f"{name} brings a {part} of its own")
        bos = self._check_added(made)
        return Loading(None, self._prefix(made, bos))

    # --- the class --------------------------------------------------------------------------------------------------

    def _class(self) -> str:
        auto_map = self._config.get("auto_map")
        if isinstance(auto_map, list) or (isinstance(auto_map, dict) and auto_map.get("AutoTokenizer") is not None):
            raise _Refused("folder.remote_code", "the folder brings a tokenizer class of its own")
        name, model_type = self._config.get("tokenizer_class"), self._model.get("model_type") or ""
        if model_type in _MISTRAL and (self._names is None or _TEKKEN in self._names):
            raise _Refused("folder.tokenizer_class", f"{model_type} may be encoded by another library's {_TEKKEN}")
        if name is None:
            if self._model.get("tokenizer_class") is not None:
                raise _Refused("folder.tokenizer_class", f"{MODEL} names a class where {CONFIG} names none")
            found = "TokenizersBackend" if not model_type or model_type in _MISTRAL else None
            found = found or _CLASS_WITHOUT_NAME.get(model_type)
            if found is None:
                raise _Refused(
                    "folder.tokenizer_class", f"no class is named, and that of {model_type[:60]!r} isn't known"
                )
            return found
        plain: str = name if name in AS_THE_FILE else name.removesuffix("Fast")
        return _CLASS_BY_MODEL.get(model_type, plain)

    # --- added tokens -----------------------------------------------------------------------------------------------

    def _check_added(self, made: Rebuilt | None) -> str | None:
        """Refuse what leads to other added tokens than the file's; the BOS that the tokenizer knows."""
        listed = [token for _, token in sorted(self._listed().items())]
        named, extra = self._named(made)
        tokens: dict[str, tuple[int, Token]] = {}
        if made is None:
            tokens = {token.content: (number, token) for number, token in self._added.items()}
        contents = {*tokens, *(token.content for token in listed)}
        missing = [each for each in (*named.values(), *extra) if each.content not in contents]
        later = [Token(each.content) for each in (*named.values(), *extra)] if made and made.plain_specials else []
        for token in (*listed, *missing, *later):
            if token.content:
                number = tokens[token.content][0] if token.content in tokens else self._next(token.content, tokens)
                tokens[token.content] = number, token
        result = dict(tokens.values())
        if result != self._added:
            changed = {number for number in {*result, *self._added} if result.get(number) != self._added.get(number)}
            raise _Refused("folder.added_tokens", f"{len(changed)} added tokens differ from the tokenizer.json's")
        return named["bos_token"].content if "bos_token" in named else None

    def _next(self, content: str, tokens: Mapping[str, tuple[int, Token]]) -> int:
        """The ID that a token gets that isn't added yet."""
        vocab = self._vocab()
        if content in vocab:
            return vocab[content]
        top = max((number for number, _ in tokens.values()), default=-1)
        return top + 1 if top >= len(vocab) else len(vocab)

    def _listed(self) -> dict[int, Token]:
        """Added tokens that the files list by ID."""
        if "added_tokens_decoder" in self._config:
            given = self._config["added_tokens_decoder"]
            return {int(number): _token(entry) for number, entry in given.items()}
        listed: dict[int, Token] = {}
        named, extra = self._named(None)
        special = {each.content for each in (*named.values(), *extra)}
        for content, number in self._object(ADDED).items():
            listed[number] = Token(content, normalized=content not in special)
        return listed | {entry["id"]: _token(entry) for entry in self._tokenizer().get("added_tokens") or ()}

    def _named(self, made: Rebuilt | None) -> tuple[dict[str, Token], list[Token]]:
        """Special tokens by role, and further ones."""
        entries = {key: value for key, value in self._config.items() if key not in ("add_bos_token", "add_eos_token")}
        if "additional_special_tokens" in entries and not entries.get("extra_special_tokens"):
            entries["extra_special_tokens"] = entries.pop("additional_special_tokens")
        if "added_tokens_decoder" not in entries:
            for key, value in self._object(SPECIALS).items():
                if key == "extra_special_tokens" and isinstance(value, list):
                    value = [*(entries.get(key) or ()), *value]
                entries[key] = value
        named = {role: Token(content) for role, content in (made.named if made else {}).items()}
        for key, value in _roles(entries):
            named.pop(key, None)
            if value is not None:
                named[key] = _token(value)
        specific = entries.get("model_specific_special_tokens") or {}
        if specific and made is not None and made.plain_specials:
            raise _Refused("folder.setting", f"{CONFIG} sets model_specific_special_tokens")
        if isinstance(entries.get("extra_special_tokens"), dict):
            specific = specific | entries.pop("extra_special_tokens")
        named |= {key: _token(value) for key, value in specific.items()}
        further = entries.get("extra_special_tokens", entries.get("additional_special_tokens"))
        return named, [_token(each) for each in further or ()]

    # --- what stands around a text ----------------------------------------------------------------------------------

    def _prefix(self, made: Rebuilt | None, bos: str | None) -> tuple[int, ...] | None:
        adds = self._config.get("add_bos_token") if CONFIG in self._files else None
        if self._config.get("tokenizer_class") not in _WITH_BOS:
            return () if made is not None and made.no_template else None
        adds = True if adds is None else adds
        if not isinstance(adds, bool):
            raise _Refused("folder.setting", f"{CONFIG} sets add_bos_token to neither true nor false")
        if not adds:
            return () if made is not None and made.no_template else None
        if bos is None:
            return ()
        number = next((number for number, token in self._added.items() if token.content == bos), None)
        number = self._vocab().get(bos) if number is None else number
        if number is None:
            raise _Refused("folder.bos", "BOS is to be added, and has no ID")
        return (number,)

    # --- files ------------------------------------------------------------------------------------------------------

    def _object(self, name: str) -> dict[str, Any]:
        document = json.loads(self._files.get(name, b"{}"))
        if not isinstance(document, dict):
            raise _Refused("folder.bad_config", f"{name} isn't an object")
        return document

    def _tokenizer(self) -> dict[str, Any]:
        if self._document is None:
            self._document = self._object(TOKENIZER)
        return self._document

    def _vocab(self) -> Mapping[str, int]:
        vocab = (self._tokenizer().get("model") or {}).get("vocab")
        if isinstance(vocab, list):
            return {piece: number for number, (piece, _) in enumerate(vocab)}
        return vocab if isinstance(vocab, dict) else {}


def _roles(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Roles with their tokens: the standard ones, and every further key that looks like one."""
    for key, value in entries.items():
        if key in _ROLES or (key.endswith("_token") and isinstance(value, str | dict)):
            yield key, value


def _token(value: Any) -> Token:
    """A token from its content or its settings. Raises TypeError, KeyError."""
    if isinstance(value, str):
        return Token(value)
    if not isinstance(value, dict) or not isinstance(value["content"], str):
        raise TypeError("no token")
    flags = {flag: _flag(value, flag, False) for flag in ("lstrip", "rstrip", "single_word")}
    return Token(value["content"], **flags, normalized=_flag(value, "normalized", not value.get("special", False)))


def _flag(value: Mapping[str, Any], name: str, default: bool) -> bool:
    found = value.get(name, default)
    if not isinstance(found, bool):
        raise TypeError(name)
    return found


def tokens_of(added: Iterable[Any]) -> dict[int, Token]:
    """From the reference's added tokens."""
    return {each.id: Token(each.content, each.lstrip, each.rstrip, each.single_word, each.normalized) for each in added}
