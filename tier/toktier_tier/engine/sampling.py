"""How the engine samples, with SGLang's defaults written out: a protobuf field that isn't set reads as zero, which is
none of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Sampling:
    """One output's sampling parameters; the names are SGLang's. Raises `InvalidRequest` (`engine.sampling`).

    max_new_tokens  None: as many as the engine's own default lets
    regex, json_schema, ebnf, structural_tag  at most one of them
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks = {
            "temperature": self.temperature >= 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k == -1 or self.top_k >= 1,
            "min_p": 0 <= self.min_p <= 1,
            "frequency_penalty": -2 <= self.frequency_penalty <= 2,
            "presence_penalty": -2 <= self.presence_penalty <= 2,
            "repetition_penalty": 0 < self.repetition_penalty <= 2,
            "max_new_tokens": self.max_new_tokens is None or 0 <= self.max_new_tokens < 1 << 31,
            "min_new_tokens": 0 <= self.min_new_tokens <= (self.max_new_tokens or 1 << 30),
            "stop_token_ids": all(0 <= each < 1 << 31 for each in self.stop_token_ids),
            "stream_interval": self.stream_interval is None or self.stream_interval >= 1,
            "regex": sum(each is not None for each in self.constraints().values()) <= 1,
            "logit_bias": all(math.isfinite(each) for each in self.logit_bias.values()),
        }
        for name, holds in checks.items():
            if not holds:
                raise InvalidRequest("engine.sampling", f"{name} is out of range", field=name)
        if not math.isfinite(self.temperature):
            raise InvalidRequest("engine.sampling", "temperature is out of range", field="temperature")

    def constraints(self) -> dict[str, str | None]:
        return {
            "regex": self.regex,
            "json_schema": self.json_schema,
            "ebnf": self.ebnf,
            "structural_tag": self.structural_tag,
        }
