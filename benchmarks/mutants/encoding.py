"""Faults in normalization, in the encoders' stages, and in the guards around candidates."""

# ruff: noqa: E501, RUF100 (the code that is changed, as it stands)
from __future__ import annotations

from .mutation import Mutation
from .rule import CONDITIONS, FORMS, small

STAGES = (
    "tests/encoders/test_snapshot_encoder.py",
    "-k",
    "each_stage or prefix_comes or normalizing_only or settled_characters or normalized_token",
)
RAW = ("tests/core/test_added_tokens.py", "-k", "raw_and_normalized")
GUARDS = ("tests/encoders/test_guarded.py",)
SERVING = ("tests/test_tokenizer.py", "-k", "quarantine or compiled_snapshot")


def _normalization(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = FORMS) -> Mutation:
    return Mutation("normalization", name, file, old, new, tests)


def _guard(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = GUARDS) -> Mutation:
    return Mutation("guards", name, file, old, new, tests)


STAGED = "encoders/snapshot_encoder.py"
CLASSES = "core/classes.py"
MUTATIONS = (
    _normalization(
        "a deleted character stands still",
        CLASSES,
        "            stable[point] = False  # deleted",
        "            pass  # deleted",
    ),
    _normalization(
        "what a mark is written for stands still",
        CLASSES,
        "stable &= ~moves & ~moves[first]",
        "stable &= ~moves",
        small("NFKD, which writes a mark for a character that stands still"),
    ),
    _normalization(
        "marks stand still",
        CLASSES,
        "stable &= ~moves & ~moves[first]",
        "pass",
    ),
    _normalization(
        "what composes to its left stands still",
        CLASSES,
        "stable[ord(other)] = False  # may",
        "pass  # may",
        CONDITIONS,
    ),
    _normalization(
        "a character turns into nothing but its own compositions",
        CLASSES,
        "(ord(starter), *by_starter[starter])",
        "(ord(starter),)",
        small("NFC, where a later mark comes before an earlier one"),
    ),
    _normalization(
        "a literal of several characters is no obstacle",
        CLASSES,
        'if step.kind == "replace" and len(step.literal) > 1:',
        "if False:",
        small("Replace of a two-character literal", "Replace of a literal that ends with a line feed"),
    ),
    _normalization(
        "a run is normalized without what it joins",
        STAGED,
        "begin = max(first - 1, at)",
        "begin = first",
        STAGES,
    ),
    _normalization(
        "two characters that are harmless alone are harmless together",
        STAGED,
        "acting = (firsts != lasts) | (marks[firsts] & UNSETTLED != 0)",
        "acting = marks[firsts] & UNSETTLED != 0",
        STAGES,
    ),
    _normalization(
        "neighbours that move are left alone",
        STAGED,
        "return bool((loose[1:] & loose[:-1]).any())",
        "return False",
        STAGES,
    ),
    _normalization(
        "what joins with its left is settled",
        "encoders/assemble.py",
        "    unchanged[list(joining)] = False\n",
        "",
        STAGES,
    ),
    _normalization(
        "normalized tokens are looked for in the raw text",
        STAGED,
        "if t.content and not t.normalized]",
        "if t.content]",
        RAW,
    ),
    _normalization(
        "raw tokens are looked for in normalized text",
        STAGED,
        "if t.content and t.normalized]",
        "if t.content]",
        RAW,
    ),
    _normalization(
        "text behind a token goes on as if there were none",
        STAGED,
        "at, position = end, Position.AFTER_TOKEN",
        "at, position = end, Position.CONTINUATION",
        STAGES,
    ),
    _normalization(
        "every chunk starts a text",
        STAGED,
        "[position] + [Position.CONTINUATION] * (len(chunks) - 1)",
        "[position] * len(chunks)",
        ("tests/encoders/test_snapshot_encoder.py", "-k", "chunks_join and mi"),
    ),
    _normalization(
        "a prefix is put before a prefix",
        STAGED,
        "if self._rewrite_prefixes[position] and not text.startswith(rewrite.source):",
        "if self._rewrite_prefixes[position]:",
        STAGES,
    ),
    _normalization(
        "a continuation is prefixed",
        STAGED,
        's.kind != "prepend" or position is not Position.CONTINUATION]',
        's.kind != "prepend" or True]',
        ("tests/encoders/test_snapshot_encoder.py", "-k", "each_stage or continuation or plain_string"),
    ),
    _normalization(
        "the order of replacements is turned round",
        STAGED,
        '        for step in steps:\n            if step.kind == "replace":',
        '        for step in reversed(steps):\n            if step.kind == "replace":',
        (*small("replacements in a chain", "a Prepend that a later step rewrites"), *STAGES[:1]),
    ),
    _normalization(
        "spans hide no token",
        STAGED,
        "        if found == self.recognized(text):\n            return self.encode(text, position)",
        "        if True:\n            return self.encode(text, position)",
        ("tests/encoders/test_trust.py", "-k", "small_files or control_tokens"),
    ),
    _guard(
        "settled text may hold unsafe characters",
        STAGED,
        "marks[unsafe] |= UNSAFE",
        "pass",
        (
            "tests/encoders/test_snapshot_encoder.py",
            "tests/encoders/test_whole.py",
            "tests/test_tokenizer.py",
            "-k",
            "unsafe or settled",
        ),
    ),
    _guard(
        "unsafe characters are looked for in short texts only",
        "encoders/guarded.py",
        "and self._holds_unsafe(text):",
        "and len(text) <= PICK_CHARS and self._holds_unsafe(text):",
    ),
    _guard(
        "unsafe characters above U+FFFF are safe",
        "encoders/guarded.py",
        "return bool(self._unsafe.take(points).any())",
        "return bool(self._unsafe[:ASTRAL].take(points[points < ASTRAL]).any())",
    ),
    _guard(
        "a rebuild swaps in while quarantined",
        "encoders/guarded.py",
        "if self._fast is not None:  # not quarantined meanwhile",
        "if True:  # not quarantined meanwhile",
    ),
    _guard(
        "a quarantined candidate goes on",
        "encoders/guarded.py",
        "self._fast, self._rebuild = None, None",
        "self._rebuild = None",
    ),
    _guard(
        "a panic of a candidate reaches the caller",
        "encoders/guarded.py",
        "except BaseException as error:  # Rust panics aren't Exceptions",
        "except Exception as error:  # Rust panics aren't Exceptions",
    ),
    _guard(
        "two rebuilds at a time",
        "encoders/guarded.py",
        "if self._rebuilding.acquire(blocking=False):",
        "if self._rebuilding.acquire(blocking=False) or True:",
    ),
    _guard(
        "a quarantine leaves the cores as they are",
        "tokenizer.py",
        "        if self.cores is not None:\n            self.cores.quarantine()\n",
        "",
        SERVING,
    ),
    _guard(
        "a quarantine leaves the repairer",
        "tokenizer.py",
        "self.repairer, self.text_encoder, self.staged = None, None, None\n        if",
        "self.text_encoder, self.staged = None, None\n        if",
        SERVING,
    ),
    _guard(
        "a compiled snapshot of another tokenizer serves",
        "tokenizer.py",
        "if compiled.fingerprint != snapshot.fingerprint:",
        "if False:",
        SERVING,
    ),
    _guard(
        "a compiled snapshot of another release of a candidate serves",
        "tokenizer.py",
        "if chosen is not None and chosen.version != encoder_version(compiled.encoder):",
        "if False:",
        ("tests/test_tokenizer.py", "tests/admission/test_compiled.py", "-k", "compiled_snapshot or anything_else"),
    ),
)
