"""What SGLang loaded is compared with the file that the tier serves: what could change an ID rules the plugin out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_workshop import FAMILY, Loaded, with_bos

from toktier_sglang.own import Call, OwnTokenizer, Specials, chat_call, specials_between
from toktier_sglang.reasons import Off, PluginOff
from workshop import bracketed_json, byte_level, family_data

DATA = family_data(FAMILY)


def changed(change: Callable[[Any], None], data: bytes = DATA) -> bytes:
    document = json.loads(data)
    change(document)
    return json.dumps(document).encode()


def refused(tmp_path: Path, loaded: bytes, data: bytes = DATA) -> Off:
    with pytest.raises(PluginOff) as caught:
        OwnTokenizer(Loaded(tmp_path, data, loaded=loaded)).inspect()
    return caught.value.code


def test_a_tokenizer_loaded_as_it_stands_is_known_by_its_file(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, DATA)
    found = OwnTokenizer(loaded).inspect()
    assert found.sha256 == hashlib.sha256(DATA).hexdigest()
    assert found.id_limit == 1 + max(loaded.get_vocab().values())
    assert dict(found.specials) == dict.fromkeys(Call, Specials())


def test_what_each_call_adds_around_a_text_is_found(tmp_path: Path) -> None:
    data = with_bos(DATA)
    bos = json.loads(data)["added_tokens"][0]["id"]
    specials = OwnTokenizer(Loaded(tmp_path, data)).inspect().specials
    assert specials[Call.CHAT_PLAIN] == Specials()
    assert specials[Call.TEXT] == specials[Call.CHAT] == specials[Call.CHAT_SPECIAL] == Specials((bos,))


def test_tokens_before_and_behind_are_found(tmp_path: Path) -> None:
    specials = OwnTokenizer(Loaded(tmp_path, bracketed_json())).inspect().specials[Call.TEXT]
    assert (len(specials.prefix), len(specials.suffix)) == (1, 2)


def test_what_is_added_must_be_the_same_for_every_text() -> None:
    assert specials_between([[1], [2]], [[9, 1, 8], [9, 2, 8]]) == Specials((9,), (8,))
    assert specials_between([[1], [9, 1]], [[9, 1], [9, 1]]) is None  # left out where the text has it already
    assert specials_between([[1, 2], [3]], [[1], [3]]) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(normalizer={"type": "NFC"} if not document["normalizer"] else None),
        lambda document: document["added_tokens"].append(
            {
                **document["added_tokens"][0],
                "content": "<new>",
                "id": 1 + max(document["model"]["vocab"].values()) + 500,
            }
        ),
        lambda document: document["model"].update(ignore_merges=not document["model"].get("ignore_merges", False)),
        lambda document: document["model"]["merges"].pop(),
        lambda document: document.update(pre_tokenizer=byte_level(add_prefix_space=True)),
    ],
    ids=["normalizer", "added token", "ignore_merges", "merge", "pre-tokenizer"],
)
def test_a_tokenizer_changed_while_loading_is_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    assert refused(tmp_path, changed(change)) is Off.PIPELINE


def test_what_cant_change_an_id_is_no_difference(tmp_path: Path) -> None:
    def harmless(document: Any) -> None:
        document["decoder"] = None
        for part in (document["pre_tokenizer"], *document["pre_tokenizer"].get("pretokenizers", ())):
            if part["type"] == "ByteLevel":
                part["trim_offsets"] = not part["trim_offsets"]

    found = OwnTokenizer(Loaded(tmp_path, DATA, loaded=changed(harmless))).inspect()
    assert found.sha256 == hashlib.sha256(DATA).hexdigest()


def test_without_a_backend_or_a_file_it_is_refused(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, DATA)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(PluginOff) as caught:
        OwnTokenizer(loaded).inspect()
    assert caught.value.code is Off.NO_FILE
    loaded.is_fast = False
    with pytest.raises(PluginOff) as caught:
        OwnTokenizer(loaded).inspect()
    assert caught.value.code is Off.NOT_FAST


def test_only_calls_with_known_options_are_known() -> None:
    assert chat_call(None) is chat_call({}) is Call.CHAT
    assert chat_call({"add_special_tokens": False}) is Call.CHAT_PLAIN
    assert chat_call({"add_special_tokens": True}) is Call.CHAT_SPECIAL
    assert chat_call({"truncation": True}) is None
    assert chat_call({"add_special_tokens": False, "max_length": 5}) is None
