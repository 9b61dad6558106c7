"""The session: the same again for the same seed, long enough, and made of all that agents send."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest

from agent_session import MARKERS, Append, TailEdit, Turn, chat_text, plain_text, render, turns

COUNT, CHARS = 300, 1_050_000
PROMPT = "<|im_start|>assistant\n<think>\n"


@pytest.fixture(scope="module")
def session() -> list[Turn]:
    return list(turns(1, COUNT, CHARS))


@pytest.fixture(scope="module")
def text(session: list[Turn]) -> str:
    return render(session)


def test_a_seed_names_one_session(session: list[Turn]) -> None:
    again = turns(1, COUNT, CHARS)
    assert [next(again) for _ in range(60)] == session[:60]
    other = turns(2, COUNT, CHARS)
    assert [next(other) for _ in range(3)] != session[:3]


def test_a_session_has_as_many_turns_and_at_least_as_many_characters_as_asked_for(
    session: list[Turn], text: str
) -> None:
    assert len(session) == COUNT
    assert CHARS <= len(text) < CHARS * 1.1
    assert len(render(turns(3, 1, 5_000))) >= 5_000


def test_the_first_turn_appends_and_about_a_quarter_edit_the_tail(session: list[Turn]) -> None:
    assert isinstance(session[0], Append)
    edits = [turn for turn in session if isinstance(turn, TailEdit)]
    assert COUNT // 8 < len(edits) < COUNT // 2
    assert min(edit.drop_chars for edit in edits) == len("<think>\n")
    assert max(edit.drop_chars for edit in edits) > 10_000


def test_applying_each_turn_to_the_text_before_it_gives_the_rendered_text(session: list[Turn]) -> None:
    text = ""
    for at, turn in enumerate(session[:80], 1):
        if isinstance(turn, Append):
            text += turn.delta
        else:
            assert turn.drop_chars <= len(text)
            text = text[: len(text) - turn.drop_chars] + turn.replacement
        assert text == render(session[:at])
        assert text.endswith(PROMPT)


def test_the_markers_are_structure_and_nothing_else(text: str) -> None:
    messages = text.split("<|im_start|>")[1:]
    for message, _ in pairwise(messages):
        role, _, content = message.partition("\n")
        assert role in ("system", "user", "assistant")
        assert content.endswith("<|im_end|>\n")
        assert content.count("<|im_end|>") == 1
    assert text.count("<tool_call>") == text.count("</tool_call>") > 100
    assert text.count("<tool_response>") == text.count("</tool_response>") > 100


def test_reasoning_is_left_only_behind_the_last_query(text: str) -> None:
    queries = [m for m in text.split("<|im_start|>user\n")[1:] if not m.startswith("<tool_response>")]
    asked = text.rindex(queries[-1])
    assert text.index("<think>") > asked


def test_at_least_ten_scripts_and_emoji_occur(text: str) -> None:
    scripts = {unicodedata.name(char, "?").split()[0] for char in set(text) if char.isalpha()}
    expected = {"LATIN", "CYRILLIC", "GREEK", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "HANGUL", "HIRAGANA", "CJK"}
    assert expected <= scripts
    assert "🚀" in text


def test_code_json_and_command_output_occur(text: str) -> None:
    assert all(sign in text for sign in ("    def ", '\\"', "-rw-", "@@ -", ".py:"))


def test_chat_text_has_the_asked_for_length_and_hundreds_of_markers_per_million_characters() -> None:
    text = chat_text(200_000, 5)
    assert len(text) == 200_000
    assert sum(text.count(marker) for marker in MARKERS) > 100
    assert len(chat_text(10, 5)) == 10


def test_plain_text_has_the_asked_for_length_and_no_marker() -> None:
    text = plain_text(200_000, 5)
    assert len(text) == 200_000
    assert text == plain_text(200_000, 5)
    assert not any(marker in text for marker in MARKERS)
    assert not re.search(r"<\|\w+\|>", text)


def test_a_session_without_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        next(turns(1, 0, 100))
