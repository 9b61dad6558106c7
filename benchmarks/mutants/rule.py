"""Faults in the rule, in the pipeline as it is read, and in what is extracted from patterns and added tokens."""

# ruff: noqa: E501, RUF100 (the code that is changed, as it stands)
from __future__ import annotations

from .mutation import Mutation

RULE = "core/boundaries.py"
BOUNDARIES = "tests/core/test_boundaries.py"


def small(*names: str) -> tuple[str, ...]:
    """The tests of small tokenizers by name."""
    return tuple(f"{BOUNDARIES}::test_small_tokenizers_are_exact_or_refused[{name}]" for name in names)


PLAIN = small("NFKC", "Lowercase", "ByteLevel with a prefix")
FORMS = small("NFC", "NFD", "NFKC", "BertPreTokenizer and WordPiece")
FLAGS = small(
    "added tokens with strip flags",
    "the same after every piece gets a prefix",
    "a normalized rstrip token where a character becomes a space",
    "normalized tokens behind BertNormalizer",
)
IMAGES = small(
    "NFC", "a normalized single_word token behind Lowercase", "NFC, where a later mark comes before an earlier one"
)
MIXED = small("NFC, then Lowercase", "marks that Replace writes, before BertNormalizer", "Replace by marks, then NFD")
PREFIX = small("a Split, then a prefix for every piece", "Digits, then ByteLevel with a prefix")
CONDITIONS = (BOUNDARIES, "-k", "needed_on_small")
SEARCH = (BOUNDARIES, "-k", "(plain_search and gpt2) or kind_none or surrogates")
VOCABULARY = (
    "tests/core/test_vocabulary.py",
    "-k",
    "each_condition or symbol or bytes or replacements or refused_by_name or random_vocabularies",
)
FOLLOW = ("tests/core/test_follow.py",)
TOKENS = ("tests/core/test_added_tokens.py", "-k", "not genuine and not every_added_token")
ACROSS = ("tests/core/test_added_tokens.py", "-k", "reaches_across or exclusions")
STAGES = ("tests/encoders/test_snapshot_encoder.py", "-k", "each_stage or prefix_comes")
AUTOMATON = ("tests/core/test_automaton.py",)
SPLIT = (
    "tests/core/test_splitting.py",
    "tests/core/test_automaton.py",
    "-k",
    "each_step or each_construct or any_pattern",
)


def _rule(name: str, old: str, new: str, tests: tuple[str, ...] = PLAIN) -> Mutation:
    return Mutation("rule", name, RULE, old, new, tests)


def _vocabulary(name: str, old: str, new: str) -> Mutation:
    return Mutation("rule", name, "core/vocabulary.py", old, new, VOCABULARY)


def _pipeline(name: str, old: str, new: str, tests: tuple[str, ...]) -> Mutation:
    return Mutation("pipeline", name, "core/pipeline.py", old, new, tests)


def _extraction(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutation:
    return Mutation("extraction", name, file, old, new, tests)


MUTATIONS = (
    _rule(
        "a match may straddle the boundary",
        "free &= ~((a.astype(np.uint16) @ stage.follow.astype(np.uint16) @ b.T.astype(np.uint16)) > 0)",
        "free &= True",
    ),
    _rule(
        "an atom before a look-ahead may end there",
        "free &= ~(a.astype(np.uint16) @ stage.tainted.astype(np.uint16) > 0)[:, None]",
        "free &= True",
    ),
    _rule(
        "no step has to cut",
        "table[1:, 1:] = free & cut",
        "table[1:, 1:] = free",
        CONDITIONS,
    ),
    _rule(
        "pairs inside raw added tokens are boundaries",
        "excluded=excluded.raw.pairs | preimages(excluded.image.pairs, alphabet),",
        "excluded=preimages(excluded.image.pairs, alphabet),",
        FLAGS,
    ),
    _rule(
        "pairs inside normalized added tokens are boundaries",
        "excluded=excluded.raw.pairs | preimages(excluded.image.pairs, alphabet),",
        "excluded=excluded.raw.pairs,",
        IMAGES,
    ),
    _rule(
        "unstable on the left",
        "alphabet.stable & ~before",
        "~before",
        FORMS,
    ),
    _rule(
        "unstable on the right",
        "alphabet.stable & ~after",
        "~after",
        FORMS,
    ),
    _rule(
        "what added tokens forbid on the left",
        "alphabet.stable & ~before",
        "alphabet.stable",
        FLAGS,
    ),
    _rule(
        "what added tokens forbid on the right",
        "alphabet.stable & ~after",
        "alphabet.stable",
        FLAGS,
    ),
    _rule(
        "images that composition brings are forgotten",
        'if side == "right" and len(own.right_sources):\n                np.logical_or.at(seen,',
        'if side == "none" and len(own.right_sources):\n                np.logical_or.at(seen,',
        CONDITIONS,
    ),
    _rule(
        "covered under one image is covered under all",
        "np.logical_and.at(covered, own.right_sources",
        "np.logical_or.at(covered, own.right_sources",
        (BOUNDARIES, "-k", "may_compose_into"),
    ),
    _rule(
        "first and last image change places",
        'own.last if side == "left" else own.first',
        'own.first if side == "left" else own.last',
        FORMS,
    ),
    _rule(
        "the last boundary may be the floor",
        "table = self.left, self.table\n            while position > floor:",
        "table = self.left, self.table\n            while position >= floor:",
        SEARCH,
    ),
    _rule(
        "the first boundary is looked for one too late",
        "range(max(start, 1), stop)",
        "range(start + 1, stop)",
        SEARCH,
    ),
    _rule(
        "cuts behind a step that prefixes count",
        "list(range(len(stages) if deadline is None else deadline))",
        "list(range(len(stages)))",
        PREFIX,
    ),
    _rule(
        "two characters may fold to one",
        "    check_case_folding(pattern, probe)\n    found",
        "    found",
        (BOUNDARIES, "-k", "under"),
    ),
    _rule(
        "the predicate forgets excluded pairs",
        "bool(self.table[left][right]) and (a + b) not in self.excluded",
        "bool(self.table[left][right])",
        FLAGS,
    ),
    _rule(
        "a possessive neighbour swallows nothing",
        "alone &= ~accepts[swallower]",
        "pass",
        small("a possessive neighbour"),
    ),
    _rule(
        "a merging pattern is taken for one that isolates",
        'if step.joins != "none":\n        raise',
        "if False:\n        raise",
        small("Split, MergedWithPrevious, inverted: False", "Split, Contiguous, inverted: False"),
    ),
    _vocabulary(
        "the first pair of each entry is forgotten",
        "for u, v in pairwise(token))",
        "for u, v in pairwise(token[1:]))",
    ),
    _vocabulary(
        "ignore_merges is ignored",
        'if model["ignore_merges"]:',
        "if False:",
    ),
    _vocabulary(
        "byte tokens may be merged",
        "if any(left in byte_tokens or right in byte_tokens for",
        "if any(False for",
    ),
    _vocabulary(
        "the unknown token may be merged",
        "if unknown is not None and any(",
        "if False and any(",
    ),
    _vocabulary(
        "replacements don't follow each other",
        "images[char] = new if image == old else image",
        "images[char] = image",
    ),
    _vocabulary(
        "one byte token stands for all",
        "all(byte_token(byte) in vocab",
        "any(byte_token(byte) in vocab",
    ),
    _vocabulary(
        "an affix of symbols doesn't matter",
        "        if model[option]:",
        "        if False:",
    ),
    _pipeline(
        "normalizers may be mixed",
        "    _check_mix(steps)\n",
        "",
        MIXED,
    ),
    _pipeline(
        "a first piece may stand behind anything",
        "    _check_first(pre_tokenizers, steps)\n",
        "",
        small("a first piece behind a normalizer that deletes"),
    ),
    _pipeline(
        "a split never fires though a step wrote its literal again",
        "if not (as_normalized and _never_fires(document, normalizer)):",
        "if not _never_fires(document, normalizer):",
        small(
            "a Split on what the normalizer replaces and ByteLevel writes",
            "a Split on what the normalizer replaces and Metaspace writes",
        ),
    ),
    _pipeline(
        "a replaced character never occurs though it is written",
        "any(char in replaced and char not in written for char in literal)",
        "any(char in replaced for char in literal)",
        ("tests/core/test_pipeline.py",),
    ),
    _pipeline(
        "Prepend does nothing after an added token",
        'position is not Position.CONTINUATION or d["type"] != "Prepend"',
        'position is Position.TEXT_START or d["type"] != "Prepend"',
        STAGES,
    ),
    _pipeline(
        "ByteLevel's prefix is forgotten after an added token",
        'elif head["type"] == "ByteLevel" and position is Position.CONTINUATION:',
        'elif head["type"] == "ByteLevel" and position is not Position.TEXT_START:',
        (*small("ByteLevel with a prefix"), *STAGES[:1]),
    ),
    _pipeline(
        "an inverted split on what never occurs is dropped",
        'if document["type"] != "Split" or document.get("invert"):',
        'if document["type"] != "Split":',
        small("an inverted Split on what the normalizer replaces"),
    ),
    _pipeline(
        "digits are joined where they are cut",
        '"none" if document.get("individual_digits") else "run"',
        '"run" if document.get("individual_digits") else "none"',
        PREFIX,
    ),
    _extraction(
        "the first token listed wins",
        "core/added_tokens.py",
        "MatchKind.LeftmostLongest)",
        "MatchKind.LeftmostFirst)",
        TOKENS,
    ),
    _extraction(
        "single words stand anywhere",
        "core/added_tokens.py",
        "if token.single_word and (",
        "if False and (",
        TOKENS,
    ),
    _extraction(
        "a word that didn't stand alone blocks the search",
        "core/added_tokens.py",
        "                continue\n            if token.lstrip:",
        "                taken = end\n                continue\n            if token.lstrip:",
        TOKENS,
    ),
    _extraction(
        "a strip takes what the token before it took",
        "core/added_tokens.py",
        "                start = max(start, taken)\n",
        "",
        TOKENS,
    ),
    _extraction(
        "one space is stripped",
        "core/added_tokens.py",
        "while end < len(text) and is_space(text[end]):",
        "if end < len(text) and is_space(text[end]):",
        TOKENS,
    ),
    _extraction(
        "a boundary may follow a token where position matters",
        "core/added_tokens.py",
        "for token, literal in tokens if token.single_word or position_matters)",
        "for token, literal in tokens if token.single_word)",
        FLAGS,
    ),
    _extraction(
        "stripped spaces on the right are boundaries",
        "core/added_tokens.py",
        "space_after=any(t.rstrip for t, _ in tokens)",
        "space_after=False",
        FLAGS,
    ),
    _extraction(
        "the last pair of a literal is a boundary",
        "core/added_tokens.py",
        "range(len(literal) - 1))",
        "range(len(literal) - 2))",
        TOKENS,
    ),
    _extraction(
        "tokens of which nothing is left are accepted",
        "core/added_tokens.py",
        "if not all(literal for _, literal in image):",
        "if False:",
        TOKENS,
    ),
    _extraction(
        "neighbours across an assertion aren't neighbours",
        "core/follow.py",
        "links.update((i, j) for i in before for j in after)",
        "pass",
        FOLLOW,
    ),
    _extraction(
        "a bounded repeat doesn't repeat",
        "core/follow.py",
        "node.most is None or node.most > 1",
        "node.most is None",
        FOLLOW,
    ),
    _extraction(
        "a possessive group gives back what it took",
        "core/follow.py",
        'if node.least > 1 or (node.mode == "possessive" and not isinstance(node.item, Atom)):',
        "if node.least > 1:",
        FOLLOW,
    ),
    _extraction(
        "patterns may match nothing",
        "core/follow.py",
        "    if nullable(pattern.root):",
        "    if False:",
        FOLLOW,
    ),
    _extraction(
        "priorities are turned round",
        "core/automaton.py",
        "waiting.extend(reversed(instruction.targets))",
        "waiting.extend(instruction.targets)",
        AUTOMATON,
    ),
    _extraction(
        "a gap is as many pieces as characters",
        "core/automaton.py",
        "position, in_gap = position + 1, True",
        "position, in_gap = position + 1, False",
        AUTOMATON,
    ),
    _extraction(
        "a match may not end with its piece",
        "core/automaton.py",
        "                if row[end_column] >= MATCH:\n                    end = stop",
        "                pass",
        AUTOMATON,
    ),
    _extraction(
        "$ holds before a line feed only",
        "core/splitting.py",
        'Question(_only("\\n"), at_end=True)',
        'Question(_only("\\n"), at_end=False)',
        SPLIT,
    ),
    _extraction(
        "a negative look-ahead is a positive one",
        "core/splitting.py",
        "~members if negative else members",
        "members",
        SPLIT,
    ),
    _extraction(
        "a run is many pieces",
        "core/splitting.py",
        'Repeat(match, 1, None, "greedy") if joins == "run" else match',
        "match",
        SPLIT,
    ),
)
