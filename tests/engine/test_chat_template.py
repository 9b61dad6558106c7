"""Chat bodies to prompt texts: equal to what SGLang was recorded to make of them, and coded where they can't be.

`chat_expectations.jsonl` is SGLang's own output (`e2e/sglang/record.py` writes it); the templates are this project's,
in the shapes of those that public models have.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toktier_tier.core.errors import InvalidTokenizer, UnsupportedTokenizer
from toktier_tier.engine.chat_files import load_chat_template
from toktier_tier.engine.chat_request import decode_json
from toktier_tier.engine.chat_template import ChatRenderer, PassThrough, Rendered, Server, content_format_of

HERE = Path(__file__).parent
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
BODIES: dict[str, dict[str, Any]] = {
    case["case"]: case["body"]
    for case in map(json.loads, (HERE / "chat_bodies.jsonl").read_text(encoding="utf-8").splitlines())
}
RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in (HERE / "chat_expectations.jsonl").read_text(encoding="utf-8").splitlines()
]

# SGLang renders these, after changing what the client sent.
LEFT_TO_SGLANG = {
    "tools_odd_type": "chat.tool_schema",
    "kwargs_taken2": "chat.template_kwargs",
    "flag_text": "chat.bad_request",
    "continue_bos_token": "chat.continuation",
}
# SGLang refuses these for another reason than their text, whoever makes it.
REFUSED_BY_SGLANG = {"tools_named_missing", "tools_bad_schema", "surrogate_kwargs"}

USER = {"role": "user", "content": "Hi"}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def renderer(template: str, tokens: Mapping[str, str] = TOKENS, **options: Any) -> ChatRenderer:
    return ChatRenderer(template, special_tokens=tokens, **options)


def rendered(made: Rendered | PassThrough) -> Rendered:
    assert isinstance(made, Rendered), made
    return made


def reason(made: Rendered | PassThrough) -> str:
    assert isinstance(made, PassThrough), made
    return made.reason


# What SGLang was recorded to do


@pytest.mark.parametrize("record", RECORDS, ids=[record["template"].removesuffix(".jinja") for record in RECORDS])
def test_the_text_is_the_one_that_sglang_encodes(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**TOKENS, "unk_token": None}))
    template = load_chat_template(tmp_path, chat_template=HERE / "chat_templates" / record["template"])
    day = datetime.datetime.fromisoformat(record["date"])
    chat = ChatRenderer(
        template.text,
        special_tokens=template.special_tokens,
        content_format=template.content_format,
        clock=lambda: day,
    )
    assert record["digests"].keys() == BODIES.keys()
    texts = 0
    for case, digest in record["digests"].items():
        made = chat.render(BODIES[case])
        if isinstance(made, Rendered):
            assert digest is not None or case in REFUSED_BY_SGLANG, case
            if digest is not None:
                assert hashlib.sha256(made.text.encode()).hexdigest()[:16] == digest, (case, made.text)
                texts += 1
        elif digest is not None:
            low = made.reason == "chat.reasoning_effort" and record["template"] == "low_effort.jinja"
            assert low or LEFT_TO_SGLANG[case] == made.reason, (case, made)
    assert texts >= 40


def test_every_template_and_case_is_recorded() -> None:
    assert [record["template"] for record in RECORDS] == sorted(p.name for p in (HERE / "chat_templates").iterdir())
    assert len(RECORDS) >= 8


def test_a_body_is_not_changed() -> None:
    before = copy.deepcopy(BODIES)
    for record in RECORDS:
        chat = renderer((HERE / "chat_templates" / record["template"]).read_text(encoding="utf-8"))
        for body in BODIES.values():
            chat.render(body)
    assert before == BODIES


# Single rules, readable


def test_tools_keep_the_clients_order_and_get_what_it_left_out() -> None:
    tool = {"function": {"parameters": {"type": "object"}, "name": "f", "x": 1}}
    made = rendered(renderer("{{ tools | tojson }}").render({"messages": [USER], "tools": [tool]}))
    assert made.text == (
        '[{"type": "function", "function": {"parameters": {"type": "object"}, "name": "f", "description": null}, '
        '"defer_loading": null}]'
    )


def test_bare_functions_are_tried_when_the_wrapped_ones_fail() -> None:
    template = "{% for t in tools %}{{ t.name + '!' }}{% endfor %}"
    assert (
        rendered(renderer(template).render({"messages": [USER], "tools": [{"function": {"name": "f"}}]})).text == "f!"
    )


def test_json_has_no_html_escapes_and_no_ascii_escapes() -> None:
    body = {"messages": [USER], "chat_template_kwargs": {"x": {"a": "<é&'>"}}}
    assert rendered(renderer("{{ x | tojson }}").render(body)).text == '{"a": "<é&\'>"}'


def test_blocks_trim_their_line() -> None:
    assert rendered(renderer("  {% if true %}\na\n  {% endif %}\nb\n").render({"messages": [USER]})).text == "a\nb"


def test_generation_blocks_print_their_body() -> None:
    made = renderer("{% generation %}{{ messages[0].content }}{% endgeneration %}").render({"messages": [USER]})
    assert rendered(made).text == "Hi"


def test_a_final_answer_becomes_the_users_unless_it_goes_on() -> None:
    messages = [USER, {"role": "assistant", "content": "He"}]
    chat = renderer(CHATML)
    assert "<|im_start|>user\nHe<|im_end|>" in rendered(chat.render({"messages": messages})).text
    made = rendered(chat.render({"messages": messages, "continue_final_message": True}))
    assert made.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert made.continuation == "He"
    assert made.ids(lambda text: [len(text)]) == [len(made.text), 2]
    assert not made.add_special_tokens


def test_a_continuation_that_the_tokenizer_would_frame_passes_through() -> None:
    def body(text: str) -> dict[str, Any]:
        return {"messages": [USER, {"role": "assistant", "content": text}], "continue_final_message": True}

    assert reason(renderer(CHATML).render(body("a <|endoftext|>"))) == "chat.continuation"
    with_bos = Server(empty_text_ids=(1,), bos_id=1)
    assert rendered(renderer(CHATML, server=with_bos).render(body("a"))).continuation == "a"
    with_more = Server(empty_text_ids=(1, 2), bos_id=1)
    assert reason(renderer(CHATML, server=with_more).render(body("a"))) == "chat.continuation"
    opening = Server(reasoning_parser="response_template")
    assert reason(renderer(CHATML, server=opening).render(body("a"))) == "chat.continuation"


def test_message_ends_are_where_prefixes_of_the_text_end() -> None:
    messages = [USER, {"role": "assistant", "content": "Ho"}, USER]
    made = rendered(renderer(CHATML, message_ends=9).render({"messages": messages}))
    assert [made.text[:end].count("<|im_end|>") for end in made.message_ends_chars] == [1, 2, 3]
    assert [made.text[end - 1] for end in made.message_ends_chars] == ["\n"] * 3
    assert rendered(renderer(CHATML, message_ends=0).render({"messages": messages})).message_ends_chars == ()
    last_differs = "{% for m in messages %}{{ 'last ' if loop.last else 'not last ' }}{{ m.content }}{% endfor %}"
    made = rendered(renderer(last_differs, message_ends=9).render({"messages": messages}))
    assert made.message_ends_chars == (len(made.text),)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for c in message['content'] %}{% endfor %}", "parts"),
        ("{% for c in m.content | list %}{% endfor %}", "parts"),
        ("{% for c in msg.content[1:] %}{% endfor %}", "parts"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for c in turn.content %}{% endfor %}", "string"),
        ("{# supervision #}", "parts"),
        ("{% for c in message.content %}", "string"),
    ],
)
def test_the_content_format_is_told_by_the_loops(template: str, expected: str) -> None:
    assert content_format_of(template) == expected


def test_the_servers_default_effort_overrides_the_requests_in_the_template() -> None:
    chat = renderer("{{ reasoning_effort }}", server=Server(default_template_kwargs={"reasoning_effort": "high"}))
    assert rendered(chat.render({"messages": [USER], "reasoning_effort": "low"})).text == "high"
    assert rendered(chat.render({"messages": [USER]})).text == "high"


def test_the_clock_is_the_one_given() -> None:
    chat = renderer("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime.datetime(2026, 1, 2))
    assert rendered(chat.render({"messages": [USER]})).text == "02 Jan 2026"


# Hostile and unusable


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages",
        "{{ x | no_such_filter }}",
        "{% if a %}" * 200,
        "{% for a in messages %}" * 30 + "{% endfor %}" * 30,
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ undefined.attribute }}",
        "{{ messages[0]['content'] + 3 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ undefined | tojson }}",
    ],
)
def test_a_template_that_fails_gives_its_code(template: str) -> None:
    assert reason(renderer(template).render({"messages": [USER]})) == "chat.template_error"


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "messages.__class__",
        "cycler.__init__.__globals__.os",
        "raise_exception.__globals__",
        "strftime_now.__closure__",
        "self.__init__.__globals__",
        "messages.append(1)",
        "messages[0].update(a=1)",
        "messages[0].__setitem__('a', 1)",
        "'{0.__class__}'.format(messages)",
        "(messages | attr('__class__'))",
        "namespace.__init__.__globals__",
        "range(1000000)",
    ],
)
def test_the_sandbox_holds(expression: str) -> None:
    body = {"messages": [{**USER}]}
    made = renderer("{{ " + expression + " }}").render(body)
    assert body == {"messages": [USER]}
    if isinstance(made, Rendered):
        assert made.text in ("", "None")
    else:
        assert made.reason == "chat.template_error"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ [1] * 10000000000 }}",
        "{{ 10 ** 10000000000 }}",
    ],
)
def test_a_huge_prompt_is_stopped_early(template: str) -> None:
    start = time.monotonic()
    assert reason(renderer(template, max_chars=100_000).render({"messages": [USER]})) == "chat.too_long"
    assert time.monotonic() - start < 1


def test_products_below_the_limit_are_computed() -> None:
    assert rendered(renderer("{{ '-' * 5 }}{{ 2 ** 10 }}{{ 2 ** 0.5 }}").render({"messages": [USER]})).text.startswith(
        "-----10241.414"
    )


@pytest.mark.parametrize(
    "server",
    [
        Server(tool_call_parser="deepseekv4"),
        Server(architecture="DeepseekV4ForCausalLM"),
        Server(architecture="KimiK3ForConditionalGeneration"),
        Server(model_type="minimax_m3_vl"),
        Server(model_path="/models/llava-v1.5-7b"),
        Server(multimodal=True, empty_text_ids=(1,)),
        Server(default_template_kwargs={"chat_template": "x"}),
    ],
)
def test_a_server_that_renders_otherwise_gets_the_body_as_it_is(server: Server) -> None:
    chat = renderer(CHATML, server=server)
    assert chat.refusal is not None
    assert chat.render({"messages": [USER]}) == chat.refusal


def test_templates_that_sglang_replaces_or_feeds_otherwise_pass_through() -> None:
    glm = "[gMASK]<sop>Reasoning Effort:<tool_call><arg_key><arg_value>"
    assert reason(renderer(glm).render({"messages": [USER]})) == "chat.unsupported_template"
    hunyuan = "{{ reasoning_effort }}{{ reasoning_mode_token }}{# no_think #}"
    assert reason(renderer(hunyuan, server=Server(reasoning_parser="hunyuan")).render({"messages": [USER]})) == (
        "chat.unsupported_template"
    )
    assert rendered(renderer(hunyuan).render({"messages": [USER]})).text == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": [USER], "input_ids": [1]}, "chat.input_ids"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "chat.multimodal"),
        ({"messages": "Hi"}, "chat.bad_request"),
        ({"messages": ["Hi"]}, "chat.bad_request"),
        ({"messages": [USER], "tools": {}}, "chat.bad_request"),
        ({"messages": [USER], "tools": [{"function": {"name": 3}}]}, "chat.bad_request"),
        ({"messages": [USER], "tool_choice": "any"}, "chat.bad_request"),
        ({"messages": [USER], "chat_template_kwargs": []}, "chat.bad_request"),
        ({"messages": [USER], "chat_template_kwargs": {"tokenize": True}}, "chat.template_kwargs"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "chat.bad_request"),
        (
            {"messages": [USER, {"role": "assistant", "content": "\ud800"}], "continue_final_message": True},
            "chat.bad_request",
        ),
    ],
)
def test_a_body_that_cannot_be_rendered_tells_why(body: dict[str, Any], code: str) -> None:
    assert reason(renderer(CHATML).render(body)) == code


def test_no_user_text_is_in_the_detail() -> None:
    body = {"messages": [{"role": "user", "content": "secret"}]}
    made = renderer("{{ raise_exception(messages[0].content) }}").render(body)
    assert isinstance(made, PassThrough)
    assert "secret" not in made.reason + made.detail


# JSON as SGLang decodes it


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 18446744073709551616.0),
        ("-9223372036854775809", -9223372036854775808.0),
        ("1" * 400 + ".0e-390", float("1" * 400 + "e-390")),
        ("-0", 0),
        ('{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
        ('"\\ud83d\\ude00"', "😀"),
        ('"😀"'.encode(), "😀"),
    ],
)
def test_json_that_both_decode(text: str | bytes, value: object) -> None:
    decoded = decode_json(text)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "1e400", '"\\ud800"', "\ufeff{}", "", "[" * 100_000, b'"\xff"', '"\ud800"', "9" * 400]
)
def test_json_that_sglang_refuses(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of several kinds)
        decode_json(text)


# Files


def write(folder: Path, config: Mapping[str, Any], **files: str) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".jinja" if "map" not in name else ".json").write_text(text, encoding="utf-8")
    return folder


def test_a_template_file_comes_before_the_configurations_entry(tmp_path: Path) -> None:
    config = {"chat_template": "old", "eos_token": {"content": "</s>", "__type": "AddedToken"}, "image_token": "<i>"}
    assert load_chat_template(write(tmp_path, config)).text == "old"
    template = load_chat_template(write(tmp_path, config, chat_template="new{{ eos_token }}"))
    assert template.text == "new{{ eos_token }}"
    assert template.special_tokens == {"eos_token": "</s>", "image_token": "<i>"}


def test_of_named_templates_the_first_or_the_asked_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    write(tmp_path, {"chat_template": named})
    assert load_chat_template(tmp_path).text == "r"
    assert load_chat_template(tmp_path, name="default").text == "d"
    with pytest.raises(UnsupportedTokenizer) as raised:
        load_chat_template(tmp_path, name="other")
    assert raised.value.code == "chat.no_template"


def test_several_files_need_a_default_or_a_name(tmp_path: Path) -> None:
    write(tmp_path, {}, additional_chat_templates__a="a", additional_chat_templates__b="b")
    with pytest.raises(UnsupportedTokenizer) as raised:
        load_chat_template(tmp_path)
    assert raised.value.code == "chat.template_choice"
    assert load_chat_template(tmp_path, name="b").text == "b"
    assert load_chat_template(write(tmp_path, {}, chat_template="d")).text == "d"


def test_the_legacy_map_of_special_tokens_counts_only_without_added_tokens(tmp_path: Path) -> None:
    legacy = json.dumps({"bos_token": {"content": "<m>"}})
    config = {"chat_template": "{{ bos_token }}", "bos_token": "<c>"}
    assert load_chat_template(write(tmp_path, config, special_tokens_map=legacy)).special_tokens == {"bos_token": "<m>"}
    write(tmp_path, {**config, "added_tokens_decoder": {}})
    assert load_chat_template(tmp_path).special_tokens == {"bos_token": "<c>"}


def test_a_token_that_only_a_class_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizer) as raised:
        load_chat_template(write(tmp_path, {"chat_template": "{{ bos_token }}"}))
    assert raised.value.code == "chat.unknown_special_token"
    template = load_chat_template(write(tmp_path, {"chat_template": "{{ bos_token }}", "bos_token": None}))
    assert template.special_tokens == {}


@pytest.mark.parametrize("config", ['{"chat_template": 3}', "[]", "{", '{"chat_template": [{}]}'])
def test_a_damaged_configuration_is_told(config: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(InvalidTokenizer) as raised:
        load_chat_template(tmp_path)
    assert raised.value.code == "chat.bad_config"


def test_a_conversation_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizer) as raised:
        load_chat_template(write(tmp_path, {}), chat_template=Path("vicuna_v1.1"))
    assert raised.value.code == "chat.unsupported_template"


def test_no_template_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizer) as raised:
        load_chat_template(tmp_path)
    assert raised.value.code == "chat.no_template"
