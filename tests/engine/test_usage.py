"""Counts found in passing: whatever the cuts, whatever stands around them, and with bounded memory."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_tier.engine.usage import EventWatch, JsonWatch, NoWatch, Usage, Watch, watch_for
from workshop import examples

COUNTS = {"prompt_tokens": 41, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 40}}
EXPECTED = Usage(41, 2, 40)


def event(value: Any, end: str = "\n\n") -> bytes:
    return b"data: " + (value if isinstance(value, str) else json.dumps(value)).encode() + end.encode()


CHAT_STREAM = b"".join(
    [
        event({"choices": [{"delta": {"content": 'say "usage": {"prompt_tokens": 7}'}}], "usage": None}),
        event({"choices": [{"delta": {"content": "data: [DONE]\n\n"}}]}),
        b": a comment\n\n",
        event({"choices": [], "usage": COUNTS}),
        event("[DONE]"),
    ]
)
GENERATE_STREAM = b"".join(
    [
        event({"text": "a", "meta_info": {"prompt_tokens": 41, "completion_tokens": 1, "cached_tokens": 40}}),
        event({"text": "ab", "meta_info": {"prompt_tokens": 41, "completion_tokens": 2, "cached_tokens": 40}}),
        event("[DONE]"),
    ]
)
CRLF_STREAM = event({"usage": COUNTS}, "\r\n\r\n") + event("[DONE]", "\r\n\r\n")
JSON_REPLY = json.dumps({"choices": [{"message": {"content": '"usage":{'}}], "usage": COUNTS, "metadata": {}}).encode()
LIST_REPLY = json.dumps(
    [{"meta_info": {"prompt_tokens": 41, "completion_tokens": 2, "cached_tokens": 40}}, {"meta_info": {}}]
).encode()

STREAMS = [CHAT_STREAM, GENERATE_STREAM, CRLF_STREAM]


def fed(watch: Watch, data: bytes, cuts: list[int]) -> Watch:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        watch.feed(data[start:end])
    return watch


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_cut_anywhere_tells_the_same(stream: bytes) -> None:
    for cut in range(len(stream) + 1):
        watch = fed(EventWatch(), stream, [cut])
        assert (watch.usage(), watch.complete()) == (EXPECTED, True)


@settings(max_examples=examples(100))
@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 10_000), max_size=20))
def test_a_stream_in_many_pieces_tells_the_same(stream: bytes, cuts: list[int]) -> None:
    assert fed(EventWatch(), stream, cuts).usage() == EXPECTED


@pytest.mark.parametrize("stream", [*STREAMS, JSON_REPLY, LIST_REPLY])
def test_a_reply_fed_byte_by_byte_tells_the_same(stream: bytes) -> None:
    watch = EventWatch() if stream in STREAMS else JsonWatch()
    assert fed(watch, stream, list(range(len(stream)))).usage() == EXPECTED


@pytest.mark.parametrize("reply", [JSON_REPLY, LIST_REPLY])
def test_one_json_value_is_read_at_its_end(reply: bytes) -> None:
    for cut in range(len(reply) + 1):
        assert fed(JsonWatch(), reply, [cut]).usage() == EXPECTED
        assert JsonWatch().usage() is None


@settings(max_examples=examples(300))
@given(st.lists(st.binary(max_size=30), max_size=12))
def test_no_bytes_whatever_break_a_watch(chunks: list[bytes]) -> None:
    for watch in (EventWatch(64), JsonWatch(64), NoWatch()):
        for chunk in chunks:
            watch.feed(chunk)
        watch.usage()


@pytest.mark.parametrize(
    "value",
    [
        {"usage": {"prompt_tokens": "41"}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": {"prompt_tokens": True}},
        {"usage": {"prompt_tokens": 41.0}},
        {"usage": {}},
        {"usage": []},
        {"meta_info": 3},
        [],
        [3],
        3,
    ],
)
def test_a_count_that_cant_be_is_none(value: Any) -> None:
    watch = JsonWatch()
    watch.feed(json.dumps(value).encode())
    assert watch.usage() is None


def test_a_line_that_is_too_long_is_passed_over_and_the_next_one_read() -> None:
    watch = EventWatch(max_held_bytes=200)
    for _ in range(100):
        watch.feed(b'data: {"usage": {' + b"x" * 100)
    assert watch.usage() is None
    watch.feed(b"\n\n" + event({"usage": COUNTS}) + event("[DONE]"))
    assert (watch.usage(), watch.complete()) == (EXPECTED, True)


def test_a_reply_that_is_too_long_tells_nothing_and_is_not_kept() -> None:
    watch = JsonWatch(max_held_bytes=1000)
    for _ in range(100):
        watch.feed(b" " * 100)
    watch.feed(JSON_REPLY)
    assert watch.usage() is None
    assert len(watch._held) == 0


@pytest.mark.parametrize(
    ("content_type", "encoding", "kind"),
    [
        ("application/json", "", JsonWatch),
        ("Application/JSON; charset=utf-8", "identity", JsonWatch),
        ("text/event-stream; charset=utf-8", "", EventWatch),
        ("text/event-stream", "gzip", NoWatch),
        ("text/html", "", NoWatch),
        ("", "", NoWatch),
    ],
)
def test_the_watch_fits_the_kind_of_reply(content_type: str, encoding: str, kind: type) -> None:
    assert type(watch_for(content_type, encoding)) is kind
