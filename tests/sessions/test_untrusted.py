"""Sessions with untrusted spans: whatever callers do, they hold the IDs that the definition gives (decision 0007)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from toktier_tier.core.certificate import verify_certificate
from toktier_tier.core.errors import CertificateInvalid, InvalidRequest, StateCorrupt, StateError, UnsupportedTokenizer
from toktier_tier.core.session import SPAN_BYTES
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.core.trust import NO_SPANS, Spans, clipped, joined, spliced
from toktier_tier.core.values import Patch, Reason, Route
from toktier_tier.sessions import handoff
from toktier_tier.sessions.lives import changes_of, life_of
from toktier_tier.sessions.service import SessionService
from toktier_tier.tokenizer import TierTokenizer
from workshop import (
    Tier,
    build_tier,
    byte_level,
    byte_telltale,
    check_rope,
    examples,
    family_tier,
    fresh_tokenizer,
    repairer_of,
    small_rope,
    spans_in,
    text_parts,
    texts,
    token,
    tokenizer_json,
)

POLICY = SpecialTokenPolicy
KEY = ("t", "s")


def flagged() -> Tier:
    """A tiny file in which every cut and every flag shows."""
    marks = [
        token(900, "<m>"),
        token(901, "<l>", lstrip=True),
        token(902, "<r>", rstrip=True),
        token(904, "ab", single_word=True),
        token(905, "n>", normalized=True),
    ]
    return build_tier(tokenizer_json(byte_telltale("ab <m>lrn1"), pre_tokenizer=byte_level(), added=marks))


def without_trust(tier: Tier) -> TierTokenizer:
    """As admitted before untrusted spans were tried."""
    tokenizer = TierTokenizer(tier.reference, dataclasses.replace(tier.compiled, trust=None), workers=1)
    own = repairer_of(tier, 4)
    own._encode_untrusted = own._encode_untrusted_chunks = None
    tokenizer.repairer = own
    return tokenizer


def short_sighted(tier: Tier) -> TierTokenizer:
    tokenizer = fresh_tokenizer(tier)
    tokenizer.repairer = repairer_of(tier, 4)
    return tokenizer


def right(tokenizer: TierTokenizer, text: str, spans: Spans) -> list[int]:
    """The slow twin: the oracle with the template's tokens around."""
    return tokenizer.template.around(tokenizer.trust.encode(text, spans)).tolist()


places = st.one_of(st.just(1000), st.integers(0, 1000))


class Conversation(RuleBasedStateMachine):
    """One session, a client that believes its patches, and now and then another pod."""

    tier: ClassVar[Tier]
    tokenizer: ClassVar[TierTokenizer]
    keep_text: ClassVar[bool]
    parts: ClassVar[list[str]]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(small_rope())
        self.service = SessionService(self.tokenizer, keep_text=self.keep_text)
        self.text, self.spans = "", NO_SPANS
        opened = self.service.open(*KEY, "")
        self.ids, self.revision, self.copied = opened.ids, opened.revision, False

    def teardown(self) -> None:
        self.stack.close()

    def apply(self, act: Callable[[], Patch], text: str, spans: Spans) -> None:
        refusal = None
        try:
            patch = act()
        except StateError as error:
            refusal = error
        if refusal is not None:
            assert (refusal.code, self.keep_text) == ("session.text_not_kept", False)
            self.check()
            return
        if patch.certificate is not None:
            self.certify(patch, text, spans)
        self.ids, self.text, self.spans = patch.apply(self.ids), text, spans
        if patch.route is not Route.UNCHANGED and self.copied:  # a copy's first change begins a life of its own
            assert life_of(patch.revision) != life_of(self.revision)
            self.copied = False
        else:
            assert patch.revision == self.revision + (patch.route is not Route.UNCHANGED)
        self.revision = patch.revision
        self.check()

    def certify(self, patch: Patch, text: str, spans: Spans) -> None:
        """What the certificate says holds of the text and of its trust."""
        assert patch.certificate is not None
        rule_, fingerprint = self.tier.rule, self.tokenizer.fingerprint
        encoder = self.tokenizer.text_encoder
        assert encoder is not None
        verify_certificate(
            patch,
            fingerprint=fingerprint,
            rule=rule_,
            old_text=self.text,
            new_text=text,
            old_ids=self.ids,
            encode=encoder.encode,
            old_untrusted=self.spans,
            new_untrusted=spans,
            encode_untrusted=encoder.encode_untrusted,
        )
        at = patch.certificate.boundary_chars
        if at:
            with pytest.raises(CertificateInvalid) as caught:
                verify_certificate(
                    patch,
                    fingerprint=fingerprint,
                    rule=rule_,
                    old_text=self.text,
                    new_text=text,
                    old_ids=self.ids,
                    old_untrusted=self.spans,
                    new_untrusted=spliced(spans, at - 1, at, NO_SPANS if clipped(spans, at - 1, at) else ((0, 1),), 1),
                )
            assert caught.value.code == "certificate.untrusted"

    def check(self) -> None:
        assert self.ids.tolist() == right(self.tokenizer, self.text, self.spans)
        assert self.service.ids(*KEY).tobytes() == self.ids.tobytes()
        state = self.service._find(self.service._key(*KEY)).state
        assert state.untrusted == self.spans
        if self.tokenizer.trust_admitted:
            check_rope(state, self.tier, self.text)

    def at(self, low: int, high: int) -> tuple[int, int]:
        start, stop = sorted((low * len(self.text) // 1000, high * len(self.text) // 1000))
        return start, stop

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.text = data.draw(texts(self.parts, 40))
        self.spans = data.draw(spans_in(self.text))
        opened = self.service.open(*KEY, self.text, untrusted=self.spans)
        self.ids, self.revision, self.copied = opened.ids, opened.revision, False
        self.check()

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        delta = data.draw(texts(self.parts, 12))
        spans = data.draw(spans_in(delta))
        end = len(self.text)
        new = spliced(self.spans, end, end, spans, len(delta))
        self.apply(lambda: self.service.append(*KEY, delta, untrusted=spans), self.text + delta, new)

    @rule(data=st.data(), low=places, high=places)
    def edit(self, data: st.DataObject, low: int, high: int) -> None:
        start, stop = self.at(low, high)
        put = data.draw(texts(self.parts, 8))
        spans = data.draw(spans_in(put))
        text, new = self.text[:start] + put + self.text[stop:], spliced(self.spans, start, stop, spans, len(put))
        self.apply(lambda: self.service.edit(*KEY, start, stop, put, untrusted=spans), text, new)

    @precondition(lambda self: self.text)
    @rule(data=st.data(), low=places, high=places)
    def trust_otherwise(self, data: st.DataObject, low: int, high: int) -> None:
        """The same characters, other spans: by an edit, or by the full text."""
        start, stop = self.at(low, high)
        part = self.text[start:stop]
        spans = data.draw(spans_in(part))
        new = spliced(self.spans, start, stop, spans, len(part))
        if data.draw(st.booleans()):
            self.apply(lambda: self.service.edit(*KEY, start, stop, part, untrusted=spans), self.text, new)
        else:
            self.apply(lambda: self.service.full_text(*KEY, self.text, untrusted=new), self.text, new)

    @rule(data=st.data(), low=places, high=places)
    def send_everything(self, data: st.DataObject, low: int, high: int) -> None:
        start, stop = self.at(low, high)
        put = data.draw(texts(self.parts, 12))
        text = self.text[:start] + put + self.text[stop:]
        spans = spliced(self.spans, start, stop, data.draw(spans_in(put)), len(put))
        if data.draw(st.booleans()):
            spans = data.draw(spans_in(text))
        self.apply(lambda: self.service.full_text(*KEY, text, untrusted=spans), text, spans)

    @rule(data=st.data())
    def encode_beside_it(self, data: st.DataObject) -> None:
        text = data.draw(texts(self.parts, 12))
        spans = data.draw(spans_in(text))
        assert self.service.encode(text, untrusted=spans).ids.tolist() == right(self.tokenizer, text, spans)

    @rule()
    def go_on_as_a_copy(self) -> None:
        assert self.service.fork(*KEY, "twin")
        self.service.append(*KEY, "something else", untrusted=((2, 5),))
        self.service.close(*KEY)
        assert self.service.fork(KEY[0], "twin", KEY[1])
        self.copied = True
        self.check()

    @rule()
    def hand_over(self) -> None:
        exported = self.service.export(*KEY)
        version = handoff.MAGIC_UNTRUSTED if self.spans else handoff.MAGIC
        assert exported.startswith(version)
        if self.tokenizer.trust_admitted or not self.spans or self.keep_text:
            other = SessionService(self.tokenizer, keep_text=self.keep_text)
            state = self.service._find(self.service._key(*KEY)).state
            if state.segments and not state.keep_text:
                with pytest.raises(StateCorrupt, match=r"handoff\.unverifiable"):
                    other.restore(*KEY, exported)
            else:
                other.restore(*KEY, exported)
                self.service, self.copied = other, True
        self.check()


MACHINES = [
    ("flagged", POLICY.NONE, True, short_sighted),
    ("flagged", POLICY.NONE, True, without_trust),
    ("qwen-3", POLICY.NONE, True, short_sighted),
    ("deepseek-v4", POLICY.NONE, False, short_sighted),
    ("gpt-oss", POLICY.NONE, True, short_sighted),
    ("llama-3.1", POLICY.TEMPLATE, True, short_sighted),
    ("kimi_k3", POLICY.NONE, True, short_sighted),
    ("mistral-nemo", POLICY.NONE, True, short_sighted),
    ("mixtral-8x22b-v0.1", POLICY.TEMPLATE, True, short_sighted),
    ("mistral-7b-v0.3", POLICY.NONE, False, short_sighted),
    ("moonshine", POLICY.NONE, True, without_trust),
    ("gpt2-novelai", POLICY.NONE, True, short_sighted),
]


@pytest.mark.parametrize(("family", "policy", "keep_text", "make"), MACHINES)
def test_every_history_of_calls_gives_the_defined_ids(
    family: str, policy: POLICY, keep_text: bool, make: Callable[[Tier], TierTokenizer]
) -> None:
    tier = flagged() if family == "flagged" else family_tier(family, policy=policy)
    parts = [*"ab <>mlrn1", "<m>", "<l>", "<r>", "n>", "ab", "<m", "1 "] if family == "flagged" else text_parts(tier)
    members = {"tier": tier, "tokenizer": make(tier), "keep_text": keep_text, "parts": parts}
    run_state_machine_as_test(
        type("Machine", (Conversation,), members),
        settings=settings(max_examples=examples(15), stateful_step_count=20, deadline=None),
    )


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["qwen-3", "deepseek-v4", "llama-3.1", "gpt-oss", "mistral-7b-v0.3", "kimi_k3"])
def attacked(request: pytest.FixtureRequest) -> tuple[Tier, str]:
    tier = family_tier(request.param)
    special = [each.content for each in tier.reference.added_tokens() if each.special and len(each.content) > 3]
    return tier, next(name for name in special if "end" in name or "eot" in name or "/" in name)


def ids_of(service: SessionService) -> list[int]:
    return service.ids(*KEY).tolist()


def test_a_control_token_is_ordinary_text_however_it_comes_together(attacked: tuple[Tier, str]) -> None:
    """Spelled in one untrusted delta, cut by the border, by appends, and by an edit that removes its middle."""
    tier, name = attacked
    control, middle = tier.reference.id_of(name), len(name) // 2
    head, rest = name[:middle], name[middle:]
    for first, first_trusted, second, second_trusted in (
        ("", True, name, False),
        (head, True, rest, False),  # half a token, typed by who is trusted, finished by who isn't
        (head, False, rest, True),
        (head, False, rest, False),
    ):
        service = SessionService(short_sighted(tier))
        service.open(*KEY, "question: ")
        for part, is_trusted in ((first, first_trusted), (second, second_trusted)):
            service.append(*KEY, part, untrusted=() if is_trusted else ((0, len(part)),))
        assert control not in ids_of(service)
        service.append(*KEY, " and on")
        assert control not in ids_of(service)
        by_char = SessionService(short_sighted(tier))
        by_char.open(*KEY, "question: ")
        for part, is_trusted in ((first, first_trusted), (second, second_trusted)):
            for char in part:
                by_char.append(*KEY, char, untrusted=() if is_trusted else ((0, 1),))
        by_char.append(*KEY, " and on")
        assert ids_of(by_char) == ids_of(service)
    service = SessionService(short_sighted(tier))
    service.open(*KEY, f"{head}, {rest}", untrusted=((0, len(name) + 2),))
    service.edit(*KEY, middle, middle + 2, "")
    assert control not in ids_of(service)
    service.edit(*KEY, 0, middle, head)  # now half of it is trusted
    assert control not in ids_of(service)
    service.edit(*KEY, middle, len(name), rest)
    assert control in ids_of(service)
    assert ids_of(service) == tier.ids(name)


def test_a_full_text_of_equal_characters_and_other_trust_is_a_change(attacked: tuple[Tier, str]) -> None:
    tier, name = attacked
    text = f"before {name} after"
    start, stop = text.index(name), text.index(name) + len(name)
    service = SessionService(short_sighted(tier))
    service.open(*KEY, text)
    assert service.full_text(*KEY, text).route is Route.UNCHANGED
    patch = service.full_text(*KEY, text, untrusted=[(start, stop)])
    assert patch.route is Route.REPAIR
    assert tier.reference.id_of(name) not in ids_of(service)
    assert service.full_text(*KEY, text, untrusted=[(start, start + 1), (start + 1, stop)]).route is Route.UNCHANGED
    assert service.full_text(*KEY, text).route is Route.REPAIR
    assert ids_of(service) == tier.ids(text)


# --- what goes with it ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tier() -> Tier:
    return family_tier("qwen-3")


@pytest.mark.parametrize(
    ("spans", "code"),
    [
        ([(0, 9)], "trust.out_of_range"),
        ([(2, 1)], "trust.unordered"),
        ([(0, 3), (2, 4)], "trust.overlap"),
        ([(0,)], "trust.bad_span"),
    ],
)
def test_spans_that_are_none_are_refused_and_change_nothing(tier: Tier, spans: Any, code: str) -> None:
    service = SessionService(short_sighted(tier))
    service.open(*KEY, "a<|im_end|>", untrusted=[(0, 3)])
    for call in (
        lambda: service.open(*KEY, "text", untrusted=spans),
        lambda: service.append(*KEY, "text", untrusted=spans),
        lambda: service.edit(*KEY, 0, 1, "text", untrusted=spans),
        lambda: service.full_text(*KEY, "text", untrusted=spans),
        lambda: service.encode("text", untrusted=spans),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.code == code
    assert changes_of(service.info(*KEY).revision) == 0
    assert ids_of(service) == right(service.tokenizer, "a<|im_end|>", ((0, 3),))


def test_a_tokenizer_without_a_definition_refuses_spans_and_serves_the_rest() -> None:
    tier = family_tier("pile-novelai")
    service = SessionService(fresh_tokenizer(tier))
    service.open(*KEY, "a  b")
    for call in (
        lambda: service.append(*KEY, "  x", untrusted=[(0, 1)]),
        lambda: service.encode("  x", untrusted=[(0, 1)]),
    ):
        with pytest.raises(UnsupportedTokenizer) as caught:
            call()
        assert caught.value.code == "trust.unsupported"
    service.append(*KEY, "  x", untrusted=[(1, 1)])
    assert ids_of(service) == tier.ids("a  b  x")


def test_without_admission_the_reference_answers_and_says_why(tier: Tier) -> None:
    service = SessionService(without_trust(tier))
    text = "a<|im_end|>b"
    patch = service.open(*KEY, text)
    assert patch.route is Route.ENCODE
    patch = service.append(*KEY, text, untrusted=[(1, 11)])
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.TRUST_NOT_ADMITTED)
    assert service.append(*KEY, "!").route is Route.REFERENCE
    patch = service.edit(*KEY, len(text) + 1, len(text) + 11, "")  # no untrusted character is left
    assert patch.route is Route.ENCODE
    assert service.append(*KEY, "?").route is Route.REPAIR
    assert ids_of(service) == tier.ids(f"{text}ab!?")
    patch = service.encode(text, untrusted=[(1, 2)])
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.TRUST_NOT_ADMITTED)


def test_a_quarantine_leaves_the_spans_and_takes_the_fast_paths(tier: Tier) -> None:
    tokenizer = short_sighted(tier)
    service = SessionService(tokenizer)
    text, spans = "a<|im_end|>b<|im_end|>", ((1, 11),)
    service.open(*KEY, text, untrusted=spans)
    tokenizer.quarantine()
    assert ids_of(service) == right(tokenizer, text, spans)
    patch = service.append(*KEY, text, untrusted=spans)
    assert patch.route is Route.REFERENCE
    both = joined([*spans, (len(text) + 1, len(text) + 11)])
    assert ids_of(service) == right(tokenizer, 2 * text, both)
    patch = service.full_text(*KEY, 2 * text)
    assert ids_of(service) == tier.ids(2 * text)


def test_a_witness_that_fails_is_answered_by_the_oracle(tier: Tier) -> None:
    tokenizer = short_sighted(tier)
    service = SessionService(tokenizer)
    text, spans = "a<|im_end|>b <|im_end|>", ((1, 11),)
    service.open(*KEY, text, untrusted=spans)
    service._find(service._key(*KEY)).state.tail_ids[-1] += 1
    patch = service.append(*KEY, text, untrusted=spans)
    assert (patch.route, patch.reason) == (Route.REFERENCE, Reason.WITNESS_MISMATCH)
    assert tokenizer.quarantined
    assert ids_of(service) == right(tokenizer, 2 * text, joined([*spans, (len(text) + 1, len(text) + 11)]))


def test_spans_weigh_on_the_budget(tier: Tier) -> None:
    service = SessionService(short_sighted(tier))
    service.open(*KEY, "abcdefghij")
    bare = service.info(*KEY).state_bytes
    service.open(*KEY, "abcdefghij", untrusted=[(0, 1), (2, 3), (4, 5)])
    assert service.info(*KEY).state_bytes == bare + 3 * SPAN_BYTES
    service.edit(*KEY, 0, 10, "abcdefghij")
    assert service.info(*KEY).state_bytes <= bare + 1_100  # the buffer may have grown


# --- hand-over --------------------------------------------------------------------------------------------------------


def resealed(data: bytes, change: Callable[[dict[str, Any]], None], magic: bytes | None = None) -> bytes:
    start = len(handoff.MAGIC) + 16
    body = data[start:]
    (size,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + size])
    change(header)
    encoded = json.dumps(header).encode()
    body = struct.pack("<I", len(encoded)) + encoded + body[4 + size :]
    return (magic or data[: len(handoff.MAGIC)]) + hashlib.blake2b(body, digest_size=16).digest() + body


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("untrusted"),
        lambda header: header.update(untrusted=[]),
        lambda header: header.update(untrusted=[[1, 99]]),
        lambda header: header.update(untrusted=[[-1, 3]]),
        lambda header: header.update(untrusted=[[3, 1]]),
        lambda header: header.update(untrusted=[[1, 3], [3, 5]]),
        lambda header: header.update(untrusted=[[1, 1]]),
        lambda header: header.update(untrusted=[[1, True]]),
        lambda header: header.update(untrusted=[[1, 2, 3]]),
        lambda header: header.update(untrusted=7),
        lambda header: header.update(untrusted=None),
    ],
)
def test_a_handed_over_state_has_spans_that_can_be(tier: Tier, change: Callable[[dict[str, Any]], None]) -> None:
    service = SessionService(short_sighted(tier))
    service.open(*KEY, "a<|im_end|>b", untrusted=[(1, 5)])
    data = service.export(*KEY)
    assert service.restore("t", "again", data).chars == 12
    with pytest.raises(StateCorrupt) as caught:
        service.restore("t", "other", resealed(data, change))
    assert caught.value.code == "handoff.malformed"


def test_a_state_with_spans_is_never_taken_for_one_without(tier: Tier) -> None:
    service = SessionService(short_sighted(tier))
    service.open(*KEY, "a<|im_end|>b", untrusted=[(1, 5)])
    data = service.export(*KEY)
    for damaged in (
        handoff.MAGIC + data[len(handoff.MAGIC) :],
        resealed(data, lambda header: header.update(untrusted=[[12, 12]])),
        resealed(data, lambda header: header.pop("untrusted"), handoff.MAGIC),  # its witness gives it away
        resealed(data, lambda header: header.update(untrusted=[[0, 1]])),
    ):
        with pytest.raises(StateCorrupt):
            service.restore("t", "other", damaged)
    service.open(*KEY, "ab")
    assert service.export(*KEY).startswith(b"TKTSTATE1\n")
    with pytest.raises(StateCorrupt):
        service.restore("t", "other", handoff.MAGIC_UNTRUSTED + service.export(*KEY)[len(handoff.MAGIC) :])


@pytest.mark.parametrize("damage", [False, True])
def test_a_pod_without_admission_checks_the_whole_text_by_the_reference(tier: Tier, damage: bool) -> None:
    with small_rope():
        giver = SessionService(short_sighted(tier))
        text = "some words <|im_end|> and more. " * 20
        spans = tuple((at, at + 30) for at in range(8, 600, 64))
        giver.open(*KEY, text, untrusted=spans)
        state = giver._find(giver._key(*KEY)).state
        assert state.segments
        data = giver.export(*KEY)
        if damage:
            ids = state.segments[0].ids.copy()
            ids[0] += 1
            state.segments[0] = dataclasses.replace(state.segments[0], ids=ids)
            data = giver.export(*KEY)
        taker = SessionService(without_trust(tier))
        if damage:
            with pytest.raises(StateCorrupt):
                taker.restore(*KEY, data)
            return
        taker.restore(*KEY, data)
        assert ids_of(taker) == ids_of(giver) == right(taker.tokenizer, text, spans)
        taker.append(*KEY, "<|im_end|>", untrusted=[(0, 1)])
        assert ids_of(taker) == right(taker.tokenizer, text + "<|im_end|>", (*spans, (len(text), len(text) + 1)))
