"""Settings are read as a whole or refused by the name of what is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_tier.core.errors import InvalidRequest
from toktier_tier.core.snapshot import SpecialTokenPolicy
from toktier_tier.settings import (
    ClientSettings,
    KubernetesSettings,
    PodSettings,
    TierSettings,
    load_settings,
    own_name,
    parse_settings,
)

SMALLEST = b"tokenizers: [{name: a, source: /tokenizer.json}]"


def test_the_smallest_file_has_every_default() -> None:
    settings = parse_settings(SMALLEST)
    assert settings.tokenizers[0].name == "a"
    assert settings.tokenizers[0].special_tokens is SpecialTokenPolicy.NONE
    assert (settings.shadow.rate, settings.sessions.keep_text, settings.upstream.urls) == (0.05, True, ())
    assert not settings.pods.several


def test_every_key_is_read() -> None:
    settings = parse_settings(
        b"""
grpc: 0.0.0.0:1
tokenizers:
- {name: a, source: b, models: [m, n], policy: template, chat_template: /t, admission: a-1, compiled_dir: /c}
sessions: {budget_bytes: 5, ttl_s: 7, keep_text: false}
shadow: {rate: 1, samples: /s, redact: false}
upstream: {urls: ["http://u:1"], total_s: 9.5}
telemetry: {otlp: "c:4317", trace_ratio: 0.5}
security:
  tokens: /t
  anonymous_tenant: all
  open_metrics: false
  tls:
    certificate: /c
    key: /k
    client_ca: /a
    tenant_from: uri
    clients: [{name: "spiffe://x/pods", tenant: tier, roles: [peer]}]
limits: {tenant_requests: 5, ids_s: 2, body_bytes: 1000}
unadmitted: refuse
kubernetes: {namespace: n, control: t-control, reports: t-reports}
pods:
  name: one
  peers: ["one=h:1", "two=h:2"]
  token_file: /p
  tls: {ca: /a, server_name: tier}
  drain_s: 3
"""
    )
    assert settings.security.tls.clients == (ClientSettings("spiffe://x/pods", "tier", ("peer",)),)
    assert (settings.security.tokens, settings.security.open_metrics) == ("/t", False)
    assert (settings.pods.peers, settings.pods.drain_s, settings.pods.several) == (("one=h:1", "two=h:2"), 3.0, True)
    assert (settings.pods.tls.server_name, settings.pods.token_file, own_name(settings.pods)) == ("tier", "/p", "one")
    assert (settings.limits.tenant_requests, settings.limits.ids_s, settings.limits.body_bytes) == (5, 2.0, 1_000)
    assert (settings.kubernetes, settings.unadmitted) == (KubernetesSettings("n", "t-control", "t-reports"), "refuse")
    assert (settings.tokenizers[0].admission, settings.tokenizers[0].compiled_dir) == ("a-1", "/c")
    assert settings.grpc == "0.0.0.0:1"
    assert settings.tokenizers[0].models == ("m", "n")
    assert settings.tokenizers[0].special_tokens is SpecialTokenPolicy.TEMPLATE
    assert (settings.sessions.ttl_s, settings.shadow.rate, settings.upstream.total_s) == (7.0, 1.0, 9.5)


@pytest.mark.parametrize(
    ("data", "code", "name"),
    [
        (b"", "settings.type", "the file"),
        (b"tokenizers: []", "settings.value", ""),
        (b"{}", "settings.missing", "tokenizers"),
        (SMALLEST + b"\nsharks: 3", "settings.unknown_key", "sharks"),
        (b"tokenizers: [{name: a, source: b, modles: []}]", "settings.unknown_key", "tokenizers[0].modles"),
        (b"tokenizers: [{name: a}]", "settings.missing", "tokenizers[0].source"),
        (b"tokenizers: [{name: '', source: b}]", "settings.value", ""),
        (b"tokenizers: [{name: a, source: b, policy: all}]", "settings.value", "policy"),
        (b"tokenizers: {name: a}", "settings.type", "tokenizers"),
        (b"tokenizers: [{name: a, source: b, sha256: ABC}]", "settings.value", "sha256"),
        (b"tokenizers: [{name: a, source: b, fingerprint: " + b"F" * 64 + b"}]", "settings.value", "fingerprint"),
        (b"tokenizers: [{name: a, source: b, admission: A/1}]", "settings.value", "admission"),
        (SMALLEST + b"\nunadmitted: maybe", "settings.value", "unadmitted"),
        (SMALLEST + b"\nkubernetes: {control: t-control}", "settings.value", "kubernetes"),
        (SMALLEST + b"\nkubernetes: {namespace: ../n}", "settings.value", "kubernetes.namespace"),
        (SMALLEST + b"\nthreads: '4'", "settings.type", "threads"),
        (SMALLEST + b"\nthreads: true", "settings.type", "threads"),
        (SMALLEST + b"\nthreads: -1", "settings.value", "threads"),
        (SMALLEST + b"\nshadow: {rate: 1.5}", "settings.value", "shadow.rate"),
        (SMALLEST + b"\nsecurity: {tls: {key: /k}}", "settings.value", "security.tls"),
        (SMALLEST + b"\nsecurity: {tls: {client_ca: /k}}", "settings.value", "client_ca"),
        (SMALLEST + b"\nsecurity: {tls: {certificate: /c, key: /k, client_ca: /a}}", "settings.value", "tenant_from"),
        (SMALLEST + b"\nsecurity: {tls: {tenant_from: cn}}", "settings.value", "client_ca"),
        (SMALLEST + b"\nsecurity: {tls: {tenant_from: san}}", "settings.value", "tenant_from"),
        (SMALLEST + b"\nsecurity: {tls: {clients: [{name: a}]}}", "settings.missing", "clients[0].tenant"),
        (SMALLEST + b"\nlimits: {tenant_bytes: 1000}", "settings.value", "limits.tenant_bytes"),
        (SMALLEST + b"\npods: {peers: ['a=h:1'], dns: 'h:1'}", "settings.value", "one of"),
        (SMALLEST + b"\npods: {endpoint_slices: {service: s}}", "settings.value", "pods.endpoint_slices"),
        (SMALLEST + b"\npods: {tls: {key: /k}}", "settings.value", "pods.tls"),
        (SMALLEST + b"\npods: {answer_s: 0}", "settings.value", "pods.answer_s"),
        (SMALLEST + b"\nlimits: {requests: 0}", "settings.value", "limits.requests"),
        (SMALLEST + b"\nupstream: {api_key_file: /k, protocol: smg}", "settings.value", "api_key_file"),
        (SMALLEST + b"\nupstream: {api_key_file: /k, pass_authorization: true}", "settings.value", "api_key_file"),
        (b"a: [", "settings.not_yaml", ""),
        (b"\xff\xfe\x00", "settings.not_yaml", ""),
        (b"a: !!python/object/apply:os.system [x]", "settings.not_yaml", ""),
        (b" " * (1 << 20) + b" ", "settings.too_large", ""),
    ],
)
def test_what_is_wrong_is_named(data: bytes, code: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_settings(data)
    assert caught.value.code == code
    assert name in caught.value.message


def test_a_file_that_cannot_be_read_is_an_error_with_a_code(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_settings(tmp_path / "none.yaml")
    assert caught.value.code == "settings.unreadable"


@given(st.binary(max_size=60) | st.text(alphabet="ab:[]{}-\n '\"&*!|>", max_size=40).map(str.encode))
def test_no_bytes_do_worse_than_a_coded_error(data: bytes) -> None:
    with suppress(InvalidRequest):
        assert isinstance(parse_settings(data), TierSettings)


def test_a_pod_is_known_by_what_kubernetes_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "tier-0")
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    assert own_name(PodSettings(peers=("tier-0=h:1",))) == "tier-0"
    assert own_name(PodSettings(dns="tier:50051")) == "10.0.0.7:50051"
    monkeypatch.setenv("POD_IP", "fd00::7")
    assert own_name(PodSettings(dns="tier:50051")) == "[fd00::7]:50051"
    monkeypatch.delenv("POD_NAME")
    monkeypatch.delenv("POD_IP")
    assert own_name(PodSettings(peers=("x=h:1",)))  # the host's
    with pytest.raises(InvalidRequest) as caught:
        own_name(PodSettings(dns="tier:50051"))
    assert caught.value.code == "pods.name"
