"""A request's body with IDs put in: one member more or another one, and no other byte changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.core.errors import InvalidRequest, InvalidText
from toktier_tier.engine.body import JsonBody
from workshop import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BLANKS = st.sampled_from(["", " ", "\n", "\r\n\t "])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A JSON object and one of the ways to write it."""
    keys = st.text(max_size=6) | st.sampled_from(["prompt", "text", "messages", "{", '"}', "é", "\U0001f600"])
    fields = draw(st.dictionaries(keys, VALUES, max_size=5))
    ascii_only = draw(st.booleans())
    indent = draw(st.sampled_from([None, 0, 2]))
    members = []
    for key, value in fields.items():
        written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        name = json.dumps(key, ensure_ascii=draw(st.booleans()))
        members.append(f"{draw(BLANKS)}{name}{draw(BLANKS)}:{draw(BLANKS)}{written}{draw(BLANKS)}")
    text = f"{draw(BLANKS)}{{{draw(BLANKS)}{','.join(members)}}}{draw(BLANKS)}"
    return fields, text.encode("utf-8", "surrogatepass")


@settings(max_examples=examples(300))
@given(bodies())
def test_a_member_is_added_and_nothing_else_changes(made: tuple[dict[str, Any], bytes]) -> None:
    fields, raw = made
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return
    body = JsonBody.parse(raw)
    assert dict(body.fields) == fields
    added = body.added("input_ids", b"[ 1, 2]")
    assert json.loads(added) == {**fields, "input_ids": [1, 2]}
    comma = b"," if fields else b""
    assert added == raw[: body.close] + comma + b'"input_ids":[ 1, 2]' + raw[body.close :]
    assert raw[body.close :].strip() == b"}"


@settings(max_examples=examples(300))
@given(bodies(), st.data())
def test_a_member_is_replaced_in_its_place(made: tuple[dict[str, Any], bytes], data: st.DataObject) -> None:
    fields, raw = made
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return
    if not fields:
        return
    body = JsonBody.parse(raw)
    key = data.draw(st.sampled_from(list(fields)))
    place = body.members[key]
    assert json.loads(raw[place.value_start : place.value_end]) == fields[key]
    same = body.replaced(key, key, b"[7]")
    assert same == raw[: place.value_start] + b"[7]" + raw[place.value_end :]
    renamed = json.loads(body.replaced(key, "another name", b"[7]"))
    assert list(renamed.items()) == [("another name", [7]) if k == key else (k, v) for k, v in fields.items()]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "body.not_json"),
        (b"{", "body.not_json"),
        (b"}", "body.not_json"),
        (b'{"a":1,}', "body.not_json"),
        (b'{"a" 1}', "body.not_json"),
        (b'{"a":}', "body.not_json"),
        (b'{"a":1 "b":2}', "body.not_json"),
        (b"{a:1}", "body.not_json"),
        (b'{"a":1}{}', "body.not_json"),
        (b'{"a":1}x', "body.not_json"),
        (b'{"a":"\n"}', "body.not_json"),
        (b"[" * 100_000, "body.not_json"),
        (b'{"a":' * 100_000, "body.not_json"),
        (b"[1]", "body.not_object"),
        (b'"text"', "body.not_object"),
        (b"null", "body.not_object"),
        (b"[1", "body.not_json"),
        (b'{"a":1,"a":2}', "body.repeated_key"),
        (b'{"input_ids":[1],"input\\u005fids":[2]}', "body.repeated_key"),
        (b'{"a":"\xff"}', "body.not_utf8"),
        ('{"a":1}'.encode("utf-16"), "body.not_utf8"),
        (b'\xef\xbb\xbf{"a":1}', "body.not_json"),
    ],
)
def test_what_is_no_plain_object_is_refused_by_code(raw: bytes, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        JsonBody.parse(raw)
    assert caught.value.code == code


def test_a_key_the_client_set_itself_is_neither_doubled_nor_lost() -> None:
    body = JsonBody.parse(b'{"input\\u005fids":[1],"text":"a"}')
    for change in (lambda: body.added("input_ids", b"[]"), lambda: body.replaced("text", "input_ids", b"[]")):
        with pytest.raises(InvalidRequest) as caught:
            change()
        assert caught.value.code == "body.has_member"
    with pytest.raises(InvalidRequest) as caught:
        body.replaced("prompt", "prompt", b"[]")
    assert caught.value.code == "body.lacks_member"


@pytest.mark.parametrize(
    ("raw", "offset"),
    [(b"\xff{}", 0), (b'{"a": "\xc3\xa9\xed\xa0\x80"}', 9), (b'{"a": "x\xc3"}', 8), (b'{"a": 1}\xfe', 8)],
)
def test_bytes_that_are_no_utf_8_are_refused_with_their_offset(raw: bytes, offset: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        JsonBody.parse(raw)
    assert (caught.value.code, caught.value.details) == ("body.not_utf8", {"offset_bytes": offset})


@pytest.mark.parametrize(
    ("raw", "offset"),
    [
        (rb'{"a": "\ud800"}', 0),
        (rb'{"a": "ab\uDFFF"}', 2),
        (rb'{"a": [{"b": "\u00e9\ud83d\ude00\ud83d x"}]}', 2),
        (rb'{"a": {"x\udead": 1}}', 1),
        (rb'{"k\ud912": 1}', 1),
        (rb'{"a": "\ude00\ud83d"}', 0),
        ('{"a": "é😀\\ud800"}'.encode(), 2),
    ],
)
def test_lone_surrogates_are_refused_with_their_offset_in_the_string(raw: bytes, offset: int) -> None:
    with pytest.raises(InvalidText) as caught:
        JsonBody.parse(raw)
    assert (caught.value.code, caught.value.details) == ("text.lone_surrogate", {"offset_chars": offset})


@pytest.mark.parametrize("raw", [rb'{"a": "\\ud800"}', rb'{"a": "\ud83d\ude00"}', rb'{"\ud83d\ude00": ["\\\\ud800"]}'])
def test_pairs_and_backslashes_are_no_lone_surrogates(raw: bytes) -> None:
    assert JsonBody.parse(raw).fields == json.loads(raw)


@settings(max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=4), VALUES | st.text(st.characters(categories=["Cs", "L"]), max_size=6)))
def test_a_body_is_refused_exactly_if_one_of_its_strings_has_no_utf_8(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields).encode()
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidText):
            JsonBody.parse(raw)
    else:
        assert JsonBody.parse(raw).fields == fields
