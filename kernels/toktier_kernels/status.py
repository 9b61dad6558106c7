"""Constants shared by all steps, on the host and on the device: flags of bytes and the slots of two small i32 arrays.

`sizes` is what the host tells the device: it is uploaded with the text, so that a captured graph serves every text
of its capacity. `status` is what the device tells the host. Imports nothing.
"""

from __future__ import annotations

MAX_TEXT = 2**31 - 2**16  # bytes of text at most: positions, and what is read past them, stay in i32

HARD = 1  # flags: a document, an added token or the text behind one starts here
SPAN = 2  # flags: inside an added token

CONTINUATION = 255  # cls: this byte continues a character
NONE = 0xFFFFFFFF  # token: no token starts here

PIECE = 1  # piece: a piece starts here
APART = 2  # piece: a span or an overlong segment starts here; it ends the piece before it and isn't looked up

MATCH = 0x8000  # step: a match ends before this character
STATE = 0x7FFF  # step: the next state
DEAD = 0
START = 1

# sizes: i32[SIZE_SLOTS]
SIZE_TEXT = 0  # bytes of text
SIZE_DOCUMENTS = 1
SIZE_SPANS = 2
SIZE_SLOTS = 3

# status: i32[STATUS_SLOTS]
ERROR = 0  # the least position where decoding fails; bytes of text where it doesn't
UNSETTLED = 1  # characters that the normalizer may touch
SEGMENTS = 2
PIECES = 3  # entries of `pieces`: pieces and marks of what stands apart
SHORT = 4  # entries of the list `short`
LONG = 5
OVERLONG = 6
TOKENS = 7
STATUS_SLOTS = 8
