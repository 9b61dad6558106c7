"""What a tier is told at its start: one YAML file, read once, refused as a whole if anything in it is unknown.

Environment: `TOKTIER_ALLOW_FAULTS=1` lets tests inject wrong IDs, and then `TOKTIER_FAULT_RATE` takes the place of
`shadow.fault_rate`; `POD_NAME` and `POD_IP` tell who this pod is, where the file doesn't. Nothing else is read from it
here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from .core.errors import InvalidRequest
from .core.snapshot import SpecialTokenPolicy

MAX_FILE_BYTES = 1 << 20
ADMIT, REFERENCE, REFUSE = "admit", "reference", "refuse"
"""What becomes of a tokenizer without a compiled snapshot that fits: a campaign, the reference only, no service."""
GpuMode = Literal["off", "preferred", "required"]
_HEX64 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """source: see `sources`; models: names that requests use; chat_template: the model's directory, if any.

    untrusted_roles: of chat messages in whose content no added token is recognized, `tool` for example.
    The parsers are those that SGLang was started with: some of them change what a chat's text is.
    sha256: of the tokenizer.json, or of the source with what lies beside it (`sources.files`); fingerprint: of the
    snapshot. Where one is given and isn't what is there, nothing is served (`snapshot.mismatch`).
    compiled_dir: where its compiled snapshot is, if not where all are; admission: the id of the admission that it is
    from, by which the operator knows it.
    """

    name: str
    source: str
    models: tuple[str, ...] = ()
    policy: str = "none"
    chat_template: str = ""
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    untrusted_roles: tuple[str, ...] = ()
    sha256: str = ""
    fingerprint: str = ""
    compiled_dir: str = ""
    admission: str = ""

    def __post_init__(self) -> None:
        for name in ("sha256", "fingerprint"):
            if getattr(self, name) and _HEX64.fullmatch(getattr(self, name)) is None:
                raise InvalidRequest("settings.value", f"a tokenizer's {name} is 64 lower-case hex digits")
        if self.admission and _NAME.fullmatch(self.admission) is None:
            raise InvalidRequest("settings.value", "a tokenizer's admission is a name as Kubernetes takes them")
        if not self.name or not self.source:
            raise InvalidRequest("settings.value", "a tokenizer has a name and a source")
        if self.policy.upper() not in SpecialTokenPolicy.__members__:
            raise InvalidRequest("settings.value", f"policy {self.policy!r} is none or template")

    @property
    def special_tokens(self) -> SpecialTokenPolicy:
        return SpecialTokenPolicy[self.policy.upper()]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """budget_bytes: of each tokenizer's sessions; tenant_budget_bytes: of one tenant's, 0 for all of it."""

    budget_bytes: int = 1 << 30
    tenant_budget_bytes: int = 0
    ttl_s: float = 3_600.0
    keep_text: bool = True
    max_text_chars: int = 64 << 20


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """rate: share of answers checked; samples: directory for what diverged, none if empty.

    process: the reference encodes in a process of its own (some 0.2 GB a tokenizer), out of the requests' way.
    fault_rate: share of an encoder's answers that are made wrong on purpose; only where `faults_allowed`.
    """

    rate: float = 0.05
    queue: int = 256
    queue_bytes: int = 256 << 20
    samples: str = ""
    redact: bool = True
    process: bool = True
    fault_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidRequest("settings.value", "shadow.rate is a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The SGLang servers behind the tier; without URLs only IDs are served.

    protocol: http (URLs), or smg or native for SGLang's two gRPC services (host:port), which take `/generate` only.
    api_key_file: SGLang's own key, sent with every request; pass_authorization: send the client's `Authorization`
    also where the tier itself checks tokens (it always goes on where the tier doesn't and has no key of its own).
    """

    urls: tuple[str, ...] = ()
    protocol: str = "http"
    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    total_s: float = 3_600.0
    api_key_file: str = ""
    pass_authorization: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in ("http", "smg", "native"):
            raise InvalidRequest("settings.value", "upstream.protocol is http, smg or native")
        if self.api_key_file and (self.protocol != "http" or self.pass_authorization):
            raise InvalidRequest("settings.value", "upstream.api_key_file is for http, in the place of the client's")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """otlp: address of a collector (host:port) for spans, none if empty; trace_ratio: share of requests traced."""

    otlp: str = ""
    otlp_insecure: bool = True
    trace_ratio: float = 0.01


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """name: the common name or a URI of a client's certificate; roles: user or peer."""

    name: str
    tenant: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: `certificate` (with its chain) and `key` for TLS, `client_ca` for mTLS.

    tenant_from: cn or uri names the tenant of every client; otherwise `clients` list who is let in.
    """

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    tenant_from: str = ""
    clients: tuple[ClientSettings, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise InvalidRequest("settings.value", "security.tls has a certificate and its key, or neither")
        if self.client_ca and not self.certificate:
            raise InvalidRequest("settings.value", "security.tls.client_ca needs a certificate of the tier's own")
        if self.tenant_from not in ("", "cn", "uri"):
            raise InvalidRequest("settings.value", "security.tls.tenant_from is cn or uri")
        if (self.tenant_from or self.clients) and not self.client_ca:
            raise InvalidRequest("settings.value", "clients are told apart by certificates of security.tls.client_ca")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """tokens: a file of digests (see `transport.tokens`); open_metrics: whether /metrics needs no credential.

    Without tokens and client certificates everybody is `anonymous_tenant`.
    """

    tokens: str = ""
    anonymous_tenant: str = "default"
    open_metrics: bool = True
    tls: TlsSettings = field(default_factory=TlsSettings)

    def __post_init__(self) -> None:
        tls = self.tls
        if tls.client_ca and not (self.tokens or tls.tenant_from or tls.clients):
            raise InvalidRequest("settings.value", "security.tls.client_ca goes with tenant_from, clients or tokens")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """requests, tenant_requests: under way at once, of all and of one tenant; tenant_bytes: of one tenant's requests
    body_bytes, message_bytes: the largest HTTP body and gRPC message
    body_s: how long a body may take to come; ids_s: how long an HTTP request may wait for its IDs
    connections, header_bytes, header_s, keep_alive_s: of the HTTP port
    """

    requests: int = 8_192
    tenant_requests: int = 4_096
    tenant_bytes: int = 1 << 30
    body_bytes: int = 256 << 20
    message_bytes: int = 256 << 20
    body_s: float = 60.0
    ids_s: float = 60.0
    connections: int = 8_192
    header_bytes: int = 64 << 10
    header_s: float = 30.0
    keep_alive_s: int = 75

    def __post_init__(self) -> None:
        if self.tenant_bytes < max(self.body_bytes, self.message_bytes):
            raise InvalidRequest("settings.value", "limits.tenant_bytes is less than one request may have")
        for name in ("requests", "tenant_requests", "body_s", "ids_s", "connections", "header_bytes", "header_s"):
            if not getattr(self, name):
                raise InvalidRequest("settings.value", f"limits.{name} is more than none")


@dataclass(frozen=True, slots=True)
class EndpointSliceSettings:
    """The pods of a Service, as Kubernetes tells them; `port_name` of the Service's gRPC port."""

    namespace: str = ""
    service: str = ""
    port_name: str = "grpc"

    def __post_init__(self) -> None:
        if bool(self.namespace) != bool(self.service):
            raise InvalidRequest("settings.value", "pods.endpoint_slices has a namespace and a service")


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """PEM files for calls to other pods, where the tier serves TLS: by default its own, and its `client_ca`.

    server_name: in every pod's certificate, since pods are called by their addresses.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise InvalidRequest("settings.value", "pods.tls has a certificate and its key, or neither")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Other pods of the tier (docs/pods.md). Without peers, dns and endpoint_slices this is the only one.

    name         of this pod among them; default: POD_NAME, or the host's name; with dns: POD_IP and dns's port
    peers        all pods, this one too: NAME=HOST:PORT
    dns          HOST:PORT of a headless Service
    token_file   the token of a peer, sent to the others; without one, TLS tells who this is
    connect_s, answer_s     how long another pod may take to be reached, and to answer
    health_s     every so often the others are asked whether they serve; 0: their source knows
    drain_s      how long handing over may take when this pod leaves
    linger_s     how long it goes on serving at least, until everybody knows that it isn't ready
    """

    name: str = ""
    peers: tuple[str, ...] = ()
    dns: str = ""
    endpoint_slices: EndpointSliceSettings = field(default_factory=EndpointSliceSettings)
    token_file: str = ""
    tls: PeerTlsSettings = field(default_factory=PeerTlsSettings)
    connect_s: float = 0.5
    answer_s: float = 5.0
    health_s: float = 1.0
    drain_s: float = 20.0
    linger_s: float = 5.0

    def __post_init__(self) -> None:
        if sum(map(bool, (self.peers, self.dns, self.endpoint_slices.service))) > 1:
            raise InvalidRequest("settings.value", "pods has one of peers, dns and endpoint_slices")
        for name in ("connect_s", "answer_s"):
            if not getattr(self, name):
                raise InvalidRequest("settings.value", f"pods.{name} is more than none")

    @property
    def several(self) -> bool:
        return bool(self.peers or self.dns or self.endpoint_slices.service)


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Long texts on a GPU (docs/gpu.md).

    mode             off; preferred: where one works, else the CPU serves; required: nothing is served without one
    device           as torch names it, `cuda:1`; default: the first one visible
    threshold_chars  texts of as many characters go there; 0: measured at the start, for each tokenizer
    memory_bytes     of the device, for the text at work; 0: the kernels' default
    admission_s      of the campaign at the start, where a compiled snapshot has no verdict on the GPU; 0: none is run
    """

    mode: GpuMode = "off"
    device: str = ""
    threshold_chars: int = 0
    memory_bytes: int = 0
    admission_s: float = 10.0


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """The ConfigMaps by which the operator and this pod tell each other of quarantines, in `namespace`.

    control: its key `quarantined` lists admission ids; reports: this pod adds a key for each of its ids that it found
    wrong. Empty: neither is used.
    """

    namespace: str = ""
    control: str = ""
    reports: str = ""

    def __post_init__(self) -> None:
        for name in ("namespace", "control", "reports"):
            if getattr(self, name) and _NAME.fullmatch(getattr(self, name)) is None:
                raise InvalidRequest("settings.value", f"kubernetes.{name} is a name as Kubernetes takes them")
        if (self.control or self.reports) and not self.namespace:
            raise InvalidRequest("settings.value", "kubernetes.control and kubernetes.reports are in a namespace")

    @property
    def used(self) -> bool:
        return bool(self.control or self.reports)


@dataclass(frozen=True, slots=True)
class TierSettings:
    """unadmitted: what becomes of a tokenizer without a compiled snapshot that fits: `admit` (a campaign is run here,
    of `admission_s`), `reference` (the reference alone serves it), `refuse` (`snapshot.unadmitted`, nothing is served).
    admission_memory_bytes: what the process may take in which a tokenizer is tried that isn't known yet; 0: 8 GiB, or
    most of the memory that is free.
    """

    tokenizers: tuple[TokenizerSettings, ...]
    grpc: str = "127.0.0.1:50051"
    http: str = "127.0.0.1:8080"
    compiled_dir: str = ""
    admission_s: float = 10.0
    admission_memory_bytes: int = 0
    unadmitted: str = ADMIT
    threads: int = 4
    waiting: int = 256
    sessions: SessionSettings = field(default_factory=SessionSettings)
    shadow: ShadowSettings = field(default_factory=ShadowSettings)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    pods: PodSettings = field(default_factory=PodSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)

    def __post_init__(self) -> None:
        if not self.tokenizers:
            raise InvalidRequest("settings.value", "at least one tokenizer is served")
        if self.unadmitted not in (ADMIT, REFERENCE, REFUSE):
            raise InvalidRequest("settings.value", "unadmitted is admit, reference or refuse")


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


def injected_fault_rate() -> float:
    """What TOKTIER_FAULT_RATE says, where faults are allowed; 0 otherwise. Raises `InvalidRequest` (`faults.rate`)."""
    given = os.environ.get("TOKTIER_FAULT_RATE", "") if faults_allowed() else ""
    try:
        rate = float(given or 0)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise InvalidRequest("faults.rate", "TOKTIER_FAULT_RATE is a share from 0 to 1")
    return rate


def own_name(pods: PodSettings) -> str:
    """Of this pod among the others. Raises `InvalidRequest` (`pods.name`)."""
    if pods.name:
        return pods.name
    if not pods.dns:
        return os.environ.get("POD_NAME") or socket.gethostname()
    address = os.environ.get("POD_IP")
    if not address:
        raise InvalidRequest("pods.name", "with pods.dns a pod is known by its address: set pods.name or POD_IP")
    return (
        f"[{address}]:{pods.dns.rpartition(':')[2]}" if ":" in address else f"{address}:{pods.dns.rpartition(':')[2]}"
    )


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a settings class, a tuple of something, one of some words, or a plain value."""
    if dataclasses.is_dataclass(kind):
        return _read_mapping(kind, value, where)
    if typing.get_origin(kind) is Literal:
        words = typing.get_args(kind)
        word = "off" if value is False else value  # YAML 1.1 takes a bare off for a boolean
        if word not in words:
            raise InvalidRequest("settings.value", f"{where} is one of {', '.join(words)}")
        return word
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
