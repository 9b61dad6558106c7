"""Parts of a TokTier's spec that become the pods' settings; docs/pods.md and docs/security.md tell what they mean."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .references import KeyReference
from .structure import SpecError, duration, size


class Protocol(enum.StrEnum):
    """HTTP, or SGLang's two gRPC services, which take `/generate` only."""

    HTTP = "HTTP"
    SMG = "SMG"
    NATIVE = "Native"


@dataclass(frozen=True, slots=True)
class UpstreamService:
    """namespace: empty for the TokTier's own."""

    name: str
    port: int
    namespace: str = ""
    scheme: str = "http"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """connect, first_byte: until SGLang took the connection, until its first byte; idle: between two; total: of all."""

    connect_s: float = duration("connect", 5.0)
    first_byte_s: float = duration("firstByte", 600.0)
    idle_s: float = duration("idle", 120.0)
    total_s: float = duration("total", 3_600.0)


@dataclass(frozen=True, slots=True)
class Upstream:
    """Either `service` or `urls` is set. auth_secret: SGLang's own key."""

    service: UpstreamService | None = None
    urls: tuple[str, ...] = ()
    protocol: Protocol = Protocol.HTTP
    auth_secret: KeyReference | None = None
    pass_authorization: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if (self.service is None) == (not self.urls):
            raise SpecError("spec.upstream", "has exactly one of service, urls")


@dataclass(frozen=True, slots=True)
class Sessions:
    """budget: of each tokenizer's sessions in a pod; tenant_budget: of one tenant's, 0 for all of it."""

    ttl_s: float = duration("ttl", 3_600.0)
    budget_bytes: int = size("budget", 1 << 30)
    tenant_budget_bytes: int = size("tenantBudget", 0)
    keep_text: bool = True
    max_text_chars: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Shadow:
    """samples: whether what diverged is kept in the pod until it ends, without text where `redact`."""

    rate: float = 0.05
    queue: int = 256
    queue_bytes: int = size("queueBytes", 256 << 20)
    samples: bool = False
    redact: bool = True
    process: bool = True


@dataclass(frozen=True, slots=True)
class Routing:
    """threads: for long calls; waiting: how many of them may wait for one."""

    threads: int = 4
    waiting: int = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """As `limits` in docs/security.md."""

    requests: int = 8_192
    tenant_requests: int = 4_096
    tenant_bytes: int = size("tenantBytes", 1 << 30)
    body_bytes: int = size("bodyBytes", 256 << 20)
    message_bytes: int = size("messageBytes", 256 << 20)
    body_s: float = duration("bodyTimeout", 60.0)
    ids_s: float = duration("idsTimeout", 60.0)
    connections: int = 8_192
    header_bytes: int = size("headerBytes", 64 << 10)
    header_s: float = duration("headerTimeout", 30.0)
    keep_alive_s: float = duration("keepAlive", 75.0)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """otlp_endpoint: HOST:PORT of a collector, empty for none; trace_ratio: share of requests."""

    otlp_endpoint: str = ""
    otlp_insecure: bool = True
    trace_ratio: float = 0.01


@dataclass(frozen=True, slots=True)
class Client:
    """name: common name or URI of a certificate; roles: user or peer."""

    name: str
    tenant: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientAuthority:
    """Exactly one is set."""

    config_map: KeyReference | None = None
    secret: KeyReference | None = None

    def __post_init__(self) -> None:
        if (self.config_map is None) == (self.secret is None):
            raise SpecError("spec.security.tls.clientCA", "has exactly one of configMap, secret")


@dataclass(frozen=True, slots=True)
class Tls:
    """secret_name: with `tls.crt` and `tls.key`. server_name: in the certificate, by which pods know each other;
    empty for NAME.NAMESPACE.svc. client_ca: makes it mTLS.
    """

    secret_name: str
    client_ca: ClientAuthority | None = field(default=None, metadata={"key": "clientCA"})
    tenant_from: str = ""
    clients: tuple[Client, ...] = ()
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Security:
    tokens_secret: KeyReference | None = None
    open_metrics: bool = True
    anonymous_tenant: str = "default"
    tls: Tls | None = None
