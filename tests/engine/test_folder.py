"""What an engine makes of a tokenizer.json with files beside it: the file's IDs, with a known BOS, or a refusal.

`e2e/test_folders.py` asks SGLang itself about random folders; these are the kinds, by hand.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.encoders.reference import open_reference
from toktier_tier.engine.folder import Loading, loading_of, tokens_of
from workshop import Json, byte_level, byte_telltale, metaspace, pre_tokenizers, telltale, token, tokenizer_json

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
LLAMA = {"tokenizer_class": "LlamaTokenizerFast"}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
WITH_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BOS: {"id": BOS, "ids": [1_001], "tokens": [BOS]}},
}


def added(*more: Json) -> list[Json]:
    known = [token(1_000 + number, content, special=True) for number, content in enumerate((UNK, BOS, EOS))]
    return [*known, *more]


def byte_file(*more: Json, model: Json | None = None, **sections: Json) -> bytes:
    sections = {"pre_tokenizer": byte_level(), **sections}
    return tokenizer_json(model or byte_telltale("ab "), added=added(*more), **sections)


def loaded(file: bytes, settings: Any = None, names: list[str] | None = None, **others: Any) -> Loading:
    """`others` are further files by their names without `.json`."""
    files = {"tokenizer.json": file}
    if settings is not None:
        files["tokenizer_config.json"] = settings if isinstance(settings, bytes) else json.dumps(settings).encode()
    files |= {f"{name}.json": json.dumps(document).encode() for name, document in others.items()}
    reference = open_reference(file, SpecialTokenPolicy.NONE)
    return loading_of(files, tokens_of(reference.added_tokens()), list(files) if names is None else names)


def reason(loading: Loading) -> str:
    return loading.refusal.reason if loading.refusal is not None else ""


def bos_id(file: bytes) -> int:
    found = open_reference(file, SpecialTokenPolicy.NONE).id_of(BOS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "config", [None, {}, PLAIN, {"tokenizer_class": "TokenizersBackend"}, {**PLAIN, "bos_token": BOS}]
)
def test_a_class_that_takes_the_file_as_it_is_leaves_everything_to_it(config: Any) -> None:
    assert loaded(byte_file(), config) == Loading()
    assert loaded(byte_file(post_processor=WITH_BOS), config) == Loading()


@pytest.mark.parametrize("template", [None, WITH_BOS])
@pytest.mark.parametrize("asked", [{"add_bos_token": True}, {"add_bos_token": None}, {}])
def test_a_llama_class_adds_bos_in_the_place_of_what_the_file_adds(asked: Any, template: Json) -> None:
    file = byte_file(post_processor=template)
    assert loaded(file, LLAMA | asked) == Loading(None, (bos_id(file),))
    assert loaded(file, LLAMA | asked | {"bos_token": EOS}).prefix != Loading(None, (bos_id(file),)).prefix
    assert loaded(file, LLAMA | asked | {"bos_token": None}) == Loading(None, ())


def test_forbidding_bos_leaves_the_files_own_as_sglang_does() -> None:
    for template in (None, WITH_BOS):
        assert loaded(byte_file(post_processor=template), LLAMA | {"add_bos_token": False}) == Loading()


def test_other_classes_heed_no_bos() -> None:
    assert loaded(byte_file(), PLAIN | {"add_bos_token": True, "bos_token": BOS}) == Loading()


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "<|end|>"},
        {"additional_special_tokens": ["<|tool|>"]},
        {"extra_special_tokens": {"image_token": "<|image|>"}},
        {"image_token": "<|image|>"},
        {"added_tokens_decoder": {"1003": {"content": "<|tool|>", "special": True}}},
        {"added_tokens_decoder": {"1001": {"content": BOS, "lstrip": True, "special": True, "normalized": False}}},
        {"model_specific_special_tokens": {"x_token": "<|x|>"}},
    ],
)
def test_tokens_that_the_file_lacks_or_has_otherwise_are_refused(config: Any) -> None:
    assert reason(loaded(byte_file(), PLAIN | config)) == "folder.added_tokens"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("special_tokens_map", {"eos_token": "<|end|>"}),
        ("special_tokens_map", {"additional_special_tokens": ["<|end|>"]}),
        ("added_tokens", {"<|end|>": 1_003}),
    ],
)
def test_the_older_files_add_tokens_where_the_configuration_lists_none(name: str, content: Any) -> None:
    file = byte_file()
    assert reason(loaded(file, PLAIN, **{name: content})) == "folder.added_tokens"
    assert reason(loaded(file, None, **{name: content})) == "folder.added_tokens"
    assert loaded(file, PLAIN | {"added_tokens_decoder": {}}, **{name: content}) == Loading()


def test_a_class_that_rebuilds_drops_what_the_configuration_does_not_list() -> None:
    file = byte_file()
    listed = {
        str(each["id"]): {key: each[key] for key in each if key != "id"} for each in json.loads(file)["added_tokens"]
    }
    assert loaded(file, LLAMA | {"added_tokens_decoder": listed}).refusal is None
    assert loaded(file, PLAIN | {"added_tokens_decoder": {}}) == Loading()
    del listed[next(iter(listed))]
    assert reason(loaded(file, LLAMA | {"added_tokens_decoder": listed})) == "folder.added_tokens"


def test_a_class_has_tokens_of_its_own() -> None:
    assert reason(loaded(byte_file(), {"tokenizer_class": "GPT2Tokenizer"})) == "folder.added_tokens"
    end = token(1_003, "<|endoftext|>", special=True)
    assert loaded(byte_file(end), {"tokenizer_class": "GPT2Tokenizer"}) == Loading()
    assert (
        loaded(
            byte_file(), {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"))}
        )
        == Loading()
    )


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"pre_tokenizer": byte_level(add_prefix_space=True)}, "pre_tokenizer"),
        ({"pre_tokenizer": byte_level(use_regex=False)}, "pre_tokenizer"),
        ({"model": byte_telltale("ab ", ignore_merges=True)}, "model"),
        ({"model": {**byte_telltale("ab "), "end_of_word_suffix": "</w>"}}, "model"),
    ],
)
def test_parts_of_the_classs_own_are_refused(sections: Any, part: str) -> None:
    end = token(1_003, "<|endoftext|>", special=True)
    found = loaded(byte_file(end, **sections), {"tokenizer_class": "GPT2TokenizerFast"})
    assert reason(found) == "folder.components"
    assert found.refusal is not None
    assert part in found.refusal.detail


def test_a_pre_tokenizer_of_another_type_is_the_files_again() -> None:
    split = {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": False}
    file = byte_file(pre_tokenizer=pre_tokenizers(split, byte_level(use_regex=False)))
    assert loaded(file, LLAMA).refusal is None
    qwen = {"tokenizer_class": "Qwen2Tokenizer", "unk_token": None, "eos_token": EOS, "pad_token": EOS}
    assert reason(loaded(file, qwen)) == "folder.components"


def test_a_metaspace_file_is_the_llama_classs_if_it_says_the_same() -> None:
    model = {**telltale("▁ab"), "byte_fallback": True, "fuse_unk": True}
    own = tokenizer_json(model, added=added(), pre_tokenizer=metaspace("first", split=False))
    assert loaded(own, LLAMA).refusal is None
    for scheme, split in (("always", False), ("never", False), ("first", True)):
        other = tokenizer_json(model, added=added(), pre_tokenizer=metaspace(scheme, split=split))
        assert reason(loaded(other, LLAMA)) == "folder.components"
    assert reason(loaded(own, LLAMA | {"legacy": True})) == "folder.components"
    assert reason(loaded(own, LLAMA | {"add_prefix_space": False})) == "folder.components"
    unknown = {**model, "unk_token": UNK}  # the class's model has none, and here characters are unknown
    assert (
        reason(loaded(tokenizer_json(unknown, added=added(), pre_tokenizer=metaspace("first", split=False)), LLAMA))
        == "folder.components"
    )


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"tokenizer_class": "NoSuchTokenizer"}, "folder.tokenizer_class"),
        ({"tokenizer_class": "BertTokenizer"}, "folder.tokenizer_class"),
        ({**PLAIN, "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}, "folder.remote_code"),
        ({**PLAIN, "split_special_tokens": True}, "folder.setting"),
        ({**PLAIN, "fix_mistral_regex": True}, "folder.setting"),
        ({**LLAMA, "add_bos_token": "yes"}, "folder.setting"),
        ({**PLAIN, "eos_token": 3, "bos_token": [BOS]}, "folder.bad_config"),
        ({**PLAIN, "added_tokens_decoder": {"x": {}}}, "folder.bad_config"),
        (b"[]", "folder.bad_config"),
        (b"{", "folder.bad_config"),
        (b"\xff", "folder.bad_config"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: Any, code: str) -> None:
    assert reason(loaded(byte_file(), config)) == code


def test_the_model_type_may_choose_the_class() -> None:
    file = byte_file()
    assert loaded(file, {}, config={"model_type": "granite"}) == Loading()
    assert reason(loaded(file, {}, config={"model_type": "some_model"})) == "folder.tokenizer_class"
    assert reason(loaded(file, PLAIN, config={"model_type": "qwen2"})) == "folder.components"
    assert loaded(file, PLAIN, config={"model_type": "qwen3"}) == Loading()


def test_another_librarys_file_comes_first_where_it_may_be_there() -> None:
    file, model = byte_file(), {"model_type": "mistral"}
    assert loaded(file, PLAIN, config=model) == Loading()
    assert reason(loaded(file, PLAIN, ["tekken.json"], config=model)) == "folder.tokenizer_class"
    names = {
        "tokenizer.json": file,
        "tokenizer_config.json": json.dumps(PLAIN).encode(),
        "config.json": json.dumps(model).encode(),
    }
    reference = open_reference(file, SpecialTokenPolicy.NONE)
    assert reason(loading_of(names, tokens_of(reference.added_tokens()))) == "folder.tokenizer_class"
