"""What runs in `apart`'s process: a tokenizer.json on standard input, then texts; IDs on standard output.

Messages are those of `children`; an answer is `ENCODED`, or `REFUSED` where the reference refuses. Nothing of a text is
written anywhere else. Ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from array import array
from contextlib import suppress

from ..children import ignore_interrupts, read_message, write_answer

ENCODED, REFUSED = 0, 1
LOWEST_PRIORITY = 19


def main() -> None:
    ignore_interrupts()
    with suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    source, target = sys.stdin.buffer, sys.stdout.buffer
    document = read_message(source)
    if document is None:
        return
    tokenizer = tokenizers.Tokenizer.from_str(document.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    write_answer(target, ENCODED, b"")
    while (data := read_message(source)) is not None:
        try:
            ids = array("I", tokenizer.encode(data.decode(), add_special_tokens=False).ids)
        except BaseException as error:  # a Rust panic isn't an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            write_answer(target, REFUSED, b"")
        else:
            write_answer(target, ENCODED, ids.tobytes())


if __name__ == "__main__":
    main()
