"""Whether the plugin would take models' tokenizers. Runs in SGLang's environment, the plugin's folder on the path.

stdin: a JSON list of model folders; stdout, last line: for each {"off": code} or the number of special tokens that
SGLang's two ways of encoding a text add: {"text", "chat_plain"}.
"""

from __future__ import annotations

import json
import sys

from sglang.srt.utils.hf_transformers_utils import get_tokenizer

from toktier_sglang.own import Call, OwnTokenizer
from toktier_sglang.reasons import PluginOff


def main() -> None:
    answers = []
    for model in json.load(sys.stdin):
        try:
            specials = OwnTokenizer(get_tokenizer(model)).inspect().specials
        except PluginOff as found:
            answers.append({"off": found.code.value})
            continue
        answers.append({call.value: len(specials[call].around([])) for call in (Call.TEXT, Call.CHAT_PLAIN)})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
