"""Which split patterns mean the same to every regex engine that a candidate encoder may use.

Guarantees: `unportable` returns None only for patterns made of constructs that Oniguruma (Ruby syntax, which the
reference compiles with), PCRE2 and Rust's `regex`/`fancy-regex` read alike, except for *which characters* a class such
as `\\p{L}`, `\\s` or `\\w` contains: that is asked of the encoder code point by code point (`admission.probe`).
Anything else is named, so that a candidate is refused by feature instead of by luck.

Constructs that read differently, with the engine that differs: `\\h`, `\\v`, `\\H`, `\\u` (PCRE2), `x{1,2}+`
(possessive in PCRE2, a repeated repeat in Oniguruma), `x{2}?` (lazy in PCRE2, an optional group in Oniguruma),
`x{,2}` (literal text in older PCRE2), `[a&&b]` and `[a[b]]` (literal characters in PCRE2), `[[:alpha:]]`, `[a--b]`
and `[a~~b]` (set operations in Rust), `$` (every line's end in Oniguruma), `\\z`, and properties that one engine
lacks.

Source: Oniguruma doc/RE, pcre2pattern(3), the syntax page of Rust's `regex` crate; each by trial on the libraries.
"""

from __future__ import annotations

import re

_PROPERTY = re.compile(r"L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfon]?|Han")
"""General categories, and the one script that tokenizers ask for."""
_LETTER_ESCAPES = frozenset("rntfsSdDwW")

_TOKEN = re.compile(
    r"""(?P<property>\\[pP]\{[^}]*\})
      | (?P<code>\\x(?:\{[0-9A-Fa-f]+\}|[0-7][0-9A-Fa-f]))
      | (?P<escape>\\.)
      | (?P<open>\[\^?)
      | (?P<group>\((?:\?(?:[:>=!]|i:))?)
      | (?P<braces>\{[^}]*\})
      | (?P<repeat>[*+?])
      | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
_BRACES = re.compile(r"\{(?:\d+|\d+,\d*)\}")


def unportable(pattern: str, *, lines: bool = True) -> str | None:
    """Return the first construct of `pattern` that other engines may read differently, or None.

    `lines`: whether a text that the pattern is run on may hold a line feed beside other characters. Without, `$` is
    the end of the text to all engines. The pattern has been accepted by `core.pattern.parse`.
    """
    at, repeated = 0, False
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        assert token is not None
        found, kind, at = token.group(), token.lastgroup, token.end()
        if kind == "open":
            wrong, at = _unportable_class(pattern, at)
            if wrong:
                return wrong
        elif kind in ("repeat", "braces"):
            wrong, at = _unportable_repeat(pattern, found, at, repeated)
            if wrong:
                return wrong
            repeated = True
            continue
        elif kind in ("property", "escape") and (wrong := _unportable_escape(found)):
            return wrong
        elif kind == "group" and found == "(" and pattern.startswith("?", at):
            return pattern[at - 1 : at + 3]
        elif (found == "$" and lines) or (kind == "plain" and found == "^"):
            return found
        repeated = False
    return None


def _unportable_repeat(pattern: str, found: str, at: int, repeated: bool) -> tuple[str | None, int]:
    """Look at a quantifier `found` that ends at `at`, with its lazy or possessive mark; (what is wrong, its end)."""
    braces = found.startswith("{")
    mark = pattern[at : at + 1]
    if repeated or (braces and not _BRACES.fullmatch(found)):
        return found, at
    if mark in ("?", "+") and mark:
        if braces and (mark == "+" or "," not in found):
            return found + mark, at
        at += 1
    return None, at


def _unportable_escape(found: str) -> str | None:
    if found[1] in "pP":
        name = found[3:-1] if len(found) > 3 else ""
        return None if _PROPERTY.fullmatch(name) else found
    return found if found[1].isalnum() and found[1] not in _LETTER_ESCAPES else None


def _unportable_class(pattern: str, at: int) -> tuple[str | None, int]:
    """Look at a bracketed class whose first member is at `at`; (what is wrong, the position after its end)."""
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\":
            token = _TOKEN.match(pattern, at)
            assert token is not None
            if token.lastgroup != "code" and (wrong := _unportable_escape(token.group())):
                return wrong, at
            at = token.end()
            continue
        if pattern[at] == "[":
            return "a class inside a class", at
        if pattern[at : at + 2] in ("&&", "--", "~~"):
            return pattern[at : at + 2] + " in a class", at
        at += 1
    return None, at + 1
