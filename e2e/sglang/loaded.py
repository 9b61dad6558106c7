"""What SGLang's own `get_tokenizer` makes of texts, for folders on stdin: run by the environment that has SGLang.

In: [{"folder": path, "texts": [...]}, ...]. Out, in one line: for each folder null where SGLang can't load it, else for
each text [IDs as a prompt, IDs without special tokens], or null where it raises.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang.srt.utils.hf_transformers import get_tokenizer


def answers(folder: str, texts: list[str]) -> Any:
    try:
        tokenizer = get_tokenizer(folder)
    except Exception:
        return None
    found: list[Any] = []
    for text in texts:
        try:
            found.append([tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)])
        except Exception:
            found.append(None)
    return found


if __name__ == "__main__":
    print(json.dumps([answers(each["folder"], each["texts"]) for each in json.load(sys.stdin)]))
