"""Repair: the IDs of a changed text from those of the old one, encoding only a window around the change.

Guarantee: after each call the state's IDs are the snapshot's encoding of the state's text, if the rule's claim
(see `boundaries`) and the encoder hold. Both are witnessed on every repair: the old text of the window is encoded
again and must give the stored IDs, and the part of the new window that lies outside the boundaries must too. A
mismatch is never spliced: the caller gets `WitnessMismatch` with the state untouched. What is encoded in chunks is
witnessed by `witness.CutWitness`, around what encodes it.

Why it is right: docs/decisions/0004-repair.md. Positions are in characters.

With untrusted spans nothing changes but what encodes a window: it is told the window's part of them. A boundary is one
whatever is trusted (docs/decisions/0007-untrusted-spans.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .boundaries import BoundaryRule
from .errors import InvalidRequest, StateError
from .pipeline import Position
from .session import Piece, SessionState
from .trust import NO_SPANS, Spans, clipped, spliced
from .values import Certificate, Ids, Patch, Reason, Route, check_text

CHUNKED_CHARS = 24_576
"""A window longer than this is encoded in chunks, which become segments as they are."""
WIDE_CHARS = 2_048
"""How far a window may start before the change before it counts as widened, beyond the overlap itself."""

EncodeText = Callable[[str, Position], Ids]
EncodeChunks = Callable[[str, Position], list[Piece]]
EncodeUntrusted = Callable[[str, Spans, Position], Ids]
EncodeUntrustedChunks = Callable[[str, Spans, Position], list[Piece]]


class WitnessMismatch(StateError):
    """Encoding known text again gave other IDs: the rule, the encoder or the state is wrong. Nothing was changed."""


class TrustNotAdmitted(StateError):
    """The text has untrusted spans, and this repairer may not encode such texts. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class TemplateIds:
    """The template's tokens around the text (empty without the TEMPLATE policy)."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def around(self, body: Ids) -> Ids:
        """`body` between them; `body` itself if there are none."""
        if not self.prefix and not self.suffix:
            return body
        return np.concatenate([np.array(self.prefix, dtype=np.uint32), body, np.array(self.suffix, dtype=np.uint32)])

    def within(self, ids: Ids) -> Ids:
        """What `ids` are around: the inverse of `around`."""
        return ids[len(self.prefix) : len(ids) - len(self.suffix)]


@dataclass(frozen=True, slots=True)
class _Window:
    """What to encode again of a region, in the region's own positions (old text unless said otherwise).

    start..boundary is re-encoded for the witness only, boundary..resume is replaced, resume..stop is again witness.
    """

    start: int
    boundary: int
    resume: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Marked:
    """A stretch of text with its untrusted spans."""

    text: str
    untrusted: Spans
    encoder: EncodeText
    untrusted_encoder: EncodeUntrusted | None

    def encode(self, start: int, stop: int, where: Position) -> Ids:
        """IDs of characters start..stop."""
        if not self.untrusted:
            return self.encoder(self.text[start:stop], where)
        assert self.untrusted_encoder is not None
        return self.untrusted_encoder(self.text[start:stop], clipped(self.untrusted, start, stop), where)


class Repairer:
    """Applies changes to session states of one snapshot. Holds no state; thread-safe if its encoders are.

    overlap_chars       length of the witness: more than the longest vocabulary entry
    encode_untrusted    what encodes text with untrusted spans; without it a state that has or gets some raises
                        `TrustNotAdmitted`
    """

    def __init__(
        self,
        *,
        fingerprint: str,
        rule: BoundaryRule,
        encode: EncodeText,
        encode_chunks: EncodeChunks,
        overlap_chars: int,
        template: TemplateIds = TemplateIds(),
        encode_untrusted: EncodeUntrusted | None = None,
        encode_untrusted_chunks: EncodeUntrustedChunks | None = None,
    ) -> None:
        if rule.kind == "none":
            raise InvalidRequest("repair.no_rule", "repair needs a boundary rule")
        self.fingerprint, self.rule, self.template = fingerprint, rule, template
        self.overlap_chars = overlap_chars
        self._encode, self._encode_chunks = encode, encode_chunks
        self._encode_untrusted, self._encode_untrusted_chunks = encode_untrusted, encode_untrusted_chunks
        self._prefix, self._suffix = len(template.prefix), len(template.suffix)

    @property
    def takes_untrusted(self) -> bool:
        """Whether texts may have untrusted spans."""
        return self._encode_untrusted is not None and self._encode_untrusted_chunks is not None

    def open(self, text: str, *, keep_text: bool = True, untrusted: Spans = NO_SPANS) -> SessionState:
        """A new session's state for `text`: one full encode."""
        check_text(text)
        state = SessionState(keep_text=keep_text)
        if text:
            state.replace_segments(0, None, self._chunks(text, untrusted, Position.TEXT_START))
            state.mark_untrusted(untrusted)
        return state

    def append(self, state: SessionState, delta: str, untrusted: Spans = NO_SPANS) -> Patch:
        """Add `delta`, with its `untrusted` spans, at the end of the text."""
        check_text(delta)
        if not delta:
            return self._unchanged(state)
        if untrusted or state.untrusted:
            return self._replace(state, state.chars, state.chars, delta, untrusted)
        tail, count = state.tail, state.count
        end = len(tail)
        text = tail + delta
        boundary = max(self.rule.last(text, end), 0)
        start = boundary - self.overlap_chars
        start = max(self.rule.last(text, start), 0) if start > 0 else 0
        where = Position.CONTINUATION if start else state.tail_position
        encode = self._encode
        old = encode(tail[start:], where)
        kept = count - len(old)
        if kept < 0 or (start == 0 and kept) or state.tail_ids[kept:].tobytes() != old.tobytes():
            raise WitnessMismatch("repair.witness_mismatch", "the window's old text doesn't give the stored IDs")
        if boundary == end:
            overlap = len(old)
        elif boundary == start:
            overlap = 0
        else:
            overlap = len(old) - len(encode(tail[boundary:], Position.CONTINUATION))
        pieces: list[Piece] | None = None
        if len(text) - start > CHUNKED_CHARS:
            pieces = self._encode_chunks(text[start:], where)
            new = np.concatenate([ids for _, ids in pieces])
        else:
            new = encode(text[start:], where)
        witness = old[:overlap].tobytes()
        if overlap < 0 or new[:overlap].tobytes() != witness:
            raise WitnessMismatch("repair.witness_mismatch", "the window's new text changes IDs left of the boundary")
        before_chars, before_tokens = state.chars_before[-1], state.tokens_before[-1]
        resume = self._prefix + before_tokens + count
        if pieces is None:
            state.splice_tail(text, kept, new)
            state.mark(start, kept)
            state.seal()
        else:
            front = (tail[:start], state.tail_ids[:kept].copy())
            state.replace_segments(len(state.segments), None, [front, *pieces])
        state.revision += 1
        chars = before_chars + len(text)
        widened = end - boundary > WIDE_CHARS or boundary - start > self.overlap_chars + WIDE_CHARS
        return Patch(
            keep=self._prefix + before_tokens + kept + overlap,
            ids=new[overlap:],
            resume=resume,
            total=self._prefix + state.tokens + self._suffix,
            revision=state.revision,
            route=Route.REPAIR,
            reason=Reason.WIDENED if widened else Reason.NONE,
            certificate=Certificate(
                self.fingerprint,
                self.rule.digest,
                before_chars + start,
                before_chars + boundary,
                chars,
                chars,
                overlap,
                hashlib.blake2b(witness, digest_size=16).digest(),
            ),
        )

    def replace(
        self, state: SessionState, start: int, stop: int, replacement: str, untrusted: Spans = NO_SPANS
    ) -> Patch:
        """Put `replacement`, with its `untrusted` spans, in place of characters start..stop.

        Truncation and insertion are special cases, and so is a change of nothing but trust.
        Raises `StateError` (`session.text_not_kept`) if the text there is gone, and leaves the state as it was.
        """
        check_text(replacement)
        if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop <= state.chars):
            raise InvalidRequest("edit.out_of_range", "an edit lies within the text", text_chars=state.chars)
        if start == stop == state.chars:
            return self.append(state, replacement, untrusted)
        if start == stop and not replacement:
            return self._unchanged(state)
        return self._replace(state, start, stop, replacement, untrusted)

    def _replace(self, state: SessionState, start: int, stop: int, replacement: str, untrusted: Spans) -> Patch:
        if untrusted or state.untrusted:
            self._need_trust()
        first, last = state.find(max(start - 1, 0)), state.find(stop)
        with_tail = last >= len(state.segments)
        region, ids = _gather(state, first, last)
        offset, tokens_before = state.chars_before[first], state.tokens_before[first]
        position = Position.CONTINUATION if first else Position.TEXT_START
        edited = region[: start - offset] + replacement + region[stop - offset :]
        window = self._window(region, edited, start - offset, stop - offset)
        shift = len(edited) - len(region)
        where = Position.CONTINUATION if window.start else position
        spans = spliced(state.untrusted, start, stop, untrusted, len(replacement))
        encoders = self._encode, self._encode_untrusted
        before = _Marked(region, clipped(state.untrusted, offset, offset + len(region)), *encoders)
        after = _Marked(edited, clipped(spans, offset, offset + len(edited)), *encoders)
        old = before.encode(window.start, window.stop, where)
        if window.stop == len(region):
            kept = len(ids) - len(old)
        else:
            kept = len(before.encode(0, window.start, position)) if window.start else 0
        upto = kept + len(old)
        if kept < 0 or (window.start == 0 and kept) or ids[kept:upto].tobytes() != old.tobytes():
            raise WitnessMismatch("repair.witness_mismatch", "the window's old text doesn't give the stored IDs")
        overlap = len(before.encode(window.start, window.boundary, where)) if window.boundary > window.start else 0
        overlap_after = (
            len(before.encode(window.resume, window.stop, Position.CONTINUATION)) if window.stop > window.resume else 0
        )
        new_pieces = self._encode_window(after, window.start, window.stop + shift, where)
        new = np.concatenate([ids for _, ids in new_pieces]) if new_pieces else old[:0]
        witness = old[:overlap].tobytes()
        if (
            min(len(old), len(new)) < overlap + overlap_after
            or new[:overlap].tobytes() != witness
            or new[len(new) - overlap_after :].tobytes() != old[len(old) - overlap_after :].tobytes()
        ):
            raise WitnessMismatch("repair.witness_mismatch", "the window's new text changes IDs outside the boundaries")
        if first == len(state.segments) and len(edited) <= CHUNKED_CHARS:
            state.splice_tail(edited, kept, np.concatenate([new, ids[upto:]]))
            state.mark(window.start, kept)
            state.seal()
        else:
            front = (region[: window.start], ids[:kept])
            back = (region[window.stop :], ids[upto:])
            state.replace_segments(first, None if with_tail else last + 1, [front, *new_pieces, back])
        state.mark_untrusted(spans)
        state.revision += 1
        tokens_before += self._prefix
        widened = (
            start - offset - window.start > self.overlap_chars + 2 * WIDE_CHARS
            or window.stop - (stop - offset) > self.overlap_chars + 2 * WIDE_CHARS
        )
        return Patch(
            keep=tokens_before + kept + overlap,
            ids=new[overlap : len(new) - overlap_after],
            resume=tokens_before + upto - overlap_after,
            total=self._prefix + state.tokens + self._suffix,
            revision=state.revision,
            route=Route.REPAIR,
            reason=Reason.WIDENED if widened else Reason.NONE,
            certificate=Certificate(
                self.fingerprint,
                self.rule.digest,
                offset + window.start,
                offset + window.boundary,
                offset + window.resume + shift,
                state.chars,
                overlap,
                hashlib.blake2b(witness, digest_size=16).digest(),
            ),
        )

    def _need_trust(self) -> None:
        if not self.takes_untrusted:
            raise TrustNotAdmitted("trust.not_admitted", "nothing here encodes text with untrusted spans")

    def _encode_window(self, text: _Marked, start: int, stop: int, where: Position) -> list[Piece]:
        if stop - start > CHUNKED_CHARS:
            return self._chunks(text.text[start:stop], clipped(text.untrusted, start, stop), where)
        return [(text.text[start:stop], text.encode(start, stop, where))] if start < stop else []

    def _chunks(self, text: str, untrusted: Spans, where: Position) -> list[Piece]:
        if not untrusted:
            return self._encode_chunks(text, where)
        self._need_trust()
        assert self._encode_untrusted_chunks is not None
        return self._encode_untrusted_chunks(text, untrusted, where)

    def _window(self, region: str, edited: str, start: int, stop: int) -> _Window:
        """Boundaries around region[start:stop] that hold in the old region and in the edited one."""
        rule, overlap = self.rule, self.overlap_chars
        boundary = rule.last(edited, start)
        if boundary == start and start < len(region) and not rule.holds(region[start - 1], region[start]):
            boundary = rule.last(edited, start - 1)
        boundary = max(boundary, 0)
        begin = max(rule.last(region, boundary - overlap), 0) if boundary > overlap else 0
        end = len(region)
        resume = finish = end
        if end - stop > 2 * overlap:
            resume = rule.first(region, stop + 1)
            if resume < 0:
                resume = finish = end
            else:
                finish = rule.first(region, resume + overlap)
                finish = end if finish < 0 else finish
        return _Window(begin, boundary, resume, finish)

    def _unchanged(self, state: SessionState) -> Patch:
        total = self._prefix + state.tokens + self._suffix
        return Patch(total, np.empty(0, dtype=np.uint32), total, total, state.revision, Route.UNCHANGED, Reason.NONE)

    def ids(self, state: SessionState) -> Ids:
        """All IDs with the template's tokens: O(tokens)."""
        return self.template.around(state.ids())


def _gather(state: SessionState, first: int, last: int) -> tuple[str, Ids]:
    """Text and IDs of segments first..last; `last` at or past the end takes the tail in."""
    segments = state.segments[first : last + 1]
    texts = [segment.decoded() for segment in segments]
    ids = [segment.ids for segment in segments]
    if last >= len(state.segments):
        texts.append(state.tail)
        ids.append(state.tail_ids.copy())
    return "".join(texts), np.concatenate(ids)
