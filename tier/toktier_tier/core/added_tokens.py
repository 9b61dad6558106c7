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
MAX_START_CHARS = 3


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
        starts = sorted({pattern[0] for pattern in patterns})
        self._starts = starts if len(starts) <= MAX_START_CHARS else None

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of every added token in `text`, in order; positions in characters."""
        if self._search is None:
            return []
        if self._starts is not None:  # one memory search each, many times faster than the automaton
            for start in self._starts:
                if start in text:
                    break
            else:
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
            if start < end:  # else its spaces went to the one before, and the reference drops what is empty
                found.append((token.id, start, end))
            taken = end  # may step back behind a swallowed space: the reference's own order of things
        return found


def found_by_one_search(tokens: Iterable[AddedToken]) -> bool:
    """Whether one leftmost-longest search for all literals finds what rule 1's two searches find.

    For tokens without flags whose literals normalization leaves as they are. It does unless, in some text, a token of
    the second set overlaps one of the first and starts before it, or starts with it and is longer: only such a match
    can take the place of one that the reference finds first (proof: docs/decisions/0005-admission.md).
    """
    kept = [token for token in tokens if token.content]
    raw = {token.content for token in kept if not token.normalized}
    starts = {literal[:stop] for literal in raw for stop in range(1, len(literal) + 1)}
    for literal in (token.content for token in kept if token.normalized):
        if any(literal[:stop] in raw for stop in range(1, len(literal) + 1)):
            return False
        for at in range(1, len(literal)):
            rest = literal[at:]
            if rest in starts or any(rest[:stop] in raw for stop in range(1, len(rest))):
                return False
    return True


@dataclass(frozen=True, slots=True)
class Forbidden:
    """What added tokens forbid to a boundary between characters a and b.

    pairs           (a, b) that stand inside a literal
    before, after   a must not be one of `before`, b not one of `after`
    space_before, space_after   a (or b) must not be white space
    """

    pairs: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    space_before: bool = False
    space_after: bool = False


@dataclass(frozen=True, slots=True)
class Exclusions:
    """`raw` is about characters as they stand; `image` about characters as the normalizer shows them."""

    raw: Forbidden
    image: Forbidden


def exclusions(tokens: Iterable[AddedToken], normalize: Callable[[str], str], *, position_matters: bool) -> Exclusions:
    """`position_matters`: text after a token is treated unlike a continuation, so no boundary may follow one.

    Raises `UnsupportedTokenizer` for a normalized token of which nothing is left (the reference then finds it
    everywhere) and for blank tokens that strip next to others that do (the reference panics on some texts).
    """
    kept = [token for token in tokens if token.content]
    raw = [(token, token.content) for token in kept if not token.normalized]
    image = [(token, normalize(token.content)) for token in kept if token.normalized]
    if not all(literal for _, literal in image):
        raise UnsupportedTokenizer("added_tokens.empty_literal", "a normalized added token becomes the empty string")
    for literals in (raw, image):
        if any(t.lstrip and literal.isspace() for t, literal in literals) and any(t.rstrip for t, _ in literals):
            raise UnsupportedTokenizer("added_tokens.blank_strips", "a blank added token strips what another strips")
    return Exclusions(_forbidden(raw, position_matters), _forbidden(image, position_matters))


def _forbidden(tokens: list[tuple[AddedToken, str]], position_matters: bool) -> Forbidden:
    return Forbidden(
        pairs=frozenset(literal[i : i + 2] for _, literal in tokens for i in range(len(literal) - 1)),
        before=frozenset(literal[-1] for token, literal in tokens if token.single_word or position_matters),
        after=frozenset(literal[0] for token, literal in tokens if token.single_word),
        space_before=any(t.lstrip or (t.rstrip and position_matters) for t, _ in tokens),
        space_after=any(t.rstrip for t, _ in tokens),
    )
