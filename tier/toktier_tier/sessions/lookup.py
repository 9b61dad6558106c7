"""Finding the session that a request goes on with, by nothing but its content.

A transcript is known by digests of its prefixes at marks (ends of messages, or of blocks of text). The longest prefix
of a request that some stored transcript shares names it; one lookup per mark, from the longest on. If the request holds
all of its marks, it goes on with its session. If it leaves it before (a rewritten turn, another branch, another
conversation under one system prompt), it gets a session of its own that starts as a copy, so that neither loses its
state.

Guarantees: a transcript is found for the same tenant and tokenizer only. A digest only proposes: the session's own
text is compared before an ID is kept (`SessionService.full_text`), so a wrong proposal costs work. The index is
bounded; what it forgets is encoded anew.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

DIGEST_BYTES = 16
BLOCK_CHARS = 4_096
"""Of a block, where a text has no messages."""
MAX_TRANSCRIPTS = 65_536
MAX_MARKS = 4_096
"""Per transcript; of longer ones only the first so many are looked at."""

Chain = tuple[bytes, ...]


def chain_of(parts: Iterable[bytes]) -> Chain:
    """Digests of the transcript up to the end of each part; the parts' borders count."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    chain: list[bytes] = []
    for part in islice(parts, MAX_MARKS):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
        chain.append(digest.digest())
    return tuple(chain)


def blocks(text: str) -> Iterator[bytes]:
    """The parts of a text without messages: whole blocks only, since a longer text has the same ones."""
    for end in range(BLOCK_CHARS, len(text) + 1, BLOCK_CHARS):
        yield text[end - BLOCK_CHARS : end].encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Claim:
    """The session for a request; `parent`, if any, is the one it starts as a copy of; `shared` marks are common."""

    session: str
    parent: str | None
    shared: int


@dataclass(slots=True)
class _Transcript:
    owner: tuple[str, str]
    chain: Chain


class ContentIndex:
    """Thread-safe. Owners are (tenant, fingerprint); sessions are named here."""

    def __init__(self, max_transcripts: int = MAX_TRANSCRIPTS) -> None:
        self._lock = threading.Lock()
        self._limit = max_transcripts
        self._transcripts: OrderedDict[str, _Transcript] = OrderedDict()
        self._by_digest: dict[tuple[tuple[str, str], bytes], str] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._transcripts)

    def claim(self, tenant: str, fingerprint: str, chain: Chain) -> Claim:
        """The session that this transcript goes on with; it is known by `chain` from now on.

        Two requests that go on with one session at once race for it, and the loser finds less in common.
        """
        owner = (tenant, fingerprint)
        with self._lock:
            found, shared = self._find(owner, chain)
            parent: str | None = None
            if found is not None and shared == len(self._transcripts[found].chain):
                session = found
                self._drop(session)
            else:
                session, parent = f"content/{next(self._numbers)}", found
            self._transcripts[session] = _Transcript(owner, chain)
            for digest in chain:
                self._by_digest[owner, digest] = session
            while len(self._transcripts) > self._limit:
                self._drop(next(iter(self._transcripts)))
        return Claim(session, parent, shared)

    def _find(self, owner: tuple[str, str], chain: Chain) -> tuple[str | None, int]:
        for shared in range(len(chain), 0, -1):
            session = self._by_digest.get((owner, chain[shared - 1]))
            if session is not None:
                return session, shared
        return None, 0

    def _drop(self, session: str) -> None:
        transcript = self._transcripts.pop(session)
        for digest in transcript.chain:
            key = (transcript.owner, digest)
            if self._by_digest.get(key) == session:
                del self._by_digest[key]
