"""All steps by their twins: IDs, ends and counts are the reference's for genuine tokenizers."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import samples
from genuine import FAMILIES, genuine
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_kernels.errors import InvalidArgument, InvalidText, Overlong, Unsettled
from toktier_kernels.twins.pipeline import Encoding, encode
from workshop import GENERAL, WORDS, examples, random_text, sample_text, texts


def encode_by_twins(family: str, documents: list[str], **limits: int) -> Encoding:
    case = genuine(family)
    return encode(
        case.tables,
        [document.encode() for document in documents],
        spans=case.spans(documents),
        normalize=case.normalize,
        encode_overlong=case.encode_overlong,
        **limits,
    )


def check(family: str, documents: list[str], **limits: int) -> None:
    found = encode_by_twins(family, documents, **limits)
    expected = genuine(family).expected(documents)
    assert (found.ids.tolist(), found.ends.tolist(), found.document_tokens.tolist()) == expected
    assert (found.ids.dtype, found.ends.dtype, found.document_tokens.dtype) == (np.uint32, np.uint32, np.int64)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(120))
@given(data=st.data())
def test_a_batch_of_texts_gives_the_references_ids_and_ends(family: str, data: st.DataObject) -> None:
    check(family, data.draw(batches(family)))


@cache
def batches(family: str) -> st.SearchStrategy[list[str]]:
    tokens = genuine(family).tier.reference.added_tokens()[:8]
    return st.lists(texts([*GENERAL, *WORDS, *(token.content for token in tokens)]), max_size=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_longer_texts_too(family: str) -> None:
    check(family, [sample_text(6000, seed) for seed in range(3)])


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10**6), walk=st.integers(1, 40), budget=st.integers(1, 3), merge=st.integers(1, 20))
def test_what_is_past_a_limit_is_encoded_by_the_cpu(family: str, seed: int, walk: int, budget: int, merge: int) -> None:
    text = random_text(random.Random(seed), [*GENERAL, *WORDS, "a" * 30, " " * 9], 1, 20)
    check(family, [text, text[::-1]], walk_limit=walk, walk_budget=budget, merge_limit=merge)


DECOMPOSED = (
    "e\u0301",
    "a\u0323\u0301",
    "\u1100\u1161\u11a8",
    "가\u11a8",
    "\u212b",
    "\u0344",
    "\u0301",
    "q\u0334",
    "\U0001d15e",
    "ক\u09be",
)


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.lists(st.sampled_from([*DECOMPOSED, "a", " ", "\n", "1", "中", "<|im_start|>"]), max_size=10).map("".join),
        max_size=3,
    )
)
def test_text_that_is_not_normalized_is_normalized_by_regions(documents: list[str]) -> None:
    check("qwen-3", documents)


def test_only_regions_are_normalized() -> None:
    case = genuine("qwen-3")
    seen: list[bytes] = []

    def normalize(data: bytes) -> bytes:
        seen.append(data)
        assert case.normalize is not None
        return case.normalize(data)

    text = "word " * 300 + "cafe\u0301" + " word" * 300
    found = encode(case.tables, [text.encode()], normalize=normalize)
    assert found.ids.tolist() == case.expected([text])[0]
    assert seen == ["e\u0301".encode()]


def test_without_a_normalizer_such_a_text_is_an_error() -> None:
    with pytest.raises(Unsettled) as caught:
        encode(genuine("qwen-3").tables, ["e\u0301".encode()])
    assert (caught.value.code, caught.value.details) == ("kernels.unsettled", {"characters": 1})


def test_a_normalizer_that_gives_no_utf_8_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="isn't UTF-8"):
        encode(samples.tables(), ["a\u0301".encode()], normalize=lambda _: b"\xff")


def test_a_stretch_past_a_limit_without_an_encoder_is_an_error() -> None:
    with pytest.raises(Overlong, match="too long"):
        encode(samples.tables(), [b"abcdefgh"], walk_limit=4)


@pytest.mark.parametrize(
    ("documents", "offset", "document", "inner"),
    [
        ([b"ab\xff"], 2, 0, 2),
        ([b"ab", b"", b"\xe4\xb8"], 2, 2, 0),
        (["é".encode()[:1], "é".encode()[1:]], 0, 0, 0),
        ([b"ok", b"a\xed\xa0\x80b"], 3, 1, 1),
    ],
)
def test_a_text_that_is_not_utf_8_is_refused_where_it_fails(
    documents: list[bytes], offset: int, document: int, inner: int
) -> None:
    with pytest.raises(InvalidText) as caught:
        encode(samples.tables(), documents)
    assert caught.value.code == "kernels.invalid_utf8"
    assert caught.value.details == {"offset": offset, "document": document, "document_offset": inner}


def test_nothing_gives_nothing() -> None:
    for documents in ([], [b""], [b"", b""]):
        found = encode(samples.tables(), documents)
        assert (len(found.ids), len(found.ends)) == (0, 0)
        assert found.document_tokens.tolist() == [0] * len(documents)
