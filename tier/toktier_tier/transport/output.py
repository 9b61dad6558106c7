"""A growing output as SGLang's cumulative events show it: each token is decoded and written as JSON a few times only.

Guarantees: `text` only grows, and never ends in half a character; `finish` makes it the decoding of all IDs, whatever
was shown before. The work for n tokens, but for copying what an event repeats, grows with n.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

UNFINISHED = "\ufffd"
MAX_PENDING_IDS = 64
"""An unfinished character has four bytes at most, so that many IDs that end in one are bytes that form none."""

Decode = Callable[[Any], str]


class Output:
    """The IDs so far and their text, in Python and as JSON.

    The text of new IDs is what `decode` adds for them behind the stretch of IDs settled last: a decoder looks at what
    stands before a token (a leading space, the first bytes of a character), but not further back than that.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self.ids: list[int] = []
        self._pieces: list[str] = []
        self._context: list[int] = []
        self._pending: list[int] = []
        self._ids_json = bytearray()
        self._text_json = bytearray()

    @property
    def text(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def extend(self, ids: Iterable[int]) -> None:
        new = list(ids)
        self.ids += new
        self._ids_json += "".join(f", {each}" for each in new).encode()
        self._pending += new
        together = self._context + self._pending
        before, now = self._of(self._context), self._of(together)
        overdue = len(self._pending) > MAX_PENDING_IDS
        if now.startswith(before) and (overdue or not now.endswith(UNFINISHED)):
            self._show(now[len(before) :])
        elif not overdue:
            return
        if overdue or self._of(self._pending):
            self._context = self._pending
        elif now != before:  # too little to be context by itself
            self._context = together[-MAX_PENDING_IDS:]
        self._pending = []

    def finish(self) -> None:
        """From now on `text` is the decoding of all IDs."""
        whole = self._of(self.ids)
        if whole != self.text:
            self._pieces.clear()
            self._text_json.clear()
            self._show(whole)

    def event(self, about: object) -> bytes:
        """A server-sent event: the output so far, with `about` as its `meta_info`."""
        ids = memoryview(self._ids_json)[2:]
        meta = json.dumps(about).encode()
        parts = (b'data: {"text": "', self._text_json, b'", "output_ids": [', ids, b'], "meta_info": ', meta, b"}\n\n")
        return b"".join(parts)

    def _show(self, piece: str) -> None:
        self._pieces.append(piece)
        self._text_json += json.dumps(piece, ensure_ascii=False)[1:-1].encode()

    def _of(self, ids: list[int]) -> str:
        return self._decode(np.array(ids, dtype=np.uint32)) if ids else ""
