"""The regex dialect of split patterns, parsed into a tree of atoms.

Guarantees: a pattern either becomes a tree whose atoms each consume exactly one character, or is refused by
name (`InvalidPattern`, bounded time and depth). What a character class *contains* is never decided here: an atom
carries its own source text, and the reference decides membership (see `classes`).

Semantics are those of Oniguruma's Ruby syntax, which the reference compiles patterns with. Two of its readings
differ from other engines: `x{1,3}+` repeats a repeat (it isn't possessive), and `$` is the end of any line.

Source of the dialect: the patterns of the public tokenizer files and Oniguruma's doc/RE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from .errors import InvalidPattern

MAX_PATTERN_CHARS = 20_000
MAX_DEPTH = 60
MAX_ATOMS = 400


@dataclass(frozen=True, slots=True)
class Atom:
    """One character. `source` is a complete regex that matches exactly the characters this atom accepts."""

    index: int
    source: str
    literal: str | None  # the character, where the atom is a plain literal
    ignore_case: bool


@dataclass(frozen=True, slots=True)
class Assertion:
    """Consumes nothing and reads at most one character to its right: `(?=X)`, `(?!X)`, `$`, `\\z`."""

    index: int
    source: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None  # None: unbounded
    mode: Literal["greedy", "lazy", "possessive"]


@dataclass(frozen=True, slots=True)
class Atomic:
    item: Node


Node = Atom | Assertion | Sequence | Alternation | Repeat | Atomic


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern. `atoms[i].index == i`; assertions are numbered apart, from 0."""

    source: str
    root: Node
    atoms: tuple[Atom, ...]
    assertions: tuple[Assertion, ...]


def parse(source: str) -> Pattern:
    """Parse `source`; raises `InvalidPattern` with code `pattern.*` and the position in characters."""
    if len(source) > MAX_PATTERN_CHARS:
        raise InvalidPattern("pattern.too_long", f"pattern of {len(source)} characters", limit=MAX_PATTERN_CHARS)
    return _Parser(source).parse()


_SET_ESCAPES = frozenset("sSdDwWhH")  # a class by themselves
_CONTROL_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_REFUSED_ESCAPES = {
    "b": "word boundary",
    "B": "word boundary",
    "A": "start-of-text anchor",
    "Z": "end-of-text anchor that looks two characters ahead",
    "G": "search-start anchor",
    "R": "newline sequence",
    "X": "grapheme cluster",
    "k": "back reference",
    "g": "subexpression call",
    "K": "match reset",
    "y": "text-segment boundary",
    "Y": "text-segment boundary",
    "O": "any-character escape",
    "N": "not-newline escape",
    "c": "control escape",
    "C": "control escape",
    "M": "meta escape",
}


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.depth = 0
        self.atoms: list[Atom] = []
        self.assertions: list[Assertion] = []

    def parse(self) -> Pattern:
        root = self._alternation(ignore_case=False)
        if self.at < len(self.source):
            self._refuse("pattern.unbalanced", "a ')' without its '('")
        return Pattern(self.source, root, tuple(self.atoms), tuple(self.assertions))

    def _refuse(self, code: str, why: str) -> NoReturn:
        raise InvalidPattern(code, f"{why} at position {self.at}", position=self.at)

    def _peek(self) -> str:
        return self.source[self.at] if self.at < len(self.source) else ""

    def _alternation(self, *, ignore_case: bool) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._refuse("pattern.too_deep", "groups nested too deeply")
        items = [self._sequence(ignore_case=ignore_case)]
        while self._peek() == "|":
            self.at += 1
            items.append(self._sequence(ignore_case=ignore_case))
        self.depth -= 1
        return items[0] if len(items) == 1 else Alternation(tuple(items))

    def _sequence(self, *, ignore_case: bool) -> Node:
        items: list[Node] = []
        while (char := self._peek()) and char not in "|)":
            items.append(self._quantified(ignore_case=ignore_case))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _quantified(self, *, ignore_case: bool) -> Node:
        node = self._primary(ignore_case=ignore_case)
        while (bounds := self._quantifier()) is not None:
            least, most, braces = bounds
            if isinstance(node, Assertion):
                self._refuse("pattern.quantified_assertion", "a quantifier on an assertion")
            mode: Literal["greedy", "lazy", "possessive"] = "greedy"
            suffix = self._peek()
            if suffix == "?":
                if braces and self._exact(self.at):
                    # Oniguruma: `x{n}?` is `(?:x{n})?`, not lazy
                    self.at += 1
                    node = Repeat(Repeat(node, least, most, "greedy"), 0, 1, "greedy")
                    continue
                self.at += 1
                mode = "lazy"
            elif suffix == "+" and not braces:
                self.at += 1
                mode = "possessive"
            node = Repeat(node, least, most, mode)
        return node

    def _exact(self, end: int) -> bool:
        """Whether the braces that end at `end` hold one number and no comma."""
        return "," not in self.source[self.source.rfind("{", 0, end) : end]

    def _quantifier(self) -> tuple[int, int | None, bool] | None:
        char = self._peek()
        if char in ("*", "+", "?") and char:
            self.at += 1
            return {"*": (0, None, False), "+": (1, None, False), "?": (0, 1, False)}[char]
        if char != "{":
            return None
        end = self.source.find("}", self.at)
        body = self.source[self.at + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        digits = (not low or (low.isascii() and low.isdigit())) and (not high or (high.isascii() and high.isdigit()))
        if end < 0 or not digits or not (low or high) or len(body) > 12:
            self._refuse("pattern.bad_quantifier", "a '{' that is no quantifier")
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if (most is not None and most < least) or max(least, most or 0) > 100_000:
            self._refuse("pattern.bad_quantifier", "a quantifier out of range")
        if most == 0:
            self._refuse("pattern.bad_quantifier", "a quantifier that matches nothing")
        self.at = end + 1
        return least, most, True

    def _primary(self, *, ignore_case: bool) -> Node:
        char = self._peek()
        if char == "(":
            return self._group(ignore_case=ignore_case)
        if char == "[":
            return self._atom(self._char_class(), None, ignore_case)
        if char == "\\":
            return self._escape(ignore_case=ignore_case)
        if char == "$":
            self.at += 1
            return self._assertion("$")
        if char == "^":
            self._refuse("pattern.look_behind", "'^', which looks to the left")
        if char in "*+?{":
            self._refuse("pattern.bad_quantifier", "a quantifier with nothing before it")
        self.at += 1
        if char == ".":
            return self._atom(".", None, ignore_case)
        return self._literal(char, ignore_case)

    def _literal(self, char: str, ignore_case: bool) -> Atom:
        if ignore_case and not char.isascii():
            self._refuse("pattern.case_folding", "a non-ASCII character under (?i), which may fold to several")
        escaped = f"\\x{{{ord(char):x}}}"
        return self._atom(escaped, char, ignore_case)

    def _atom(self, source: str, literal: str | None, ignore_case: bool) -> Atom:
        if len(self.atoms) >= MAX_ATOMS:
            self._refuse("pattern.too_large", "too many atoms")
        if ignore_case:
            if not source.isascii() or ("\\x" in source[1:] and literal is None):
                self._refuse("pattern.case_folding", "a non-ASCII class under (?i), which may fold to several")
            source = f"(?i:{source})"
        atom = Atom(len(self.atoms), source, literal, ignore_case)
        self.atoms.append(atom)
        return atom

    def _assertion(self, source: str) -> Assertion:
        assertion = Assertion(len(self.assertions), source)
        self.assertions.append(assertion)
        return assertion

    def _group(self, *, ignore_case: bool) -> Node:
        start = self.at
        self.at += 1
        if not self.source.startswith("?", self.at):
            return self._close(self._alternation(ignore_case=ignore_case))
        for opening, code, why in (
            ("?<=", "pattern.look_behind", "look-behind"),
            ("?<!", "pattern.look_behind", "look-behind"),
            ("?<", "pattern.unsupported", "a named group"),
            ("?'", "pattern.unsupported", "a named group"),
            ("?(", "pattern.unsupported", "a conditional"),
            ("?~", "pattern.unsupported", "an absent operator"),
            ("?#", "pattern.unsupported", "a comment"),
        ):
            if self.source.startswith(opening, self.at):
                self._refuse(code, why)
        if self.source.startswith("?:", self.at):
            self.at += 2
            return self._close(self._alternation(ignore_case=ignore_case))
        if self.source.startswith("?>", self.at):
            self.at += 2
            return Atomic(self._close(self._alternation(ignore_case=ignore_case)))
        if self.source.startswith("?i:", self.at):
            self.at += 3
            return self._close(self._alternation(ignore_case=True))
        if self.source.startswith(("?=", "?!"), self.at):
            self.at += 2
            # The inner atoms consume nothing: they aren't positions of the match and are dropped again.
            kept = len(self.atoms), len(self.assertions)
            inner = self._close(self._alternation(ignore_case=ignore_case))
            if not _is_one_char(inner) or len(self.assertions) != kept[1]:
                self._refuse("pattern.long_look_ahead", "a look-ahead that reads more than one character")
            del self.atoms[kept[0] :]
            look_ahead = self.source[start : self.at]
            return self._assertion(f"(?i:{look_ahead})" if ignore_case else look_ahead)
        return self._refuse("pattern.unsupported", "an unknown group form")

    def _close(self, node: Node) -> Node:
        if self._peek() != ")":
            self._refuse("pattern.unbalanced", "a '(' without its ')'")
        self.at += 1
        return node

    def _escape(self, *, ignore_case: bool) -> Node:
        start = self.at
        self.at += 1
        char = self._peek()
        if not char:
            self._refuse("pattern.bad_escape", "a lone backslash")
        if char in _REFUSED_ESCAPES:
            self._refuse("pattern.unsupported", f"\\{char} ({_REFUSED_ESCAPES[char]})")
        if char == "z":
            self.at += 1
            return self._assertion("\\z")
        if char in _SET_ESCAPES:
            self.at += 1
            return self._atom("\\" + char, None, ignore_case)
        if char in "pP":
            return self._atom(self._property(start), None, ignore_case)
        return self._literal(self._escaped_char(), ignore_case)

    def _property(self, start: int) -> str:
        end = self.source.find("}", self.at)
        name = self.source[self.at + 2 : end].removeprefix("^")
        if self.source[self.at + 1 : self.at + 2] != "{" or end < 0 or not name.replace("_", "").isalnum():
            self._refuse("pattern.bad_escape", "a malformed \\p{...}")
        self.at = end + 1
        return self.source[start : self.at]

    def _escaped_char(self) -> str:
        """The single character an escape stands for; `self.at` is on the character after the backslash."""
        char = self._peek()
        if char in _CONTROL_ESCAPES:
            self.at += 1
            return _CONTROL_ESCAPES[char]
        if char in "xu":
            return self._hex_escape(char)
        if char.isalnum():
            self._refuse("pattern.unsupported", f"the escape \\{char}")
        self.at += 1
        return char

    def _hex_escape(self, kind: str) -> str:
        rest = self.source[self.at + 1 :]
        if rest.startswith("{") and kind == "x":
            digits, taken = rest[1 : rest.find("}")] if "}" in rest else "", 0
            taken = len(digits) + 2
        else:
            width = 4 if kind == "u" else 2
            digits, taken = rest[:width], width
            if len(digits) != width:
                self._refuse("pattern.bad_escape", "a short hexadecimal escape")
        try:
            value = int(digits, 16) if digits and all(d in "0123456789abcdefABCDEF" for d in digits) else -1
        except ValueError:
            value = -1
        if not 0 <= value <= 0x10FFFF or 0xD800 <= value <= 0xDFFF or (kind == "x" and taken == 2 and value > 0x7F):
            self._refuse("pattern.bad_escape", "a hexadecimal escape that is no character")
        self.at += 1 + taken
        return chr(value)

    def _char_class(self) -> str:
        """Step over a bracketed class and return its source; nesting, escapes and `&&` are left to the reference."""
        start, depth = self.at, 0
        while True:
            char = self._peek()
            if not char:
                self._refuse("pattern.unbalanced", "a '[' without its ']'")
            if char == "\\":
                self.at += 2
                continue
            if char == "[":
                depth += 1
                if depth > MAX_DEPTH:
                    self._refuse("pattern.too_deep", "classes nested too deeply")
                self.at += 1
                if self._peek() == "^":
                    self.at += 1
                if self._peek() == "]":  # Oniguruma reads `[]` as an empty class or a literal, by context
                    self._refuse("pattern.unsupported", "a class that starts with ']'")
                continue
            self.at += 1
            if char == "]":
                depth -= 1
                if depth == 0:
                    return self.source[start : self.at]


def _is_one_char(node: Node) -> bool:
    if isinstance(node, Atom):
        return True
    return isinstance(node, Alternation) and all(isinstance(item, Atom) for item in node.items)
