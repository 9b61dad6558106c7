"""Failures reported in public about other tokenizer caches and servers: none of them happens here.

`public_reports.jsonl` holds input, expectation and source of each; each is tested here or listed as a later layer's.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from catalog import path_of
from servers import Engine, OnThread, WholeTier, whole_tier
from toktier_tier.core.errors import InvalidText, SessionNotFound, StateCorrupt
from toktier_tier.core.snapshot import SpecialTokenPolicy, parse_snapshot
from toktier_tier.core.values import Route
from toktier_tier.encoders.guarded import resident_bytes
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference
from toktier_tier.engine.chat_template import ChatRenderer, Rendered
from toktier_tier.engine.folder import Loading, loading_of, tokens_of
from toktier_tier.sessions.service import SessionService
from toktier_tier.settings import TokenizerSettings, UpstreamSettings
from toktier_tier.transport.output import Output
from workshop import (
    Tier,
    build_tier,
    byte_level,
    byte_telltale,
    family_data,
    family_reference,
    family_tier,
    pre_tokenizers,
    sample_text,
    token,
    tokenizer_json,
)

REPORTS = {
    report["id"]: report
    for report in map(json.loads, (Path(__file__).parent / "public_reports.jsonl").read_text("utf-8").splitlines())
}

LATER_LAYERS = {
    "control-token-in-user-text": "trust: untrusted spans come with the transport; the default, the reference, is kept",
}

TESTED: set[str] = set()


def reports(*ids: str) -> Callable[[Any], Any]:
    """Marks what a test covers; the test runs once for each."""
    TESTED.update(ids)
    return pytest.mark.parametrize("report", [REPORTS[id] for id in ids], ids=ids)


def service_of(tier: Tier) -> SessionService:
    return SessionService(tier.tokenizer)


def check_append(tier: Tier, before: str, after: str) -> None:
    """Appended in one step and character by character, the session's IDs are those of the whole text."""
    expected = tier.ids(before + after)
    for parts in ([after], list(after)):
        service = service_of(tier)
        ids = service.open("tenant", "session", before).ids
        for part in parts:
            ids = service.append("tenant", "session", part).apply(ids)
        assert ids.tolist() == service.ids("tenant", "session").tolist() == expected


def joins_naively(tier: Tier, before: str, after: str) -> bool:
    return tier.ids(before) + tier.ids(after) == tier.ids(before + after)


def test_every_report_is_tested_or_a_later_layers() -> None:
    assert set(REPORTS) == TESTED | set(LATER_LAYERS)
    assert not TESTED & set(LATER_LAYERS)
    assert all(LATER_LAYERS.values())


# --- added tokens ----------------------------------------------------------------------------------------------


@reports("overlapping-specials")
def test_the_longest_of_overlapping_specials_is_one_id(report: Any) -> None:
    literals = ["〈|", "|〉", "〈|EOS|〉"]
    added = [token(2_000 + n, literal, special=True) for n, literal in enumerate(literals)]
    tier = build_tier(tokenizer_json(byte_telltale("aEOS|〈〉 "), added=added, pre_tokenizer=byte_level()))
    whole = tier.reference.tokenizer.token_to_id("〈|EOS|〉")
    assert tier.ids("〈|EOS|〉") == [whole]
    for text in ("〈|EOS|〉", "a 〈|EOS|〉a", "〈|EOS|〉〈|EOS|〉"):
        assert tier.encoded(text) == tier.ids(text)
        for cut in range(1, len(text)):
            check_append(tier, text[:cut], text[cut:])


def with_user_marker() -> Tier:
    """Stands in for Phi-4-mini, which no small package carries: a genuine vocabulary and its marker's flags."""
    document = json.loads(family_data("gpt2-novelai"))
    document["added_tokens"].append(token(200_021, "<|user|>", rstrip=True, special=True))
    return build_tier(json.dumps(document).encode())


@reports("rstrip-user-marker")
def test_a_marker_that_strips_to_its_right_takes_no_letter_and_every_space(report: Any) -> None:
    tier = with_user_marker()
    marker, hello = tier.reference.tokenizer.token_to_id("<|user|>"), tier.ids("Hello")
    for text in ("<|user|>Hello", "<|user|> Hello", "<|user|>\n\n Hello"):
        assert tier.encoded(text) == tier.ids(text) == [marker, *hello]
        for cut in range(1, len(text)):
            check_append(tier, text[:cut], text[cut:])


@reports("spaces-around-special")
@pytest.mark.parametrize("family", ["llama-3.1", "deepseek-v4", "mixtral-8x22b-v0.1", "moonshine"])
def test_spaces_around_a_special_token_are_the_references(family: str, report: Any) -> None:
    tier = family_tier(family)
    special = next(t.content for t in tier.reference.added_tokens() if t.special)
    for text in (f" {special} ", f"a {special} b", f"{special}  {special}", f"\n{special}\n"):
        assert tier.encoded(text) == tier.ids(text)
        check_append(tier, text[:2], text[2:])


# --- special-token policy --------------------------------------------------------------------------------------


@reports("flag-leak-between-requests")
def test_the_policy_is_part_of_the_state_key(report: Any) -> None:
    with_bos = family_tier("llama-3.1", policy=SpecialTokenPolicy.TEMPLATE)
    without = family_tier("llama-3.1")
    bos, text = 128_000, "The same prefix"
    first, second = service_of(with_bos), service_of(without)
    assert first.open("tenant", "session", text).ids.tolist() == [bos, *without.ids(text)]
    assert second.open("tenant", "session", text).ids.tolist() == without.ids(text)
    assert with_bos.compiled.fingerprint != without.compiled.fingerprint
    assert (
        first.append("tenant", "session", " goes on").certificate
        != second.append("tenant", "session", " goes on").certificate
    )
    assert second.ids("tenant", "session").tolist() == without.ids(text + " goes on")
    exported = first.export("tenant", "session")
    with pytest.raises(StateCorrupt):
        second.restore("tenant", "other", exported)


LLAMA_CHAT = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)


@reports("double-bos-chat")
def test_a_rendered_chat_gets_one_beginning_of_text(report: Any) -> None:
    tier = family_tier("llama-3.1")
    ids = service_of(tier).open("tenant", "session", LLAMA_CHAT).ids.tolist()
    assert (len(ids), ids.count(128_000)) == (36, 1)
    double = service_of(family_tier("llama-3.1", policy=SpecialTokenPolicy.TEMPLATE)).open("t", "s", LLAMA_CHAT).ids
    assert double.tolist() == [128_000, *ids]  # asked for, and named by the policy


@reports("codellama-bos-newline")
def test_the_reference_is_the_fast_tokenizer(report: Any) -> None:
    """CodeLlama's kind of file (Prepend and Replace): the prefix after the token comes as the fast one gives it."""
    tier = family_tier("mixtral-8x22b-v0.1")
    assert tier.compiled.reference_version.startswith("tokenizers==")
    ids = tier.ids("<s>\n")
    space, newline = (tier.reference.tokenizer.token_to_id(name) for name in ("▁", "<0x0A>"))
    assert ids == tier.encoded("<s>\n") == [1, space, newline]
    check_append(tier, "<s>", "\n")


# --- seams -----------------------------------------------------------------------------------------------------

SEAM_FAMILIES = ("qwen-3", "gpt-oss", "llama-3.1", "deepseek-v4", "gpt2-novelai", "mixtral-8x22b-v0.1")
every_seam_family = pytest.mark.parametrize("family", SEAM_FAMILIES)


@reports("seam-0", "seam-2", "seam-4", "seam-6", "seam-8")
@every_seam_family
def test_an_append_equals_the_full_encode(family: str, report: Any) -> None:
    before, after = report["input"]
    tier = family_tier(family)
    for context in ("", "x ", sample_text(300, 4) + "\n"):
        check_append(tier, context + before, after)


@reports("join-word")
@every_seam_family
def test_a_word_that_goes_on_is_joined(family: str, report: Any) -> None:
    tier = family_tier(family)
    check_append(tier, "Han", "zi")
    check_append(tier, "[", "(hu")
    if family in ("qwen-3", "llama-3.1"):
        assert not joins_naively(tier, "Han", "zi") or not joins_naively(tier, "[", "(hu")


@reports("cjk-stop-newlines")
@every_seam_family
def test_newlines_after_a_full_stop_may_join_with_it(family: str, report: Any) -> None:
    tier = family_tier(family)
    for context in ("", "人人生而自由", "a "):
        check_append(tier, context + "。", "\n\n")


@reports("separator-alone")
@every_seam_family
def test_a_separator_is_encoded_in_its_context(family: str, report: Any) -> None:
    tier = family_tier(family)
    for separator in (" # # ", "\n\n", "###"):
        check_append(tier, "some text", separator)
        check_append(tier, "some text" + separator, "and more")


@reports("contraction-run")
@pytest.mark.parametrize("chars", [402, 4_800])
def test_a_run_of_contractions_does_not_resynchronize_by_luck(chars: int, report: Any) -> None:
    tier = family_tier("gpt-oss")
    before = ("'S" * 2_400)[:chars]
    service = service_of(tier)
    old = service.open("tenant", "session", before).ids
    patch = service.append("tenant", "session", "aB")
    assert patch.apply(old).tolist() == tier.ids(before + "aB")
    assert patch.route is Route.REPAIR or service.counts()[f"reason.{patch.reason.value}"] == 1


@reports("nfc-composes-over-seam")
def test_an_accent_composes_over_the_seam(report: Any) -> None:
    tier = family_tier("qwen-3")
    check_append(tier, "e", "\u0301")
    check_append(tier, "caf" + "e", "\u0301 au lait")
    assert tier.ids("e\u0301") == [963]
    assert not joins_naively(tier, "e", "\u0301")


@reports("think-tail-replaced")
@pytest.mark.parametrize("family", ["qwen-3", "deepseek-v4", "gpt2-novelai"])
def test_a_replaced_tail_costs_about_an_append(family: str, report: Any) -> None:
    tier = family_tier(family)
    text, service = sample_text(20_000, 9), service_of(tier)
    ids = service.open("tenant", "session", text + "<think>\n").ids
    for turn in range(4):
        answer = f"The answer is {turn}.\n\n"
        patch = service.edit("tenant", "session", len(text), len(text) + len("<think>\n"), answer)
        ids, text = patch.apply(ids), text + answer
        assert patch.route is Route.REPAIR
        assert patch.keep > 0.9 * len(ids)
        patch = service.append("tenant", "session", "<think>\n")
        ids = patch.apply(ids)
        assert ids.tolist() == tier.ids(text + "<think>\n")
    counts = {name: count for name, count in service.counts().items() if count}
    assert counts == {"route.encode": 1, "reason.session.opened": 1, "route.repair": 8}


# --- the reference's version -----------------------------------------------------------------------------------


@reports("unicode-15-vs-16")
def test_the_references_version_is_part_of_the_fingerprint(report: Any) -> None:
    data = family_data("deepseek-v4")
    prints = {parse_snapshot(data, reference_version=f"tokenizers=={v}").fingerprint for v in ("0.20.3", "0.22.2")}
    tier = family_tier("deepseek-v4")
    assert len(prints | {tier.compiled.fingerprint}) == 3
    assert tier.compiled.reference_version == REFERENCE_VERSION
    assert tier.encoded("a 🫨") == tier.ids("a 🫨") == [67, 7351, 107, 104]
    check_append(tier, "a ", "🫨")


# --- bad input, concurrency, memory, history -------------------------------------------------------------------


@reports("quadratic-piece")
@pytest.mark.parametrize("family", ["gpt2-novelai", "deepseek-v4"])
@pytest.mark.parametrize(("char", "count"), [("a", 100_000), ("_", 50_000)])
def test_one_long_piece_is_exact(family: str, char: str, count: int, report: Any) -> None:
    tier = family_tier(family)
    service = service_of(tier)
    old = service.open("tenant", "session", char * count).ids
    assert old.tolist() == tier.ids(char * count)
    assert service.append("tenant", "session", " b").apply(old).tolist() == tier.ids(char * count + " b")


@reports("lone-surrogate")
def test_a_lone_surrogate_is_refused_by_its_offset_and_changes_nothing(report: Any) -> None:
    tier = family_tier("gpt2-novelai")
    service = service_of(tier)
    bad = json.loads('"ab\\ud800c"')
    with pytest.raises(InvalidText) as caught:
        service.open("tenant", "session", bad)
    assert (caught.value.code, caught.value.details["offset_chars"]) == ("text.lone_surrogate", 2)
    with pytest.raises(SessionNotFound):
        service.info("tenant", "session")
    service.open("tenant", "session", "good")
    before = service.info("tenant", "session")
    for call in (
        lambda: service.append("tenant", "session", bad),
        lambda: service.edit("tenant", "session", 0, 1, bad),
        lambda: service.full_text("tenant", "session", "good" + bad),
    ):
        with pytest.raises(InvalidText):
            call()
    assert service.info("tenant", "session") == before
    assert service.ids("tenant", "session").tolist() == tier.ids("good")


@reports("concurrent-truncation")
def test_concurrent_callers_of_one_tokenizer_get_their_own_answers(report: Any) -> None:
    document = json.loads(family_data("gpt2-novelai"))
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    tier = build_tier(json.dumps(document).encode())
    service = service_of(tier)
    texts = [sample_text(400 * (number + 1), number) for number in range(4)]
    expected = [tier.ids(text) for text in texts]
    assert min(map(len, expected)) > 4
    wrong: list[object] = []

    def work(number: int) -> None:
        text, name = texts[number], f"session {number}"
        try:
            for _ in range(10):
                whole = tier.reference.encode(text).tolist()
                opened = service.open("tenant", name, text[:200]).ids
                grown = service.append("tenant", name, text[200:]).apply(opened).tolist()
                if not whole == grown == expected[number]:
                    wrong.append(number)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@reports("rss-flat")
def test_memory_settles_within_its_budget(report: Any) -> None:
    tier = family_tier("gpt2-novelai")
    budget = 8 << 20
    service = SessionService(tier.tokenizer, budget_bytes=budget)
    after: list[int] = []
    for number in range(24):
        service.open("tenant", f"session {number}", f"{number} " + sample_text(150_000, number))
        assert service.state_bytes <= budget
        after.append(resident_bytes())
    assert service.counts()["evicted.bytes"] > 0
    # A third of the texts to warm up (freed memory stays with the process), then no growth by text.
    assert after[-1] - after[8] < 64 << 20


@reports("history-dependent-encoder")
@pytest.mark.parametrize("family", ["gpt2-novelai", "qwen-3"])
def test_what_was_encoded_before_changes_no_answer(family: str, report: Any) -> None:
    tier = family_tier(family)
    fresh = Reference(parse_snapshot(family_data(family), reference_version=REFERENCE_VERSION))
    text = sample_text(9_000, 13)
    for stop in (4_096, 4_097, 4_500, 6_001, 9_000, 4_096):
        assert tier.encoded(text[:stop]) == fresh.encode_text(text[:stop]).tolist()
    service = service_of(tier)
    ids = service.open("tenant", "session", text[:4_200]).ids
    ids = service.append("tenant", "session", text[4_200:]).apply(ids)
    assert np.array_equal(ids, fresh.encode_text(text))


def test_reports_say_where_they_come_from() -> None:
    for report in REPORTS.values():
        assert set(report) == {"id", "kind", "input", "expect", "source"}
        assert all(report.values())
    assert family_reference("gpt2-novelai").snapshot.unsupported is None


# --- chat --------------------------------------------------------------------------------------------------------


@reports("content-array")
@pytest.mark.parametrize("loops", [False, True], ids=["content as text", "content as parts"])
def test_parts_of_a_message_are_joined_by_the_template(report: Any, loops: bool) -> None:
    content = "{% for part in m.content %}{{ part.text }}{% endfor %}" if loops else "{{ m.content }}"
    renderer = ChatRenderer("{% for m in messages %}<" + content + ">{% endfor %}", special_tokens={})
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": '"two"'}]
    rendered = renderer.render({"messages": [{"role": "user", "content": parts}]})
    assert isinstance(rendered, Rendered)
    assert re.fullmatch(r'<one  ?"two">', rendered.text)


# --- reports of November 2026 ------------------------------------------------------------------------------------

MARKS = ("\u0ec8\u0eba", "\u09fe\u0345", "\u0345\u09fe", "\u0c3c\u0301", "\u0d3b\u0301", "\u0345\u0898", "\u0898\u0301")


@reports("nfc-marks-after-unicode-12")
def test_marks_that_newer_tables_order_stand_as_the_reference_leaves_them(report: Any) -> None:
    tier = family_tier("qwen-3")
    for marks in MARKS:
        for text in (marks, f"a{marks}b", f"\u0e81{marks}", f"caf\u00e9{marks} {marks[::-1]}"):
            assert tier.encoded(text) == tier.ids(text)
            check_append(tier, text[:1], text[1:])


LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
BEGIN = "<|begin_of_text|>"


def llama_text(*messages: tuple[str, str], generation: bool = True) -> str:
    parts = [f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>" for role, text in messages]
    return BEGIN + "".join(parts) + ("<|start_header_id|>assistant<|end_header_id|>\n\n" if generation else "")


@dataclass
class Front:
    """A tier that serves Llama 3.1 before an engine, over HTTP."""

    tier: WholeTier
    engine: Engine

    def post(self, path: str, body: Any) -> Any:
        answer = httpx.post(f"http://{self.tier.http}{path}", json=body, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def sent(self, path: str, body: Any) -> Any:
        self.post(path, body)
        assert self.engine.requests[-1][0] == path
        return self.engine.requests[-1][1]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder, engine = tmp_path_factory.mktemp("front"), Engine()
    model = folder / "llama"
    model.mkdir()
    (model / "chat_template.jinja").write_text(LLAMA_TEMPLATE)
    (model / "special_tokens_map.json").write_text(json.dumps({"bos_token": BEGIN, "eos_token": "<|eot_id|>"}))
    llama = TokenizerSettings("llama", str(path_of("llama-3.1")), chat_template=str(model))
    behind = OnThread(engine.app)
    upstream = UpstreamSettings(urls=(behind.url,))
    with whole_tier(folder, tokenizers=(llama,), upstream=upstream, unadmitted="reference") as tier:
        yield Front(tier, engine)
    behind.stop()


@reports("prefill-extra-bos")
def test_an_answer_to_continue_brings_no_second_bos(report: Any, front: Front) -> None:
    tier = family_tier("llama-3.1")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\n"}]
    sent = front.sent("/v1/chat/completions", {"messages": messages, "continue_final_message": True})["input_ids"]
    assert sent == tier.ids(llama_text(("user", "Hi"))) + tier.ids("<think>\n")
    assert sent.count(128_000) == 1


@reports("tokenize-without-generation-prompt", "tokenize-chat-with-bos")
def test_tokenize_heeds_what_sglang_heeds(report: Any, front: Front) -> None:
    tier = family_tier("llama-3.1")
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    if report["id"] == "tokenize-chat-with-bos":
        more = {"add_generation_prompt": True, "add_special_tokens": True}
        expected = [128_000, *tier.ids(llama_text(("user", "Hi")))]
        assert expected[:2] == [128_000, 128_000]
    else:
        more, expected = {"add_generation_prompt": False}, tier.ids(llama_text(("user", "Hi"), generation=False))
    found = front.post("/tokenize", asked | more)
    assert (found["tokens"], found["count"]) == (expected, len(expected))


@reports("content-parts-of-text")
def test_text_parts_are_joined_by_a_blank_where_the_template_takes_text(report: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    renderer = ChatRenderer(LLAMA_TEMPLATE, special_tokens={"bos_token": BEGIN})
    assert renderer.render({"messages": [{"role": "user", "content": parts}]}) == Rendered(
        llama_text(("user", "one two"))
    )


@reports("tool-arguments-as-string")
def test_arguments_written_as_text_reach_the_template_as_json(report: Any) -> None:
    arguments = '{"path":"/f","n": 1.0}'
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    called = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    template = "{% for m in messages %}" + called + "{% endfor %}"
    assert ChatRenderer(template, special_tokens={}).render({"messages": messages}) == Rendered(
        '{"path": "/f", "n": 1.0}'
    )


@reports("one-cache-key-many-conversations")
def test_conversations_under_one_cache_key_go_on_each_from_its_own_state(report: Any, front: Front) -> None:
    tier, key = family_tier("llama-3.1"), {"prompt_cache_key": "one for all"}
    talks = [[{"role": "user", "content": sample_text(2_000, seed).strip()}] for seed in range(3)]
    before = len(front.tier.sessions)
    for turn in range(3):
        for talk in talks:
            sent = front.sent("/v1/chat/completions", {"messages": talk, **key})["input_ids"]
            assert sent == tier.ids(llama_text(*((each["role"], each["content"]) for each in talk)))
            talk += [{"role": "assistant", "content": f"{turn}"}, {"role": "user", "content": f"And {turn}?"}]
    assert len(front.tier.sessions) == before + 3


@reports("echo-of-a-text-prompt", "image-with-text-to-generate", "codex-responses-route")
def test_what_the_engine_must_see_as_it_is_goes_on_as_it_is(report: Any, front: Front) -> None:
    path, body = {
        "echo-of-a-text-prompt": (
            "/v1/completions",
            {"prompt": "<|im_start|>user\nHi<|im_end|>\n", "echo": True},
        ),
        "image-with-text-to-generate": (
            "/generate",
            {"text": "<image>What?", "image_data": "data:image/png;base64,AAAA"},
        ),
        "codex-responses-route": ("/v1/responses", {"model": "llama", "input": "Hi", "store": False}),
    }[report["id"]]
    assert front.sent(path, body) == body


@reports("long-stream-costs")
def test_a_long_stream_decodes_each_token_a_few_times(report: Any) -> None:
    reference = family_reference("gpt2-novelai")
    ids = reference.encode_text(sample_text(24_000, 5)).tolist()
    decoded: list[int] = []

    def decode(part: Any) -> str:
        decoded.append(len(part))
        return reference.decode(part)

    def work(tokens: int) -> int:
        output = Output(decode)
        decoded.clear()
        for each in ids[:tokens]:
            output.extend([each])
            output.event({})
        output.finish()
        assert output.text == reference.decode(np.array(ids[:tokens], dtype=np.uint32))
        return sum(decoded)

    assert work(4_000) <= 8 * work(1_000)


@reports("falcon-order")
def test_punctuation_digits_and_a_split_keep_their_order(report: Any) -> None:
    steps = pre_tokenizers(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(),
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False},
    )
    tier = build_tier(tokenizer_json(byte_telltale("a1234!. "), pre_tokenizer=steps))
    for text in ("a 1234567 !!..a1", "12.345!!678", " 1234", "a1234 12!34"):
        assert tier.encoded(text) == tier.ids(text)
        for cut in range(1, len(text)):
            check_append(tier, text[:cut], text[cut:])


@reports("mask-strips-left")
@pytest.mark.parametrize("blank", [" ", "\u00a0", "\u2028", "\u3000", "\u0085", "\u200b", "\u180e"])
def test_a_token_that_strips_to_its_left_takes_white_space_only(blank: str, report: Any) -> None:
    mask = token(2_000, "<mask>", lstrip=True, special=True)
    tier = build_tier(tokenizer_json(byte_telltale("a \u00a0"), added=[mask], pre_tokenizer=byte_level()))
    id = tier.reference.tokenizer.token_to_id("<mask>")
    text = f"a{blank}<mask>a"
    assert tier.encoded(text) == tier.ids(text)
    assert (tier.ids(text) == [*tier.ids("a"), id, *tier.ids("a")]) == (blank not in "\u200b\u180e")
    for cut in range(1, len(text)):
        check_append(tier, text[:cut], text[cut:])


@reports("bos-by-config-only")
def test_bos_that_only_the_configuration_asks_for_is_known_or_the_text_is_passed_on(report: Any) -> None:
    data, reference = family_data("deepseek-v4"), family_reference("deepseek-v4")
    tokens = tokens_of(reference.added_tokens())
    bos, eos = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
    asked = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": bos}

    def loading(**config: Any) -> Loading:
        return loading_of({"tokenizer.json": data, "tokenizer_config.json": json.dumps(config).encode()}, tokens)

    assert reference.fixed_template() == ((), ())
    bare = loading(**asked)  # the class then adds an </s> and an <unk> that the file lacks
    assert bare.refusal is not None
    assert bare.refusal.reason == "folder.added_tokens"
    assert loading(**asked, eos_token=eos, pad_token=eos, unk_token=None) == Loading(None, (0,))
