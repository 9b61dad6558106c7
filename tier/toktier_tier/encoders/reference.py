"""The frozen reference: the pinned Hugging Face `tokenizers` library on the snapshot's own tokenizer.json.

Guarantees: `Reference.encode` is the definition of right. Nothing here mutates a tokenizer after it is built, so
every method is thread-safe. A file that the reference refuses (or panics on) is an `InvalidTokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from importlib import metadata
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from ..core.added_tokens import AddedToken, CharacterTests
from ..core.classes import CODE_POINTS, Bools, is_scalar
from ..core.errors import InvalidPattern, InvalidText, InvalidTokenizer, UnsupportedTokenizer
from ..core.pipeline import Position
from ..core.snapshot import Snapshot, SpecialTokenPolicy, parse_snapshot
from ..ports import Ids
from .documents import exact_json

REFERENCE_VERSION = f"tokenizers=={metadata.version('tokenizers')}"
EMPTY: Ids = np.empty(0, dtype=np.uint32)
EMPTY.setflags(write=False)
APART_CHARS = 16_384
BLANK_MODEL = {"type": "BPE", "vocab": {}, "merges": []}


def load_tokenizer(document: dict[str, Any]) -> Any:
    """A `tokenizers.Tokenizer` of `document`; raises `InvalidTokenizer` with the reference's own words."""
    return _load_text(exact_json(document))


def _load_text(text: str) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise InvalidTokenizer(
            "tokenizer.reference_refuses", f"the reference refuses the file: {error}"[:500]
        ) from None


def load_component(section: str, document: Any) -> Any:
    """The `normalizer` or `pre_tokenizer` of `document` by itself."""
    blank = {"version": "1.0", "added_tokens": [], section: document, "model": BLANK_MODEL}
    return getattr(load_tokenizer(blank), section)


def core_document(snapshot: Snapshot, pre_tokenizer: Any) -> dict[str, Any]:
    """The tokenizer.json that is left once added tokens, normalizer and template are taken care of: for candidates. The
    reference's own cores share its model instead (`Reference.core`)."""
    return {
        **snapshot.document(),
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
    }


def _encode(tokenizer: Any, text: str, *, template: bool) -> Ids:
    """Raises `InvalidText` where the reference itself can't encode (a model without an unknown token)."""
    return _ids_of(lambda: tokenizer.encode(text, add_special_tokens=template))


def encode_text_of(tokenizer: Any, text: str) -> Ids:
    """`encode` of a loaded tokenizer without the template's tokens; lets other threads run where the text is long.

    `encode` holds the interpreter's lock from start to end: 1.3 s for 1 M characters.
    """
    if len(text) < APART_CHARS:
        return _encode(tokenizer, text, template=False)
    return _ids_of(lambda: tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


def _ids_of(encode: Callable[[], Any]) -> Ids:
    return np.array(_checked(encode).ids, dtype=np.uint32)


def _checked(encode: Callable[[], Any]) -> Any:
    try:
        return encode()
    except BaseException as error:  # a Rust panic isn't an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise InvalidText("text.reference_refuses", f"the reference can't encode this text: {error}"[:300]) from None


def encode_of(tokenizer: Any) -> Callable[[str], Ids]:
    """`encode` of a loaded tokenizer, without the template's tokens."""
    return partial(_encode, tokenizer, template=False)


def offsets_of(tokenizer: Any, text: str) -> list[tuple[int, tuple[int, int]]]:
    """(id, (start, stop)) of every token, without the template's; positions in characters."""
    if len(text) < APART_CHARS:
        encoding = _checked(lambda: tokenizer.encode(text, add_special_tokens=False))
    else:
        encoding = _checked(lambda: tokenizer.encode_batch([text], add_special_tokens=False)[0])
    return list(zip(encoding.ids, encoding.offsets, strict=True))


class CoreReference:
    """The reference behind the encoder protocol: ordinary, already normalized text at one position.

    model    of the tokenizer that was loaded from the file's own bytes. It is shared, not copied: no number and no
             option is read a second time, and a core costs no memory beside what its pre-tokenizer takes.
    """

    name = "reference"
    version = REFERENCE_VERSION

    def __init__(self, model: Any, pre_tokenizer: Any) -> None:
        self._tokenizer = tokenizers.Tokenizer(model)
        if pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = load_component("pre_tokenizer", pre_tokenizer)

    def encode(self, text: str) -> Ids:
        return encode_text_of(self._tokenizer, text)


class Reference:
    """The whole reference for one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tokenizer = _load_text(snapshot.data.decode("utf-8"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._template = snapshot.policy is SpecialTokenPolicy.TEMPLATE
        if type(self.tokenizer.model).__name__ != snapshot.model["type"]:
            raise InvalidTokenizer("tokenizer.model_type", "the reference reads the model as another type")
        self.prefix_ids, self.suffix_ids = self.fixed_template() if self._template else ((), ())
        self._cores: WeakValueDictionary[str, CoreReference] = WeakValueDictionary()

    def core(self, pre_tokenizer: Any) -> CoreReference:
        """What is left of the reference for normalized text without added tokens: pre-tokenizer and model. It holds no
        state, so those who use it at the same time share one object.
        """
        name = json.dumps(pre_tokenizer)
        found = self._cores.get(name)
        if found is None:
            found = self._cores[name] = CoreReference(self.tokenizer.model, pre_tokenizer)
        return found

    def encode(self, text: str) -> Ids:
        """The full encode of a whole request, template tokens included where the policy asks for them."""
        return _encode(self.tokenizer, text, template=self._template)

    def encode_text(self, text: str) -> Ids:
        """The full encode without template tokens."""
        return _encode(self.tokenizer, text, template=False)

    def decode(self, ids: Ids, *, skip_special_tokens: bool = False) -> str:
        """The text of `ids`; they have to be below `id_limit`."""
        text: str = self.tokenizer.decode(ids.tolist(), skip_special_tokens=skip_special_tokens)
        return text

    def added_tokens(self) -> tuple[AddedToken, ...]:
        """Added tokens under the IDs that the reference really gave them."""
        found = self.tokenizer.get_added_tokens_decoder()
        return tuple(
            AddedToken(id, t.content, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
            for id, t in sorted(found.items())
        )

    def normalizer(self, position: Position) -> Callable[[str], str] | None:
        pipeline = self.snapshot.pipeline
        document = pipeline.normalizer_documents[position] if pipeline else self.snapshot.normalizer
        if document is None:
            return None
        normalize: Callable[[str], str] = load_component("normalizer", document).normalize_str
        return normalize

    @cached_property
    def id_limit(self) -> int:
        """One more than the largest ID the tokenizer can give."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode_text_apart(self, text: str) -> Ids:
        """`encode_text` for a server's threads; a test holds the two equal."""
        return encode_text_of(self.tokenizer, text)

    def id_of(self, token: str) -> int | None:
        """The ID of a token by its content."""
        found: int | None = self.tokenizer.token_to_id(token)
        return found

    def fixed_template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the post-processor puts before and behind a text, whatever the policy.

        Raises `UnsupportedTokenizer` (`tokenizer.template`) if they aren't the same for every text.
        """
        answers = []
        for text in ("a", "Hello world", "\n{}"):
            bare = self.tokenizer.encode(text, add_special_tokens=False).ids
            full = self.tokenizer.encode(text, add_special_tokens=True).ids
            found = [
                (tuple(full[:at]), tuple(full[at + len(bare) :]))
                for at in range(len(full) - len(bare) + 1)
                if full[at : at + len(bare)] == bare
            ]
            answers.append(set(found))
        common = set.intersection(*answers)
        if len(common) != 1:
            raise UnsupportedTokenizer("tokenizer.template", "the post-processor isn't fixed tokens around the text")
        return common.pop()


def open_reference(data: bytes, policy: SpecialTokenPolicy) -> Reference:
    """Of a tokenizer.json. Raises the coded errors of `core.snapshot` and of this module."""
    return Reference(parse_snapshot(data, reference_version=REFERENCE_VERSION, policy=policy))


def pieces_of(reference: Reference) -> Callable[[str, Position], list[Any]]:
    """What the model stage is given for a text without added tokens, by the reference's own pre-tokenizer.

    Where the pre-tokenizer has no part in it (one piece is all), the pieces are the model's token IDs instead.
    """
    pipeline = reference.snapshot.pipeline
    assert pipeline is not None
    whole = not any(step.cuts and step.kind != "bytes" for step in pipeline.pre_tokenizer)
    documents = [pipeline.pre_tokenizer_documents[position] for position in Position]
    cores = [reference.core(document) for document in documents] if whole else []
    cutters = [load_component("pre_tokenizer", document) for document in documents] if not whole else []
    normalizers_ = [reference.normalizer(position) for position in Position]

    def pieces(text: str, position: Position) -> list[Any]:
        normalize = normalizers_[position]
        normalized = normalize(text) if normalize is not None else text
        if whole:
            return list(cores[position].encode(normalized).tolist())
        return [piece for piece, _ in cutters[position].pre_tokenize_str(normalized)]

    return pieces


# --- questions about code points ------------------------------------------------------------------------------

PROBE_BLOCK_POINTS = 1 << 15
_POINTS = [*range(0xD800), *range(0xE000, CODE_POINTS)]
_PREDICATES: dict[str, Callable[[], Any]] = {
    "numeric": lambda: pre_tokenizers.Digits(individual_digits=True),
    "punctuation": lambda: pre_tokenizers.Punctuation("isolated"),
    "white_space": lambda: pre_tokenizers.WhitespaceSplit(),
    "bert_punctuation": lambda: pre_tokenizers.BertPreTokenizer(),
}


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(map(chr, _POINTS))


def _from_compact(compact: Bools) -> Bools:
    """From an array over scalar values to one over code points."""
    full = np.zeros(CODE_POINTS, dtype=bool)
    full[:0xD800] = compact[:0xD800]
    full[0xE000:] = compact[0xD800:]
    full.setflags(write=False)
    return full


@lru_cache(maxsize=128)
def class_members(source: str) -> Bools:
    """Code points that the one-character regex `source` matches, by the reference's own engine.

    `Replace` compiles and searches as `Split` does, without its offsets (5 times faster); a test holds them equal.
    """
    try:
        remove = normalizers.Replace(Regex(source), "")
    except Exception as error:
        raise InvalidPattern("pattern.reference_refuses", f"the reference refuses {source!r}: {error}"[:300]) from None
    left = np.frombuffer(remove.normalize_str(_every_character()).encode("utf-32-le"), dtype=np.uint32)
    members = is_scalar()
    members[left] = False
    members.setflags(write=False)
    return members


@lru_cache(maxsize=16)
def predicate_members(name: str) -> Bools:
    """Code points for which the predicate cuts (or removes) the character from a letter on either side."""
    splitter = _PREDICATES[name]()
    kept, starts = _between_letters(splitter)
    return _from_compact(~kept if name == "white_space" else starts & kept)


def _between_letters(splitter: Any) -> tuple[Bools, Bools]:
    """For each scalar value between letters: whether it's kept, and whether a piece starts at it."""
    kept = np.zeros(2 * len(_POINTS), dtype=bool)
    starts = np.zeros(2 * len(_POINTS), dtype=bool)
    for block in range(0, len(_POINTS), PROBE_BLOCK_POINTS):
        text = "".join("a" + chr(point) for point in _POINTS[block : block + PROBE_BLOCK_POINTS])
        for _, (start, end) in splitter.pre_tokenize_str(text):
            kept[2 * block + start : 2 * block + end] = True
            starts[2 * block + start] = True
    return kept[1::2], starts[1::2]


@lru_cache(maxsize=64)
def _images(document: str) -> tuple[str | None, ...]:
    parsed = json.loads(document)
    normalize = load_component("normalizer", parsed).normalize_str
    characters = [chr(point) for point in _POINTS]
    found = list(map(normalize, characters)) if _replaces_longer(parsed) else _each(normalize, characters)
    images: list[str | None] = [None] * CODE_POINTS
    for point, char, image in zip(_POINTS, characters, found, strict=True):
        if image != char:
            images[point] = image
    return tuple(images)


def _replaces_longer(normalizer: Any) -> bool:
    """Whether a literal of several characters is replaced: it might lie across what keeps two texts apart."""
    if normalizer["type"] == "Sequence":
        return any(_replaces_longer(item) for item in normalizer["normalizers"])
    return normalizer["type"] == "Replace" and len(normalizer["pattern"].get("String", "..")) > 1


def _each(normalize: Callable[[str], str], texts: list[str]) -> list[str]:
    """`normalize` of each text by itself, asked for in one go where a separator provably keeps them apart.

    A line feed composes with nothing and moves for nothing; a normalizer that rewrites it gets a word instead,
    unless it composes (then that word's last letter could take an accent).
    """
    separator = "\n" if normalize("\n") == "\n" else "zqz" if normalize("z\u0301") != "\u017a" else ""
    if separator and normalize(separator) == separator:
        apart = [text for text in texts if separator not in text]
        images = normalize(separator.join(apart)).split(separator)
        if len(images) == len(apart):
            answers = iter(images)
            return [normalize(text) if separator in text else next(answers) for text in texts]
    return [normalize(text) for text in texts]


@lru_cache(maxsize=1)
def _reorders() -> Bools:
    """Combining class other than 0, seen from outside: the character changes places with U+0301 or U+0334."""
    decompose = normalizers.NFD().normalize_str
    found = np.zeros(CODE_POINTS, dtype=bool)
    decomposed = _images('{"type": "NFD"}')
    points = [point for point in _POINTS if point >= 0x300 and decomposed[point] is None]
    low = _each(decompose, [f"a{chr(point)}\u0334" for point in points])
    high = _each(decompose, [f"a\u0301{chr(point)}" for point in points])
    for point, before, after in zip(points, low, high, strict=True):
        char = chr(point)
        found[point] = before != f"a{char}\u0334" or after != f"a\u0301{char}"
    found[0x0301] = found[0x0334] = True
    for point, image in enumerate(decomposed):  # a decomposable character moves if what it starts with does
        if image and found[ord(image[0])]:
            found[point] = True
    found.setflags(write=False)
    return found


class ReferenceProbe:
    """`core.classes.Probe` for one snapshot; answers are cached per process, by question."""

    def __init__(self, reference: Reference) -> None:
        pipeline = reference.snapshot.pipeline
        self._document = pipeline.normalizer_documents[Position.CONTINUATION] if pipeline else None
        self._normalize = reference.normalizer(Position.CONTINUATION)

    def members(self, source: str) -> Bools:
        return class_members(source)

    def predicate(self, name: str) -> Bools:
        return predicate_members(name)

    def images(self) -> list[str | None]:
        if self._document is None:
            return [None] * CODE_POINTS
        return list(_images(json.dumps(self._document, sort_keys=True)))

    def decompositions(self) -> list[str | None]:
        return list(_images('{"type": "NFD"}'))

    def reorders(self) -> Bools:
        return _reorders()

    def compose(self, text: str) -> str:
        composed: str = normalizers.NFC().normalize_str(text)
        return composed

    def normalize(self, text: str) -> str:
        return self._normalize(text) if self._normalize else text


def character_tests() -> CharacterTests:
    """The added-token flags' own `\\w` and `\\s`: those of Rust's `regex`, which `Whitespace` also splits with."""
    return CharacterTests(
        lambda char: bool(_flag_classes()[0][ord(char)]), lambda char: bool(_flag_classes()[1][ord(char)])
    )


@lru_cache(maxsize=1)
def _flag_classes() -> tuple[Bools, Bools]:
    kept, starts = _between_letters(pre_tokenizers.Whitespace())  # \w+|[^\w\s]+
    return _from_compact(kept & ~starts), _from_compact(~kept)
