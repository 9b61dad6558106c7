"""Finding the session that a request goes on with, by nothing but its content.

A transcript is known by digests of its prefixes at marks (ends of messages, or of blocks of text). The longest prefix
of a request that some stored transcript shares names it; one lookup per mark, from the longest on. If the request holds
all of its marks, it goes on with its session. If it leaves it before (a rewritten turn, another branch, another
conversation under one system prompt), it gets a session of its own that starts as a copy, so that neither loses its
state.

Guarantees: a transcript is found for the same tenant and tokenizer only. A digest only proposes: the session's own
text is compared before an ID is kept (`SessionService.full_text`), so a wrong proposal costs work. The index is
bounded; what it forgets is encoded anew.

Under one name that requests give (a session's, or a key for the engine's cache) there may be many conversations: the
name is the first mark of each, so that each goes on by itself.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from ..core.errors import InvalidRequest

DIGEST_BYTES = 16
BLOCK_CHARS = 4_096
"""Of a block, where a text has no messages."""
CONTENT = "content/"
"""Begins the names of sessions that are found by content."""
NAMED = "named/"
"""Begins the names of sessions that a request names."""
CONVERSATION = "\x1f"
"""Follows a request's name in the names of further sessions under it."""
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


def packed(chain: Chain) -> bytes:
    return b"".join(chain)


def unpacked(data: bytes) -> Chain:
    """Raises `InvalidRequest` (`chain.malformed`)."""
    if len(data) % DIGEST_BYTES or len(data) > MAX_MARKS * DIGEST_BYTES:
        raise InvalidRequest("chain.malformed", f"a chain is up to {MAX_MARKS} digests of {DIGEST_BYTES} bytes")
    return tuple(data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))


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


Owner = tuple[str, str]
"""(tenant, fingerprint)"""


class ContentIndex:
    """Thread-safe. Sessions are named here, or by requests; a name is one owner's."""

    def __init__(self, max_transcripts: int = MAX_TRANSCRIPTS) -> None:
        self._lock = threading.Lock()
        self._limit = max_transcripts
        self._transcripts: OrderedDict[tuple[Owner, str], Chain] = OrderedDict()
        self._by_digest: dict[tuple[Owner, bytes], tuple[Owner, str]] = {}
        self._owners: dict[str, Owner] = {}
        """Of the sessions that pods have named: no two owners' have one name."""
        self._numbers = count(1)
        self._own = secrets.token_hex(8)

    def __len__(self) -> int:
        return len(self._transcripts)

    def claim(self, tenant: str, fingerprint: str, chain: Chain, key: str = "") -> Claim:
        """The session that this transcript goes on with; it is known by `chain` from now on.

        `key` is what requests of this conversation are placed by: with one, a new session's name begins with it, and
        no two pods give the same name. A key that is a name by itself (`NAMED`) is the name of the first session.

        Two requests that go on with one session at once race for it, and the loser finds less in common.
        """
        owner = (tenant, fingerprint)
        with self._lock:
            found, shared = self._find(owner, chain)
            parent: str | None = None
            if found is not None and shared == len(self._transcripts[owner, found]):
                session = found
            else:
                session, parent = self._new(key, first=found is None), found
            self._put(owner, session, chain)
        return Claim(session, parent, shared)

    def _new(self, key: str, *, first: bool) -> str:
        if key.startswith(NAMED):
            return key if first else f"{key}{CONVERSATION}{self._own}-{next(self._numbers)}"
        return f"{key}/{self._own}-{next(self._numbers)}" if key else f"{CONTENT}{next(self._numbers)}"

    def find(self, tenant: str, fingerprint: str, chain: Chain) -> str | None:
        """The session that `claim` would go on with or copy; nothing changes."""
        with self._lock:
            return self._find((tenant, fingerprint), chain)[0]

    def chain(self, tenant: str, fingerprint: str, session: str) -> Chain:
        """What a session is known by; empty if it isn't known here."""
        with self._lock:
            return self._transcripts.get(((tenant, fingerprint), session), ())

    def adopt(self, tenant: str, fingerprint: str, session: str, chain: Chain) -> None:
        """Another pod's session is here from now on, known by `chain`."""
        with self._lock:
            if self._owners.get(session, (tenant, fingerprint)) == (tenant, fingerprint):
                self._put((tenant, fingerprint), session, chain)

    def _put(self, owner: Owner, session: str, chain: Chain) -> None:
        self._drop(owner, session)
        self._transcripts[owner, session] = chain
        if not session.startswith(NAMED):
            self._owners[session] = owner
        for digest in chain:
            self._by_digest[owner, digest] = owner, session
        while len(self._transcripts) > self._limit:
            self._drop(*next(iter(self._transcripts)))

    def _find(self, owner: Owner, chain: Chain) -> tuple[str | None, int]:
        for shared in range(len(chain), 0, -1):
            found = self._by_digest.get((owner, chain[shared - 1]))
            if found is not None:
                return found[1], shared
        return None, 0

    def _drop(self, owner: Owner, session: str) -> None:
        self._owners.pop(session, None)
        for digest in self._transcripts.pop((owner, session), ()):
            key = (owner, digest)
            if self._by_digest.get(key) == (owner, session):
                del self._by_digest[key]
