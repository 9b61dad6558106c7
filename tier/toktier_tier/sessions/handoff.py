"""A session's state as bytes, and back: what a draining pod hands to the next owner.

Layout: magic (its number is the version), 16-byte BLAKE2b of the rest, 4-byte length of a JSON header, the header, then
per segment and for the tail its IDs (little-endian uint32) and its UTF-8 text where it is kept. Version 2 is version 1
with the text's untrusted spans in the header. A state has some exactly if it is of version 2: who knows nothing of
them refuses it.

Guarantees of `import_state`: the state is for this very snapshot (fingerprint), every ID is in the vocabulary, and the
IDs are those of its text: every segment's border is a boundary of the rule, and every segment's text and the tail's is
encoded again, by the stages and not by a form that does without them, and gives the IDs that came with it. What can't
be shown so is refused: text of which only a digest is left, too. The digest alone shows nothing but that no byte was
lost: whoever changes a state can make it anew.

A state may be sealed with a key that pods share (a MAC around it): who has the key may believe what another one who
has it says of the segments. Then the tail alone is encoded again. A text with untrusted spans is encoded again as a
whole in any case where no fast path is admitted for such.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.errors import StateCorrupt, UnsupportedTokenizer
from ..core.pipeline import Position
from ..core.session import Segment, SessionState
from ..core.trust import NO_SPANS, Spans, clipped, joined
from ..tokenizer import TierTokenizer
from .lives import REVISION_LIMIT

MAGIC = b"TKTSTATE1\n"
MAGIC_UNTRUSTED = b"TKTSTATE2\n"
MAGIC_SEALED = b"TKTSEALED1\n"
SEAL_BYTES = 32
MAX_STATE_BYTES = 1 << 30


def export_state(state: SessionState, fingerprint: str) -> bytes:
    tail = state.tail.encode("utf-8")
    header: dict[str, Any] = {
        "fingerprint": fingerprint,
        "revision": state.revision,
        "keep_text": state.keep_text,
        "segments": [
            [s.bytes_, s.chars, len(s.ids), s.digest.hex() if s.digest is not None else None] for s in state.segments
        ],
        "tail": [len(tail), state.count],
    }
    if state.untrusted:
        header["untrusted"] = state.untrusted
    encoded = json.dumps(header, separators=(",", ":")).encode()
    parts = [struct.pack("<I", len(encoded)), encoded]
    for segment in state.segments:
        parts.append(segment.ids.astype("<u4").tobytes())
        parts.append(segment.text or b"")
    parts += [state.tail_ids.astype("<u4").tobytes(), tail]
    body = b"".join(parts)
    magic = MAGIC_UNTRUSTED if state.untrusted else MAGIC
    return magic + hashlib.blake2b(body, digest_size=16).digest() + body


def sealed(data: bytes, secret: bytes) -> bytes:
    """An exported state, vouched for by whoever has `secret`."""
    return MAGIC_SEALED + _seal(data, secret) + data


def unsealed(data: bytes, secret: bytes | None) -> tuple[bytes, bool]:
    """(the exported state, whether somebody who has `secret` vouches for it). One that nobody does isn't refused here:
    all of it has to be shown then."""
    if not data.startswith(MAGIC_SEALED):
        return data, False
    start = len(MAGIC_SEALED) + SEAL_BYTES
    seal, state = data[len(MAGIC_SEALED) : start], data[start:]
    return state, secret is not None and hmac.compare_digest(seal, _seal(state, secret))


def _seal(data: bytes, secret: bytes) -> bytes:
    key = hashlib.blake2b(secret, digest_size=32, person=b"toktier-state").digest()
    return hashlib.blake2b(data, key=key, digest_size=SEAL_BYTES).digest()


def import_state(data: bytes, tokenizer: TierTokenizer, *, believed: bool = False) -> SessionState:
    """`believed`: somebody who may be believed vouches for the segments. Raises `StateCorrupt` (`handoff.*`)."""
    start = len(MAGIC) + 16
    magic = data[: len(MAGIC)]
    if len(data) > MAX_STATE_BYTES or magic not in (MAGIC, MAGIC_UNTRUSTED):
        raise StateCorrupt("handoff.not_a_state", "not an exported session")
    body = data[start:]
    if hashlib.blake2b(body, digest_size=16).digest() != data[len(MAGIC) : start]:
        raise StateCorrupt("handoff.digest", "the state was changed on the way")
    try:
        state = _read(body, tokenizer, has_spans=magic == MAGIC_UNTRUSTED)
    except StateCorrupt:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise StateCorrupt("handoff.malformed", "the state is malformed") from error
    _verify(state, tokenizer, believed=believed)
    return state


def _read(body: bytes, tokenizer: TierTokenizer, *, has_spans: bool) -> SessionState:
    (size,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + size])
    revision, keep_text = header["revision"], header["keep_text"]
    if type(revision) is not int or not 0 <= revision < REVISION_LIMIT or type(keep_text) is not bool:
        raise StateCorrupt("handoff.malformed", "the header is malformed")
    if header["fingerprint"] != tokenizer.fingerprint:
        raise StateCorrupt("handoff.fingerprint", "the state belongs to another snapshot")
    at = 4 + size

    def take(length: int) -> bytes:
        nonlocal at
        if not isinstance(length, int) or length < 0 or at + length > len(body):
            raise StateCorrupt("handoff.malformed", "the state is shorter than it says")
        at += length
        return body[at - length : at]

    state = SessionState(keep_text=keep_text)
    segments: list[Segment] = []
    for bytes_, chars, tokens, digest in header["segments"]:
        ids = np.frombuffer(take(4 * tokens), dtype="<u4").astype(np.uint32)
        ids.setflags(write=False)
        text = take(bytes_) if state.keep_text else None
        kept = bytes.fromhex(digest) if digest is not None else None
        if type(bytes_) is not int or type(chars) is not int or not 0 < chars <= bytes_ <= 4 * chars:
            raise StateCorrupt("handoff.malformed", "a segment's lengths can't be")
        if kept is not None and len(kept) != 16:
            raise StateCorrupt("handoff.malformed", "a digest has another length")
        if (text is None) == (kept is None) or (text is not None and len(text.decode("utf-8")) != chars):
            raise StateCorrupt("handoff.malformed", "a segment doesn't fit its header")
        segments.append(Segment(text, kept, bytes_, chars, ids))
    tail_bytes, tail_tokens = header["tail"]
    tail_ids = np.frombuffer(take(4 * tail_tokens), dtype="<u4").astype(np.uint32)
    tail = take(tail_bytes).decode("utf-8")
    if at != len(body):
        raise StateCorrupt("handoff.malformed", "the state is longer than it says")
    if ("untrusted" in header) != has_spans:
        raise StateCorrupt("handoff.malformed", "a state has untrusted spans exactly in version 2")
    chars = sum(segment.chars for segment in segments) + len(tail)
    untrusted = _spans(header["untrusted"], chars) if has_spans else NO_SPANS
    state.adopt(segments, tail, tail_ids, revision, untrusted)
    return state


def _spans(raw: list[list[int]], chars: int) -> Spans:
    spans = tuple((start, stop) for start, stop in raw)
    borders = [border for span in spans for border in span]
    if not spans or not all(type(border) is int for border in borders) or borders != sorted(borders):
        raise StateCorrupt("handoff.malformed", "the untrusted spans can't be")
    if borders[0] < 0 or borders[-1] > chars or spans != joined(iter(spans)):
        raise StateCorrupt("handoff.malformed", "the untrusted spans can't be")
    return spans


def _verify(state: SessionState, tokenizer: TierTokenizer, *, believed: bool) -> None:
    limit = tokenizer.reference.id_limit
    for ids in [*(segment.ids for segment in state.segments), state.tail_ids]:
        if len(ids) and int(ids.max()) >= limit:
            raise StateCorrupt("handoff.unknown_id", "the state holds an ID outside the vocabulary")
    encoder = tokenizer.staged
    if state.untrusted and (encoder is None or not tokenizer.trust_admitted):
        _verify_by_reference(state, tokenizer)
        return
    if encoder is None:
        if state.segments or state.tail_ids.tobytes() != tokenizer.encode_text(state.tail).tobytes():
            raise StateCorrupt("handoff.witness", "the state's text doesn't give its IDs")
        return
    pieces: list[tuple[int, str, bytes, Position]] = [
        (state.chars_before[-1], state.tail, state.tail_ids.tobytes(), state.tail_position)
    ]
    if not believed:
        for index, segment in enumerate(state.segments):
            position = Position.CONTINUATION if index else Position.TEXT_START
            if segment.text is None:
                raise StateCorrupt("handoff.unverifiable", "text that isn't kept can't be checked: pods need one token")
            pieces.append((state.chars_before[index], segment.text.decode(), segment.ids.tobytes(), position))
        texts = [*(piece[1] for piece in pieces[1:]), *([state.tail] if state.tail else [])]
        if not all(tokenizer.compiled.rule.holds(left[-1], right[0]) for left, right in pairwise(texts)):
            raise StateCorrupt("handoff.border", "a segment ends where the rule claims no boundary")
    for offset, text, ids_bytes, position in pieces:
        spans = clipped(state.untrusted, offset, offset + len(text))
        again = encoder.encode_untrusted(text, spans, position) if spans else encoder.encode(text, position)
        if again.tobytes() != ids_bytes:
            raise StateCorrupt("handoff.witness", "the state's text doesn't give its IDs")


def _verify_by_reference(state: SessionState, tokenizer: TierTokenizer) -> None:
    """The whole text, with its untrusted spans, gives the state's IDs."""
    try:
        again = tokenizer.encode_by_reference(state.text(), state.untrusted) if state.has_text() else None
    except UnsupportedTokenizer as error:
        raise StateCorrupt("handoff.untrusted", "the snapshot has no untrusted spans") from error
    if again is None or again.tobytes() != state.ids().tobytes():
        raise StateCorrupt("handoff.witness", "the state's text doesn't give its IDs")
