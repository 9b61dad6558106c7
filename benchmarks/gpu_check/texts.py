"""The texts that are timed: what agents send, from this machine's own files, in NFC or in need of normalization."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from agent_session import chat_text, plain_text

SEED = 20
DECOMPOSED_EVERY = 10


@dataclass(frozen=True)
class Kind:
    """`nfc` is in normalization form C; in `decomposed` every tenth line is in form D, as some systems write text;
    `chat` holds a chat template's added tokens, over a thousand a million characters."""

    name: str

    def text(self, chars: int) -> str:
        if self.name == "chat":
            return chat_text(chars, SEED)
        text = unicodedata.normalize("NFC", plain_text(chars + chars // 20 + 100, SEED))
        if self.name == "decomposed":
            lines = text.splitlines(keepends=True)
            lines[::DECOMPOSED_EVERY] = (unicodedata.normalize("NFD", line) for line in lines[::DECOMPOSED_EVERY])
            text = "".join(lines)
        return text[:chars]


NFC, DECOMPOSED, CHAT = Kind("nfc"), Kind("decomposed"), Kind("chat")
