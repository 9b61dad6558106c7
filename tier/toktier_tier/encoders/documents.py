"""tokenizer.json documents for libraries: written so that what they read is what the file says, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.errors import EncoderUnavailable
from ..core.numbers import Number, exact


def exact_json(document: Mapping[str, Any]) -> str:
    """`document` as JSON in which every number has the text that it had in its file."""
    return "{" + ",".join(f"{_dumps(key)}:{_text(key, value)}" for key, value in document.items()) + "}"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(key: str, value: Any) -> str:
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Mapping) and not all(isinstance(item, str | int) for item in value.values()):
        return exact_json(value)
    if isinstance(value, list) and key != "merges" and not all(isinstance(item, str | int) for item in value):
        return "[" + ",".join(_text("", item) for item in value) + "]"
    return _dumps(value)


def candidate_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` as it is given to other libraries than the reference. Raises `EncoderUnavailable`:

    encoder.inexact_numbers    a number that their parser and the reference's may read as two (see `core.numbers`)
    encoder.repeated_ids       entries of the vocabulary share an ID: which of them it stands for is up to a library

    A pair of symbols that merges twice is left where the reference has it, at its last place.
    """
    model = dict(document["model"])
    others = {key: value for key, value in document.items() if key != "model"}
    options = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    vocab = model["vocab"]
    numbers = [score for _, score in vocab] if isinstance(vocab, list) else []
    if not all(map(exact, [*numbers, *_numbers(others), *_numbers(options)])):
        why = "a number has more digits than every parser reads alike"
        raise EncoderUnavailable("encoder.inexact_numbers", why)
    if isinstance(vocab, Mapping) and len(set(vocab.values())) < len(vocab):
        raise EncoderUnavailable("encoder.repeated_ids", "two entries of the vocabulary have the same ID")
    if "merges" in model:
        model["merges"] = last_places(model["merges"])
    return {**document, "model": model}


def last_places(merges: list[list[str]]) -> list[list[str]]:
    """`merges` with each pair at its last place only: its rank in the reference, relative to all others."""
    last = {(left, right): place for place, (left, right) in enumerate(merges)}
    if len(last) == len(merges):
        return merges
    return [merges[place] for place in sorted(last.values())]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)
