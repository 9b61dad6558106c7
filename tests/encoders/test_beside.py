"""Further releases of the reference's own library: beside it in one process, and release 1.0 as a candidate."""

from __future__ import annotations

import itertools
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.admission import campaign
from toktier_tier.admission.compiled import EncoderVerdict, Verdict
from toktier_tier.admission.probe import ProbeResult
from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders import tokenizers_one
from toktier_tier.encoders.beside import (
    FOLDER_VARIABLE,
    PINNED,
    installed_version,
    load_release,
    pinned_releases,
    release_encode,
    releases_folder,
)
from toktier_tier.encoders.candidates import CANDIDATES, build_candidate, encoder_version
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, load_tokenizer
from workshop import bpe, byte_level, byte_telltale, metaspace, random_text, tokenizer_json, unigram, word_piece

NAME = tokenizers_one.NAME
WORDS = ["▁", "▁a", "▁b", "a", "b", "ab", "ba", "é", ".", "'", "s"]
DOCUMENTS: dict[str, dict[str, Any]] = {
    "byte_bpe": json.loads(tokenizer_json(byte_telltale("abcdefghijklmnopqrstuvwxyz1 é"), pre_tokenizer=byte_level())),
    "metaspace_bpe": json.loads(
        tokenizer_json(
            bpe(WORDS, itertools.product("▁ab", "ab"), unk_token="é", fuse_unk=True), pre_tokenizer=metaspace()
        )
    ),
    "unigram": json.loads(
        tokenizer_json(
            unigram({"<unk>": 0.0, **{word: -1.5 - at for at, word in enumerate(WORDS)}}), pre_tokenizer=metaspace()
        )
    ),
    "word_piece": json.loads(
        tokenizer_json(
            word_piece(["a", "b", "##a", "##b", "ab", ".", "'", "##ba", "1"]),
            normalizer={
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            pre_tokenizer={"type": "BertPreTokenizer"},
        )
    ),
}
PARTS = ["a", "b", "ab", " ", "  ", "é", "e\u0301", ".", "'s", "1", "文", "\n", "B", "\U0001f44d"]


def texts(count: int = 300) -> list[str]:
    draw = random.Random(5)
    return ["", *(random_text(draw, PARTS, 1, 40) for _ in range(count))]


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("version", pinned_releases())
def test_a_release_answers_beside_the_reference_and_neither_disturbs_the_other(version: str, kind: str) -> None:
    document = DOCUMENTS[kind]
    encode = release_encode(version, document)
    reference = load_tokenizer(document)
    assert load_release(version).Tokenizer is not type(reference)
    for text in texts():
        before = reference.encode(text, add_special_tokens=False).ids
        assert encode(text).tolist() == before
        assert reference.encode(text, add_special_tokens=False).ids == before


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_release_answers_in_many_threads_at_once(kind: str) -> None:
    encode = build_candidate(NAME, DOCUMENTS[kind]).encode
    asked = texts(100)
    expected = [load_tokenizer(DOCUMENTS[kind]).encode(text, add_special_tokens=False).ids for text in asked]
    wrong: list[str] = []

    def run(step: int) -> None:
        for at in range(len(asked)):
            at = (at * 7 + step) % len(asked)
            if encode(asked[at]).tolist() != expected[at]:
                wrong.append(asked[at])

    threads = [threading.Thread(target=run, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_every_pinned_release_is_there_and_named_by_its_own_file() -> None:
    assert pinned_releases() == ("0.22.2", "1.0.0rc3")
    assert REFERENCE_VERSION.partition("==")[2] not in pinned_releases()
    for version in pinned_releases():
        assert installed_version(version) == version
        assert (PINNED / f"{version}.txt").read_text().startswith(f"tokenizers=={version} ")
    assert tokenizers_one.VERSION in pinned_releases()
    assert encoder_version(NAME) == f"{NAME}=={tokenizers_one.VERSION}"
    assert build_candidate(NAME, DOCUMENTS["byte_bpe"]).version == encoder_version(NAME)


def test_without_its_folder_a_release_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert encoder_version(NAME) == f"{NAME} (not installed)"
    with pytest.raises(EncoderUnavailable) as caught:
        build_candidate(NAME, DOCUMENTS["byte_bpe"])
    assert caught.value.code == "encoder.not_installed"


def test_another_release_in_its_folder_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = releases_folder() / "0.22.2"
    (tmp_path / tokenizers_one.VERSION).symlink_to(other)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert encoder_version(NAME) == f"{NAME} (not installed)"
    with pytest.raises(ImportError, match="isn't in"):
        load_release(tokenizers_one.VERSION)


def test_a_shared_object_of_another_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tokenizers_one.VERSION
    folder = tmp_path / version
    (folder / "tokenizers").mkdir(parents=True)
    (folder / f"tokenizers-{version}.dist-info").symlink_to(
        releases_folder() / version / f"tokenizers-{version}.dist-info"
    )
    (folder / "tokenizers" / "tokenizers.abi3.so").symlink_to(
        releases_folder() / "0.22.2" / "tokenizers" / "tokenizers.abi3.so"
    )
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ImportError, match=r"is of tokenizers 0\.22\.2"):
        load_release(version)


def test_what_release_one_refuses_is_refused_by_name() -> None:
    document = {**DOCUMENTS["byte_bpe"], "model": {**DOCUMENTS["byte_bpe"]["model"], "type": "Nothing"}}
    with pytest.raises(EncoderUnavailable) as caught:
        build_candidate(NAME, document)
    assert caught.value.code == "encoder.refuses"


@pytest.mark.parametrize(
    ("kind", "tried", "serving"),
    [
        ("byte_bpe", ["gigatoken", "fastokens"], "gigatoken"),
        ("unigram", ["gigatoken", "fastokens", NAME], NAME),
    ],
)
def test_a_campaign_tries_release_one_where_no_other_candidate_is_exact(
    kind: str, tried: list[str], serving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unprobed(candidates: dict[str, Any], *_: Any, **__: Any) -> dict[str, ProbeResult]:
        return {name: ProbeResult((), 1) for name in candidates}

    monkeypatch.setattr(campaign, "probe_encoders", unprobed)  # every code point takes seconds
    monkeypatch.setattr(
        campaign, "try_whole", lambda _, name, __: EncoderVerdict(f"{name}/whole", "", Verdict.REJECTED)
    )
    data = json.dumps(DOCUMENTS[kind]).encode()
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    found = campaign.admit(reference, budget_s=0.1, seed=7).report
    assert found.verdict is Verdict.ADMITTED
    assert [name for name in found.encoders if name in CANDIDATES] == tried
    assert found.encoder == serving
    assert found.encoders[serving].verdict is Verdict.ADMITTED
