"""What a full text has in common with a stored state: one comparison, without encoding anything.

Positions are in characters. The comparison walks segments (memory compare, or digests where the text isn't kept)
and looks into at most one segment from either side, so it costs one pass over the text and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from .session import SessionState
from .trust import NO_SPANS, Spans, clipped, common_end, common_start


@dataclass(frozen=True, slots=True)
class Difference:
    """The stored text becomes the given one when characters start..stop are replaced by `replacement`.

    untrusted   the spans of `replacement`
    """

    start: int
    stop: int
    replacement: str
    untrusted: Spans = NO_SPANS


def compare(state: SessionState, text: str, untrusted: Spans = NO_SPANS) -> Difference | None:
    """None if the change reaches into text of which only a digest is left. Equal characters whose trust differs are
    a difference."""
    found = _compare(state, text)
    if found is None or not (untrusted or state.untrusted):
        return found
    chars, new_chars = state.chars, len(text)
    start = common_start(state.untrusted, untrusted, found.start)
    after = chars - found.stop
    if start < found.start == found.stop == chars == new_chars:
        after = chars - start
    after = common_end(state.untrusted, chars, untrusted, new_chars, after)
    stop = new_chars - after
    return Difference(start, chars - after, text[start:stop], clipped(untrusted, start, stop))


def _compare(state: SessionState, text: str) -> Difference | None:
    data = text.encode("utf-8")
    offset = start = 0
    equal = 0
    for segment in state.segments:
        if not segment.matches(data, offset):
            break
        offset += segment.bytes_
        start += segment.chars
        equal += 1
    old_chars, new_chars = state.chars, len(text)
    if equal == len(state.segments):
        start += common_prefix(state.tail, text[start : start + len(state.tail)])
        if start == old_chars:
            return Difference(old_chars, old_chars, text[old_chars:])
    elif state.segments[equal].text is None:
        return None
    else:
        start += common_prefix(state.segments[equal].decoded(), text[start : start + state.segments[equal].chars])
    room = min(old_chars, new_chars) - start
    shared = _common_end(state, text, data, room)
    return Difference(start, old_chars - shared, text[start : new_chars - shared])


def _common_end(state: SessionState, text: str, data: bytes, room: int) -> int:
    """Length of the common suffix, at most `room`."""
    tail = state.tail
    within = min(len(tail), room)
    shared = common_suffix(tail[len(tail) - within :], text[len(text) - within :])
    if shared < len(tail) or shared == room:
        return shared
    end = len(data) - len(tail.encode("utf-8"))
    for segment in reversed(state.segments):
        if shared + segment.chars > room or end < segment.bytes_ or not segment.matches(data, end - segment.bytes_):
            if segment.text is not None:
                left = segment.decoded()
                within = min(len(left), room - shared)
                upto = len(text) - shared
                shared += common_suffix(left[len(left) - within :], text[upto - within : upto])
            break
        end -= segment.bytes_
        shared += segment.chars
    return shared


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix, by bisection on slices."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(a: str, b: str) -> int:
    """Length of the longest common suffix, by bisection on slices."""
    low, high = 0, min(len(a), len(b))
    if a[len(a) - high :] == b[len(b) - high :]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle
    return low
