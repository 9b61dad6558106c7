"""What a tier is told at its start: one YAML file, read once, refused as a whole if anything in it is unknown.

Environment: `TOKTIER_ALLOW_FAULTS=1` lets tests inject wrong IDs; nothing else is read from it here.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .core.errors import InvalidRequest
from .core.snapshot import SpecialTokenPolicy

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """source: see `sources`; models: names that requests use; chat_template: the model's directory, if any.

    The parsers are those that SGLang was started with: some of them change what a chat's text is.
    """

    name: str
    source: str
    models: tuple[str, ...] = ()
    policy: str = "none"
    chat_template: str = ""
    reasoning_parser: str = ""
    tool_call_parser: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.source:
            raise InvalidRequest("settings.value", "a tokenizer has a name and a source")
        if self.policy.upper() not in SpecialTokenPolicy.__members__:
            raise InvalidRequest("settings.value", f"policy {self.policy!r} is none or template")

    @property
    def special_tokens(self) -> SpecialTokenPolicy:
        return SpecialTokenPolicy[self.policy.upper()]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    budget_bytes: int = 1 << 30
    ttl_s: float = 3_600.0
    keep_text: bool = True
    max_text_chars: int = 64 << 20


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """rate: share of answers checked; samples: directory for what diverged, none if empty.

    fault_rate: share of an encoder's answers that are made wrong on purpose; only where `faults_allowed`.
    """

    rate: float = 0.05
    queue: int = 256
    queue_bytes: int = 256 << 20
    samples: str = ""
    redact: bool = True
    fault_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidRequest("settings.value", "shadow.rate is a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The SGLang servers behind the tier; without URLs only IDs are served.

    protocol: http (URLs), or smg or native for SGLang's two gRPC services (host:port), which take `/generate` only.
    """

    urls: tuple[str, ...] = ()
    protocol: str = "http"
    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    total_s: float = 3_600.0

    def __post_init__(self) -> None:
        if self.protocol not in ("http", "smg", "native"):
            raise InvalidRequest("settings.value", "upstream.protocol is http, smg or native")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """otlp: address of a collector (host:port) for spans, none if empty; trace_ratio: share of requests traced."""

    otlp: str = ""
    otlp_insecure: bool = True
    trace_ratio: float = 0.01


@dataclass(frozen=True, slots=True)
class TierSettings:
    tokenizers: tuple[TokenizerSettings, ...]
    grpc: str = "127.0.0.1:50051"
    http: str = "127.0.0.1:8080"
    compiled_dir: str = ""
    admission_s: float = 10.0
    threads: int = 4
    waiting: int = 256
    sessions: SessionSettings = field(default_factory=SessionSettings)
    shadow: ShadowSettings = field(default_factory=ShadowSettings)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    def __post_init__(self) -> None:
        if not self.tokenizers:
            raise InvalidRequest("settings.value", "at least one tokenizer is served")


def load_settings(path: Path) -> TierSettings:
    """Raises `InvalidRequest` (`settings.*`), naming the key that is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest("settings.unreadable", f"{path}: {error.strerror}") from None
    return parse_settings(data)


def parse_settings(data: bytes) -> TierSettings:
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest("settings.too_large", "the settings are larger than they can be", limit=MAX_FILE_BYTES)
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest("settings.not_yaml", f"not YAML: {error}"[:300]) from None
    found = _read(TierSettings, document, "")
    assert isinstance(found, TierSettings)
    return found


def faults_allowed() -> bool:
    return os.environ.get("TOKTIER_ALLOW_FAULTS") == "1"


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a settings class, a tuple of something, or a plain value."""
    if dataclasses.is_dataclass(kind):
        return _read_mapping(kind, value, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise InvalidRequest("settings.type", f"{where} is a list")
        inner = typing.get_args(kind)[0]
        return tuple(_read(inner, each, f"{where}[{index}]") for index, each in enumerate(value))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidRequest("settings.type", f"{where} is of type {kind.__name__}")
    if isinstance(value, int | float) and value < 0:
        raise InvalidRequest("settings.value", f"{where} isn't negative")
    return value


def _read_mapping(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidRequest("settings.type", f"{where or 'the file'} is a mapping")
    kinds = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    unknown = [str(key) for key in value if key not in kinds]
    if unknown:
        raise InvalidRequest("settings.unknown_key", f"{prefix}{unknown[0][:80]} is no setting")
    missing = [
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        and each.name not in value
    ]
    if missing:
        raise InvalidRequest("settings.missing", f"{prefix}{missing[0]} is missing")
    return kind(**{key: _read(kinds[key], each, f"{prefix}{key}") for key, each in value.items()})
