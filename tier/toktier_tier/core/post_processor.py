"""What a post-processor does to IDs when no special tokens are asked for: nothing, or it is refused by name.

`add_special_tokens=False` doesn't switch a template off: one that names the text twice, or not at all, still gives its
IDs twice, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import UnsupportedTokenizer

_OFFSETS_ONLY: Mapping[str, tuple[str, ...]] = {
    "ByteLevel": ("add_prefix_space", "trim_offsets", "use_regex"),
    "RobertaProcessing": ("add_prefix_space", "trim_offsets"),
}


def check_post_processor(document: Any) -> None:
    """Raises `UnsupportedTokenizer` (`pipeline.post_processor`) unless a text's own IDs come out once, as they are."""
    for leaf in _leaves(document):
        kind = leaf["type"]
        if kind == "TemplateProcessing":
            named = [piece["Sequence"]["id"] for piece in leaf["single"] if "Sequence" in piece]
            if named != ["A"]:
                raise UnsupportedTokenizer("pipeline.post_processor", "the template doesn't name the text once")
        elif kind not in ("ByteLevel", "BertProcessing", "RobertaProcessing"):
            raise UnsupportedTokenizer("pipeline.post_processor", f"the post-processor {kind} isn't modelled")


def deciding_ids(document: Any) -> Any:
    """The post-processor without the options that act on offsets only."""
    if document is None:
        return None
    if document["type"] == "Sequence":
        return {**document, "processors": [deciding_ids(item) for item in document["processors"]]}
    without = _OFFSETS_ONLY.get(document["type"], ())
    return {key: value for key, value in document.items() if key not in without}


def _leaves(document: Any) -> list[Mapping[str, Any]]:
    if document is None:
        return []
    if document["type"] != "Sequence":
        return [document]
    return [leaf for item in document["processors"] for leaf in _leaves(item)]
