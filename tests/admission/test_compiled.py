"""A compiled snapshot comes back as it was written, or not at all."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.admission import compiled as module
from toktier_tier.admission.compiled import (
    CompiledSnapshot,
    EncoderVerdict,
    Verdict,
    from_bytes,
    load,
    save,
)
from toktier_tier.core.classes import CODE_POINTS
from toktier_tier.core.errors import StateCorrupt
from toktier_tier.encoders.candidates import encoder_version
from toktier_tier.tokenizer import TierTokenizer, check_fit
from workshop import Tier, build_tier, byte_level, byte_telltale, examples, telltale, tokenizer_json
from workshop import replace as replaces


@cache
def tiers() -> dict[str, Tier]:
    """One tiny tier for each kind of rule."""
    adjacency = tokenizer_json(telltale("ab▁ "), normalizer=replaces(" ", "▁"))
    found = {
        "classes": build_tier(tokenizer_json(byte_telltale("abé <"), pre_tokenizer=byte_level())),
        "adjacency": build_tier(adjacency),
        "none": build_tier(tokenizer_json(telltale("ab"), normalizer={"type": "StripAccents"})),
    }
    assert {kind: tier.rule.kind for kind, tier in found.items()} == {kind: kind for kind in found}
    return found


def sample(kind: str = "classes") -> CompiledSnapshot:
    unsafe = ((0xE9, 0xEA), (0x4E2D, 0x4E2D))
    found = EncoderVerdict("gigatoken", encoder_version("gigatoken"), Verdict.ADMITTED, "", 7, 0, unsafe)
    refused = EncoderVerdict("fastokens", "", Verdict.REFERENCE_ONLY, "encoder.refuses: no")
    encoders = {"gigatoken": found, "fastokens": refused}
    return replace(tiers()[kind].compiled, encoder="gigatoken", encoders=encoders)


every_kind = pytest.mark.parametrize("kind", ["classes", "adjacency", "none"])


@every_kind
def test_what_is_written_comes_back_the_same(kind: str) -> None:
    written = sample(kind)
    data = written.to_bytes()
    read = from_bytes(data)
    assert read == written
    assert read.to_bytes() == data
    assert read.digest == written.digest
    for a in "abé <z中":
        for b in "abé <z中":
            assert read.rule.holds(a, b) == written.rule.holds(a, b)


@every_kind
def test_it_is_kept_under_the_name_of_its_content(kind: str, tmp_path: Path) -> None:
    written = sample(kind)
    path = save(written, tmp_path / "deep" / "down")
    assert path.name == f"{written.digest}.compiled.json"
    assert load(path.parent, written.fingerprint) == written
    assert load(path.parent, "0" * 64) is None
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted([path.name, f"{written.fingerprint}.ref"])


def test_saving_again_points_at_the_newer_one(tmp_path: Path) -> None:
    save(sample(), tmp_path)
    newer = replace(sample(), longest_entry_chars=99)
    save(newer, tmp_path)
    assert load(tmp_path, newer.fingerprint) == newer


def test_a_changed_byte_in_a_file_is_noticed(tmp_path: Path) -> None:
    path, chooser = save(sample(), tmp_path), random.Random(1)
    content = path.read_bytes()
    for _ in range(examples(100)):
        changed = bytearray(content)
        changed[chooser.randrange(len(changed))] ^= chooser.randrange(1, 256)
        path.write_bytes(changed)
        with pytest.raises(StateCorrupt) as caught:
            load(tmp_path, sample().fingerprint)
        assert caught.value.code == "compiled.digest"


def test_a_file_cut_short_or_emptied_is_noticed(tmp_path: Path) -> None:
    path = save(sample(), tmp_path)
    content = path.read_bytes()
    for stop in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:stop])
        with pytest.raises(StateCorrupt):
            load(tmp_path, sample().fingerprint)


def test_a_reference_to_another_snapshots_file_is_refused(tmp_path: Path) -> None:
    save(sample("classes"), tmp_path)
    other = save(sample("adjacency"), tmp_path)
    (tmp_path / f"{sample('classes').fingerprint}.ref").write_text(other.name.split(".")[0])
    with pytest.raises(StateCorrupt) as caught:
        load(tmp_path, sample("classes").fingerprint)
    assert caught.value.code == "compiled.fingerprint"


@pytest.mark.parametrize("change", [{"format": "toktier-compiled/0"}, {"deriver": module.DERIVER_VERSION + 1}])
def test_another_version_is_refused(change: dict[str, Any]) -> None:
    document = {**json.loads(sample().to_bytes()), **change}
    with pytest.raises(StateCorrupt) as caught:
        from_bytes(json.dumps(document).encode())
    assert caught.value.code == "compiled.other_version"


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "0" * 64),
        ("kind", "adjacency"),
        ("left", pack(bytes(CODE_POINTS))),
        ("right", pack(b"\1" * CODE_POINTS)),
        ("table", [[0, 0], [0, 1]]),
        ("excluded", ["ab"]),
        ("adjacent", pack(np.array([1], dtype="<u8").tobytes())),
        ("images", {"a": "b"}),
    ],
)
def test_a_rule_that_is_not_the_one_that_was_written_is_refused(field: str, value: Any) -> None:
    document = json.loads(sample().to_bytes())
    assert document["rule"][field] != value
    document["rule"][field] = value
    with pytest.raises(StateCorrupt) as caught:
        from_bytes(json.dumps(document).encode())
    assert caught.value.code == "compiled.rule_digest"


def test_a_rule_that_unpacks_to_too_much_is_refused() -> None:
    document = json.loads(sample().to_bytes())
    document["rule"]["left"] = pack(bytes((64 << 20) + 1))
    with pytest.raises(StateCorrupt) as caught:
        from_bytes(json.dumps(document).encode())
    assert caught.value.code == "compiled.malformed"


WRONG: list[Any] = [None, True, -1, 1.5, "", "x", [], [1], {}, {"a": 1}, [[1]], 1 << 70, "Admitted", "é" * 9]


@settings(max_examples=examples(150))
@given(st.data())
def test_a_wrong_value_anywhere_is_answered_with_a_code(data: st.DataObject) -> None:
    document = json.loads(sample(data.draw(st.sampled_from(["classes", "adjacency"]))).to_bytes())
    parent: Any = document
    if data.draw(st.booleans()):
        parent = document[data.draw(st.sampled_from(["rule", "encoders"]))]
    key = data.draw(st.sampled_from(sorted(parent)))
    if data.draw(st.booleans()):
        del parent[key]
    else:
        parent[key] = data.draw(st.sampled_from(WRONG))
    try:
        from_bytes(json.dumps(document).encode())
    except StateCorrupt as error:
        code = error.code
    else:
        return
    assert code.startswith("compiled.")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"format": 1}', b"\0" * 99])
def test_what_is_no_compiled_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(StateCorrupt) as caught:
        from_bytes(data)
    assert caught.value.code in ("compiled.malformed", "compiled.other_version")


# --- whom it fits ----------------------------------------------------------------------------------------------


def test_it_fits_the_snapshot_and_libraries_that_it_was_made_with() -> None:
    tier = tiers()["classes"]
    check_fit(tier.reference.snapshot, tier.compiled)
    check_fit(tier.reference.snapshot, sample())


def encoders_of(version: str) -> dict[str, EncoderVerdict]:
    return {"gigatoken": EncoderVerdict("gigatoken", version, Verdict.ADMITTED)}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"fingerprint": "0" * 64}, "compiled.fingerprint"),
        ({"reference_version": "tokenizers==0.20.3"}, "compiled.reference"),
        (
            {"encoders": {"gigatoken": EncoderVerdict("gigatoken", "gigatoken==0.0.1", Verdict.ADMITTED)}},
            "compiled.encoder",
        ),
        ({"encoders": {"gigatoken": EncoderVerdict("gigatoken", "", Verdict.ADMITTED)}}, "compiled.encoder"),
    ],
)
def test_it_is_refused_for_anything_else(change: dict[str, Any], code: str) -> None:
    tier, other = tiers()["classes"], replace(sample(), **change)
    with pytest.raises(StateCorrupt) as caught:
        check_fit(tier.reference.snapshot, other)
    assert caught.value.code == code
    with pytest.raises(StateCorrupt) as caught:
        TierTokenizer(tier.reference, other)
    assert caught.value.code == code


def test_unsafe_code_points_are_those_of_the_encoder_that_serves() -> None:
    unsafe = sample().unsafe
    assert unsafe is not None
    assert np.flatnonzero(unsafe).tolist() == [0xE9, 0xEA, 0x4E2D]
    assert replace(sample(), encoder="reference").unsafe is None
    assert replace(sample(), encoder="fastokens").unsafe is None


def test_what_was_not_admitted_serves_by_the_reference_only() -> None:
    tier = tiers()["none"]
    assert tier.compiled.verdict is Verdict.REFERENCE_ONLY
    assert tier.tokenizer.text_encoder is None
    assert tier.tokenizer.repairer is None
    assert tier.tokenizer.encode("abba").tolist() == tier.ids("abba")
