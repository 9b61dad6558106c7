"""Documents for other libraries: the numbers of the file, the merges that count, or a refusal by name."""

from __future__ import annotations

import itertools
import json

import pytest

from toktier_tier.core.classes import byte_characters
from toktier_tier.core.errors import EncoderUnavailable
from toktier_tier.core.numbers import Number, exact
from toktier_tier.core.snapshot import parse_snapshot
from toktier_tier.encoders.candidates import build_candidate
from toktier_tier.encoders.documents import candidate_document, exact_json, last_places
from toktier_tier.encoders.reference import REFERENCE_VERSION, core_document, encode_of, load_tokenizer
from workshop import Json, bpe, byte_level, tokenizer_json, unigram


def document_of(model: Json, **sections: Json) -> Json:
    return core_document(parse_snapshot(tokenizer_json(model), reference_version=REFERENCE_VERSION), None) | sections


def with_score(text: str) -> Json:
    data = tokenizer_json(unigram({"<unk>": 0.0, "a": -1.5})).replace(b"-1.5", text.encode())
    return core_document(parse_snapshot(data, reference_version=REFERENCE_VERSION), None)


MERGES = [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "a"), ("a", "b"), ("b", "a"), ("b", "c"), ("a", "bc"), ("b", "a")]


def test_of_a_pair_that_merges_twice_the_last_place_counts() -> None:
    model = bpe("abc", MERGES)
    assert len(last_places(model["merges"])) == 6
    twice, once = (
        encode_of(load_tokenizer(document_of({**model, "merges": m})))
        for m in (model["merges"], last_places(model["merges"]))
    )
    first_places = encode_of(load_tokenizer(document_of({**model, "merges": list(dict.fromkeys(MERGES))})))
    texts = ["".join(text) for size in range(1, 8) for text in itertools.product("abc", repeat=size)]
    assert [once(text).tolist() for text in texts] == [twice(text).tolist() for text in texts]
    assert any(first_places(text).tolist() != twice(text).tolist() for text in texts)
    given = candidate_document(document_of(model))
    assert given["model"]["merges"] == last_places(model["merges"])
    assert given == document_of(model) | {"model": {**model, "merges": last_places(model["merges"])}}


@pytest.mark.parametrize("name", ["gigatoken", "fastokens"])
def test_no_candidate_is_given_a_pair_that_merges_twice(name: str) -> None:
    document = document_of(bpe(map(chr, byte_characters().tolist()), MERGES), pre_tokenizer=byte_level())
    reference = encode_of(load_tokenizer(document))
    candidate = build_candidate(name, document)
    for text in map("".join, itertools.product("abc", repeat=5)):
        assert candidate.encode(text).tolist() == reference(text).tolist()


def test_a_document_is_written_with_the_numbers_of_its_file() -> None:
    text = exact_json(with_score("-3.1415926535897932384"))
    assert '["a",-3.1415926535897932384]' in text.replace(" ", "")
    document = document_of(
        bpe("abc", MERGES), normalizer={"type": "NFC", "odd": [Number("1.50"), {"deep": Number("2e-3")}]}
    )
    assert json.loads(exact_json(document)) == document
    assert "1.50" in exact_json(document)
    assert "2e-3" in exact_json(document)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("-1.5", True),
        ("-3", True),
        ("-0.0", True),
        ("-9.00719925474099", True),
        ("-9.007199254740993", False),
        ("-3.1415926535897932384", False),
        ("-1e22", True),
        ("-1e23", False),
        ("-1.5e-22", False),
        ("-9007199254740993", False),
        ("-0.10000000000000000000000", False),
    ],
)
def test_numbers_that_parsers_may_read_differently_are_refused(text: str, same: bool) -> None:
    number = int(text) if text.strip("-").isdigit() else Number(text)
    assert exact(number) == same
    if same:
        candidate_document(with_score(text))
        return
    with pytest.raises(EncoderUnavailable) as caught:
        build_candidate("fastokens", with_score(text))
    assert caught.value.code == "encoder.inexact_numbers"


def test_entries_that_share_an_id_are_refused() -> None:
    model = bpe("abc")
    model["vocab"]["c"] = model["vocab"]["b"]
    with pytest.raises(EncoderUnavailable) as caught:
        build_candidate("gigatoken", document_of(model))
    assert caught.value.code == "encoder.repeated_ids"
