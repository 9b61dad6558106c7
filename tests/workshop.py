"""What the tests build with: tiers of genuine files, tiny synthetic tokenizers, texts, and the slow twins.

Rules are derived here by the public pieces, in the order in which admission asks for them; the campaign itself isn't
needed. Everything built from a catalog family is cached for the whole run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from catalog import path_of
from toktier_tier.admission.compiled import CompiledSnapshot, TrustVerdict, Verdict
from toktier_tier.core import repair, session
from toktier_tier.core.added_tokens import Exclusions, exclusions
from toktier_tier.core.boundaries import BoundaryRule, derive_class_rule, no_rule
from toktier_tier.core.classes import byte_characters, ranges_of
from toktier_tier.core.errors import UnsupportedTokenizer
from toktier_tier.core.pipeline import Position
from toktier_tier.core.repair import Repairer, TemplateIds
from toktier_tier.core.session import SessionState
from toktier_tier.core.snapshot import SpecialTokenPolicy, parse_snapshot
from toktier_tier.core.trust import Spans, clipped, joined
from toktier_tier.core.vocabulary import derive_adjacency_rule, longest_entry_chars
from toktier_tier.encoders.assemble import settled_points
from toktier_tier.encoders.reference import REFERENCE_VERSION, Reference, ReferenceProbe
from toktier_tier.encoders.snapshot_encoder import SnapshotEncoder
from toktier_tier.encoders.trust import trust_refusal
from toktier_tier.tokenizer import TierTokenizer

Json = Any

FACTOR = float(os.environ.get("TOKTIER_EXAMPLES", "1"))
"""Every example count is multiplied by this."""


def examples(count: int) -> int:
    return max(1, round(count * FACTOR))


# --- tiers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tier:
    """A tokenizer in service, with what it was made from."""

    reference: Reference
    rule: BoundaryRule
    compiled: CompiledSnapshot
    tokenizer: TierTokenizer

    def ids(self, text: str) -> list[int]:
        """The slow twin of everything: a full encode by the reference, without template tokens."""
        return self.reference.encode_text(text).tolist()

    def encoded(self, text: str, position: Position = Position.TEXT_START) -> list[int]:
        """What the tier's own stages make of `text`."""
        assert self.tokenizer.text_encoder is not None
        return self.tokenizer.text_encoder.encode(text, position).tolist()

    def boundaries(self, text: str) -> list[int]:
        return [p for p in range(1, len(text)) if self.rule.holds(text[p - 1], text[p])]

    def contradiction(self, text: str) -> str:
        """The first claimed boundary at which the reference contradicts the rule, in words; '' if there is none."""
        whole = self.ids(text)
        for p in self.boundaries(text):
            left, right = self.ids(text[:p]), self.encoded(text[p:], Position.CONTINUATION)
            if left + right != whole:
                return f"{text[:p]!r} | {text[p:]!r}: {whole} is not {left} + {right}"
        return ""


def derive_rule(reference: Reference) -> BoundaryRule:
    """Classes first, then the vocabulary; of kind `none` where neither proves anything."""
    pipeline = reference.snapshot.pipeline
    if pipeline is None:
        assert reference.snapshot.unsupported is not None
        return no_rule(reference.snapshot.unsupported.code, reference.snapshot.unsupported.message)
    probe = ReferenceProbe(reference)
    try:
        excluded = exclusions_of(reference)
    except UnsupportedTokenizer as error:
        return no_rule(error.code, error.message)
    rule = derive_class_rule(pipeline, excluded, probe)
    return rule if rule.kind != "none" else derive_adjacency_rule(pipeline, reference.snapshot.model, excluded, probe)


def exclusions_of(reference: Reference) -> Exclusions:
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    normalize = reference.normalizer(Position.TEXT_START) or str
    return exclusions(reference.added_tokens(), normalize, position_matters=pipeline.position_matters)


def compile_with(reference: Reference, rule: BoundaryRule, encoder: str = "reference") -> CompiledSnapshot:
    snapshot = reference.snapshot
    settled = settled_points(reference) if rule.kind != "none" else None
    return CompiledSnapshot(
        fingerprint=snapshot.fingerprint,
        sha256=snapshot.sha256,
        reference_version=snapshot.reference_version,
        verdict=Verdict.ADMITTED if rule.kind != "none" else Verdict.REFERENCE_ONLY,
        reason=rule.reason,
        rule=rule,
        encoder=encoder,
        longest_entry_chars=longest_entry_chars(snapshot.model),
        settled=(ranges_of(settled.always), ranges_of(settled.alone)) if settled is not None else None,
        trust=TrustVerdict(Verdict.ADMITTED) if rule.kind != "none" and not trust_refusal(reference) else None,
    )


def build_tier(
    data: bytes,
    *,
    encoder: str = "reference",
    policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE,
    rule: BoundaryRule | None = None,
    pool: ThreadPoolExecutor | None = None,
    workers: int = 1,
) -> Tier:
    reference = Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))
    rule = rule or derive_rule(reference)
    compiled = compile_with(reference, rule, encoder)
    return Tier(reference, rule, compiled, TierTokenizer(reference, compiled, pool=pool, workers=workers))


@cache
def family_data(family: str) -> bytes:
    return path_of(family).read_bytes()


@cache
def family_reference(family: str, policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE) -> Reference:
    return Reference(parse_snapshot(family_data(family), reference_version=REFERENCE_VERSION, policy=policy))


@cache
def family_rule(family: str) -> BoundaryRule:
    """Doesn't depend on the policy."""
    return derive_rule(family_reference(family))


@cache
def family_tier(
    family: str, encoder: str = "reference", policy: SpecialTokenPolicy = SpecialTokenPolicy.NONE, workers: int = 1
) -> Tier:
    """One object for all tests of a run: never quarantine it (see `fresh_tokenizer`)."""
    reference, rule = family_reference(family, policy), family_rule(family)
    compiled = compile_with(reference, rule, encoder)
    return Tier(reference, rule, compiled, TierTokenizer(reference, compiled, workers=workers))


def fresh_tokenizer(tier: Tier) -> TierTokenizer:
    """The same in a new object, which a test may quarantine."""
    return TierTokenizer(tier.reference, tier.compiled, workers=1)


# --- sessions ---------------------------------------------------------------------------------------------------


@contextmanager
def small_rope() -> Iterator[None]:
    """Segments, tails and chunks of a few dozen characters, so that short texts meet every seam."""
    with (
        mock.patch.multiple(session, SEGMENT_CHARS=48, TAIL_CHARS=96, TAIL_KEEP_CHARS=24),
        mock.patch.object(repair, "CHUNKED_CHARS", 64),
        mock.patch.object(SnapshotEncoder.cut, "__defaults__", (16,)),
    ):
        yield


def repairer_of(tier: Tier, overlap_chars: int | None = None) -> Repairer:
    """A `Repairer` with a witness of `overlap_chars` characters (default: the tier's own, longer than any entry)."""
    own = tier.tokenizer.repairer
    encoder = tier.tokenizer.text_encoder
    assert own is not None
    assert encoder is not None
    return Repairer(
        fingerprint=own.fingerprint,
        rule=tier.rule,
        encode=encoder.encode,
        encode_chunks=encoder.encode_chunks,
        overlap_chars=own.overlap_chars if overlap_chars is None else overlap_chars,
        template=TemplateIds(tier.reference.prefix_ids, tier.reference.suffix_ids),
        encode_untrusted=encoder.encode_untrusted if tier.tokenizer.trust_admitted else None,
        encode_untrusted_chunks=encoder.encode_untrusted_chunks if tier.tokenizer.trust_admitted else None,
    )


def frozen(state: SessionState) -> tuple[Any, ...]:
    """Everything a state holds, as values that compare."""
    return (
        state.keep_text,
        state.revision,
        [(s.text, s.digest, s.bytes_, s.chars, s.ids.tobytes()) for s in state.segments],
        list(state.chars_before),
        list(state.tokens_before),
        state.tail,
        state.count,
        state.tail_ids.tobytes(),
        list(state.marks),
        state.state_bytes(),
    )


def check_rope(state: SessionState, tier: Tier, text: str) -> None:
    """The rules of core/session.py, each held to its slow twin; `text` is what the state should stand for."""
    at = tokens = 0
    for index, segment in enumerate(state.segments):
        part = text[at : at + segment.chars]
        assert segment.text == (part.encode() if state.keep_text else None)
        assert segment.digest == (None if state.keep_text else session.text_digest(part.encode()))
        assert segment.bytes_ == len(part.encode())
        assert (state.chars_before[index], state.tokens_before[index]) == (at, tokens)
        position = Position.CONTINUATION if index else Position.TEXT_START
        assert segment.ids.tolist() == marked(state, tier, text, at, at + len(part), position)
        assert not segment.ids.flags.writeable
        at, tokens = at + segment.chars, tokens + len(segment.ids)
        if at < len(text):
            assert tier.rule.holds(text[at - 1], text[at])
    assert (state.chars_before[-1], state.tokens_before[-1]) == (at, tokens)
    assert len(state.chars_before) == len(state.tokens_before) == len(state.segments) + 1
    assert state.tail == text[at:]
    assert state.tail_ids.tolist() == marked(state, tier, text, at, len(text), state.tail_position)
    assert (state.chars, state.tokens) == (len(text), tokens + state.count)
    assert state.marks == sorted(state.marks)
    for chars, count in state.marks:
        assert 0 < chars < len(state.tail)
        assert tier.rule.holds(state.tail[chars - 1], state.tail[chars])
        assert marked(state, tier, text, at, at + chars, state.tail_position) == state.tail_ids[:count].tolist()
    assert state.ids().tolist() == tier.tokenizer.encode_by_reference(text, state.untrusted).tolist()


def marked(state: SessionState, tier: Tier, text: str, start: int, stop: int, position: Position) -> list[int]:
    """What the tier's own stages make of characters start..stop of a state's text with its untrusted spans."""
    spans = clipped(state.untrusted, start, stop)
    if not spans:
        return tier.encoded(text[start:stop], position)
    assert tier.tokenizer.text_encoder is not None
    return tier.tokenizer.text_encoder.encode_untrusted(text[start:stop], spans, position).tolist()


# --- synthetic tokenizers --------------------------------------------------------------------------------------


def token(id: int, content: str, **flags: bool) -> Json:
    """An entry of `added_tokens`; flags default to off."""
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": content, **off, **flags}


def tokenizer_json(model: Json, *, added: Sequence[Json] = (), **sections: Json) -> bytes:
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **sections,
        "model": model,
    }
    return json.dumps(document).encode()


def bpe(symbols: Iterable[str], merges: Iterable[tuple[str, str]] = (), **options: Json) -> Json:
    """A BPE model; what merges make is added to the vocabulary."""
    pairs = [list(pair) for pair in merges]
    tokens = dict.fromkeys([*symbols, *("".join(pair) for pair in pairs)])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": pairs,
    }


def telltale(alphabet: str, **options: Json) -> Json:
    """A BPE over characters in which every two neighbours merge, so that a wrong cut shows in the IDs."""
    return bpe(alphabet, itertools.product(alphabet, repeat=2), **options)


def byte_telltale(alphabet: str, **options: Json) -> Json:
    """The same over ByteLevel's alphabet, with every two bytes of `alphabet`'s characters merging."""
    table = [chr(point) for point in byte_characters()]
    used = sorted({table[byte] for byte in alphabet.encode()})
    return bpe(table, itertools.product(used, repeat=2), **options)


def unigram(pieces: dict[str, float], **options: Json) -> Json:
    vocab = [[piece, score] for piece, score in pieces.items()]
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": False, **options, "vocab": vocab}


def word_piece(tokens: Iterable[str]) -> Json:
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: id for id, token in enumerate(dict.fromkeys(["[UNK]", *tokens]))},
    }


def split(pattern: str, behavior: str = "Isolated", *, regex: bool = True, invert: bool = False) -> Json:
    kind = "Regex" if regex else "String"
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def replace(literal: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"String": literal}, "content": content}


def byte_level(*, add_prefix_space: bool = False, use_regex: bool = True) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def metaspace(scheme: str = "always", *, split: bool = True) -> Json:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def normalizers(*steps: Json) -> Json:
    return {"type": "Sequence", "normalizers": list(steps)}


def pre_tokenizers(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def bracketed_json() -> bytes:
    """A byte-level tokenizer whose template puts tokens before *and* after the text; no small genuine file does."""
    model = byte_telltale("ab .\n'se")
    tokens = {name: len(model["vocab"]) + at for at, name in enumerate(("[CLS]", "[SEP]"))}
    template = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    return tokenizer_json(
        model,
        pre_tokenizer=byte_level(),
        post_processor={
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in tokens.items()},
        },
        added=[token(id, name, special=True) for name, id in tokens.items()],
    )


# --- texts ----------------------------------------------------------------------------------------------------

GENERAL = (
    "abzstrevmldSTAZ019 \t\n\r\u00a0\u3000\u200b\u2028'\"’_-.,:;!?()[]{}<>|/\\=+*#@$%^&~`▁"
    "éßñÉſKµıİ中文。、あア한글각ก็ـعلاअि"
    "\u0300\u0301\u0308\u0327\u0338\u0345\u1100\u1161\u11a8\u200d\ufe0f²½Ⅷ٣१\U0001f468\U0001f600\U0001f3fd\U000e0041\ufffd\x00\x7f\x85"
)
"""One or more characters of every class that a pattern was seen to tell apart."""


def snippets(reference: Reference, limit: int = 40) -> list[str]:
    """Added tokens, whole and in halves that join up again."""
    contents = [token.content for token in reference.added_tokens()]
    step = max(1, len(contents) // limit)
    chosen = contents[::step]
    halves = [part for content in chosen for part in (content[: len(content) // 2], content[len(content) // 2 :])]
    return [part for part in [*chosen, *halves] if part]


def texts(parts: Sequence[str], most: int = 12) -> st.SearchStrategy[str]:
    """Texts of up to `most` of `parts`, shrinking towards the first of them."""
    return st.lists(st.sampled_from(list(dict.fromkeys(parts))), max_size=most).map("".join)


def spans_in(text: str) -> st.SearchStrategy[Spans]:
    """Untrusted spans of `text`, in canonical form, shrinking towards none."""
    borders = st.lists(st.integers(0, len(text)), max_size=6)
    return borders.map(sorted).map(lambda found: joined(zip(found[::2], found[1::2], strict=False)))


WORDS = (
    " the", "def ", "return", "'s", "'S", "'ll", "'LL", "12345", "\r\n", "\n\n", "   ", " \n ", "\t\t", "ing",
    "HTTPServer", "e\u0301", "<\u0338", "。\n\n", "foo(", ")", "__", "…", "한글", "👨\u200d👩\u200d👧", "🫨", "x²",
    "½ cup", "http://a.b/c?d=e", "  # ", "![](",
)  # fmt: skip


def random_text(random: random.Random, parts: Sequence[str], least: int = 1, most: int = 12) -> str:
    return "".join(random.choices(parts, k=random.randint(least, most)))


def text_parts(tier: Tier, *, tokens: int = 40) -> list[str]:
    """Characters of every class, words, and pieces of added tokens, each group about equally likely."""
    special = snippets(tier.reference, tokens) or list(GENERAL)
    longest = max(len(GENERAL), len(WORDS), len(special))
    return [group[index % len(group)] for group in (GENERAL, WORDS, special) for index in range(longest)]


def sample_text(chars: int, seed: int = 0) -> str:
    """Prose, code and other scripts in plausible order, from this very source file: `chars` characters."""
    chooser = random.Random(seed)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    parts: list[str] = []
    size = 0
    while size < chars:
        line = chooser.choice(lines) if chooser.random() < 0.8 else random_text(chooser, [*WORDS, *GENERAL], 3, 30)
        parts.append(line)
        size += len(line)
    return "".join(parts)[:chars]


def same(left: Any, right: Any) -> bool:
    """`==` for arrays of IDs, dtype and all."""
    return left.dtype == right.dtype == np.uint32 and left.tobytes() == right.tobytes()
