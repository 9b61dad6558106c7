"""Tokenizers made ready to serve, as the settings name them.

Guarantees: each snapshot is loaded and admitted once, however many names share it; what is returned has encoded a probe
as its reference does. A fast path that hasn't is off from the start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .app import open_tokenizer
from .core.errors import InvalidTokenizer
from .core.snapshot import SpecialTokenPolicy
from .engine.chat_files import load_chat_template
from .engine.chat_template import ChatRenderer, Server
from .pods.held import PodSessions
from .sessions.registry import Registry, Served
from .sessions.service import SessionService
from .settings import TierSettings, TokenizerSettings, faults_allowed
from .shadow.apart import ReferenceApart
from .shadow.evidence import EvidenceFolder
from .shadow.faults import plant_wrong_ids
from .shadow.sampler import Sampler
from .shadow.verifier import Verifier
from .sources import default_cache_dir, load_source
from .tokenizer import TierTokenizer

PROBE = "def hello(name):\n    return f'Hi {name}, naïve 中文 🙂!'  # 12345\r\n\n\n  <|im_start|>user\n" * 8
log = logging.getLogger("toktier")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What there is to serve. Verifiers are by the first name of their tokenizer."""

    registry: Registry
    renderers: dict[str, ChatRenderer]
    verifiers: dict[str, Verifier]


class Tokenizers:
    """Opens what the settings name; what is the same file under the same policy is opened once."""

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._opened: dict[tuple[str, SpecialTokenPolicy], TierTokenizer] = {}

    def open(self, each: TokenizerSettings) -> TierTokenizer:
        settings = self._settings
        key = (hashlib.sha256(load_source(each.source).data).hexdigest(), each.special_tokens)
        found = self._opened.get(key)
        if found is None:
            directory = Path(settings.compiled_dir) if settings.compiled_dir else default_cache_dir() / "compiled"
            found = open_tokenizer(
                each.source, policy=each.special_tokens, compiled_dir=directory, budget_s=settings.admission_s
            )
            if not encodes_as_its_reference(found):
                found.quarantine()
                log.error("tokenizer %s: its probe isn't encoded as by the reference, quarantined", each.name)
            self._opened[key] = found
        return found


def encodes_as_its_reference(tokenizer: TierTokenizer) -> bool:
    try:
        return bool(tokenizer.encode_text(PROBE).tolist() == tokenizer.reference.encode_text(PROBE).tolist())
    except Exception as error:
        log.error("the probe failed: %s", type(error).__name__)
        return False


def load(settings: TierSettings) -> Loaded:
    """Takes seconds to minutes. Raises the coded errors of sources, snapshots and templates."""
    tokenizers, verifiers = Tokenizers(settings), _Verifiers(settings)
    served: list[Served] = []
    for each in settings.tokenizers:
        served.append(_served(settings, each, tokenizers.open(each), verifiers, served))
    registry = Registry(served)
    found = {each.name: _renderer(each, registry) for each in settings.tokenizers if each.chat_template}
    renderers = {name: renderer for name, renderer in found.items() if renderer is not None}
    return Loaded(registry, renderers, verifiers.by_name)


class _Verifiers:
    """One for each tokenizer, whatever its names."""

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._by_fingerprint: dict[str, Verifier] = {}
        self.by_name: dict[str, Verifier] = {}

    def of(self, name: str, tokenizer: TierTokenizer) -> Verifier:
        found = self._by_fingerprint.get(tokenizer.fingerprint)
        if found is not None:
            return found
        shadow = self._settings.shadow
        if shadow.fault_rate:
            plant_wrong_ids(tokenizer, rate=shadow.fault_rate, seed=0, allow=faults_allowed())
        found = self._by_fingerprint[tokenizer.fingerprint] = self.by_name[name] = Verifier(
            tokenizer,
            queue_samples=shadow.queue,
            queue_bytes=shadow.queue_bytes,
            apart=ReferenceApart(tokenizer.reference.snapshot) if shadow.process and shadow.rate else None,
            evidence=EvidenceFolder(Path(shadow.samples) if shadow.samples else None, redact=shadow.redact),
            on_divergence=lambda found: log.error("tokenizer %s: quarantined, %r", name, found),
        )
        return found


def _served(
    settings: TierSettings,
    each: TokenizerSettings,
    tokenizer: TierTokenizer,
    verifiers: _Verifiers,
    others: Sequence[Served],
) -> Served:
    """With several pods, the names of one snapshot share its sessions: other pods know it by its fingerprint."""
    limits, several = settings.sessions, settings.pods.several
    if several:
        twin = next((other for other in others if other.tokenizer is tokenizer), None)
        if twin is not None:
            return Served(each.name, each.models, tokenizer, twin.sessions)
    sampler = Sampler(verifiers.of(each.name, tokenizer), rate=settings.shadow.rate, randomness=random.Random())
    kind = PodSessions if several else SessionService
    sessions = kind(
        tokenizer,
        budget_bytes=limits.budget_bytes,
        tenant_budget_bytes=limits.tenant_budget_bytes or None,
        ttl_s=limits.ttl_s,
        keep_text=limits.keep_text,
        max_text_chars=limits.max_text_chars,
        observer=sampler,
        on_quarantine=lambda reason: log.error("tokenizer %s: quarantined, %s", each.name, reason),
    )
    return Served(each.name, each.models, tokenizer, sessions)


def _renderer(each: TokenizerSettings, registry: Registry) -> ChatRenderer | None:
    """None where SGLang would know a special token that the tokenizer.json doesn't: it then matches in text."""
    template = load_chat_template(Path(each.chat_template))
    reference = registry.find(each.name).tokenizer.reference
    known = {token.content for token in reference.added_tokens()}
    unknown = sorted(set(template.special_tokens.values()) - known)
    if unknown:
        log.error("tokenizer %s: chats go on as text, %s are no added tokens", each.name, unknown[:5])
        return None
    prefix, suffix = reference.fixed_template()
    bos = template.special_tokens.get("bos_token", "")
    model = _model_config(Path(each.chat_template))
    return ChatRenderer(
        template.text,
        special_tokens=template.special_tokens,
        server=Server(
            empty_text_ids=prefix + suffix,
            bos_id=reference.id_of(bos) if bos else None,
            model_type=str(model.get("model_type", "")),
            architecture=str(next(iter(model.get("architectures") or ()), "")),
            reasoning_parser=each.reasoning_parser or None,
            tool_call_parser=each.tool_call_parser or None,
        ),
        content_format=template.content_format,
        untrusted_roles=each.untrusted_roles,
        message_ends=0,
    )


def _model_config(directory: Path) -> dict[str, Any]:
    """The model's config.json, if it lies there: some models' chats SGLang encodes in its own way."""
    try:
        document = json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidTokenizer("chat.config", f"the model's config.json can't be read: {error}"[:200]) from None
    return document if isinstance(document, dict) else {}
