"""The diff of two snapshots shows what changed, in few characters."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from toktier_tier.admission.causes import Cause
from toktier_tier.admission.differences import Differences, Group
from toktier_tier.admission.transfer import pack_value, unpack_value
from toktier_tier.admission_job.diff import SnapshotDiff, compare
from toktier_tier.core.snapshot import SpecialTokenPolicy, parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from workshop import bracketed_json, byte_level, byte_telltale, family_data, family_reference, token, tokenizer_json

Json = Any


def reference(data: bytes, policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))


def small(*added: Json, alphabet: str = "ab <e") -> Reference:
    return reference(tokenizer_json(byte_telltale(alphabet), pre_tokenizer=byte_level(), added=added))


def test_the_same_snapshot_needs_no_texts() -> None:
    found = compare(small(), small())
    assert (found.texts, found.differing, found.examples) == (0, 0, ())
    assert "the same IDs for every text" in found.summary


def test_a_token_under_another_id_is_shown_by_itself() -> None:
    found = compare(small(token(400, "<x>"), token(401, "<y>")), small(token(400, "<y>"), token(401, "<x>")))
    assert (found.added, found.removed, found.renumbered) == ((), (), ("<x>", "<y>"))
    assert [text for text, _, _ in found.examples] == ["<x>", "<y>"]
    assert found.examples[0][1:] == found.examples[1][:0:-1]
    document = found.to_document()
    assert (document["addedTokens"], document["removedTokens"], document["changedIds"]) == (0, 0, 2)


def test_a_flag_alone_is_found_by_texts() -> None:
    found = compare(small(token(400, "<e>")), small(token(400, "<e>", lstrip=True)))
    assert (found.added, found.removed, found.renumbered) == ((), (), ())
    assert found.differing
    assert min(len(text) for text, _, _ in found.examples) == 4
    assert all("<e>" in text for text, _, _ in found.examples)


def test_another_template_shows_in_the_empty_text() -> None:
    data = bracketed_json()
    found = compare(reference(data), reference(data, SpecialTokenPolicy.TEMPLATE))
    assert found.differing == found.texts
    assert [text for text, _, _ in found.examples] == [""]


def test_a_text_that_one_of_them_refuses_differs() -> None:
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0}, "continuing_subword_prefix": "##"}
    model["max_input_chars_per_word"] = 100
    split = {"type": "WhitespaceSplit"}
    knows = {**model, "vocab": {"a": 0, "[UNK]": 1}}
    found = compare(
        reference(tokenizer_json(model, pre_tokenizer=split)), reference(tokenizer_json(knows, pre_tokenizer=split))
    )
    assert found.differing
    assert any(before is None and after == (1,) for _, before, after in found.examples)


def altered(change: str) -> Reference:
    document = json.loads(family_data("gpt2-novelai"))
    model = document["model"]
    if change == "swap":
        vocab = model["vocab"]
        vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]
    elif change == "merge":
        joined = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        model["merges"] = [merge for merge in joined if merge.replace(" ", "") != "Ġreturn"]
        assert len(model["merges"]) == len(joined) - 1
    else:
        document["normalizer"] = {"type": "NFC"}
    return reference(json.dumps(document).encode())


@pytest.mark.parametrize(("change", "shown"), [("swap", " the"), ("merge", " return"), ("nfc", "e\u0301")])
def test_a_small_change_of_a_genuine_tokenizer_is_shown_shortly_and_soon(change: str, shown: str) -> None:
    before, after = family_reference("gpt2-novelai"), altered(change)
    began = time.process_time()
    found = compare(before, after)
    assert time.process_time() - began < 10
    assert found.differing
    texts = [text for text, _, _ in found.examples]
    assert shown in texts
    assert len(texts) <= 20
    for text, old, new in found.examples:
        assert before.encode(text).tolist() == list(old or ())
        assert after.encode(text).tolist() == list(new or ())
        assert old != new
    assert compare(before, after) == found


def test_two_families_are_compared_within_a_result() -> None:
    found = compare(family_reference("gpt2-novelai"), family_reference("llama-3.1"))
    assert found.added
    assert found.removed
    assert len(json.dumps(found.to_document())) < 20_000
    assert len(found.examples) == 20


def test_a_diff_crosses_processes_whole() -> None:
    group = Group(Cause("normalizer", "other tables"), 2, ((0x300, 0x301),), (("a\ud800", (1, 2), None),))
    release = Differences("tokenizers==0.22.2", "tokenizers==0.23.3", "", 7, (group,))
    found = SnapshotDiff(("a", "b"), ("x",), ("y",), (), (), 3, 1, (("t", None, (4,)),), release)
    assert unpack_value(pack_value(found)) == found
