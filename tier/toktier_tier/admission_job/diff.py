"""What changes for texts when one snapshot takes the place of another: both references on the same texts.

Where the earlier snapshot was admitted under another release of the reference's library, that release's own part is
told apart: the new file under both releases, with the cause of each difference (`admission.differences`).

Guarantees: no fast path has a part in it, and the same two snapshots, seed and corpora give the same answer. It is a
sample: no difference found isn't a proof, unless the fingerprints are equal and so is the release.

Work is counted, not timed: about 3 s for two tokenizers of 150,000 entries on one core, 10 s more for two releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..admission.causes import release_of
from ..admission.differences import Differences, minimized, release_differences
from ..admission.texts import NATURAL, PIECES, Texts
from ..core.boundaries import no_rule
from ..core.errors import InvalidText
from ..encoders.reference import REFERENCE_VERSION, Reference

TEXTS_OF_A_KIND = 600
CHARS = 240
MAX_TOKEN_TEXTS = 500
MAX_EXAMPLES = 20
MAX_MINIMIZED = 200
MAX_EXAMPLE_CHARS, MAX_EXAMPLE_IDS = 80, 40
MAX_LISTED = 200
_Outcome = tuple[int, ...] | None


@dataclass(frozen=True)
class SnapshotDiff:
    """`tokens` are contents of the vocabulary with added tokens; an outcome of None is a text that one refuses.

    release: what another release of the library changes on the new file; None where it is the same release
    """

    fingerprints: tuple[str, str]
    files: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    renumbered: tuple[str, ...]
    texts: int
    differing: int
    examples: tuple[tuple[str, _Outcome, _Outcome], ...]
    release: Differences | None = None

    @property
    def summary(self) -> str:
        if self.fingerprints[0] == self.fingerprints[1]:
            found = "the same IDs for every text" if self.release is None else "the same tokenizer"
        elif self.differing:
            found = f"{self.differing:,} of {self.texts:,} texts get other IDs"
        else:
            found = f"no difference on {self.texts:,} texts"
        tokens = (
            f"{len(self.added):,} tokens added, {len(self.removed):,} removed, {len(self.renumbered):,} with another ID"
        )
        release = "" if self.release is None else f"{self.release.summary}; "
        return f"{release}{found}; {tokens}; files changed: {', '.join(self.files) or 'none'}"[:500]

    def to_document(self) -> dict[str, Any]:
        """The `diff` of result.json."""
        release = self.release
        by_release = [example for group in release.groups for example in group.examples] if release else []
        return {
            "summary": self.summary,
            "texts": self.texts + (release.units if release else 0),
            "differing": self.differing + (release.texts if release else 0),
            "addedTokens": len(self.added),
            "removedTokens": len(self.removed),
            "changedIds": len(self.renumbered),
            "examples": [
                {"text": text, "before": _shown(before), "after": _shown(after)}
                for text, before, after in (*self.examples, *by_release)[:MAX_EXAMPLES]
            ],
        }

    def to_report(self) -> dict[str, Any]:
        """The same with the tokens themselves, for report.json."""
        lists = {"added": self.added, "removed": self.removed, "renumbered": self.renumbered}
        tokens = {kind: list(found[:MAX_LISTED]) for kind, found in lists.items()}
        before, after = self.fingerprints
        release = {} if self.release is None else {"release": self.release.to_document()}
        rest = {"files": list(self.files), "tokens": tokens, "before": before, "after": after}
        return {**self.to_document(), **rest, **release}


def compare(
    before: Reference,
    after: Reference,
    *,
    files: Sequence[str] = (),
    seed: int = 1,
    corpus: Sequence[str] = (),
    release: str = REFERENCE_VERSION,
) -> SnapshotDiff:
    """`files`: names of the files that changed, for the summary; `release`: under which `before` was admitted."""
    found = _compare(before, after, files, seed, corpus)
    return found if release == REFERENCE_VERSION else replace(found, release=_by_release(release, after))


def _by_release(release: str, after: Reference) -> Differences:
    """A release that isn't here is said to be unknown, not equal."""
    try:
        earlier, current = (release_of(name.partition("==")[2]) for name in (release, REFERENCE_VERSION))
        return release_differences(after.snapshot.document(), earlier, [current])[0]
    except ImportError:
        return Differences(release, REFERENCE_VERSION, f"{release} isn't here, so what changes isn't known", 0, ())


def _compare(
    before: Reference, after: Reference, files: Sequence[str], seed: int, corpus: Sequence[str]
) -> SnapshotDiff:
    fingerprints = (before.snapshot.fingerprint, after.snapshot.fingerprint)
    added, removed, renumbered = _tokens(before, after)
    if fingerprints[0] == fingerprints[1]:
        return SnapshotDiff(fingerprints, tuple(files), added, removed, renumbered, 0, 0, ())
    texts = list(
        dict.fromkeys(
            [
                *_texts(before, after, seed, corpus),
                *_spelled(before, removed + renumbered),
                *_spelled(after, added + renumbered),
            ]
        )
    )
    both = _Both(before, after)
    differing = [text for text in texts if both.differ(text)]
    examples = _examples(both, differing)
    return SnapshotDiff(
        fingerprints, tuple(files), added, removed, renumbered, len(texts), len(differing), tuple(examples)
    )


def _tokens(before: Reference, after: Reference) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    old, new = (each.tokenizer.get_vocab(with_added_tokens=True) for each in (before, after))
    kept = old.keys() & new.keys()
    return (
        tuple(sorted(new.keys() - kept)),
        tuple(sorted(old.keys() - kept)),
        tuple(sorted(token for token in kept if old[token] != new[token])),
    )


def _texts(before: Reference, after: Reference, seed: int, corpus: Sequence[str]) -> Iterable[str]:
    """The campaign's kinds of texts, from both snapshots: literals and entries that only one of them knows."""
    yield from NATURAL.split("\n")
    yield from NATURAL.split()
    yield from PIECES
    for reference in (before, after):
        texts = Texts(reference.snapshot, no_rule("diff", ""), seed, corpus)
        yield from texts.literals[:MAX_TOKEN_TEXTS]
        for _ in range(TEXTS_OF_A_KIND):
            yield texts.natural(CHARS)
            yield texts.mixed(CHARS)
            yield texts.adversarial(CHARS // 2)


def _spelled(reference: Reference, tokens: Sequence[str]) -> Iterable[str]:
    """Texts of some of the tokens, spread over all; what is no text by itself is left out."""
    for token in tokens[:: max(len(tokens) // MAX_TOKEN_TEXTS, 1)]:
        text = reference.decode(np.array([reference.id_of(token)], dtype=np.uint32))
        if text and "\ufffd" not in text:
            yield text


class _Both:
    def __init__(self, before: Reference, after: Reference) -> None:
        self._before, self._after = before.encode, after.encode

    def outcomes(self, text: str) -> tuple[_Outcome, _Outcome]:
        return _ids(self._before, text), _ids(self._after, text)

    def differ(self, text: str) -> bool:
        before, after = self.outcomes(text)
        return before != after


def _ids(encode: Callable[[str], Any], text: str) -> _Outcome:
    try:
        return tuple(encode(text).tolist())
    except InvalidText:
        return None


def _examples(both: _Both, differing: Sequence[str]) -> Iterable[tuple[str, _Outcome, _Outcome]]:
    """The shortest of the minimized texts; each differs by itself, so none is longer than it has to be by much."""
    shortest = sorted(differing, key=lambda text: (len(text), text))
    chosen = shortest[: MAX_MINIMIZED // 2] + list(differing[:: max(2 * len(differing) // MAX_MINIMIZED, 1)])
    minimal = {minimized(both.differ, text) for text in dict.fromkeys(chosen)}
    fitting = sorted((text for text in minimal if len(text) <= MAX_EXAMPLE_CHARS), key=lambda text: (len(text), text))
    return [(text, *both.outcomes(text)) for text in fitting[:MAX_EXAMPLES]]


def _shown(outcome: _Outcome) -> list[int]:
    return list(outcome[:MAX_EXAMPLE_IDS]) if outcome is not None else []
