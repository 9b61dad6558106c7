"""A TokTier's spec."""

from __future__ import annotations

from ...api.quantities import quantity
from ...api.toktier_spec import GpuMode, TokTierSpec
from .addresses import check_address, check_cidr
from .containers import check_env, check_resources, check_volumes
from .findings import Findings, Notes, repeated

TOKENIZER_BYTES = 256 << 20
"""What a pod takes at least for a tokenizer, beside its sessions."""


def validate_toktier(spec: TokTierSpec, name: str, namespace: str) -> Findings:
    """`name` and `namespace`: of the TokTier itself."""
    notes = Notes()
    _check_tokenizers(notes, spec)
    _check_upstream(notes, spec, name, namespace)
    _check_size(notes, spec)
    _check_sessions(notes, spec)
    _check_limits(notes, spec)
    _check_rollout(notes, spec)
    _check_network(notes, spec)
    check_resources(notes, "spec.resources", spec.resources)
    check_env(notes, "spec.podTemplate.env", spec.pod_template.env)
    check_volumes(notes, "spec.podTemplate", spec.pod_template.volumes, spec.pod_template.volume_mounts)
    return notes.findings()


def _check_tokenizers(notes: Notes, spec: TokTierSpec) -> None:
    called: dict[str, int] = {}
    for index, each in enumerate(spec.tokenizers):
        for word in dict.fromkeys((each.served_name, *each.models)):
            other = called.setdefault(word, index)
            if other != index:
                notes.error(
                    f"spec.tokenizers[{index}]",
                    f"requests for {word} are tokenizers[{other}]'s already; take the name out of one of them",
                )
        if each.untrusted_roles and not each.chat:
            notes.warning(
                f"spec.tokenizers[{index}].untrustedRoles", "chats of this tokenizer aren't rendered here (chat: false)"
            )


def _check_upstream(notes: Notes, spec: TokTierSpec, name: str, namespace: str) -> None:
    upstream = spec.upstream
    if upstream is None:
        return
    own = _own_hosts(name, namespace)
    service = upstream.service
    if service is not None and (service.namespace or namespace) == namespace and service.name in own:
        notes.error("spec.upstream.service", f"{service.name} is this TokTier's own Service; name the one of SGLang")
    for index, url in enumerate(upstream.urls):
        path = f"spec.upstream.urls[{index}]"
        if check_address(notes, path, url) in own:
            notes.error(path, f"{url} is this TokTier's own Service; name the one of SGLang")
    timeouts = upstream.timeouts
    for key, value in (
        ("connect", timeouts.connect_s),
        ("firstByte", timeouts.first_byte_s),
        ("idle", timeouts.idle_s),
        ("total", timeouts.total_s),
    ):
        if not value:
            notes.error(f"spec.upstream.timeouts.{key}", "0 lets no request through; give it some time")
        elif value > timeouts.total_s:
            said = f"{value:g}s is more than total ({timeouts.total_s:g}s)"
            if key == "connect":
                notes.error(f"spec.upstream.timeouts.{key}", f"{said}; lower it or raise total")
            else:
                notes.warning(f"spec.upstream.timeouts.{key}", f"{said}, which ends the answer before")


def _own_hosts(name: str, namespace: str) -> frozenset[str]:
    services = (name, f"{name}-pods")
    return frozenset(
        f"{service}{ending}"
        for service in services
        for ending in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    )


def _check_size(notes: Notes, spec: TokTierSpec) -> None:
    resources, scaling, gpu = spec.resources, spec.autoscaling, spec.gpu
    if scaling is not None and scaling.min_replicas > scaling.max_replicas:
        notes.error("spec.autoscaling.minReplicas", "is more than maxReplicas; lower it or raise maxReplicas")
    asked_for = resources.requests.keys() | resources.limits.keys()
    if scaling is not None and scaling.cpu_percent and "cpu" not in asked_for:
        notes.warning("spec.autoscaling", "CPU is measured against resources.requests.cpu, which isn't given")
    if gpu.mode is not GpuMode.OFF and gpu.resource_name in asked_for:
        notes.error(
            f"spec.resources: {gpu.resource_name}", "the operator asks for it because of spec.gpu; take it out here"
        )
    memory = resources.limits.get("memory")
    needed = len(spec.tokenizers) * (TOKENIZER_BYTES + spec.sessions.budget_bytes)
    if memory is not None and quantity(memory) < needed:
        notes.warning(
            "spec.resources.limits.memory",
            f"{memory} is less than the tokenizers and their sessions' budgets may take ({needed >> 20}Mi)",
        )


def _check_sessions(notes: Notes, spec: TokTierSpec) -> None:
    sessions, shadow = spec.sessions, spec.shadow
    if not sessions.ttl_s:
        notes.error("spec.sessions.ttl", "0 keeps no session; give it some time")
    if not sessions.budget_bytes:
        notes.error("spec.sessions.budget", "0 keeps no session; give it some bytes")
    if sessions.tenant_budget_bytes > sessions.budget_bytes:
        notes.error(
            "spec.sessions.tenantBudget",
            f"{sessions.tenant_budget_bytes} bytes are more than budget has, {sessions.budget_bytes}; lower it",
        )
    if not shadow.queue_bytes and shadow.rate:
        notes.error("spec.shadow.queueBytes", "0 lets no answer be checked; raise it, or set rate to 0")
    if not shadow.rate:
        notes.warning("spec.shadow.rate", "0: a wrong ID would be noticed by witnesses and probes alone")


def _check_limits(notes: Notes, spec: TokTierSpec) -> None:
    limits = spec.limits
    for key, bytes_ in (("bodyBytes", limits.body_bytes), ("messageBytes", limits.message_bytes)):
        if not bytes_:
            notes.error(f"spec.limits.{key}", "0 lets no request through; raise it")
        if limits.tenant_bytes < bytes_:
            notes.error(
                "spec.limits.tenantBytes",
                f"{limits.tenant_bytes} bytes are less than one request may have ({key}, {bytes_}); raise it",
            )
    if limits.header_bytes < 1024:
        notes.error(
            "spec.limits.headerBytes", f"{limits.header_bytes} bytes hold no request's head; give it 1Ki or more"
        )
    for key, seconds in (
        ("bodyTimeout", limits.body_s),
        ("idsTimeout", limits.ids_s),
        ("headerTimeout", limits.header_s),
    ):
        if not seconds:
            notes.error(f"spec.limits.{key}", "0 lets no request through; give it some time")
    if not limits.keep_alive_s.is_integer():
        notes.error("spec.limits.keepAlive", f"{limits.keep_alive_s:g}s isn't in whole seconds; round it")


def _check_rollout(notes: Notes, spec: TokTierSpec) -> None:
    replicas = spec.autoscaling.min_replicas if spec.autoscaling else spec.replicas
    if spec.rollout.canary and replicas == 1:
        notes.warning("spec.rollout.canary", "one pod is all there is: a new snapshot goes to everybody at once")
    if spec.drain.linger_s < 1 and replicas > 1:
        notes.warning("spec.drain.linger", "less than 1s: requests may still be sent to a pod that has gone")
    budget = spec.pod_disruption_budget
    if budget.enabled and budget.max_unavailable in (0, "0%"):
        notes.warning("spec.podDisruptionBudget.maxUnavailable", "0: no node with one of the pods can be drained")


def _check_network(notes: Notes, spec: TokTierSpec) -> None:
    for index, peer in enumerate(spec.network_policy.peers):
        block = peer.get("ipBlock")
        if block:
            path = f"spec.networkPolicy.from[{index}].ipBlock"
            check_cidr(notes, path, str(block.get("cidr", "")), tuple(map(str, block.get("except") or ())))
    if spec.gateway is not None and spec.security.tls is not None:
        notes.warning("spec.gateway", "the pods speak TLS: the Gateway needs a BackendTLSPolicy for the Service")
    tls = spec.security.tls
    for name in repeated(each.name for each in tls.clients) if tls is not None else ():
        notes.error("spec.security.tls.clients", f"{name} is there twice; take one out")
