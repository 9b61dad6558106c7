"""What counts for a snapshot's fingerprint, and that no file, however hostile, does worse than a coded error."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.added_tokens import MAX_ADDED_TOKENS
from toktier_tier.core.errors import InvalidTokenizer, TierError, UnsupportedTokenizer
from toktier_tier.core.numbers import Number
from toktier_tier.core.snapshot import MAX_NESTING, Snapshot, SpecialTokenPolicy, parse_snapshot
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from workshop import (
    bpe,
    byte_level,
    examples,
    family_data,
    metaspace,
    normalizers,
    pre_tokenizers,
    replace,
    split,
    token,
    tokenizer_json,
    unigram,
    word_piece,
)

Json = Any


def parse(data: bytes | Json, **options: Any) -> Snapshot:
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return parse_snapshot(data, **{"reference_version": REFERENCE_VERSION, **options})


def small(**model_options: Json) -> Json:
    """A small file with something in every section."""
    return json.loads(
        tokenizer_json(
            bpe("abcd <>s/", [("a", "b"), ("ab", "c"), ("c", "d")], **model_options),
            added=[token(20, "<s>", special=True), token(21, "</s>", special=True), token(22, "ab c", rstrip=True)],
            normalizer=normalizers({"type": "NFC"}, replace("x", "y")),
            pre_tokenizer=pre_tokenizers(split("[a-z]+|."), byte_level(use_regex=False)),
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [20], "tokens": ["<s>"]}},
            },
            decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        )
    )


def changed(change: Callable[[Json], object], document: Json | None = None) -> Json:
    document = copy.deepcopy(small() if document is None else document)
    change(document)
    return document


def setting(path: str, value: Json) -> Callable[[Json], None]:
    """A change that puts `value` at `path` (keys and indexes joined by dots)."""

    def change(document: Json) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            document = document[part]
        document[last] = value

    return change


# --- the fingerprint -------------------------------------------------------------------------------------------


def test_the_layout_of_the_json_does_not_count() -> None:
    document = small()
    shuffled = {key: document[key] for key in reversed(document)}
    shuffled["model"] = {key: document["model"][key] for key in reversed(document["model"])}
    shuffled["model"]["vocab"] = dict(reversed(document["model"]["vocab"].items()))
    prints = {
        parse(data).fingerprint
        for data in (
            json.dumps(document).encode(),
            json.dumps(document, indent=2).encode(),
            json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n",
            json.dumps(shuffled).encode(),
        )
    }
    assert len(prints) == 1


TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 9},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}


@pytest.mark.parametrize(
    "change",
    [
        setting("decoder", None),
        setting("decoder", {"type": "Fuse"}),
        setting("version", "2.0"),
        setting("truncation", TRUNCATION),
        setting("padding", PADDING),
        setting("model.merges", ["a b", "ab c", "c d"]),
        setting("model.merges", ["#version: 0.2", "a b", "ab c", "c d"]),
        setting("model.merges", ["a b", "#version: 0.2 - later", "ab c", "c d"]),
        setting("model.continuing_subword_prefix", ""),
        setting("model.end_of_word_suffix", ""),
        setting("model.dropout", 0.0),
        lambda document: document["model"].pop("type"),
        lambda document: [document["model"].pop(key) for key in ("dropout", "fuse_unk", "byte_fallback", "unk_token")],
        lambda document: document.pop("truncation"),
        lambda document: document["added_tokens"][0].update(unknown=1),
    ],
)
def test_what_changes_no_id_does_not_count(change: Callable[[Json], None]) -> None:
    assert parse(changed(change)).fingerprint == parse(small()).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        setting("model.unk_token", "a"),
        setting("model.fuse_unk", True),
        setting("model.byte_fallback", True),
        setting("model.ignore_merges", True),
        setting("model.continuing_subword_prefix", "##"),
        setting("model.end_of_word_suffix", "</w>"),
        setting("model.vocab.abc", 19),
        setting("model.vocab.new", 30),
        setting("model.merges", [["ab", "c"], ["a", "b"], ["c", "d"]]),
        setting("model.merges", [["a", "b"], ["ab", "c"]]),
        setting("normalizer", None),
        setting("normalizer.normalizers.0.type", "NFKC"),
        setting("normalizer.normalizers.1.content", "z"),
        setting("pre_tokenizer", None),
        setting("pre_tokenizer.pretokenizers.0.behavior", "Removed"),
        setting("pre_tokenizer.pretokenizers.0.invert", True),
        setting("pre_tokenizer.pretokenizers.0.pattern", {"String": "[a-z]+|."}),
        setting("pre_tokenizer.pretokenizers.1.add_prefix_space", True),
        setting("added_tokens.0.id", 40),
        setting("added_tokens.0.content", "<S>"),
        setting("added_tokens.0.special", False),
        setting("added_tokens.0.normalized", True),
        setting("added_tokens.0.lstrip", True),
        setting("added_tokens.0.rstrip", True),
        setting("added_tokens.0.single_word", True),
        setting("added_tokens.2.rstrip", False),
        lambda document: document["added_tokens"].reverse(),
        lambda document: document["added_tokens"].pop(),
    ],
)
def test_everything_that_can_change_an_id_counts(change: Callable[[Json], None]) -> None:
    assert parse(changed(change)).fingerprint != parse(small()).fingerprint


def test_two_single_word_pieces_are_not_one_with_a_space() -> None:
    """Where fields meet, nothing runs together."""
    one = changed(setting("added_tokens.2.content", "ab"), changed(setting("added_tokens.1.content", "c</s>")))
    two = changed(setting("added_tokens.2.content", "abc"), changed(setting("added_tokens.1.content", "</s>")))
    assert parse(one).fingerprint != parse(two).fingerprint


def test_reference_version_policy_and_chat_template_count() -> None:
    document = small()
    prints = [
        parse(document).fingerprint,
        parse(document, reference_version="tokenizers==0.20.3").fingerprint,
        parse(document, policy=SpecialTokenPolicy.TEMPLATE).fingerprint,
        parse(document, chat_template=b"").fingerprint,
        parse(document, chat_template=b"{{ messages }}").fingerprint,
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("policy", SpecialTokenPolicy)
def test_the_post_processor_counts_but_for_what_acts_on_offsets_only(policy: SpecialTokenPolicy) -> None:
    """A template that names the text twice doubles its IDs, special tokens or not."""

    def fingerprint(post_processor: Json) -> str:
        return parse(changed(setting("post_processor", post_processor)), policy=policy).fingerprint

    text = {"Sequence": {"id": "A", "type_id": 0}}
    once = {"type": "TemplateProcessing", "single": [text], "pair": [text, text], "special_tokens": {}}
    roberta = {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["b", 1], "trim_offsets": True}
    assert fingerprint(None) != fingerprint(once) != fingerprint({**once, "single": [text, text]})
    assert fingerprint({"type": "Sequence", "processors": [once]}) != fingerprint(
        {"type": "Sequence", "processors": []}
    )
    assert fingerprint(roberta) == fingerprint({**roberta, "trim_offsets": False})
    assert fingerprint(roberta) != fingerprint({**roberta, "cls": ["b", 2]})
    inside = [{"type": "Sequence", "processors": [{**byte_level(), "trim_offsets": trim}]} for trim in (True, False)]
    assert fingerprint(inside[0]) == fingerprint(inside[1])


def test_numbers_count_by_their_text() -> None:
    """The reference reads the first two as different numbers, Python as the same; it drops what no component knows."""
    prints = []
    for text in (b"-3.1415926535897932384", b"-3.1415926535897932385", b"-3.14"):
        scored = json.dumps({**small(), "model": unigram({"<unk>": 0.0, "a": -1.5})}).encode()
        component = json.dumps(changed(setting("normalizer.normalizers.1.weight", -1.5))).encode()
        prints += [parse(data.replace(b"-1.5", text)).fingerprint for data in (scored, component)]
    assert len(set(prints)) == 6


def test_a_number_keeps_its_text_through_pickling() -> None:
    number = pickle.loads(pickle.dumps(Number("-1.50")))
    assert (number, number.text) == (-1.5, "-1.50")


def test_truncation_and_padding_are_stripped_with_a_note_and_in_deed() -> None:
    snapshot = parse(changed(setting("truncation", TRUNCATION), changed(setting("padding", PADDING))))
    assert [note.split()[0] for note in snapshot.notes] == ["truncation", "padding"]
    assert parse(small()).notes == ()
    text = "abcdabcd abc"
    assert Reference(snapshot).encode(text).tolist() == Reference(parse(small())).encode(text).tolist()
    assert snapshot.document()["truncation"] is None


@pytest.mark.parametrize("family", ["gpt2-novelai", "moonshine"])
def test_a_genuine_file_written_anew_has_the_same_fingerprint(family: str) -> None:
    data = family_data(family)
    written = json.dumps(json.loads(data), indent=1, sort_keys=True).encode()
    assert parse(written).fingerprint == parse(data).fingerprint
    assert parse(written).sha256 != parse(data).sha256


@pytest.mark.parametrize("family", ["gpt2-novelai", "moonshine"])
def test_the_document_of_a_snapshot_has_its_fingerprint(family: str) -> None:
    snapshot = parse(family_data(family))
    assert parse(json.dumps(snapshot.document()).encode()).fingerprint == snapshot.fingerprint


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (bpe("ab", [("a", "b")]), "BPE"),
        (unigram({"<unk>": 0.0, "a": -1.0}), "Unigram"),
        (word_piece("ab"), "WordPiece"),
        ({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}, "WordLevel"),
    ],
)
def test_a_model_that_does_not_name_its_type_is_told_by_its_fields(model: Json, kind: str) -> None:
    named = json.loads(tokenizer_json(model))
    unnamed = changed(lambda document: document["model"].pop("type"), named)
    assert parse(unnamed).model["type"] == kind
    assert parse(unnamed).fingerprint == parse(named).fingerprint
    Reference(parse(unnamed))


# --- hostile files ---------------------------------------------------------------------------------------------


def code_of(data: bytes) -> str:
    """The code with which parsing or the reference refuses; '' where both accept. Anything else escapes."""
    try:
        Reference(parse(data))
    except TierError as error:
        code = error.code
        str(error).encode("utf-8", "surrogatepass")
    else:
        return ""
    assert code
    return code


def raw(document: Json, **replaced: str) -> bytes:
    """JSON text with the string "@name" replaced by raw text, for what `json.dumps` would not write."""
    text = json.dumps(document)
    for name, value in replaced.items():
        text = text.replace(f'"@{name}"', value)
    return text.encode()


REGEX = "pre_tokenizer.pretokenizers.0.pattern.Regex"
REFUSED: list[tuple[str, bytes, str]] = [
    ("empty", b"", "tokenizer.not_json"),
    ("white space", b" \n", "tokenizer.not_json"),
    ("html", b"<!DOCTYPE html><html><body>404</body></html>", "tokenizer.not_json"),
    ("git-lfs pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "tokenizer.not_json"),
    ("latin-1", '{"model": "é"}'.encode("latin-1"), "tokenizer.not_utf8"),
    ("utf-16", json.dumps(small()).encode("utf-16"), "tokenizer.not_utf8"),
    ("byte order mark", b"\xef\xbb\xbf" + json.dumps(small()).encode(), "tokenizer.not_json"),
    ("nul bytes", b"\0" * 100, "tokenizer.not_json"),
    ("encoded surrogate", b'{"model": "\xed\xa0\x80"}', "tokenizer.not_utf8"),
    ("a list", b"[]", "tokenizer.not_an_object"),
    ("null", b"null", "tokenizer.not_an_object"),
    ("an empty object", b"{}", "tokenizer.no_model"),
    ("two documents", json.dumps(small()).encode() * 2, "tokenizer.not_json"),
    ("duplicate key", b'{"model": {}, "model": {}}', "tokenizer.duplicate_key"),
    ("duplicate entry", b'{"model": {"vocab": {"a": 0, "a": 1}}}', "tokenizer.duplicate_key"),
    ("duplicate key, escaped", b'{"model": {"vocab": {"a": 0, "\\u0061": 1}}}', "tokenizer.duplicate_key"),
    ("NaN", raw(small(dropout="@n"), n="NaN"), "tokenizer.not_json"),
    ("Infinity", raw(small(dropout="@n"), n="-Infinity"), "tokenizer.not_json"),
    ("10^5 brackets", b'{"model": ' + b"[" * 100_000, "tokenizer.not_json"),
    ("10^5 closed brackets", b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "tokenizer.not_json"),
    ("10^5 braces", b'{"a": ' * 100_000, "tokenizer.not_json"),
    ("10^5 digits", b'{"model": ' + b"9" * 100_000 + b"}", "tokenizer.not_json"),
    ("dropout", json.dumps(small(dropout=0.1)).encode(), "tokenizer.dropout"),
    ("unknown model", raw(changed(setting("model.type", "GPT"))), "tokenizer.model_type"),
    ("id too large", raw(changed(setting("model.vocab.a", 1 << 32))), "tokenizer.bad_vocab"),
    ("id negative", raw(changed(setting("model.vocab.a", -1))), "tokenizer.bad_vocab"),
    ("id a boolean", raw(changed(setting("model.vocab.a", True))), "tokenizer.bad_vocab"),
    ("id a float", raw(changed(setting("model.vocab.a", 1.0))), "tokenizer.bad_vocab"),
    ("merge of one", raw(changed(setting("model.merges", ["ab"]))), "tokenizer.bad_merges"),
    ("merge of three", raw(changed(setting("model.merges", ["a b c"]))), "tokenizer.bad_merges"),
    ("merge of nothing", raw(changed(setting("model.merges", [[]]))), "tokenizer.bad_merges"),
    ("merge of unknown tokens", raw(changed(setting("model.merges", [["q", "r"]]))), "tokenizer.reference_refuses"),
    ("merge to an unknown token", raw(changed(setting("model.merges", [["d", "d"]]))), "tokenizer.reference_refuses"),
    ("surrogate in the vocabulary", raw(changed(setting("model.vocab.\ud800", 99))), "tokenizer.lone_surrogate"),
    ("surrogate in a token", raw(changed(setting("added_tokens.0.content", "\udfff"))), "tokenizer.lone_surrogate"),
    ("surrogate in a pattern", raw(changed(setting(REGEX, "\ud800"))), "tokenizer.lone_surrogate"),
    ("bad regex", raw(changed(setting(REGEX, "(("))), "tokenizer.reference_refuses"),
    ("unknown normalizer", raw(changed(setting("normalizer", {"type": "Rot13"}))), "tokenizer.reference_refuses"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_a_number_that_overflows_is_refused_by_name() -> None:
    assert code_of(raw(changed(setting("normalizer", {"type": "NFC", "x": "@n"})), n="1e999")) == "tokenizer.bad_number"
    vocabulary = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", "@n"]]}
    assert code_of(raw(json.loads(tokenizer_json(vocabulary)), n="1e999")) == "tokenizer.bad_number"


def nested(kind: str, children: str, depth: int, leaf: Json) -> Json:
    component = leaf
    for _ in range(depth):
        component = {"type": kind, children: [component]}
    return component


@pytest.mark.parametrize(
    ("section", "children", "leaf"),
    [
        ("normalizer", "normalizers", {"type": "NFC"}),
        ("pre_tokenizer", "pretokenizers", split("a")),
        ("post_processor", "processors", byte_level()),
    ],
)
def test_sequences_within_sequences_are_bounded(section: str, children: str, leaf: Json) -> None:
    for depth, code in ((5, ""), (MAX_NESTING + 1, "tokenizer.too_deep"), (300, "tokenizer.too_deep")):
        assert (
            code_of(json.dumps(changed(setting(section, nested("Sequence", children, depth, leaf)))).encode()) == code
        )


def test_nested_deeper_than_python_recurses_is_refused() -> None:
    part = b'{"type": "Sequence", "normalizers": [' * 20_000 + b"]}" * 20_000
    assert code_of(raw(changed(setting("normalizer", "@n")), n=part.decode())) == "tokenizer.not_json"


def test_a_component_may_hide_depth_where_nothing_looks() -> None:
    """Depth inside a field that isn't modelled ends in a code as well, whoever recurses first."""
    for depth in (100, 400, 900, 2_000, 50_000):
        hidden = "[" * depth + "]" * depth
        code_of(raw(changed(setting("decoder", "@n")), n=hidden))
        code_of(raw(changed(setting("normalizer", {"type": "NFC", "x": "@n"})), n=hidden))
        code_of(raw(changed(setting("model", {"type": "Unigram", "unk_id": "@n", "vocab": []})), n=hidden))


def peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_added_tokens(count: int) -> bytes:
    entry = b'{"id":7,"content":"<x>","special":true}'
    head, tail = json.dumps(changed(setting("added_tokens", "@n"))).encode().split(b'"@n"')
    return head + b"[" + b",".join([entry] * count) + b"]" + tail


def test_a_million_added_tokens_are_refused_in_bounded_memory() -> None:
    def refuse(data: bytes) -> None:
        with pytest.raises(InvalidTokenizer) as caught:
            parse(data)
        codes.add(caught.value.code)

    codes: set[str] = set()
    refuse(many_added_tokens(1_000_000))
    data = many_added_tokens(MAX_ADDED_TOKENS + 1)
    assert peak_bytes(lambda: refuse(data)) < 64 * len(data)
    assert codes == {"tokenizer.too_many_added_tokens"}
    assert len(parse(many_added_tokens(1_000)).added_tokens) == 1_000


@pytest.mark.parametrize(
    "data",
    [
        b'{"x":[' + b"[]," * 200_000 + b"[]]}",
        b'{"x":{' + b",".join(b'"%d":{}' % number for number in range(50_000)) + b"}}",
        b'{"model":{"type":"BPE","vocab":{},"merges":[' + b'"a b",' * 50_000 + b'"a b"]}}',
        b'{"model":{"type":"BPE","vocab":{},"merges":["' + b" " * 500_000 + b'"]}}',
        b'{"x":"' + b"\\u00e9" * 100_000 + b'"}',
    ],
    ids=["lists", "objects", "merges", "one merge of spaces", "escapes"],
)
def test_memory_is_bounded_by_the_size_of_the_file(data: bytes) -> None:
    def attempt() -> None:
        with pytest.raises(TierError):
            Reference(parse(data))

    assert peak_bytes(attempt) < 128 * len(data)


@pytest.mark.parametrize("family", [None, "gpt2-novelai"])
def test_a_truncated_file_is_refused_wherever_it_ends(family: str | None) -> None:
    data = json.dumps(small()).encode() if family is None else family_data(family)
    stops = range(len(data)) if family is None else [len(data) * part // 12 for part in range(12)]
    for stop in stops:
        with pytest.raises(InvalidTokenizer) as caught:
            parse(data[:stop])
        assert caught.value.code in ("tokenizer.not_json", "tokenizer.not_utf8")


# --- any wrong value anywhere ----------------------------------------------------------------------------------


def paths(document: Json, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [path for key in keys for path in [(*prefix, key), *paths(document[key], (*prefix, key))]]


WRONG: list[Json] = [
    None, True, False, 0, -1, 1, 7, 1.5, 1e308, 1 << 31, 1 << 32, 1 << 64, -(1 << 64), 10**400, "", "a", "#version",
    "\ud800", "a b", "Sequence", "Metaspace", "first", [], [None], [[]], ["a"], [["a", "b"]], [["a", 1]], {},
    {"type": "BPE"}, {"type": None},
    {"type": "Sequence"}, {"String": ""}, {"Regex": "("}, {"Regex": "(a|b)*"}, {"a": 0}, {"a": 1 << 40},
]  # fmt: skip

FILES: list[Json] = [
    small(),
    json.loads(tokenizer_json(unigram({"<unk>": 0.0, "a": -1.0, "▁": -2.0}), pre_tokenizer=metaspace())),
    json.loads(
        tokenizer_json(
            word_piece(["a", "##b"]),
            normalizer={
                **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
                "type": "BertNormalizer",
            },
            pre_tokenizer={"type": "BertPreTokenizer"},
        )
    ),
    json.loads(
        tokenizer_json(
            {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}},
            normalizer=normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
            pre_tokenizer=pre_tokenizers(
                {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation", "behavior": "Isolated"},
                {"type": "CharDelimiterSplit", "delimiter": "|"},
                {"type": "WhitespaceSplit"},
            ),
        )
    ),
]  # fmt: skip


def check_answer(document: Json) -> None:
    try:
        data = json.dumps(document).encode()
    except ValueError:  # more digits than Python writes
        return
    code_of(data)


@pytest.mark.parametrize("file", range(len(FILES)), ids=["bpe", "unigram", "wordpiece", "wordlevel"])
def test_a_wrong_value_in_any_field_is_accepted_by_the_reference_or_refused_with_a_code(file: int) -> None:
    for path in paths(FILES[file]):
        for value in [WRONG[(len(path) + index) % len(WRONG)] for index in range(0, len(WRONG), 3)]:
            document = copy.deepcopy(FILES[file])
            parent = document
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
            check_answer(document)


@settings(max_examples=examples(150))
@given(st.data())
def test_a_file_damaged_in_a_few_places_is_answered_with_a_code(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(FILES)))
    for _ in range(data.draw(st.integers(1, 4))):
        found = paths(document)
        path = data.draw(st.sampled_from(found)) if found else None
        if path is None:
            break
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[path[-1]] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
        elif isinstance(parent, dict):
            del parent[path[-1]]
        else:
            parent.insert(path[-1], copy.deepcopy(data.draw(st.sampled_from([*WRONG, parent[path[-1]]]))))
    check_answer(document)


@settings(max_examples=examples(150))
@given(st.data())
def test_a_file_with_damaged_bytes_is_answered_with_a_code(data: st.DataObject) -> None:
    content = bytearray(json.dumps(data.draw(st.sampled_from(FILES))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    code_of(bytes(content))


def test_a_component_that_is_not_modelled_is_named_and_kept_for_full_encodes() -> None:
    snapshot = parse(changed(setting("normalizer", {"type": "StripAccents"})))
    assert snapshot.pipeline is None
    assert isinstance(snapshot.unsupported, UnsupportedTokenizer)
    assert snapshot.unsupported.code == "pipeline.normalizer"
