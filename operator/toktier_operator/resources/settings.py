"""The settings of a tier's pods (`tier.yaml`), as `toktier_tier.settings` reads them."""

from __future__ import annotations

import hashlib
from typing import Any

from ..api.rollout import Composition, Served
from ..api.tier_settings import Protocol, Tls, Upstream
from ..api.toktier_spec import GpuMode, TokTierSpec, Unadmitted
from . import names, paths
from .flow import yaml_lines
from .owned import Json, Owner


def settings_config_map(owner: Owner, spec: TokTierSpec, composition: Composition) -> Json:
    """Immutable, and named by its content: a pod has one for life, and a change is a new template."""
    text = yaml_lines(tier_settings(owner, spec, composition))
    name = names.settings(owner.name, hashlib.sha256(text.encode()).hexdigest())
    return owner.manifest("v1", "ConfigMap", name) | {"immutable": True, "data": {names.SETTINGS_KEY: text}}


def tier_settings(owner: Owner, spec: TokTierSpec, composition: Composition) -> Json:
    sessions, shadow, telemetry, routing = spec.sessions, spec.shadow, spec.telemetry, spec.routing
    settings: Json = {
        "tokenizers": [_tokenizer(each) for each in composition.tokenizers],
        # A snapshot may be for the reference alone also where unadmitted ones are refused: an upgrade was rejected.
        "unadmitted": "refuse"
        if spec.unadmitted is Unadmitted.REFUSE and all(each.accelerated for each in composition.tokenizers)
        else "reference",
        "http": f"0.0.0.0:{paths.HTTP_PORT}",
        "grpc": f"0.0.0.0:{paths.GRPC_PORT}",
        "threads": routing.threads,
        "waiting": routing.waiting,
        "sessions": {
            "budget_bytes": sessions.budget_bytes,
            "tenant_budget_bytes": sessions.tenant_budget_bytes,
            "ttl_s": sessions.ttl_s,
            "keep_text": sessions.keep_text,
            "max_text_chars": sessions.max_text_chars,
        },
        "shadow": {
            "rate": shadow.rate,
            "queue": shadow.queue,
            "queue_bytes": shadow.queue_bytes,
            "samples": paths.SAMPLES if shadow.samples else "",
            "redact": shadow.redact,
            "process": shadow.process,
        },
        "telemetry": {
            "otlp": telemetry.otlp_endpoint,
            "otlp_insecure": telemetry.otlp_insecure,
            "trace_ratio": telemetry.trace_ratio,
        },
        "security": _security(spec),
        "limits": _limits(spec),
        "pods": _pods(owner, spec),
        "kubernetes": {
            "namespace": owner.namespace,
            "control": names.control(owner.name),
            "reports": names.reports(owner.name),
        },
    }
    if spec.gpu.mode is not GpuMode.OFF:
        settings["gpu"] = {"mode": spec.gpu.mode.value.lower()}
    if spec.upstream is not None:
        settings["upstream"] = _upstream(owner, spec.upstream)
    return settings


def upstream_urls(owner: Owner, upstream: Upstream) -> list[str]:
    """HOST:PORT for SGLang's gRPC services, URLs otherwise."""
    service = upstream.service
    if service is None:
        return list(upstream.urls)
    address = f"{service.name}.{service.namespace or owner.namespace}.svc:{service.port}"
    return [f"{service.scheme}://{address}" if upstream.protocol is Protocol.HTTP else address]


def _tokenizer(served: Served) -> Json:
    found: dict[str, Any] = {
        "name": served.name,
        "source": f"{paths.snapshot(served.id)}/tokenizer.json",
        "models": list(served.models),
        "policy": served.policy or "none",
        "admission": served.id,
        "sha256": served.sha256,
        "fingerprint": served.fingerprint,
        "compiled_dir": paths.compiled(served.id) if served.accelerated else "",
        "chat_template": paths.snapshot(served.id) if served.template and served.render else "",
        "reasoning_parser": served.reasoning_parser,
        "tool_call_parser": served.tool_call_parser,
        "untrusted_roles": list(served.untrusted_roles),
    }
    return {key: value for key, value in found.items() if value not in ("", [])}


def _upstream(owner: Owner, upstream: Upstream) -> Json:
    timeouts, secret = upstream.timeouts, upstream.auth_secret
    return {
        "urls": upstream_urls(owner, upstream),
        "protocol": upstream.protocol.value.lower(),
        "connect_s": timeouts.connect_s,
        "first_byte_s": timeouts.first_byte_s,
        "idle_s": timeouts.idle_s,
        "total_s": timeouts.total_s,
        "api_key_file": f"{paths.UPSTREAM}/{secret.key}" if secret is not None else "",
        "pass_authorization": upstream.pass_authorization,
    }


def _security(spec: TokTierSpec) -> Json:
    security = spec.security
    found: Json = {"anonymous_tenant": security.anonymous_tenant, "open_metrics": security.open_metrics}
    if security.tokens_secret is not None:
        found["tokens"] = f"{paths.TOKENS}/{security.tokens_secret.key}"
    if security.tls is not None:
        found["tls"] = _tls(security.tls)
    return found


def _tls(tls: Tls) -> Json:
    found: Json = {"certificate": f"{paths.TLS}/tls.crt", "key": f"{paths.TLS}/tls.key"}
    if tls.client_ca is not None:
        reference = tls.client_ca.config_map or tls.client_ca.secret
        assert reference is not None
        found["client_ca"] = f"{paths.CLIENT_CA}/{reference.key}"
    if tls.tenant_from:
        found["tenant_from"] = tls.tenant_from
    if tls.clients:
        found["clients"] = [
            {"name": each.name, "tenant": each.tenant, "roles": list(each.roles)} for each in tls.clients
        ]
    return found


def _limits(spec: TokTierSpec) -> Json:
    limits = spec.limits
    return {
        "requests": limits.requests,
        "tenant_requests": limits.tenant_requests,
        "tenant_bytes": limits.tenant_bytes,
        "body_bytes": limits.body_bytes,
        "message_bytes": limits.message_bytes,
        "body_s": limits.body_s,
        "ids_s": limits.ids_s,
        "connections": limits.connections,
        "header_bytes": limits.header_bytes,
        "header_s": limits.header_s,
        "keep_alive_s": max(round(limits.keep_alive_s), 1),
    }


def _pods(owner: Owner, spec: TokTierSpec) -> Json:
    found: Json = {
        "endpoint_slices": {
            "namespace": owner.namespace,
            "service": names.headless_service(owner.name),
            "port_name": "grpc",
        },
        "token_file": f"{paths.PEERS}/{names.TOKEN_KEY}",
        "drain_s": spec.drain.hand_over_s,
        "linger_s": spec.drain.linger_s,
    }
    tls = spec.security.tls
    if tls is not None:
        # Every pod has the same certificate, so that is what the others trust in it, whoever signed it.
        server_name = tls.server_name or f"{owner.name}.{owner.namespace}.svc"
        found["tls"] = {"ca": f"{paths.TLS}/tls.crt", "server_name": server_name}
    return found
