"""Releases of the reference's library are compared on a file, and each difference gets its cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from toktier_tier.admission import differences
from toktier_tier.admission.causes import Release, release_of
from toktier_tier.admission.differences import Differences, minimized, release_differences
from toktier_tier.admission.release_texts import LAST_POINT, TAGS, entry_texts, units_of
from toktier_tier.admission_job.diff import compare
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from workshop import (
    bpe,
    byte_level,
    byte_telltale,
    metaspace,
    pre_tokenizers,
    replace,
    split,
    token,
    tokenizer_json,
    word_piece,
)

Json = Any
CURRENT = release_of(REFERENCE_VERSION.partition("==")[2])
GPT2 = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NFC = {"type": "NFC"}
TEXTS = [
    f"{left}{right} {left}" for left in ("ab", "é", "1", "'s", "\U00011935", "<x>") for right in ("a", " ", "e\u0301")
]


def document(**sections: Json) -> Json:
    made = {"pre_tokenizer": byte_level(), "added": [token(900, "<x>")], **sections}
    return json.loads(tokenizer_json(byte_telltale("ab é1'se"), **made))


def cutting(pattern: str) -> Json:
    return pre_tokenizers(split(pattern), byte_level(use_regex=False))


def planted(change: Callable[[Json], Json]) -> Release:
    """The reference as it is, on another file than the one it is given."""
    return Release("tokenizers==0.0.1", lambda given: CURRENT.build(change(json.loads(json.dumps(given)))))


def found(given: Json, other: Release, monkeypatch: pytest.MonkeyPatch, texts: list[str] = TEXTS) -> Differences:
    monkeypatch.setattr(differences, "units_of", lambda _: (("texts", text) for text in texts))
    return release_differences(given, CURRENT, [other])[0]


def without_merge(given: Json) -> Json:
    given["model"]["merges"] = [merge for merge in given["model"]["merges"] if merge != ["a", "b"]]
    return given


def with_flag(given: Json) -> Json:
    return {**given, "added_tokens": [{**each, "lstrip": True} for each in given["added_tokens"]]}


def instead(section: str, own: Json, other: Json) -> Callable[[Json], Json]:
    return lambda given: {**given, section: other} if given[section] == own else given


@pytest.mark.parametrize(
    ("sections", "change", "part"),
    [
        ({}, without_merge, "model"),
        ({}, with_flag, "added tokens"),
        ({"normalizer": NFC}, instead("normalizer", NFC, {"type": "NFD"}), "normalizer"),
        ({"normalizer": replace("a", "b")}, instead("normalizer", replace("a", "b"), replace("a", "e")), "normalizer"),
        ({}, instead("pre_tokenizer", byte_level(), byte_level(use_regex=False)), "pre-tokenizer"),
        ({"pre_tokenizer": cutting(GPT2)}, instead("pre_tokenizer", cutting(GPT2), cutting(r"\p{L}")), "pre-tokenizer"),
    ],
)
def test_a_difference_in_one_part_is_put_down_to_that_part(
    sections: Json, change: Callable[[Json], Json], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = found(document(**sections), planted(change), monkeypatch)
    assert told.texts
    assert {group.cause.part for group in told.groups} == {part}
    encode = CURRENT.build(document(**sections))
    other = CURRENT.build(change(document(**sections)))
    for group in told.groups:
        assert group.examples
        for text, before, after in group.examples:
            assert (tuple(encode(text)), tuple(other(text))) == (before, after)
            assert before != after
    assert part in told.summary


def test_equal_releases_have_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    told = found(document(), planted(lambda given: given), monkeypatch)
    assert (told.refused, told.groups, told.units) == ("", (), len(TEXTS))
    assert f"no difference on {len(TEXTS)} texts" in told.summary


def test_one_bad_text_in_a_block_is_found_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["e1 "] * 100 + ["1ab1"] + ["e1 "] * 100
    told = found(document(), planted(without_merge), monkeypatch, texts)
    assert [(group.texts, [text for text, _, _ in group.examples]) for group in told.groups] == [(1, ["ab"])]


def test_a_release_that_refuses_the_file_or_every_text_is_said_to_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = found(document(), planted(lambda given: {**given, "model": {"type": "Nothing"}}), monkeypatch)
    assert told.refused.startswith("0.0.1 refuses the file: ")
    own = document(pre_tokenizer=cutting(r"[ab]|\p{N}{2}"))
    told = found(own, release_of("1.0.0rc3"), monkeypatch)  # which has code for known patterns only
    assert told.refused.startswith("1.0.0rc3 refuses the file: ")
    assert (told.units, told.groups) == (0, ())


def test_a_text_that_only_one_release_encodes_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = word_piece(["a", "b", "1"])
    del model["vocab"]["[UNK]"]
    given = json.loads(tokenizer_json(model, pre_tokenizer={"type": "WhitespaceSplit"}))
    knows = {**model, "vocab": {**model["vocab"], "[UNK]": 9}}
    told = found(given, planted(lambda each: {**each, "model": knows}), monkeypatch, ["a b", "a c"])
    assert [(group.cause.part, group.cause.detail) for group in told.groups] == [
        ("refused", f"{CURRENT.version} can't encode the text")
    ]
    assert told.groups[0].examples == (("c", None, (9,)),)


def test_newer_tables_of_release_one_are_told_by_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["\U00011935\U00011930a", "e\u0301a", "\ua7d4's", "ab 1"]
    told = found(document(normalizer=NFC), release_of("1.0.0rc3"), monkeypatch, texts)
    causes = {(group.cause.part, group.points) for group in told.groups}
    assert ("normalizer", ((0x11930, 0x11930), (0x11935, 0x11935))) in causes
    assert ("pre-tokenizer", ((0xA7D4, 0xA7D4),)) in causes
    assert len(causes) == 2


def test_a_release_that_is_not_there_is_not_taken_for_equal() -> None:
    with pytest.raises(ImportError):
        release_differences(document(), CURRENT, [release_of("0.1.0")])


def test_every_entry_code_point_token_and_decomposition_is_asked_about() -> None:
    given = document(normalizer=NFC)
    kinds: dict[str, list[str]] = {}
    for kind, unit in units_of(given):
        kinds.setdefault(kind, []).append(unit)
    assert list(kinds) == ["entries", "code points", "marks", "added tokens", "classes", "natural"]
    points = {point for point in range(LAST_POINT + 1) if not 0xD800 <= point < 0xE000} | set(TAGS)
    assert len(kinds["code points"]) == len(points)
    assert {ord(unit[0]) for unit in kinds["code points"]} == points
    assert {"<x>", "<x><x>", "x<x>y"} <= set(kinds["added tokens"])
    assert "e\u0301\n" in kinds["marks"]
    assert set(entry_texts(given)) >= {"a", "ab", "é", "'s"}
    spaced = json.loads(tokenizer_json(bpe(["▁", "▁a"], [("▁a", "▁a")]), pre_tokenizer=metaspace()))
    assert set(entry_texts(spaced)) == {" ", " a", " a a"}


@pytest.mark.parametrize("wanted", ["ab", "x", "aba", "b a b"])
def test_nothing_can_be_left_out_of_a_minimal_text(wanted: str) -> None:
    def differ(text: str) -> bool:
        return all(char in text for char in wanted)

    found = minimized(differ, f"zz{wanted}yy{wanted[::-1]}zz")
    assert differ(found)
    assert not any(differ(found[:at] + found[at + 1 :]) for at in range(len(found)))


def test_a_readmission_tells_what_another_release_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "units_of", lambda _: (("texts", text) for text in [*TEXTS, "\ua7d4's"]))
    data = json.dumps(document()).encode()
    same = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION))
    told = compare(same, same, release="tokenizers==1.0.0rc3")
    assert told.release is not None
    assert "same IDs" not in told.summary
    assert "tokenizers==1.0.0rc3 to tokenizers==" in told.summary
    shown = told.to_document()
    assert (shown["texts"], shown["differing"]) == (len(TEXTS) + 1, 1)
    assert [example["text"] for example in shown["examples"]] == ["\ua7d4's"]
    assert told.to_report()["release"]["groups"][0]["part"] == "pre-tokenizer"


def test_a_readmission_from_a_release_that_is_not_here_says_so() -> None:
    same = Reference(parse_snapshot(json.dumps(document()).encode(), reference_version=REFERENCE_VERSION))
    told = compare(same, same, release="tokenizers==0.1.0")
    assert told.summary.startswith("tokenizers==0.1.0 to tokenizers==0.23.3: tokenizers==0.1.0 isn't here")
    assert "same IDs" not in told.summary
    assert compare(same, same).summary.startswith("the same IDs for every text")
