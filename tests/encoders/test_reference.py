"""The reference and what is asked of it: classes, predicates, images, templates, and errors with a code."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from toktier_tier.core.classes import CODE_POINTS, Bools, is_scalar, normalized_alphabet
from toktier_tier.core.errors import InvalidPattern, InvalidText, InvalidTokenizer, UnsupportedTokenizer
from toktier_tier.core.pipeline import Position, parse_pipeline
from toktier_tier.core.snapshot import SpecialTokenPolicy, parse_snapshot
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.reference import (
    APART_CHARS,
    REFERENCE_VERSION,
    Reference,
    ReferenceProbe,
    character_tests,
    class_members,
    core_document,
    load_tokenizer,
    pieces_of,
    predicate_members,
)
from workshop import (
    GENERAL,
    bpe,
    build_tier,
    byte_level,
    byte_telltale,
    examples,
    family_reference,
    metaspace,
    sample_text,
    split,
    telltale,
    token,
    tokenizer_json,
    unigram,
    word_piece,
)


def reference_of(data: bytes, policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE) -> Reference:
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))


SCALARS = [*range(0xD800), *range(0xE000, CODE_POINTS)]
EDGES = [0, 9, 10, 32, 0x41, 0x7F, 0x80, 0x85, 0xA0, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
SAMPLE = sorted({*map(ord, GENERAL), *EDGES, *range(0x300, 0x370), *SCALARS[::977]})

# --- classes ---------------------------------------------------------------------------------------------------


def split_members(source: str) -> Bools:
    """The slow twin: which single characters `Split`, the step that counts, takes for a match."""
    splitter = pre_tokenizers.Split(Regex(source), "removed", invert=True)
    found = np.zeros(CODE_POINTS, dtype=bool)
    text = "".join(map(chr, SCALARS))
    for _, (start, end) in splitter.pre_tokenize_str(text):
        found[SCALARS[start:end]] = True
    return found


@pytest.mark.parametrize("source", [r"\p{L}", r"\s", r"[^\s\p{L}\p{N}]", r"(?i:s)", r"[\p{Han}&&[^一]]"])
def test_classes_asked_by_replacing_are_those_that_split_uses(source: str) -> None:
    assert np.array_equal(class_members(source), split_members(source))


@pytest.mark.parametrize(
    "source", [r"\p{L}", r"\p{N}", r"\p{M}", r"[\r\n]", r"\x{41}", r"(?i:k)", r".", r"\S", r"[[a-z]&&[^c]]"]
)
def test_membership_of_single_characters_is_the_classes(source: str) -> None:
    members = class_members(source)
    match = normalizers.Replace(Regex(source), "")
    for point in SAMPLE:
        assert members[point] == (match.normalize_str(chr(point)) == ""), hex(point)


def test_surrogates_are_in_no_class_and_answers_are_read_only() -> None:
    for source in (".", r"[\s\S]", r"\p{Cs}"):
        members = class_members(source)
        assert not members[0xD800:0xE000].any()
        assert not members.flags.writeable
    assert class_members(r"[\s\S]").sum() == is_scalar().sum() == len(SCALARS)


def test_case_folding_is_the_references() -> None:
    assert [chr(point) for point in np.flatnonzero(class_members("(?i:s)"))] == ["S", "s", "ſ"]
    assert [chr(point) for point in np.flatnonzero(class_members("(?i:k)"))] == ["K", "k", "\u212a"]


@pytest.mark.parametrize("source", ["[", r"\p{NoSuchProperty}", "(", "[z-a]"])
def test_a_class_that_the_reference_refuses_is_an_invalid_pattern(source: str) -> None:
    with pytest.raises(InvalidPattern) as caught:
        class_members(source)
    assert caught.value.code == "pattern.reference_refuses"


PREDICATES = {
    "numeric": (pre_tokenizers.Digits(individual_digits=True), 3),
    "punctuation": (pre_tokenizers.Punctuation("isolated"), 3),
    "white_space": (pre_tokenizers.WhitespaceSplit(), 2),
    "bert_punctuation": (pre_tokenizers.BertPreTokenizer(), 3),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_are_what_the_pre_tokenizer_does_between_letters(name: str) -> None:
    members = predicate_members(name)
    splitter, pieces = PREDICATES[name]
    space = predicate_members("white_space")
    for point in SAMPLE:
        found = [piece for piece, _ in splitter.pre_tokenize_str(f"a{chr(point)}a")]
        if name == "bert_punctuation" and space[point]:
            assert not members[point]  # removed, not cut
        else:
            assert members[point] == (len(found) == pieces), (hex(point), found)
    assert not members[0xD800:0xE000].any()


def test_the_flags_own_word_and_space_are_those_that_an_added_token_obeys() -> None:
    tests = character_tests()
    one = telltale("ab")  # 6 entries: the reference numbers an added token from there on
    single = reference_of(tokenizer_json(one, added=[token(6, "<x>", single_word=True)])).tokenizer
    strip = reference_of(tokenizer_json(one, added=[token(6, "<x>", lstrip=True, rstrip=True)])).tokenizer
    for point in SAMPLE:
        char = chr(point)
        assert (6 not in single.encode(f"{char}<x>").ids) == tests.is_word(char), hex(point)
        offsets = strip.encode(f"{char}<x>{char}").offsets
        assert (offsets[0] == (0, 5)) == tests.is_space(char), hex(point)


# --- normalizers -----------------------------------------------------------------------------------------------

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@cache
def form_reference(form: str) -> Reference:
    return reference_of(tokenizer_json(telltale("ab"), normalizer={"type": form}))


@pytest.mark.parametrize("document", [{"type": "NFKC"}, {"type": "NFD"}, {"type": "Lowercase"}])
def test_images_are_what_the_normalizer_makes_of_each_character_alone(document: dict[str, str]) -> None:
    reference = reference_of(tokenizer_json(telltale("ab"), normalizer=document))
    images = ReferenceProbe(reference).images()
    normalize = reference.normalizer(Position.CONTINUATION)
    assert normalize is not None
    for point in SAMPLE:
        expected = normalize(chr(point))
        assert images[point] == (None if expected == chr(point) else expected), hex(point)


def test_characters_that_are_said_not_to_reorder_change_places_with_no_mark() -> None:
    reorders = ReferenceProbe(form_reference("NFD")).reorders()
    decompose = form_reference("NFD").normalizer(Position.CONTINUATION)
    assert decompose is not None
    marks = "\u0301\u0327\u0334\u0345\u05b0\u093c\u3099\u1dce"  # of eight classes
    assert all(reorders[ord(mark)] for mark in marks)
    assert not reorders[:0x300].any()
    for point in sorted({*SAMPLE, *range(0x300, 0x370), *range(0x591, 0x800), *range(0x900, 0x1000, 3)}):
        char = chr(point)
        if not reorders[point]:
            for mark in marks:
                assert decompose(f"a{mark}{char}") == f"a{mark}{decompose(char)}", hex(point)
                assert decompose(f"{char}{mark}") == decompose(char) + mark or len(decompose(char)) > 1, hex(point)


def settled_strings(form: str) -> st.SearchStrategy[str]:
    """Texts of characters that are settled always, with single ones between that are settled alone."""
    settled = settled_points(form_reference(form))
    assert settled is not None
    hard = [*map(ord, GENERAL), *range(0x300, 0x3000), *range(0xA000, 0xB000)]
    always = st.sampled_from([p for p in hard if settled.always[p]] + np.flatnonzero(settled.always).tolist()[::50])
    alone = st.sampled_from(np.flatnonzero(settled.alone).tolist())
    pair = st.tuples(always) | st.tuples(always, alone)
    return st.lists(pair, max_size=9).map(lambda pairs: "".join(chr(point) for points in pairs for point in points))


@pytest.mark.parametrize("form", FORMS)
def test_settled_characters_are_their_own_normal_form_in_any_company(form: str) -> None:
    normalize = form_reference(form).normalizer(Position.CONTINUATION)
    assert normalize is not None

    @settings(max_examples=examples(150))
    @given(settled_strings(form))
    def check(text: str) -> None:
        assert normalize(text) == text

    check()


@pytest.mark.parametrize("form", FORMS)
def test_all_settled_characters_in_a_row_are_unchanged_forwards_and_backwards(form: str) -> None:
    normalize = form_reference(form).normalizer(Position.CONTINUATION)
    settled = settled_points(form_reference(form))
    assert normalize is not None
    assert settled is not None
    text = "".join(chr(point) for point in np.flatnonzero(settled.always))
    for whole in (text, text[::-1], text[::2] + text[1::2]):
        assert normalize(whole) == whole
    assert settled.always[:0x80].all()
    assert not (settled.always & settled.alone).any()


@pytest.mark.parametrize("form", FORMS)
def test_normalizing_apart_at_a_stable_character_is_normalizing_whole(form: str) -> None:
    reference = form_reference(form)
    pipeline = parse_pipeline({"type": form}, None)
    stable = normalized_alphabet(pipeline.normalizer, ReferenceProbe(reference)).stable
    normalize = reference.normalizer(Position.CONTINUATION)
    assert normalize is not None
    hangul = "\u1100\u1161\u11a8\uac00\uac01"
    chars = st.sampled_from([*GENERAL, *hangul, "\u0327", "\u0338", "e", "<", "\u00e9", "\u0344", "\u1e9b", "\ufb01"])

    @settings(max_examples=examples(150))
    @given(st.lists(chars, min_size=2, max_size=10).map("".join))
    def check(text: str) -> None:
        whole = normalize(text)
        for position in range(1, len(text)):
            if stable[ord(text[position - 1])] and stable[ord(text[position])]:
                assert normalize(text[:position]) + normalize(text[position:]) == whole, position

    check()


# --- the whole and its parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2-novelai", "qwen-3", "mistral-7b-v0.3"])
def test_a_core_is_the_reference_for_ordinary_normalized_text(family: str) -> None:
    reference = family_reference(family)
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    core = reference.core(pipeline.pre_tokenizer_documents[Position.TEXT_START])
    for text in ("", "a", "Hello world\n\n  12345 it's", "中文 한글 \U0001f600"):
        normalize = reference.normalizer(Position.TEXT_START)
        assert core.encode(normalize(text) if normalize else text).tolist() == reference.encode_text(text).tolist()


def two_readings(count: int) -> list[str]:
    """Texts of numbers that the reference reads otherwise than Python does."""
    chooser = random.Random(0)
    texts = [f"-{chooser.randint(3, 9)}.{chooser.randint(0, 10**18):018d}" for _ in range(40 * count)]
    read = scores_of(reference_of(scored_json(texts)).tokenizer)
    return [text for text, score in zip(texts, read, strict=True) if score != float(text)][:count]


def scored_json(texts: list[str]) -> bytes:
    names = [f"<{at}>" for at in range(len(texts))]
    data = tokenizer_json(unigram({"<unk>": 0.0, **dict.fromkeys(names, -1.0)}), pre_tokenizer=metaspace())
    for text in texts:
        data = data.replace(b"-1.0", text.encode(), 1)
    return data


def scores_of(tokenizer: Any) -> list[float]:
    return [score for _, score in json.loads(tokenizer.to_str())["model"]["vocab"]][1:]


def test_cores_share_the_model_that_was_loaded_from_the_bytes_of_the_file() -> None:
    texts = two_readings(20)
    assert len(texts) == 20
    reference = reference_of(scored_json(texts))
    scores = scores_of(reference.tokenizer)
    assert scores != [float(text) for text in texts]
    core = reference.core(metaspace())
    assert scores_of(core._tokenizer) == scores
    ranked = reference_of(tokenizer_json(bpe("abc", [("a", "b")])))
    core = ranked.core(split("c"))
    ranked.tokenizer.model.ignore_merges = True  # no copy: what changes the one changes the other
    assert core._tokenizer.model.ignore_merges


def test_what_is_loaded_from_a_document_has_the_numbers_of_the_file() -> None:
    reference = reference_of(scored_json(two_readings(20)))
    written = core_document(reference.snapshot, metaspace())
    assert scores_of(load_tokenizer(written)) == scores_of(reference.tokenizer)


def test_equal_paths_fall_as_in_the_reference() -> None:
    """One word against its two halves, which weigh exactly as much: in the file's numbers, not in Python's."""
    texts = two_readings(40)
    scores = scores_of(reference_of(scored_json(texts)).tokenizer)
    text, score = next((text, score) for text, score in zip(texts, scores, strict=True) if score > float(text))
    pieces = {"<unk>": -20.0, "a": score / 2, "b": score / 2, "ab": -1.0}
    data = tokenizer_json(unigram(pieces), pre_tokenizer=split("[ab]+")).replace(b"-1.0", text.encode())
    tier = build_tier(data)
    assert tier.encoded("ab") == tier.ids("ab")


def test_pieces_are_the_pre_tokenizers_or_ids_where_it_has_no_part() -> None:
    cutting = pieces_of(family_reference("gpt2-novelai"))
    assert cutting("Hello world", Position.TEXT_START) == ["Hello", "Ġworld"]
    whole = family_reference("mixtral-8x22b-v0.1")
    assert pieces_of(whole)("Hello", Position.TEXT_START) == whole.encode_text("Hello").tolist()
    assert pieces_of(whole)("Hello", Position.CONTINUATION) != whole.encode_text("Hello").tolist()


def test_the_policy_decides_about_template_tokens_and_nothing_else() -> None:
    bare = family_reference("llama-3.1")
    template = family_reference("llama-3.1", SpecialTokenPolicy.TEMPLATE)
    assert (bare.prefix_ids, bare.suffix_ids) == ((), ())
    assert (template.prefix_ids, template.suffix_ids) == ((128000,), ())
    text = "Hello<|eot_id|> world"
    assert template.encode(text).tolist() == [128000, *bare.encode(text).tolist()]
    assert template.encode_text(text).tolist() == bare.encode_text(text).tolist() == bare.encode(text).tolist()


A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
CLS = {"SpecialToken": {"id": "c", "type_id": 0}}


def template(*pieces: Any) -> Any:
    tokens = {"c": {"id": "c", "ids": [2], "tokens": ["c"]}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [A, B], "special_tokens": tokens}


@pytest.mark.parametrize(
    ("post_processor", "copies", "modelled"),
    [
        (None, 1, True),
        (byte_level(), 1, True),
        (template(CLS, A, CLS), 1, True),
        ({"type": "Sequence", "processors": [byte_level(), template(CLS, A)]}, 1, True),
        ({"type": "BertProcessing", "sep": ["b", 1], "cls": ["c", 2]}, 1, True),
        (template(A, A), 2, False),
        (template(CLS, A, CLS, A), 2, False),
        (template(CLS), 0, False),
        ({"type": "Sequence", "processors": [template(CLS, A), template(A, A)]}, 2, False),
    ],
)
def test_a_post_processor_that_changes_ids_without_special_tokens_is_followed(
    post_processor: Any, copies: int, modelled: bool
) -> None:
    data = tokenizer_json(bpe("abc"), pre_tokenizer=split("a|b"), post_processor=post_processor)
    tier = build_tier(data)
    assert tier.ids("ab") == [0, 1] * copies
    assert (tier.reference.snapshot.pipeline is not None) == modelled
    for text in ("", "ab", "aabb" * APART_CHARS):
        assert tier.tokenizer.encode(text).tolist() == tier.ids(text)
        assert tier.reference.encode(text).tolist() == tier.reference.encode_text_apart(text).tolist() == tier.ids(text)


def test_added_tokens_come_with_the_ids_that_the_reference_gave_them() -> None:
    """A file may claim an ID that the vocabulary contradicts; the reference's own answer counts."""
    reference = reference_of(tokenizer_json(bpe("ab<s>"), added=[token(77, "a"), token(50, "<s>", special=True)]))
    ids = {found.content: found.id for found in reference.added_tokens()}
    for content, id in ids.items():
        assert reference.encode_text(content).tolist() == [id]


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    reference = reference_of(tokenizer_json(bpe("ab"), truncation=truncation))
    assert reference.encode("abababab").tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    "document",
    [
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        {"model": {"type": "Nothing"}},
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": split("((")},
        {},
    ],
)
def test_what_the_reference_refuses_is_an_invalid_tokenizer(document: dict[str, object]) -> None:
    with pytest.raises(InvalidTokenizer) as caught:
        load_tokenizer({"version": "1.0", "added_tokens": [], **document})
    assert caught.value.code == "tokenizer.reference_refuses"


@pytest.mark.parametrize(
    "model",
    [unigram({"a": -1.0}, unk_id=None), {**word_piece(["a"]), "unk_token": "[MISSING]"}],
    ids=["unigram", "wordpiece"],
)
def test_text_that_the_model_has_no_token_for_is_an_error_with_a_code(model: dict[str, object]) -> None:
    reference = reference_of(tokenizer_json(model))
    assert reference.encode_text("a").tolist() == [reference.tokenizer.token_to_id("a")]
    with pytest.raises(InvalidText) as caught:
        reference.encode_text("é")
    assert caught.value.code == "text.reference_refuses"


def test_a_template_that_is_not_around_the_text_is_refused_by_name() -> None:
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [400], "tokens": ["<s>"]}},
    }
    data = tokenizer_json(
        byte_telltale("ab"),
        added=[token(400, "<s>", special=True)],
        pre_tokenizer=byte_level(),
        post_processor=processor,
    )
    assert reference_of(data).prefix_ids == ()
    with pytest.raises((UnsupportedTokenizer, InvalidTokenizer)):
        reference_of(data, SpecialTokenPolicy.TEMPLATE)


def test_the_limit_of_ids_covers_added_tokens() -> None:
    reference = reference_of(tokenizer_json(bpe("ab"), added=[token(2, "<s>")]))
    assert reference.id_limit == 3


@pytest.mark.parametrize("family", ["qwen-3", "gpt2-novelai", "mistral-7b-v0.3", "moonshine", "deepseek-v4"])
def test_the_call_that_lets_other_threads_run_gives_the_same_ids(family: str) -> None:
    reference = family_reference(family)
    literals = [each.content for each in reference.added_tokens()][:20]
    chooser = random.Random(family)
    for chars in (APART_CHARS - 1, APART_CHARS, 3 * APART_CHARS):
        text = sample_text(chars, chooser.randrange(1_000))
        cut = chooser.randrange(chars)
        text = text[:cut] + "".join(chooser.choices(literals, k=20)) + "e\u0301\u0323" + text[cut:]
        assert reference.encode_text_apart(text).tobytes() == reference.encode_text(text).tobytes()
