"""Which requests keep their text: those whose answer SGLang 0.5.23 makes from the text, not only from its IDs.

    echo                     the answer begins with the client's prompt; of IDs it would be their decoding
    suffix                   a completion template puts the prompt together anew
    image, audio, video      the model's processor takes text and IDs apart in different ways
    embeddings               in the place of tokens, or over some of them
    session_params           the IDs are put behind others that the engine keeps, and its counts are of both

A member that is there but says nothing (`null`, `false`, an empty list) counts as absent. What SGLang would bend into
its type, or refuse, counts as present: it is SGLang's to answer. Source: `entrypoints/openai/serving_completions.py`,
`managers/{io_struct,tokenizer_manager}.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.chat_template import PassThrough
from ..engine.sglang_http import COMPLETIONS, GENERATE

ECHO = PassThrough("text.echo", "the answer begins with the prompt as the client wrote it")
SUFFIX = PassThrough("text.suffix", "SGLang may put prompt and suffix into one text")
MEDIA = PassThrough("text.multimodal", "a text with media is encoded together with them")
EMBEDDINGS = PassThrough("text.embeddings", "embeddings stand in the place of tokens")
SESSION_PARAMS = PassThrough("text.session_params", "the prompt goes behind what the engine's session holds")

_EVERYWHERE = {"session_params": SESSION_PARAMS}
_MEMBERS: Mapping[str, Mapping[str, PassThrough]] = {
    COMPLETIONS: _EVERYWHERE | {"echo": ECHO, "suffix": SUFFIX},
    GENERATE: _EVERYWHERE
    | dict.fromkeys(("image_data", "video_data", "audio_data", "modalities", "mm_hashes", "mm_content_hashes"), MEDIA)
    | dict.fromkeys(("need_wait_for_mm_inputs", "num_items_assigned", "encoder_urls"), MEDIA)
    | dict.fromkeys(("input_embeds", "positional_embed_overrides"), EMBEDDINGS),
}


def kept_as_text(path: str, fields: Mapping[str, Any]) -> PassThrough | None:
    """Why a body of that route keeps its text, if so."""
    for name, reason in _MEMBERS.get(path, {}).items():
        value = fields.get(name)
        if not (value is None or value is False or value == []):
            return reason
    return None
