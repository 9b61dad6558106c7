"""Faults in the merge of repaired windows, in sessions, and in what identifies a tokenizer or a state."""

# ruff: noqa: E501, RUF100 (the code that is changed, as it stands)
from __future__ import annotations

from .mutation import Mutation

MERGE = (
    "tests/core/test_repair.py",
    "-k",
    "template_tokens or (gpt2 and (spliced or surplus or appends or any_edits or every_position))",
)
WITNESS = ("tests/core/test_repair.py", "-k", "that_is_none_are_found")
POSITION = ("tests/core/test_repair.py", "-k", "edits and (mistral or mixtral)")
STATE = ("tests/core/test_session.py",)
ROPE = (*STATE, *MERGE[:2], "test_session or (gpt2 and (appends or edits))")
FULL_TEXT = ("tests/core/test_full_text.py", "-k", "not qwen and not deepseek")
CERTIFICATE = ("tests/core/test_certificate.py", "-k", "refused")
TRUST = ("tests/core/test_trust.py",)
SNAPSHOT = ("tests/core/test_snapshot.py", "-k", "everything_that_can_change or policy_and_chat")
UNTRUSTED = ("tests/sessions/test_untrusted.py", "-k", "every_history or equal_characters")


def handoff(which: str) -> tuple[str, ...]:
    return ("tests/sessions/test_handoff.py", "-k", which)


def service(which: str) -> tuple[str, ...]:
    return ("tests/sessions/test_service.py", "-k", which)


def _merge(name: str, old: str, new: str, tests: tuple[str, ...] = MERGE) -> Mutation:
    return Mutation("merge", name, "core/repair.py", old, new, tests)


def _session(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutation:
    return Mutation("session", name, file, old, new, tests)


def _identity(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutation:
    return Mutation("identity", name, file, old, new, tests)


MUTATIONS = (
    _merge(
        "an append's old window is not compared",
        "or (start == 0 and kept) or state.tail_ids[kept:].tobytes() != old.tobytes()",
        "or (start == 0 and kept)",
    ),
    _merge(
        "an append's witness is not compared",
        "if overlap < 0 or new[:overlap].tobytes() != witness:",
        "if overlap < 0:",
        WITNESS,
    ),
    _merge(
        "an append keeps what it encoded again",
        "keep=self._prefix + before_tokens + kept + overlap,\n            ids=new[overlap:],",
        "keep=self._prefix + before_tokens + kept + overlap,\n            ids=new,",
    ),
    _merge(
        "template tokens don't count in what an append keeps",
        "keep=self._prefix + before_tokens + kept + overlap,",
        "keep=before_tokens + kept + overlap,",
    ),
    _merge(
        "a boundary is noted one character late",
        "state.mark(start, kept)\n            state.seal()\n        else:\n            front = (tail",
        "state.mark(start + 1, kept)\n            state.seal()\n        else:\n            front = (tail",
        ("tests/core/test_repair.py", "-k", "gpt2 and appends"),
    ),
    _merge(
        "a boundary of the new text alone is one",
        "            boundary = rule.last(edited, start - 1)\n",
        "            pass\n",
    ),
    _merge(
        "the text resumes where the edit ends",
        "rule.first(region, stop + 1)",
        "rule.first(region, stop)",
    ),
    _merge(
        "a window inside the text starts one",
        "where = Position.CONTINUATION if window.start else position",
        "where = position",
        POSITION,
    ),
    _merge(
        "template tokens don't count in what an edit keeps",
        "        tokens_before += self._prefix\n",
        "",
    ),
    _merge(
        "what stands behind the window is not compared",
        "            or new[len(new) - overlap_after :].tobytes() != old[len(old) - overlap_after :].tobytes()\n",
        "",
        WITNESS,
    ),
    _merge(
        "an edit's old window is not compared",
        "(window.start == 0 and kept) or ids[kept:upto].tobytes() != old.tobytes()",
        "(window.start == 0 and kept)",
    ),
    _merge(
        "an edit leaves the trust of the text as it was",
        "spans = spliced(state.untrusted, start, stop, untrusted, len(replacement))",
        "spans = state.untrusted",
        UNTRUSTED,
    ),
    _session(
        "a tail is sealed where no boundary was noted",
        "core/session.py",
        "chars, tokens = usable[-1] if usable else (0, 0)",
        "chars, tokens = limit, self.count * limit // len(self.tail)",
        STATE,
    ),
    _session(
        "noted boundaries outlast what stood there",
        "core/session.py",
        "while marks and marks[-1][0] >= chars:",
        "while False:",
        STATE,
    ),
    _session(
        "twins share their tail's IDs",
        "core/session.py",
        "twin._buffer = self._buffer[: self.count].copy()",
        "pass",
        ("tests/sessions/test_fork.py", "tests/core/test_session.py"),
    ),
    _session(
        "a segment matches wherever it stands",
        "core/session.py",
        "return data.startswith(self.text, offset)",
        "return self.text in data",
        (*STATE, *FULL_TEXT),
    ),
    _session(
        "a digest is believed",
        "core/session.py",
        "return text_digest(data[offset : offset + self.bytes_]) == self.digest",
        "return True",
        (*STATE, *FULL_TEXT),
    ),
    _session(
        "a segment counts from both ends",
        "core/full_text.py",
        "if shared + segment.chars > room or end < segment.bytes_",
        "if end < segment.bytes_",
        FULL_TEXT,
    ),
    _session(
        "equal characters are equal whatever is trusted",
        "core/full_text.py",
        "if found is None or not (untrusted or state.untrusted):",
        "if True:",
        UNTRUSTED,
    ),
    _session(
        "a common end is one character too long",
        "core/full_text.py",
        "return Difference(start, old_chars - shared, text[start : new_chars - shared])",
        "return Difference(start, old_chars - shared, text[start : max(start, new_chars - shared - 1)])",
        FULL_TEXT,
    ),
    _session(
        "spans are not moved with their part",
        "core/trust.py",
        "(max(a, start) - start, min(b, stop) - start)",
        "(max(a, start), min(b, stop))",
        TRUST,
    ),
    _session(
        "a replacement takes the rest of a span with it",
        "core/trust.py",
        "if first < last and spans[last - 1][1] > stop:",
        "if False:",
        TRUST,
    ),
    _session(
        "a patch fits any IDs",
        "core/values.py",
        "if len(new) != self.total or self.resume > len(old):",
        "if False:",
        ("tests/core/test_values.py",),
    ),
    _session(
        "a closed session is written to",
        "sessions/service.py",
        "            if live.closed:\n                raise SessionNotFound",
        "            if False:\n                raise SessionNotFound",
        service("closed_meanwhile or started_over"),
    ),
    _session(
        "a late answer of a fast path outlasts a quarantine",
        "sessions/service.py",
        "                patch = self._overtaken(key, live, patch, text)\n",
        "                pass\n",
        service("under_way_when"),
    ),
    _session(
        "what a fast path made is read after a quarantine",
        "sessions/service.py",
        "                self._answer(key, live, self._rebuild(live, live.state.text(), live.state.untrusted))\n",
        "                pass\n",
        service("made_anew"),
    ),
    _session(
        "a witness that failed quarantines nothing",
        "sessions/service.py",
        "first = self.tokenizer.quarantine()",
        "first = False",
        service("lying_encoder"),
    ),
    _identity(
        "flags of added tokens don't count",
        "core/snapshot.py",
        "t.normalized, t.lstrip, t.rstrip, t.single_word] for t",
        "t.normalized] for t",
        SNAPSHOT,
    ),
    _identity(
        "the normalizer doesn't count",
        "core/snapshot.py",
        '        "normalizer": normalizer,\n        "pre_tokenizer": pre_tokenizer,\n        "post',
        '        "pre_tokenizer": pre_tokenizer,\n        "post',
        SNAPSHOT,
    ),
    _identity(
        "the reference's version doesn't count",
        "core/snapshot.py",
        '        "reference": reference_version,\n',
        "",
        SNAPSHOT,
    ),
    _identity(
        "the policy doesn't count",
        "core/snapshot.py",
        '        "policy": policy.value,\n',
        "",
        SNAPSHOT,
    ),
    _identity(
        "IDs of added tokens don't count",
        "core/snapshot.py",
        "[t.id, t.content, t.special,",
        "[t.content, t.special,",
        SNAPSHOT,
    ),
    _identity(
        "tenants share their sessions",
        "sessions/service.py",
        "SessionKey(tenant, self.tokenizer.fingerprint, session)",
        'SessionKey("", self.tokenizer.fingerprint, session)',
        service("equal_names"),
    ),
    _identity(
        "an earlier revision will do",
        "sessions/service.py",
        "if expected is not None and expected != revision:",
        "if expected is not None and expected > revision:",
        service("two_writers or revision"),
    ),
    _identity(
        "a state made anew has the revision of the one before",
        "sessions/service.py",
        "(before.revision if revision is None else revision) + 1",
        "(before.revision if revision is None else revision)",
        service("without_a_rule"),
    ),
    _identity(
        "states are taken over as they come",
        "sessions/handoff.py",
        "    _verify(state, tokenizer, believed=believed)\n",
        "",
        handoff("wrong_ids"),
    ),
    _identity(
        "a changed state is noticed by nothing",
        "sessions/handoff.py",
        "if hashlib.blake2b(body, digest_size=16).digest() != data[len(MAGIC) : start]:",
        "if False:",
        handoff("changed_byte"),
    ),
    _identity(
        "states of other snapshots are taken over",
        "sessions/handoff.py",
        'if header["fingerprint"] != tokenizer.fingerprint:',
        "if False:",
        handoff("another_snapshot"),
    ),
    _identity(
        "IDs outside the vocabulary are taken over",
        "sessions/handoff.py",
        "if len(ids) and int(ids.max()) >= limit:",
        "if False:",
        handoff("outside_the_vocabulary"),
    ),
    _identity(
        "a certificate of another rule will do",
        "core/certificate.py",
        "if certificate.fingerprint != fingerprint or certificate.rule_digest != rule.digest:",
        "if certificate.fingerprint != fingerprint:",
        CERTIFICATE,
    ),
    _identity(
        "a certificate's witness is not looked at",
        "core/certificate.py",
        "if len(witness) != overlap or _digest(witness) != certificate.overlap_digest:",
        "if len(witness) != overlap:",
        CERTIFICATE,
    ),
    _identity(
        "a certificate may resume anywhere",
        "core/certificate.py",
        "        (new_text, resume),\n        (old_text, old_resume),\n",
        "",
        CERTIFICATE,
    ),
    _identity(
        "a certificate may keep to anywhere",
        "core/certificate.py",
        "        (new_text, boundary),\n        (old_text, boundary),\n",
        "",
        CERTIFICATE,
    ),
)
