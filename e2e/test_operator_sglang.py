"""The real SGLang beside a real Kubernetes: chats through a TokTier's Service are what they are without it.

SGLang is a process at the node's address; one TokTier is given its URL, one a Service whose only endpoint it is.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

sys.path.insert(0, str(Path(__file__).parent / "operated"))
sys.path.insert(0, str(Path(__file__).parent / "sglang"))

from harness import Sglang, free_port, serve
from tiny_model import write_model

from agent_session import plain_text
from catalog import path_of
from installing import install, is_installed, operator_command
from kube import Json, admitted, apply, cluster_ip, condition, get, kubectl, rolled_out, until
from onenode.cluster import Cluster
from onenode.kubernetes import Kubernetes
from onenode.place import Place

E2E = Path(__file__).parent
FAMILY = "gpt2-novelai"  # small enough for a ConfigMap
NAMESPACE = f"behind-{secrets.token_hex(3)}"
MODEL, SOURCE = "tiny", "tiny-files"
TIERS = ("by-url", "by-service")
SERVICE = "sglang"
NODE = "192.0.2.10"
END = "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|endoftext|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "unk_token": END}
TURNS, USER_CHARS, NEW_TOKENS = 4, 700, 8
AGAIN_S, LOST_S = 45.0, 150.0
"""More than the operator takes to look again at an upstream that is away, and at one that is there."""

pytestmark = pytest.mark.timeout(900)


@dataclass
class Beside:
    """SGLang, which can be ended and started again at its address, and the TokTiers in front of it."""

    model_dir: Path
    port: int = field(default_factory=free_port)
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://{NODE}:{self.port}"

    def start(self) -> Sglang:
        flags = ("--host", "0.0.0.0", "--served-model-name", MODEL)
        return self._running.enter_context(serve(self.model_dir, *flags, port=self.port))

    def stop(self) -> None:
        self._running.close()


@dataclass(frozen=True)
class Answer:
    text: str
    finish: str | None
    prompt_tokens: int
    cached_tokens: int


def ask(url: str, messages: list[dict[str, str]], salt: str, *, stream: bool) -> Answer:
    """One chat turn by the OpenAI client library, with the KV cache that `salt` names."""
    asked: Any = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": NEW_TOKENS}
    asked |= {"extra_body": {"cache_salt": salt}}
    with client_of(url) as client:
        if not stream:
            answer = client.chat.completions.create(**asked)
            text, finish, usage = answer.choices[0].message.content or "", answer.choices[0].finish_reason, answer.usage
        else:
            text, finish, usage = "", None, None
            for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
    assert usage is not None
    details = usage.prompt_tokens_details
    return Answer(text, finish, usage.prompt_tokens, (details.cached_tokens or 0) if details is not None else 0)


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=httpx.Client(trust_env=False))


def tier_url(name: str) -> str:
    return f"http://{cluster_ip(name, NAMESPACE)}:8080"


def metrics(name: str, meter: str) -> dict[str, float]:
    """Label sets, as the page spells them, to values."""
    page = httpx.get(f"{tier_url(name)}/metrics", trust_env=False).text
    return {labels: float(value) for labels, value in re.findall(rf"^{meter}\{{(.*)\}} (\S+)$", page, re.MULTILINE)}


def ids_events(name: str) -> dict[str, int]:
    """What became of token IDs that the tier handed to SGLang: `matched` is by SGLang's own count of them."""
    found = {}
    for labels, value in metrics(name, "toktier_engine_events").items():
        if 'event="ids"' in labels:
            (reason,) = re.findall(r'reason="([^"]*)"', labels)
            found[reason] = found.get(reason, 0) + int(value)
    return found


def reachable(name: str) -> tuple[str, str]:
    found = condition(get("toktier", name, NAMESPACE), "UpstreamReachable")
    return found.get("status", ""), found.get("reason", "")


def admission() -> Json:
    spec = {
        "source": {"configMap": {"name": SOURCE, "key": "tokenizer.json.gz"}},
        "encoders": [],
        "campaign": {"budget": "1s"},
    }
    return {"apiVersion": "toktier.dev/v1alpha1", "kind": "TokenizerAdmission", "metadata": {"name": MODEL}} | {
        "spec": spec
    }


def toktier(name: str, upstream: Json) -> Json:
    spec = {
        "replicas": 1,
        "tokenizers": [{"admission": MODEL, "models": [MODEL]}],
        "upstream": upstream,
        "shadow": {"rate": 1.0},
        "security": {"openMetrics": True},
    }
    return {"apiVersion": "toktier.dev/v1alpha1", "kind": "TokTier", "metadata": {"name": name}, "spec": spec}


def service(port: int) -> Json:
    """Without a selector: its endpoints are told by `endpoints`."""
    spec = {"ports": [{"name": "http", "port": 30000, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": spec}


def endpoints(port: int, *, ready: bool) -> Json:
    labels = {"kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "toktier-e2e"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{SERVICE}-by-hand", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [NODE], "conditions": {"ready": ready}}],
    }


@pytest.fixture(scope="module")
def operator(
    cluster: Kubernetes, own_cluster: Cluster | None, image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if own_cluster is None:
        pytest.skip("SGLang is a process at the address of our own cluster's node")
    if not is_installed():
        install(operator_command(), tmp_path_factory.mktemp("operator"), image, own_cluster)


@pytest.fixture(scope="module")
def beside(operator: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """All of it, served: SGLang starts while the tokenizer is admitted."""
    for command in (["-m", "catalog", FAMILY], [str(E2E / "sglang" / "install.py")]):
        subprocess.run([*Place.outside(), sys.executable, *command], cwd=E2E.parent / "benchmarks", check=True)
    model_dir = write_model(
        tmp_path_factory.mktemp("tiny") / "model",
        tokenizer=path_of(FAMILY).read_bytes(),
        settings=SETTINGS,
        template=TEMPLATE,
    )
    kubectl("create", "namespace", NAMESPACE)
    put_source(model_dir)
    found = Beside(model_dir)
    apply(admission(), toktier("by-url", {"urls": [found.url]}), namespace=NAMESPACE)
    apply(toktier("by-service", {"service": {"name": SERVICE, "port": 30000}}), namespace=NAMESPACE)
    try:
        found.start()
        admitted(MODEL, NAMESPACE)
        until(lambda: reachable("by-service") == ("False", "UpstreamMissing"), AGAIN_S, "there is no Service yet")
        apply(service(found.port), endpoints(found.port, ready=True), namespace=NAMESPACE)
        for name in TIERS:
            rolled_out(name, NAMESPACE)
        yield found
    finally:
        found.stop()
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def put_source(model_dir: Path) -> None:
    """All that the tier takes of the model's folder."""
    packed = gzip.compress((model_dir / "tokenizer.json").read_bytes(), mtime=0)
    beside = ("tokenizer_config.json", "chat_template.jinja", "config.json")
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SOURCE},
        "binaryData": {"tokenizer.json.gz": base64.b64encode(packed).decode()},
        "data": {name: (model_dir / name).read_text() for name in beside},
    }
    kubectl("create", "--namespace", NAMESPACE, "--filename", "-", stdin=json.dumps(manifest))


# --- the tests, in order ------------------------------------------------------------------------------------------


def test_conditions_say_what_is_known_of_the_upstream(beside: Beside) -> None:
    assert reachable("by-url") == ("Unknown", "NotChecked")
    until(lambda: reachable("by-service") == ("True", "UpstreamReady"), AGAIN_S, "the Service has an endpoint")
    status = (get("tokenizeradmission", MODEL, NAMESPACE) or {})["status"]
    assert status["current"]["chatTemplate"] is True


@pytest.mark.parametrize("name", TIERS)
def test_a_conversation_gives_the_same_as_without_the_tier(beside: Beside, name: str) -> None:
    tier, source = tier_url(name), plain_text(TURNS * USER_CHARS, 57)
    messages = [{"role": "system", "content": "You are an agent: naïve, 中文, 🙂."}]
    cached = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": source[turn * USER_CHARS : (turn + 1) * USER_CHARS]})
        for stream in (False, True):
            text, ids = (
                ask(url, messages, f"{name} {way} {stream}", stream=stream)
                for url, way in ((beside.url, "text"), (tier, "ids"))
            )
            assert text == ids
            cached += ids.cached_tokens
        messages.append({"role": "assistant", "content": text.text or "."})
    assert cached > 0
    body = {"model": MODEL, "messages": messages}
    straight, through = (
        httpx.post(f"{url}/v1/tokenize", json=body, timeout=60, trust_env=False).json()["tokens"]
        for url in (beside.url, tier)
    )
    assert straight == through
    assert ids_events(name) == {"matched": 2 * TURNS}
    assert metrics(name, "toktier_passed_through") == {}
    diverged = [value for labels, value in metrics(name, "toktier_shadow_samples").items() if "diverged" in labels]
    assert sum(diverged) == 0


@pytest.mark.slow
def test_without_sglang_a_tier_says_so_and_serves_again_with_it(beside: Beside) -> None:
    beside.stop()
    apply(endpoints(beside.port, ready=False), namespace=NAMESPACE)
    messages = [{"role": "user", "content": "Anybody there?"}]
    for name in TIERS:
        for stream in (False, True):
            with pytest.raises(APIStatusError) as caught:
                ask(tier_url(name), messages, "away", stream=stream)
            assert caught.value.status_code == 503
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["code"] in ("engine.unreachable", "engine.unavailable")
        body = {"model": MODEL, "prompt": "IDs are served"}
        answer = httpx.post(f"{tier_url(name)}/tokenize", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert httpx.get(f"{tier_url(name)}/ready", trust_env=False).status_code == 200
    until(lambda: reachable("by-service") == ("False", "UpstreamNotReady"), LOST_S, "no endpoint is ready")
    assert reachable("by-url") == ("Unknown", "NotChecked")

    beside.start()
    apply(endpoints(beside.port, ready=True), namespace=NAMESPACE)
    straight = ask(beside.url, messages, "text", stream=False)
    for name in TIERS:
        assert answered(name, messages) == straight
    until(lambda: reachable("by-service") == ("True", "UpstreamReady"), AGAIN_S, "the Service has an endpoint again")


def answered(name: str, messages: list[dict[str, str]]) -> Answer:
    """What the tier answers once it tries its upstream again."""

    def look() -> Answer | None:
        try:
            return ask(tier_url(name), messages, f"back {name}", stream=False)
        except APIStatusError as error:
            if error.status_code != 503:
                raise
            return None

    found: Answer = until(look, 60, f"{name} serves again")
    return found
