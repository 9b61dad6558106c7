"""The bars that the tier is held to, each with the ratio that was measured: pass or fail, nothing between.

A bar whose rows weren't measured in a run is left out. Ratios are of P50s of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .engines import GIGATOKEN, REFERENCE, TIER, WORKERS
from .peer_toktier import ENGINE as PEER
from .results import Results

FASTER_THAN_PEER = {100_000: 20.0, 1_000_000: 100.0, 4_400_000: 500.0}
ALPHABETS = ("agent", "ascii")
SMALL_DELTA, LARGE_DELTA, EDIT = 1_500, 100_000, 200
FLAT_FROM, FLAT_TO, FLAT = 10_000, 8_000_000, 2.0
CHAT_CHARS, CHAT_REFERENCE, CHAT_GIGATOKEN = 1_000_000, 15.0, 1.5
EDIT_RATIO = 3.0
STATE_BYTES = {True: 9.0, False: 5.0}


@dataclass(frozen=True, slots=True)
class Bar:
    """`measured` has to be at least, or at most, `bound`; `unit` is what both are in."""

    claim: str
    measured: float
    bound: float
    at_least: bool
    unit: str = "×"

    @property
    def holds(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def required(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{self.unit}"

    @property
    def value(self) -> str:
        return f"{self.measured:.3g}{self.unit}" if self.measured < 100 else f"{self.measured:,.0f}{self.unit}"


def bars(results: Results) -> list[Bar]:
    """Every bar that the rows of `results` decide."""
    return [*_appends(results), *_edits(results), *_cold(results), *_state(results)]


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _appends(results: Results) -> Iterator[Bar]:
    contexts = sorted({row.context_chars for row in results.rows if row.work == "append"})
    for text in ALPHABETS:

        def p50(engine: str, context_chars: int, delta_chars: int, text: str = text) -> float | None:
            return results.p50_us(
                work="append", engine=engine, context_chars=context_chars, delta_chars=delta_chars, text=text
            )

        for context, bound in FASTER_THAN_PEER.items():
            ratio = _ratio(p50(PEER, context, SMALL_DELTA), p50(TIER, context, SMALL_DELTA))
            if ratio is not None:
                yield Bar(f"append of 1.5 K at {short(context)}, {text} text: faster than {PEER}", ratio, bound, True)
        flat = _ratio(p50(TIER, FLAT_TO, SMALL_DELTA), p50(TIER, FLAT_FROM, SMALL_DELTA))
        if flat is not None:
            yield Bar(f"append of 1.5 K, {text} text: 8 M over 10 K", flat, FLAT, False)
        for context in contexts:
            ratio = _ratio(p50(TIER, context, LARGE_DELTA), p50(GIGATOKEN, context, LARGE_DELTA))
            if context >= 1_000_000 and ratio is not None:
                claim = f"append of 100 K at {short(context)}, {text} text: over a prewarmed gigatoken full encode"
                yield Bar(claim, ratio, 1.0, False)


def _edits(results: Results) -> Iterator[Bar]:
    for row in results.rows:
        if row.work == "edit" and row.engine == TIER:
            append = results.p50_us(
                work="append", engine=TIER, context_chars=row.context_chars, delta_chars=row.delta_chars
            )
            ratio = _ratio(row.p50_us, append)
            if ratio is not None:
                claim = f"tail edit of 200 at {short(row.context_chars)}: over an append of 200"
                yield Bar(claim, ratio, EDIT_RATIO, False)


def _cold(results: Results) -> Iterator[Bar]:
    chat = {"work": "cold_chat", "text": "chat"}
    reference = results.find(engine=REFERENCE, context_chars=CHAT_CHARS, **chat)
    for warm, name in ((False, "cold"), (True, "warm")):
        tier = results.p50_us(engine=TIER, context_chars=CHAT_CHARS, warm=warm, workers=WORKERS, **chat)
        bare = results.p50_us(
            work="cold_chat", engine=GIGATOKEN, text="chat without special tokens", of_chars=CHAT_CHARS, warm=warm
        )
        faster = _ratio(reference.p50_us if reference else None, tier)
        if faster is not None:
            yield Bar(f"chat of 1 M, encoders {name}: faster than the reference", faster, CHAT_REFERENCE, True)
        slower = _ratio(tier, bare)
        if slower is not None:
            claim = f"chat of 1 M, encoders {name}: over gigatoken on the text without special tokens"
            yield Bar(claim, slower, CHAT_GIGATOKEN, False)


def _state(results: Results) -> Iterator[Bar]:
    for state in results.states:
        if state.context_chars != CHAT_CHARS:
            continue
        kept = "text kept" if state.keep_text else "digests only"
        for how, value in (("accounted", state.accounted), ("measured", state.measured)):
            claim = f"state of {state.text} text, {kept}, {how}"
            yield Bar(claim, value, STATE_BYTES[state.keep_text], False, " B/token")


def short(chars: int) -> str:
    """10 K, 4.4 M."""
    return f"{chars / 1_000_000:g} M" if chars >= 1_000_000 else f"{chars / 1_000:g} K"
