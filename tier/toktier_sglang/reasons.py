"""Why a request was tokenized by SGLang's own tokenizer, and why the plugin is off. Codes are append-only."""

from __future__ import annotations

from enum import StrEnum


class Own(StrEnum):
    """Of one request."""

    SHORT = "input.short"  # below TOKTIER_MIN_CHARS: the own tokenizer is faster than a round trip
    BATCH = "input.batch"  # several texts in one call
    PAIRS = "input.pairs"  # a cross encoder's query and document
    NOT_TEXT = "input.not_text"
    SURROGATE = "input.lone_surrogate"  # no UTF-8 for it
    OPTIONS = "input.options"  # the call has an option that isn't known here
    SPECIALS = "input.special_tokens"  # what this call adds around a text isn't known to be fixed
    EVENT_LOOP = "thread.event_loop"  # called on SGLang's event loop, which isn't kept waiting
    BUSY = "thread.busy"  # as many requests as may wait for the tier are waiting
    CHECKING = "plugin.checking"  # the tier's tokenizer hasn't been compared yet
    OFF = "plugin.off"  # for good; the log says why
    FAILED = "plugin.failed"  # a fault of the plugin; its traceback is in the log
    BREAKER = "tier.breaker_open"  # the tier failed several times in a row and is left alone for a while
    LATE = "tier.late"  # no answer within the time that the text's length allows
    UNREACHABLE = "tier.unreachable"
    OVERLOADED = "tier.overloaded"
    DENIED = "tier.denied"  # no credential, or one that doesn't allow it
    REFUSED = "tier.refused"  # an error code of the tier's that isn't about the state of a session
    CHANGED = "tier.other_snapshot"  # the tokenizer that was compared isn't served there any more
    NONSENSE = "answer.malformed"  # a patch for other IDs, or a message that no tier of this version sends
    UNKNOWN_IDS = "answer.unknown_ids"  # IDs beyond the vocabulary would end SGLang's scheduler
    EMPTY = "answer.empty"  # no IDs for a text


NOT_ALARMING = frozenset({Own.SHORT, Own.BATCH, Own.PAIRS, Own.NOT_TEXT})
"""Requests that are none of the plugin's: counted, not logged."""


class Off(StrEnum):
    """Of the plugin; final until SGLang is started again."""

    SETTINGS = "settings.invalid"
    SGLANG = "sglang.unknown_version"  # the functions to wrap aren't there, or take other arguments
    NO_TOKENIZER = "tokenizer.none"  # --skip-tokenizer-init
    NOT_FAST = "tokenizer.not_fast"  # no `tokenizers` backend under it
    NO_FILE = "tokenizer.no_file"  # no tokenizer.json that the tier could serve
    PIPELINE = "tokenizer.differs_from_file"  # SGLang or transformers changed it while loading
    NO_SPECIALS = "tokenizer.special_tokens"  # adds something around a text that isn't fixed
    FINGERPRINT = "tier.other_file"  # it serves another tokenizer.json under this name
    ADDS_TOKENS = "tier.adds_tokens"  # it serves this one with a policy other than `none`
    PROBE = "tier.other_ids"  # other IDs than SGLang's own tokenizer for a probe
    SHADOW = "shadow.other_ids"  # other IDs than SGLang's own tokenizer for a live request
    FAILED = "plugin.failed"


class PluginOff(Exception):
    """Raised where something is found that rules the plugin out."""

    def __init__(self, code: Off, detail: str) -> None:
        super().__init__(f"[{code.value}] {detail}")
        self.code, self.detail = code, detail


class UseOwn(Exception):
    """Raised where one request has to go to SGLang's own tokenizer."""

    def __init__(self, reason: Own, detail: str = "") -> None:
        super().__init__(f"[{reason.value}] {detail}")
        self.reason, self.detail = reason, detail
