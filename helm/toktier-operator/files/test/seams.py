"""Hard texts sent to a tier in pieces: after every piece the session's IDs must be those of the whole text so far.

ADDRESS  of the tier's gRPC, HOST:PORT; MODEL, TOKEN and CA (a file) where it asks for them

Ends with 1 at the first session whose IDs differ, and prints what was sent as lengths and code points.
"""

import os
import random
import sys
import uuid

from toktier_tier.client import TierClient, Tls

FORMS = {
    "words": "The quick brown fox isn't there, we've said; they'll see 3.14159 and 1,000,000 of them.",
    "marks": "e\u0301a\u0308\u0323o\u0302 \u0915\u094d\u0937\u093f \u1100\u1161\u11a8 Z\u0351\u036b\u0343",
    "line ends": "one\r\ntwo\rthree\n\n\r\n\tfour \r\n \n  five\u2028six\u0085seven",
    "blanks": " a  b   c\t\td \u00a0e\u3000f \u200b\u200dg \ufeffh  ",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f3fd",
    "flags": "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \u2764\ufe0f1\ufe0f\u20e3",
    "scripts": "漢字かな交じり文\u3001한국어 문장 ภาษาไทย العربية עברית Ελληνικά русский",
    "case": "camelCaseHTTPServer2Go SHOUTINGandwhispering \u0130i\u0131I \ufb01\ufb02 \u1e9e\u00df",
    "contractions": "'s 'S 't 'RE 've 'm 'LL 'd o'clock rock'n'roll '''s " + "'S" * 40 + "aB",
    "numbers": "1 12 123 1234 12345678901234567890 0x1F 1e-9 \u0661\u0662\u0663 \u00bd\u2167 \u2075",
    "code": "def f(x):\n\treturn {'a': [x**2 for _ in range(3)]}  # != == => ->\n\n\n    if (a&&b)||!c {}",
    "odd code points": "\u0000\u0001\u007f\u00ad\ufffd\ufffe\U0010fffd\U000e0001\u1acf\U00011de0",
    "chat": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nso</think>\n<|im_end|>\n<|endoftext|>",
    "chat of headers": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|python_tag|>",
    "chat of brackets": "<s>[INST] Hi [/INST] so </s><bos><start_of_turn>user\nHi<end_of_turn>\n<pad><unk>",
    "chat of tools": '<tool_call>{"name": "f"}</tool_call><tool_response>1</tool_response><|tool|_call|>',
    "nearly added": "<|im_start|<|im_start||im_start|><|im_<|im_end|>start|> <|endoftext <<|endoftext|>>",
}
RUNS = {
    "one letter": "a" * 6_000,
    "blanks": " " * 5_000 + "x",
    "line ends": "\r\n" * 3_000,
    "digits": "7" * 5_001,
    "marks": "e" + "\u0301" * 3_000,
    "ideographs": "\u6f22\u5b57" * 2_500,
    "signs": "=" * 4_000 + "-" * 4_001,
    "added tokens": "<|im_end|>\n" * 500,
    "apostrophes": "'S" * 201 + "aB",
}
MOST_CUTS = 120
"""A text of so many characters is cut in two at each of them, a longer one at a dozen."""


def splits(text: str, chooser: random.Random) -> list[list[str]]:
    """The text in two at every place, a character at a time, and in random pieces."""
    places = range(1, len(text))
    if len(places) > MOST_CUTS:
        places = sorted(chooser.sample(places, min(12, len(places))))
    found = [[text[:place], text[place:]] for place in places]
    if len(text) <= MOST_CUTS:
        found.append(list(text))
    for most in (3, 40):
        pieces, at = [], 0
        while at < len(text):
            end = at + chooser.randint(1, max(most, len(text) // 60))
            pieces.append(text[at:end])
            at = end
        found.append(pieces)
    return found


def differs(tier: TierClient, pieces: list[str]) -> str:
    """Sends them; empty if every answer was right, otherwise where it wasn't."""
    name = f"seams-{uuid.uuid4()}"
    session, text = tier.open(name, pieces[0]), pieces[0]
    for number, piece in enumerate(pieces[1:], 1):
        session.append(piece)
        text += piece
        if number != len(pieces) - 1 and number % 16:
            continue  # the whole text is asked for after some of the pieces only
        whole = tier.encode(text).tolist()
        if session.ids.tolist() != whole:
            told = " ".join(f"{ord(each):x}" for each in text[-20:])
            return (
                f"after piece {number}, {len(text)} characters: {len(session.ids)} IDs for {len(whole)}; ends in {told}"
            )
    session.close()
    return ""


def main() -> int:
    environment = os.environ
    tls = Tls(ca=environment["CA"]) if environment.get("CA") else None
    model, token = environment.get("MODEL", ""), environment.get("TOKEN", "")
    chooser = random.Random(20)
    sessions = 0
    with TierClient(environment["ADDRESS"], model=model, token=token, tls=tls, timeout_s=60) as tier:
        for kind, texts in (("form", FORMS), ("run", RUNS)):
            for name, text in texts.items():
                for pieces in splits(text, chooser):
                    wrong = differs(tier, pieces)
                    sessions += 1
                    if wrong:
                        print(f"WRONG IDS: {kind} {name!r} in {len(pieces)} pieces, {wrong}")
                        return 1
                print(f"{kind} {name!r}: exact")
        for each in tier.snapshots():
            how = "by the reference only" if each.quarantined else f"{each.verdict}, {each.encoder or 'reference'}"
            print(f"tokenizer {each.name}: {how}")
    print(f"{sessions} sessions, all exact")
    return 0


if __name__ == "__main__":
    sys.exit(main())
