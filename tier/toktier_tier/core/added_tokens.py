"""Added tokens, found exactly as the reference finds them.

Rules, numbered as the proofs cite them:
 1. Two disjoint literal sets: tokens with `normalized` off are searched in the raw text, first; those with it on
    are searched, as normalized, in the normalized stretches between.
 2. Within a set the search is leftmost-longest and never overlaps.
 3. A `single_word` match with a word character (`\\w`) directly before or after is dropped; the search goes on
    *after* it.
 4. `lstrip` swallows the white space before a match, down to the end of the previous one; `rstrip` the white
    space after it.

Source: tokenizers 0.23.3, `tokenizer/added_vocabulary.rs`, read; the search library is the one the reference's
authors maintained before (Aho-Corasick), held to the reference by tests/core/test_added_tokens.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ahocorasick_rs import AhoCorasick, MatchKind

from .errors import UnsupportedTokenizer

MAX_ADDED_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class AddedToken:
    id: int
    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class CharacterTests:
    """The reference's own `\\w` and `\\s`, for the flags."""

    is_word: Callable[[str], bool]
    is_space: Callable[[str], bool]


class LiteralSet:
    """Finds one set of added tokens in a text. Thread-safe; holds no state between calls."""

    def __init__(self, literals: Iterable[tuple[str, AddedToken]], tests: CharacterTests) -> None:
        pairs = list(literals)
        patterns = [literal for literal, _ in pairs]
        if len(set(patterns)) != len(patterns):
            raise UnsupportedTokenizer("added_tokens.duplicate", "two added tokens have the same literal")
        self._tokens = [token for _, token in pairs]
        self._ids = [token.id for token in self._tokens]
        self._plain = not any(t.lstrip or t.rstrip or t.single_word for t in self._tokens)
        self._tests = tests
        self._automaton = AhoCorasick(patterns, matchkind=MatchKind.LeftmostLongest) if patterns else None
        self._search = self._automaton.find_matches_as_indexes if self._automaton else None

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of every added token in `text`, in order; positions in characters."""
        if self._search is None:
            return []
        matches = self._search(text)
        if not matches:
            return matches
        if self._plain:
            ids = self._ids
            return [(ids[pattern], start, end) for pattern, start, end in matches]
        return self._apply_flags(text, matches)

    def _apply_flags(self, text: str, matches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        is_word, is_space = self._tests.is_word, self._tests.is_space
        found: list[tuple[int, int, int]] = []
        taken = 0
        for pattern, start, end in matches:
            token = self._tokens[pattern]
            if token.single_word and (
                (start > 0 and is_word(text[start - 1])) or (end < len(text) and is_word(text[end]))
            ):
                continue
            if token.lstrip:
                while start > taken and is_space(text[start - 1]):
                    start -= 1
                start = max(start, taken)
            if token.rstrip:
                while end < len(text) and is_space(text[end]):
                    end += 1
            found.append((token.id, start, end))
            taken = end  # may step back behind a swallowed space: the reference's own order of things
        return found


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What added tokens forbid to a boundary between characters a and b (raw characters).

    pairs         (a, b) that stand inside a raw literal
    image_pairs   (a, b) that stand inside a normalized literal, as the normalizer shows them
    before        a must not be one of these; `after`: b must not be one of these
    """

    pairs: frozenset[str]
    image_pairs: frozenset[str]
    before: frozenset[str]
    after: frozenset[str]
    white_space_before: bool
    white_space_after: bool


def exclusions(
    tokens: Iterable[AddedToken], normalize: Callable[[str], str], *, position_matters: bool
) -> Exclusions:
    """`position_matters`: text after a token is treated unlike a continuation, so no boundary may follow one."""
    pairs: set[str] = set()
    image_pairs: set[str] = set()
    before: set[str] = set()
    after: set[str] = set()
    space_before = space_after = False
    for token in tokens:
        literals = {token.content, normalize(token.content)} if token.normalized else {token.content}
        for literal in literals:
            if not literal:
                continue
            inner = {literal[i : i + 2] for i in range(len(literal) - 1)}
            if token.normalized:
                image_pairs |= inner
            else:
                pairs |= inner
            if token.single_word:
                before.add(literal[-1])
                after.add(literal[0])
            if position_matters:
                before.add(literal[-1])
        space_before |= token.lstrip or (token.rstrip and position_matters)
        space_after |= token.rstrip
    return Exclusions(
        frozenset(pairs), frozenset(image_pairs), frozenset(before), frozenset(after), space_before, space_after
    )
