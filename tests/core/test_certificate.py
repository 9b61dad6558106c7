"""A patch's certificate verifies from outside, and no part of it can be changed without being noticed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from toktier_tier.core.certificate import verify_certificate
from toktier_tier.core.errors import CertificateInvalid
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.core.values import Certificate, Ids, Patch, Route
from workshop import Tier, family_tier, random_text, repairer_of, sample_text, text_parts

FAMILIES = ("gpt2-novelai", "mixtral-8x22b-v0.1", "llama3-novelai")
OVERLAP_CHARS = 9


@dataclass(frozen=True)
class Case:
    """A patch and everything that a verifier has beside it."""

    tier: Tier
    patch: Patch
    old_text: str
    new_text: str
    old_ids: Ids

    @property
    def certificate(self) -> Certificate:
        assert self.patch.certificate is not None
        return self.patch.certificate

    def verify(self, **changes: Any) -> None:
        """`verify_certificate`, with some arguments (or fields of the certificate) put out of order."""
        fields = {name: changes.pop(name) for name in Certificate._fields if name in changes}
        if fields:
            changes["patch"] = replace(self.patch, certificate=self.certificate._replace(**fields))
        whole = {
            "patch": self.patch,
            "fingerprint": self.tier.compiled.fingerprint,
            "rule": self.tier.rule,
            "old_text": self.old_text,
            "new_text": self.new_text,
            "old_ids": self.old_ids,
        }
        verify_certificate(**{**whole, **changes})

    def code(self, **changes: Any) -> str:
        with pytest.raises(CertificateInvalid) as caught:
            self.verify(**changes)
        return caught.value.code

    @property
    def encode(self) -> Callable[..., Ids]:
        assert self.tier.tokenizer.text_encoder is not None
        return self.tier.tokenizer.text_encoder.encode


def case(family: str, text: str, start: int, stop: int, replacement: str, **options: Any) -> Case:
    tier = family_tier(family, **options)
    repairer = repairer_of(tier, OVERLAP_CHARS)
    state = repairer.open(text)
    old_ids = repairer.ids(state)
    appended = start == stop == len(text)
    patch = repairer.append(state, replacement) if appended else repairer.replace(state, start, stop, replacement)
    assert patch.apply(old_ids).tobytes() == repairer.ids(state).tobytes()
    return Case(tier, patch, text, text[:start] + replacement + text[stop:], old_ids)


TEXT = sample_text(3_000, 5).rstrip() + " and then <think>\nso"
CHANGES = {
    "append": (len(TEXT), len(TEXT), " the answer is 42.\n"),
    "tail edit": (len(TEXT) - 10, len(TEXT), "Done."),
    "mid edit": (1_500, 1_520, " something else "),
    "insertion": (700, 700, "é"),
    "deletion": (400, 900, ""),
    "truncation": (2_000, len(TEXT), ""),
    "at the start": (0, 5, "Well,"),
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@pytest.mark.parametrize("family", FAMILIES)
@every_change
def test_a_patch_of_any_kind_verifies(family: str, change: tuple[int, int, str]) -> None:
    made = case(family, TEXT, *change)
    assert made.patch.route is Route.REPAIR
    made.verify()
    made.verify(encode=made.encode)


@every_change
def test_template_tokens_are_part_of_the_old_ids(change: tuple[int, int, str]) -> None:
    made = case("llama3-novelai", TEXT, *change, policy=SpecialTokenPolicy.TEMPLATE)
    assert made.tier.reference.prefix_ids != ()
    made.verify(encode=made.encode)


@pytest.mark.parametrize("family", FAMILIES)
def test_patches_over_random_texts_verify(family: str) -> None:
    chooser = random.Random(family)
    parts = text_parts(family_tier(family))
    for _ in range(40):
        text = random_text(chooser, parts, 3, 60)
        start, stop = sorted(chooser.randint(0, len(text)) for _ in range(2))
        made = case(family, text, start, stop, random_text(chooser, parts, 0, 8))
        if made.patch.certificate is not None:
            made.verify(encode=made.encode)


def test_a_patch_without_a_certificate_is_told_apart() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    assert made.code(patch=replace(made.patch, certificate=None)) == "certificate.missing"
    unchanged = case("gpt2-novelai", TEXT, len(TEXT), len(TEXT), "")
    assert unchanged.patch.route is Route.UNCHANGED
    assert unchanged.code() == "certificate.missing"


@every_change
def test_another_snapshot_or_rule_is_refused(change: tuple[int, int, str]) -> None:
    made = case("gpt2-novelai", TEXT, *change)
    digest = "0" * 64
    assert made.code(fingerprint=digest) == "certificate.other_rule"
    assert made.code(rule_digest=digest) == "certificate.other_rule"
    assert made.code(rule=family_tier("llama3-novelai").rule) == "certificate.other_rule"


@every_change
def test_positions_out_of_order_or_range_are_refused(change: tuple[int, int, str]) -> None:
    made = case("gpt2-novelai", TEXT, *change)
    certificate = made.certificate
    for changes in (
        {"text_chars": certificate.text_chars + 1},
        {"text_chars": certificate.text_chars - 1},
        {"window_chars": -1},
        {"window_chars": certificate.boundary_chars + 1},
        {"boundary_chars": certificate.resume_chars + 1},
        {"resume_chars": len(made.new_text) + 1},
        {"new_text": made.new_text + "x"},
        {"new_text": made.new_text[:-1]},
    ):
        assert made.code(**changes) == "certificate.positions", changes


def test_a_boundary_moved_inside_a_word_is_refused() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    certificate, holds = made.certificate, made.tier.rule.holds
    inner = [p for p in range(1, certificate.boundary_chars) if not holds(TEXT[p - 1], TEXT[p])]
    assert inner
    for position in (inner[0], inner[len(inner) // 2], inner[-1]):
        moved = {"boundary_chars": position, "window_chars": min(certificate.window_chars, position)}
        assert made.code(**moved) == "certificate.boundary"
    for position in [p for p in inner if p <= certificate.boundary_chars][-3:]:
        assert made.code(window_chars=position) == "certificate.boundary"


def test_a_resumption_moved_inside_a_word_is_refused() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["mid edit"])
    certificate, holds, text = made.certificate, made.tier.rule.holds, made.new_text
    assert certificate.resume_chars < len(text)
    inner = [p for p in range(certificate.resume_chars + 1, len(text)) if not holds(text[p - 1], text[p])]
    for position in (inner[0], inner[-1]):
        assert made.code(resume_chars=position) == "certificate.boundary"


@every_change
def test_a_text_that_differs_outside_the_window_is_refused(change: tuple[int, int, str]) -> None:
    made = case("gpt2-novelai", TEXT, *change)
    certificate, text = made.certificate, made.new_text
    if certificate.boundary_chars > 0:
        other = "\0" + text[1:]
        assert made.code(new_text=other) == "certificate.text"
        assert made.code(old_text="\0" + made.old_text[1:]) == "certificate.text"
    if certificate.resume_chars < len(text):
        assert made.code(new_text=text[:-1] + "\0") == "certificate.text"
    assert made.code(old_text="") in ("certificate.text", "certificate.boundary", "certificate.witness")


@every_change
def test_a_witness_that_is_not_the_old_answer_is_refused(change: tuple[int, int, str]) -> None:
    made = case("gpt2-novelai", TEXT, *change)
    overlap = made.certificate.overlap_tokens
    assert made.code(overlap_digest=b"\0" * 16) == "certificate.witness"
    assert made.code(overlap_tokens=-1) == "certificate.witness"
    assert made.code(overlap_tokens=made.patch.keep + 1) == "certificate.witness"
    if overlap:
        assert made.code(overlap_tokens=overlap - 1) == "certificate.witness"
        ids = made.old_ids.copy()
        ids[made.patch.keep - 1] ^= 1
        assert made.code(old_ids=ids) == "certificate.witness"
        assert made.code(old_ids=made.old_ids[: made.patch.keep - 1]) == "certificate.witness"


def test_a_patch_that_keeps_another_number_of_ids_is_refused() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    assert made.certificate.overlap_tokens > 0
    for keep in (made.patch.keep - 1, made.certificate.overlap_tokens):
        patch = replace(made.patch, keep=keep, total=made.patch.total)
        assert made.code(patch=patch) == "certificate.witness"


@every_change
def test_ids_that_are_not_the_windows_are_refused_when_encoded_again(change: tuple[int, int, str]) -> None:
    made = case("gpt2-novelai", TEXT, *change)
    if not len(made.patch.ids):
        made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    code = partial(made.code, encode=made.encode)
    wrong = made.patch.ids.copy()
    wrong[-1] ^= 1
    made.verify(patch=replace(made.patch, ids=wrong))  # not looked at without `encode`
    assert code(patch=replace(made.patch, ids=wrong)) == "certificate.ids"
    longer = np.concatenate([made.patch.ids, made.patch.ids[-1:]])
    for ids in (made.patch.ids[:-1], made.patch.ids[:0], longer):
        total = made.patch.total + len(ids) - len(made.patch.ids)
        assert code(patch=replace(made.patch, ids=ids, total=total)) == "certificate.ids"


def test_parts_that_do_not_add_up_are_refused() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["mid edit"])
    assert made.code(patch=replace(made.patch, total=made.patch.total + 1)) == "certificate.total"
    assert made.code(patch=replace(made.patch, resume=made.patch.resume + 1)) == "certificate.total"


def test_the_texts_inside_the_window_are_checked_by_encoding_again() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    other = made.new_text[:-3] + "?!\n"
    assert len(other) == len(made.new_text)
    assert made.code(new_text=other, encode=made.encode) == "certificate.ids"


def test_the_number_of_ids_that_the_patch_skips_is_bound_to_the_texts() -> None:
    """`resume` decides which old IDs go on behind the window; one too few or too many is no right patch."""
    made = case("gpt2-novelai", TEXT, *CHANGES["mid edit"])
    for resume in (made.patch.resume - 1, made.patch.resume + 1):
        total = made.patch.keep + len(made.patch.ids) + len(made.old_ids) - resume
        patch = replace(made.patch, resume=resume, total=total)
        assert made.code(patch=patch, encode=made.encode)


def test_the_digest_of_the_witness_is_blake2b_of_little_endian_ids() -> None:
    made = case("gpt2-novelai", TEXT, *CHANGES["append"])
    overlap = made.certificate.overlap_tokens
    witness = made.old_ids[made.patch.keep - overlap : made.patch.keep].astype("<u4").tobytes()
    assert made.certificate.overlap_digest == hashlib.blake2b(witness, digest_size=16).digest()
