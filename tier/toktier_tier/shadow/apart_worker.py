"""What runs in `apart`'s process: a tokenizer.json on standard input, then texts; IDs on standard output.

Every message is its length (8 bytes, little-endian) and its bytes; an answer has one byte before them: `ENCODED`, or
`REFUSED` where the reference refuses. Nothing of a text is written anywhere else. Ends with its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from array import array
from contextlib import suppress
from typing import BinaryIO

ENCODED, REFUSED = 0, 1
LOWEST_PRIORITY = 19


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the tier too, which then ends this process
    with suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    source, target = sys.stdin.buffer, sys.stdout.buffer
    document = _read(source)
    if document is None:
        return
    tokenizer = tokenizers.Tokenizer.from_str(document.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _answer(target, ENCODED, b"")
    while (data := _read(source)) is not None:
        try:
            ids = array("I", tokenizer.encode(data.decode(), add_special_tokens=False).ids)
        except BaseException as error:  # a Rust panic isn't an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            _answer(target, REFUSED, b"")
        else:
            _answer(target, ENCODED, ids.tobytes())


def _read(source: BinaryIO) -> bytes | None:
    """None at the end, also in the middle of a message: the tier was killed while it wrote."""
    head = source.read(8)
    size = int.from_bytes(head, "little")
    data = source.read(size)
    return data if len(head) == 8 and len(data) == size else None


def _answer(target: BinaryIO, kind: int, data: bytes) -> None:
    try:
        target.write(bytes([kind]) + len(data).to_bytes(8, "little"))
        target.write(data)
        target.flush()
    except BrokenPipeError:  # the tier has ended meanwhile: nobody is left to tell
        os._exit(0)


if __name__ == "__main__":
    main()
